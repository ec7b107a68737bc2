"""FLOPs as the meter counts them, against a count by hand, each matrix and each token written out.

The embedded model, Llama-3-8B and Mixtral-8x7B (a mixture of experts, of which a token passes
through two of eight), the last two by their configurations alone: on PyTorch's meta device a model
has shapes and no weights. Prints each and keeps them as JSON.

    python benchmarks/flops.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, PretrainedConfig

from recipes import models
from recipes.config import Model
from recipes.meter import Meter

RESULTS = Path(__file__).parent / "results" / "flops.json"
LLAMA = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
"""Llama-3-8B (arXiv 2407.21783, table 3)."""
MIXTRAL = MixtralConfig(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=2,
    tie_word_embeddings=False,
)
"""Mixtral-8x7B (arXiv 2401.04088, table 1): 46.7B parameters, 12.9B of them active."""

# One step of the paper's batch (arXiv 2510.13786): 48 prompts of 2,048 tokens, 16 completions each
# of 14,336; all are generated, scored once for the behaviour policy, and trained on.
COMPLETIONS, PROMPT, COMPLETION = 48 * 16, 2_048, 14_336


def by_hand(
    hidden: int, mlp: int, layers: int, vocabulary: int, key_value: int, experts: int, active: int
) -> dict[str, int]:
    """N of a Llama-shaped model, matrix by matrix, and FLOPs of one step of it.

    Args:
        hidden: Width.
        mlp: Width of the MLP, or of each expert.
        layers: Depth.
        vocabulary: Rows of the LM head, which is not the embedding.
        key_value: Width of the keys, and of the values.
        experts: Experts of a layer; 1: no router either.
        active: Those that a token passes through.
    """
    query_output = 2 * hidden * hidden
    keys_values = 2 * hidden * key_value
    gate_up_down = 3 * hidden * mlp
    router = experts * hidden if experts > 1 else 0
    norms = 2 * hidden
    layer = query_output + keys_values + active * gate_up_down + router + norms
    n = layers * layer + hidden + vocabulary * hidden
    tokens = COMPLETIONS * (PROMPT + COMPLETION)
    return {"parameters": n, "flops": 2 * n * tokens + 2 * n * tokens + 6 * n * tokens}


def metered(parameters: int) -> dict[str, int]:
    """What the meter counts of the same step."""
    meter = Meter(parameters)
    meter.rollout(COMPLETIONS * PROMPT, COMPLETIONS * COMPLETION)
    meter.score(meter.tokens)
    meter.step(meter.tokens, 0.0)
    return {"parameters": parameters, "flops": int(meter.flops)}


def parameters(config: PretrainedConfig) -> int:
    """N by our count, of a model without weights."""
    with torch.device("meta"):
        return models.matmul_parameters(AutoModelForCausalLM.from_config(config))


def counts() -> Mapping[str, tuple[dict[str, int], dict[str, int]]]:
    """By hand, and by the meter."""
    embedded = models._llama(Model(), models.character_tokenizer())
    return {
        "embedded": (by_hand(64, 160, 3, 14, 64, 1, 1), metered(parameters(embedded))),
        "Llama-3-8B": (
            by_hand(4096, 14_336, 32, 128_256, 1024, 1, 1),
            metered(parameters(LLAMA)),
        ),
        "Mixtral-8x7B": (
            by_hand(4096, 14_336, 32, 32_000, 1024, 8, 2),
            metered(parameters(MIXTRAL)),
        ),
    }


def main() -> int:
    """Compares, keeps, and returns 1 if they differ by more than the rounding of a float."""
    found = {}
    for name, (hand, meter) in counts().items():
        ratio = meter["flops"] / hand["flops"]
        found[name] = {"by_hand": hand, "metered": meter, "ratio": ratio}
        print(
            f"{name}: N {hand['parameters']:,} by hand, {meter['parameters']:,} metered; ", end=""
        )
        print(f"FLOPs of a step {hand['flops']:.6e} and {meter['flops']:.6e}, ratio {ratio:.9f}")
    record = {"transformers": transformers.__version__, "torch": torch.__version__, **found}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    exact = all(
        item["by_hand"]["parameters"] == item["metered"]["parameters"] for item in found.values()
    )
    return 0 if exact and all(abs(item["ratio"] - 1) < 1e-12 for item in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
