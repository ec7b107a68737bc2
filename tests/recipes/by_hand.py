"""One optimizer batch made by hand, and what its gradient must be, worked out one token at a time.

The arithmetic is this file's own: plain loops over sequences and tokens, from the papers' formulas.
"""

from __future__ import annotations

import math
import random
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes import models, tasks
from recipes.arguments import micro_batch
from recipes.checkpoints import Checkpoints
from recipes.config import Budget, RunConfig
from recipes.losses import varied_groups
from recipes.progress import Progress
from recipes.trainer import AblationTrainer
from tests.recipes.conftest import Recorder, tiny

GENERATIONS, SEQUENCES, LONGEST = 4, 16, 4
END = 2  # the tiny tokenizer's end token; digits are 3 to 12
LENGTHS = [1, 2, 3, 4, 4, 4, 2, 1, 3, 3, 3, 3, 2, 4, 1, 4]
REWARDS = [1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0]  # the second group has no variance
FORCED = {
    (2, 1),
    (5, 0),
    (9, 0),
    (9, 2),
    (15, 3),
}  # (sequence, token) that the policy did not choose


def rows(seed: int = 0, *, stale: bool = True, forced: bool = False) -> dict[str, Tensor]:
    """Sequences of unequal lengths, their advantages, and how far the policy has drifted."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.tensor(REWARDS, dtype=torch.float32).view(-1, GENERATIONS)
    made = {
        "prompt_ids": torch.randint(3, 13, (SEQUENCES, 3), generator=generator),
        "prompt_mask": torch.ones(SEQUENCES, 3, dtype=torch.long),
        "completion_ids": torch.randint(3, 13, (SEQUENCES, LONGEST), generator=generator),
        "completion_mask": (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long(),
        "advantages": (rewards - rewards.mean(1, keepdim=True)).flatten(),
    }
    if stale:  # how much less likely each token was: ratios from about 1/3 to 8
        made["drift"] = 0.6 * torch.randn(SEQUENCES, LONGEST, generator=generator) + 0.1
    if forced:
        made["tool_mask"] = torch.ones(SEQUENCES, LONGEST, dtype=torch.long)
        for place in FORCED:
            made["tool_mask"][place] = 0
    return made


def log_probabilities(model: torch.nn.Module, made: dict[str, Tensor]) -> Tensor:
    """(sequences, tokens) of the completions under `model`, differentiable."""
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], 1)
    mask = torch.cat([made["prompt_mask"], made["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, 2:-1]
    return logits.log_softmax(-1).gather(-1, made["completion_ids"][..., None]).squeeze(-1)


def trainer_of(config: RunConfig, models_dir: Path, folder: Path) -> AblationTrainer:
    """The trainer of one step of `config`, on the warm-started tiny model."""
    model, tokenizer = models.load(config, models_dir)
    aside = Path(tempfile.mkdtemp(dir=folder))
    progress = Progress(config, Recorder())
    data = tasks.load(config.task)
    return AblationTrainer(config, model, tokenizer, data, Checkpoints(aside, 1), progress)


def one_step(**changes: Any) -> RunConfig:  # noqa: ANN401
    """The tiny run with a budget of one step."""
    return tiny(budget=Budget(amount=1, eval_every=100, log_every=1), **changes)


def set_up(trainer: AblationTrainer, config: RunConfig) -> None:
    """Makes `trainer` that of `config`: as building it anew would, without the second it takes."""
    processes = trainer.accelerator.num_processes
    accumulation = config.batch.size // micro_batch(config) // processes
    trainer.config = trainer.batches._config = config
    trainer.args.gradient_accumulation_steps = accumulation
    trainer.args.steps_per_generation = accumulation * config.staleness.at_once
    trainer.loss_type, trainer.importance_sampling_level = config.loss.name, config.loss.ratio
    trainer.epsilon_low, trainer.epsilon_high = config.loss.epsilon_low, config.loss.epsilon_high


def gradient(
    trainer: AblationTrainer, made: dict[str, Tensor], model: torch.nn.Module | None = None
) -> tuple[Tensor, float]:
    """Gradient and loss of one optimizer step on the batch `made`, as the trainer takes it.

    `model` is the trainer's, wrapped for several processes; the loss is then this process's share.
    """
    model = model or trainer.model
    config = trainer.config
    made = dict(made)
    if "drift" in made:
        drift = made.pop("drift")
        with torch.no_grad():
            made["old_per_token_logps"] = log_probabilities(trainer.model, made) - drift
    trainer._metrics["train"].clear()
    kept = torch.ones(SEQUENCES, dtype=torch.bool)
    if config.filtering.zero_variance == "drop":
        kept = varied_groups(made["advantages"], GENERATIONS)
    trainer.batches._queue._waiting = [trainer.batches._batch(made, kept)]
    return backward(trainer, model)


def backward(trainer: AblationTrainer, model: torch.nn.Module) -> tuple[Tensor, float]:
    """Gradient and loss of the next optimizer batch, in as many micro-batches as it takes."""
    trainer.model.zero_grad()
    trainer.model.train()
    accumulation = trainer.args.gradient_accumulation_steps
    trainer.current_gradient_accumulation_steps = accumulation
    total = 0.0
    for turn in range(accumulation):
        last = turn == accumulation - 1
        with nullcontext() if last else trainer.accelerator.no_sync(model):
            loss = trainer.compute_loss(model, trainer._prepare_inputs({}))
            loss.backward()
        total += loss.item()
    return flat([p.grad for p in trainer.model.parameters()]), total


def flat(tensors: list[Tensor | None]) -> Tensor:
    """All of them one after the other, in a copy."""
    return torch.cat([tensor.flatten() for tensor in tensors if tensor is not None]).clone()


def expected(
    model: torch.nn.Module, made: dict[str, Tensor], config: RunConfig
) -> tuple[Tensor, float]:
    """What `gradient` must be: the loss by its formula, averaged by its definition."""
    now = log_probabilities(model, made)
    drift = made.get("drift", torch.zeros(SEQUENCES, LONGEST))
    own = made["completion_mask"] * made.get("tool_mask", 1)
    tokens = {i: [t for t in range(LONGEST) if own[i, t]] for i in range(SEQUENCES)}
    groups = [range(g, g + GENERATIONS) for g in range(0, SEQUENCES, GENERATIONS)]
    if config.filtering.zero_variance == "drop":
        groups = [group for group in groups if len({REWARDS[i] for i in group}) > 1]
    kept = [i for group in groups for i in group]
    total = torch.zeros(())
    for group in groups:
        for i in group:
            weight = _weight(config, group, i, kept, tokens)
            terms = _terms(config, now[i], drift[i], tokens[i], float(made["advantages"][i]))
            total = total - weight * sum(terms, torch.zeros(()))
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return flat(list(gradients)), total.item()


def _weight(
    config: RunConfig, group: range, i: int, kept: list[int], tokens: dict[int, list[int]]
) -> float:
    """What each token term of sequence i counts for in the batch."""
    native = {"grpo": "sample", "sapo": "sample", "dr_grpo": "longest", "luspo": "sequence"}
    over = config.aggregation.over
    if over == "native":
        over = native.get(config.loss.name, "token")
    prompts = len(kept) // GENERATIONS
    return {
        "sample": 1 / (len(kept) * max(1, len(tokens[i]))),
        "prompt": 1 / (prompts * sum(len(tokens[j]) for j in group)),
        "token": 1 / sum(len(tokens[j]) for j in kept),
        "longest": 1 / (len(kept) * config.task.max_completion_tokens),
        "sequence": 1 / len(kept),
    }[over]


def _terms(
    config: RunConfig, now: Tensor, drift: Tensor, tokens: list[int], advantage: float
) -> list[Tensor]:
    """The terms of one sequence, to be maximised: one a token."""
    loss = config.loss
    low, high = 1 - loss.epsilon_low, 1 + loss.epsilon_high
    log_ratios = {t: now[t] - (now[t].detach() - drift[t]) for t in tokens}
    ratios = {t: log_ratios[t].exp() for t in tokens}
    if loss.ratio == "sequence" and tokens:
        mean = sum(log_ratios.values(), torch.zeros(())) / len(tokens)
        ratios = dict.fromkeys(tokens, mean.exp())
    if loss.name == "cispo":
        return [min(ratios[t].item(), loss.epsilon_high) * advantage * now[t] for t in tokens]
    if loss.name == "sapo":
        tau = 1.0 if advantage > 0 else 1.05
        return [4 / tau * torch.sigmoid(tau * (ratios[t] - 1)) * advantage for t in tokens]
    if loss.name == "vespo":
        log_w = sum(float(log_ratios[t].detach()) for t in tokens)
        k, lam = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        phi = math.exp(lam) * math.exp(log_w) ** k * math.exp(-lam * math.exp(log_w))
        return [phi * advantage * now[t] for t in tokens]
    return [
        torch.minimum(ratios[t] * advantage, ratios[t].clamp(low, high) * advantage) for t in tokens
    ]


def scripted(prompt_ids: list[list[int]], *_: object) -> tuple[list[list[int]], None]:
    """Completions in place of generated ones: the same for the n-th sample of a prompt, always."""
    seen: dict[tuple[int, ...], int] = {}
    completions = []
    for ids in map(tuple, prompt_ids):
        seen[ids] = seen.get(ids, 0) + 1
        draw = random.Random(str((ids, seen[ids])))
        right = [*sorted(ids[:-1]), END]
        easy = random.Random(str(ids)).random()  # some prompts pass always or never
        passes = easy < 0.2 or (easy < 0.8 and draw.random() < 0.4)
        wrong = [draw.randrange(3, 13) for _ in range(draw.randint(1, 3))] + [END] * draw.randint(
            0, 1
        )
        completions.append(right if passes else wrong)
    return completions, None
