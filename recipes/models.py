"""The policy: the embedded model, built and warm-started here, or any Hugging Face causal LM."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from recipes import tasks
from recipes.config import ConfigError, Model, RunConfig, Task
from recipes.meter import CHARACTERS, SPECIAL_TOKENS, embedded_sizes
from recipes.tasks import Row

FORMAT = 1
"""Raised when the embedded model is made in another way: a new one is built beside the old."""
WARM_START_SEED = 0
WARM_START_BATCH = 128
WARM_START_LR = 1.1e-3
"""Measured: with 56 batches, a pass rate of 0.2 to 0.3 on four digits."""


def quiet() -> None:
    """Keeps libraries' progress bars and advice out of a run's log; errors still show."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", category=FutureWarning)


def load(config: RunConfig, models_dir: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy before training, in FP32, and its tokenizer with left padding.

    Raises:
        ConfigError: an FP32 head is asked of a model whose head is its input embedding.
            Or a Hugging Face model is neither on disk nor within reach.
    """
    embedded = config.model.embedded
    path = str(ensure_embedded(config, models_dir)) if embedded else config.model.path
    revision = config.model.revision or "main"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=torch.float32)
    except (OSError, ValueError) as error:
        allowed = "embedded, a folder with a model, or a Hugging Face id within reach"
        raise ConfigError("model.path", config.model.path, allowed) from error
    if config.precision.fp32_head and model.config.tie_word_embeddings:
        allowed = f"false, with {config.model.path}: its LM head is tied to its embedding"
        raise ConfigError("precision.fp32_head", True, allowed)
    return model, tokenizer


def matmul_parameters(model: PreTrainedModel) -> int:
    """Parameters in matrix products: all, but an input embedding that is not the LM head too."""
    total = sum(parameter.numel() for parameter in model.parameters())
    embedding = sum(p.numel() for p in model.get_input_embeddings().parameters())
    return total if model.config.tie_word_embeddings else total - embedding


def ensure_embedded(config: RunConfig, models_dir: Path) -> Path:
    """The folder of the warm-started embedded model, built if it is not there yet.

    One process builds, under a lock; others wait for it. Written aside and then renamed, so that a
    folder that exists is complete. The same for every run with this `model` and `task`.
    """
    target = models_dir / _key(config.model, config.task)
    if target.is_dir():
        return target
    models_dir.mkdir(parents=True, exist_ok=True)
    with (models_dir / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            aside = models_dir / f".partial-{target.name}"
            shutil.rmtree(aside, ignore_errors=True)
            _build(config, aside)
            aside.replace(target)
    return target


def _key(model: Model, task: Task) -> str:
    """A hash of everything the warm-started weights depend on."""
    parts = asdict(model) | {
        "format": FORMAT,
        "task": [task.name, task.min_digits, task.max_digits, task.eval_prompts],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _build(config: RunConfig, folder: Path) -> None:
    """Makes model and tokenizer in `folder`; leaves random state and threads as they were."""
    quiet()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums, in the same order, on every machine
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(WARM_START_SEED)
            tokenizer = character_tokenizer()
            model = LlamaForCausalLM(_llama(config.model, tokenizer))
            rows = tasks.load(config.task).train
            _warm_start(model, tokenizer, rows, config.model.warm_start_batches)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, and the three special ones; nothing is added to a text."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=None))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    pad, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos, padding_side="left"
    )


def _llama(model: Model, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    sizes = embedded_sizes(model)
    return LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,  # so that the LM head can be FP32 on its own
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _warm_start(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[Row], batches: int
) -> None:
    """A few supervised steps on training prompts, on the tokens of the answers alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_START_LR, weight_decay=0.0)
    model.train()
    for _ in range(batches):
        chosen = torch.randint(len(rows), (WARM_START_BATCH,)).tolist()
        ids, mask, labels = _supervised(tokenizer, [rows[index] for index in chosen])
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _supervised(
    tokenizer: PreTrainedTokenizerFast, rows: list[Row]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and labels, each (rows, tokens); -100 where no answer is to be learned."""
    texts = [row["prompt"] + row["answer"] + tokenizer.eos_token for row in rows]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    answers = torch.tensor([len(row["answer"]) + 1 for row in rows])
    learned = (
        torch.arange(ids.shape[1]) >= ids.shape[1] - answers[:, None]
    )  # padding is on the left
    return ids, mask, ids.masked_fill(~learned, -100)
