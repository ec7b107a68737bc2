"""The policy: the embedded model, built and warm-started here, or any Hugging Face causal LM."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import shutil
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from recipes.meter import SPECIAL_TOKENS, UNKNOWN, embedded_sizes, vocabulary
from recipes.tasks import own

FORMAT = 1
"""Raised when the embedded model is made in another way: a new one is built beside the old."""
WARM_START_SEED = 0
WARM_START_BATCH = 128
WARM_START_LR = 1.1e-3
WARM_START_BATCHES = {False: 56, True: 112}
"""Without and with thinking. Measured: a pass rate of 0.2 to 0.3 on four digits."""
UNLEARNED = ("temperature", "eval_samples")
"""Fields of a task that its warm start does not depend on."""


def quiet() -> None:
    """Keeps libraries' progress bars and advice out of a run's log; errors still show."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", category=FutureWarning)


def load(config: RunConfig, models_dir: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy before training, in FP32, with its adapters, and its tokenizer with left padding.

    Raises:
        ConfigError: a Hugging Face model is neither on disk nor within reach; or the task is longer
            than the model can read; or LoRA's targets are not in it.
    """
    embedded = config.model.embedded
    path = str(ensure_embedded(config, models_dir)) if embedded else config.model.path
    revision = config.model.revision or "main"
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, revision=revision, padding_side="left", trust_remote_code=False
        )
        model = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        allowed = "embedded, a folder with a model, or a Hugging Face id within reach"
        raise ConfigError("model.path", config.model.path, allowed) from error
    if embedded:  # its positions are rotations, made as they are needed
        model.config.max_position_embeddings = _positions(config.task)
    _check_context(config, model)
    return _adapted(model, config), tokenizer


def _positions(task: Task) -> int:
    """Of the embedded model."""
    return max(64, task.longest)


def _check_context(config: RunConfig, model: PreTrainedModel) -> None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions and config.task.longest > positions:
        given, prompt = config.task.max_completion_tokens, config.task.prompt_tokens
        allowed = f"at most {positions - prompt}: {config.model.path} reads {positions} tokens"
        raise ConfigError("task.max_completion_tokens", given, f"{allowed}, {prompt} of a prompt")


def adapters(model: Model) -> Any:  # noqa: ANN401
    """The ``LoraConfig`` of a model that is to have adapters; else None."""
    if not model.lora_rank:
        return None
    from peft import LoraConfig

    every = model.lora_targets == ["all-linear"]
    return LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules="all-linear" if every else model.lora_targets,
        task_type="CAUSAL_LM",
    )


def _adapted(model: PreTrainedModel, config: RunConfig) -> PreTrainedModel:
    """The model with LoRA adapters, made from the run's seed, if it is to have any."""
    lora = adapters(config.model)
    if lora is None:
        return model
    from peft import get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            adapted: PreTrainedModel = get_peft_model(model, lora)
        except ValueError as error:
            allowed = f"[all-linear], or names of matrices of {config.model.path}"
            raise ConfigError("model.lora_targets", config.model.lora_targets, allowed) from error
    return adapted


def matmul_parameters(model: PreTrainedModel, *, trained: bool = False) -> int:
    """Parameters in the matrix products of a token; `trained`: only those that are trained.

    All, but an input embedding that is not the LM head too, and of a mixture of experts the share
    that a token is sent to.
    """
    config = model.config.get_text_config()
    tied = model.config.tie_word_embeddings
    embedding = set() if tied else {*map(id, model.get_input_embeddings().parameters())}
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    experts = next((n for n in (getattr(config, name, None) for name in names) if n), 1)
    share = (getattr(config, "num_experts_per_tok", None) or experts) / experts
    counted = (
        parameter.numel() * (share if ".experts." in name else 1)
        for name, parameter in model.named_parameters()
        if id(parameter) not in embedding and (parameter.requires_grad or not trained)
    )
    return round(sum(counted))


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
    parts = task.parts or {task.name: task}
    basis = {
        "format": FORMAT,
        "model": {name: value for name, value in asdict(model).items() if "lora" not in name},
        "task": {name: value for name, value in asdict(task).items() if name not in UNLEARNED},
        "own": [own.fingerprint(part) for part in parts.values() if ":" in part.name],
    }
    return hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:12]


def _build(config: RunConfig, folder: Path) -> None:
    """Makes model and tokenizer in `folder`; leaves random state and threads as they were."""
    quiet()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums, in the same order, on every machine
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(WARM_START_SEED)
            tokenizer = character_tokenizer(config.task)
            model = LlamaForCausalLM(_llama(config, tokenizer))
            _warm_start(model, tokenizer, config)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer(task: Task) -> PreTrainedTokenizerFast:
    """One token a character, and the special ones; nothing is added to a text."""
    tokens = {token: index for index, token in enumerate(vocabulary(task))}
    tokenizer = Tokenizer(WordLevel(tokens, unk_token=UNKNOWN if UNKNOWN in tokens else None))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    pad, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos, padding_side="left"
    )


def _llama(config: RunConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    sizes = embedded_sizes(config.model, config.task)
    return LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=_positions(config.task),
        tie_word_embeddings=False,  # so that the LM head can be FP32 on its own
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _warm_start(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, config: RunConfig
) -> None:
    """A few supervised steps on training prompts, on the tokens of right completions alone."""
    task, batches = config.task, config.model.warm_start_batches
    rows, rng = tasks.load(task, tokenizer).train, random.Random(WARM_START_SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_START_LR, weight_decay=0.0)
    model.train()
    if batches is None:
        batches = WARM_START_BATCHES[bool(task.end_of_thinking)]
    for _ in range(batches):
        chosen = [rows[i] for i in torch.randint(len(rows), (WARM_START_BATCH,)).tolist()]
        pairs = [(row["prompt"], tasks.demonstration(task, row, rng)) for row in chosen]
        ids, mask, labels = _supervised(tokenizer, pairs)
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _supervised(
    tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and labels, each (pairs, tokens); -100 where nothing is to be learned."""
    texts = [prompt + completion + tokenizer.eos_token for prompt, completion in pairs]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    completions = torch.tensor([len(completion) + 1 for _, completion in pairs])
    length = ids.shape[1]
    learned = torch.arange(length) >= length - completions[:, None]  # padding is on the left
    return ids, mask, ids.masked_fill(~learned, -100)
