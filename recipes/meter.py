"""Compute spent by a run: counted while it trains, kept across resumes, and estimated beforehand.

FLOPs follow the usual account of 2N a token of a forward pass and 6N a token of a forward and
backward pass (Kaplan et al., arXiv 2001.08361, section 2.1), N being the parameters that take part
in a token's matrix products: all but the input embedding, and of a mixture of experts those that
the token is sent to. Half of the backward pass is for the gradients of weights, and falls away for
those that are not trained: with T trained ones it is 4N + 2T (LoRA: T is of the adapters). The
quadratic term of attention is left out, and so are activations computed again, evaluation, saving
and the warm start. Nothing heavy is imported here.
"""

from __future__ import annotations

import string
from dataclasses import asdict, dataclass

from recipes.config import Budget, Model, RunConfig, Task

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
UNKNOWN = "<unk>"
DIGITS = "0123456789="
HEAD_WIDTH = 16
"""Of an attention head of the embedded model."""
FORWARD = 2
"""FLOPs a parameter and token: one multiplication and one addition."""
GRADIENT = 2
"""FLOPs a parameter and token for the gradient of activations, and as many for that of weights."""


@dataclass(frozen=True)
class Sizes:
    """Shape of the embedded model: a Llama with untied embeddings and no grouped attention."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int

    @property
    def matmul_parameters(self) -> int:
        """N: attention (4 matrices), MLP (3), norms (2) of a layer; the last norm; the LM head."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden


def vocabulary(task: Task) -> list[str]:
    """Tokens of the embedded model: characters, as few as the task needs, and special ones."""
    if task.name == "digits":
        thinking = f",{task.end_of_thinking}" if task.end_of_thinking else ""
        return [*SPECIAL_TOKENS, *dict.fromkeys(DIGITS + thinking)]
    return [*SPECIAL_TOKENS, UNKNOWN, *string.printable]


def embedded_sizes(model: Model, task: Task) -> Sizes:
    """The shape that `model.hidden_size` and `model.layers` stand for."""
    return Sizes(
        vocabulary=len(vocabulary(task)),
        hidden=model.hidden_size,
        intermediate=model.hidden_size * 5 // 2,
        layers=model.layers,
        heads=model.hidden_size // HEAD_WIDTH,
    )


def adapter_parameters(model: Model, task: Task) -> int:
    """Parameters of the LoRA adapters of the embedded model: rank x (inputs + outputs) of each."""
    sizes = embedded_sizes(model, task)
    wide, narrow = sizes.hidden + sizes.intermediate, 2 * sizes.hidden
    attention = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), narrow)
    mlp = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), wide)
    adapted = {**attention, **mlp}
    if model.lora_targets != ["all-linear"]:
        adapted = {name: size for name, size in adapted.items() if name in model.lora_targets}
    return model.lora_rank * sizes.layers * sum(adapted.values())


def parameter_count(model: Model, task: Task) -> int | None:
    """N of the embedded model; None for a Hugging Face model, which is not opened."""
    if not model.embedded:
        return None
    return embedded_sizes(model, task).matmul_parameters + adapter_parameters(model, task)


@dataclass
class Meter:
    """What a run has spent. `parameters` is N, `trained_parameters` T; None: all are trained.

    A token counts each time it is processed.

    A prompt is processed once for each of its completions, in generation (prefill) and again in
    training.
    """

    parameters: int = 0
    trained_parameters: int | None = None
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    """Through one more forward pass, for the behaviour policy's log-probabilities."""
    trained_tokens: int = 0
    device_seconds: float = 0.0
    """Training wall time x devices; a CPU run's devices are its threads, so it counts core time."""

    def rollout(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Counts a generated batch: prefilled prompts and new tokens."""
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens

    def score(self, tokens: int) -> None:
        """Counts a forward pass over prompts and completions."""
        self.scored_tokens += tokens

    def step(self, trained_tokens: int, device_seconds: float) -> None:
        """Counts an optimizer step: tokens through a forward and backward pass, and its time."""
        self.steps += 1
        self.trained_tokens += trained_tokens
        self.device_seconds += device_seconds

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def flops(self) -> float:
        """Of generation and training."""
        forward = self.tokens + self.scored_tokens + self.trained_tokens
        trained = self.parameters if self.trained_parameters is None else self.trained_parameters
        gradients = self.trained_tokens * (self.parameters + trained)
        return float(FORWARD * self.parameters * forward + GRADIENT * gradients)

    def compute(self) -> dict[str, float]:
        """Every compute axis by name: counts, floating-point operations and hours."""
        return {
            "steps": self.steps,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "scored_tokens": self.scored_tokens,
            "trained_tokens": self.trained_tokens,
            "tokens": self.tokens,
            "flops": self.flops,
            "gpu_hours": self.device_seconds / 3600,
        }

    def reached(self, budget: Budget) -> bool:
        """Whether the budget is spent."""
        return self.compute()[budget.axis] >= budget.amount

    def state(self) -> dict[str, float]:
        """To be kept in a checkpoint; ``Meter(**state)`` is the same meter."""
        return asdict(self)


def estimate(config: RunConfig) -> dict[str, float]:
    """Planned compute of the whole budget, as far as it can be told beforehand.

    Tokens and FLOPs are upper estimates: every prompt and every completion at full length. Absent
    are FLOPs for a model whose size is not known here, and all but GPU-hours for a budget in them.
    """
    budget = config.budget
    if budget.axis == "gpu_hours":
        return {"gpu_hours": budget.amount}
    adapters = adapter_parameters(config.model, config.task) if config.model.lora_rank else None
    meter = Meter(parameter_count(config.model, config.task) or 0, adapters)
    prompt, completion = config.task.prompt_tokens, config.task.max_completion_tokens
    meter.rollout(config.batch.size * prompt, config.batch.size * completion)
    if config.staleness.at_once > 1:
        meter.score(meter.tokens)
    meter.step(meter.tokens, 0.0)
    one = {name: value for name, value in meter.compute().items() if name != "gpu_hours"}
    if not meter.parameters:
        del one["flops"]
    if budget.axis not in one:
        return {budget.axis: budget.amount}
    steps = -(-budget.amount // one[budget.axis])
    return {name: steps * value for name, value in one.items()}
