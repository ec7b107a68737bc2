"""The held-out pass rate: mean@k over a fixed set of prompts, with its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import gather_object

from recipes.rollout import roll_out
from recipes.tasks import Row, TaskData

if TYPE_CHECKING:
    from recipes.trainer import AblationTrainer

EMBEDDED_BATCH = 1024
"""Completions generated at a time; of other models as many as in training, with vLLM all."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation; rates are fractions of completions."""

    pass_rate: float
    stderr: float
    """Standard error of `pass_rate`, prompts being the independent draws (clustered by prompt)."""
    truncation_rate: float
    """Completions that did not end by themselves."""
    length: float
    """Mean tokens a completion, without those forced on it."""
    reward_failures: int = 0
    """Completions that could not be judged; they are in no rate of passes."""
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Pass rate and its standard error for each part of a mixture; empty for a single task."""

    def metrics(self) -> dict[str, float]:
        """The evaluation by the names it is logged under."""
        metrics = {
            "eval/pass_rate": self.pass_rate,
            "eval/pass_rate_stderr": self.stderr,
            "eval/truncation_rate": self.truncation_rate,
            "eval/length": self.length,
            "eval/reward_failures": self.reward_failures,
        }
        for part, (rate, stderr) in self.parts.items():
            metrics |= {f"eval/{part}/pass_rate": rate, f"eval/{part}/pass_rate_stderr": stderr}
        return metrics


@dataclass(frozen=True)
class Judged:
    """The completions of one held-out prompt."""

    part: str
    rewards: list[float]
    """NaN where one could not be judged."""
    lengths: list[int]
    ended: list[bool]


def evaluate(trainer: AblationTrainer, data: TaskData, step: int) -> Evaluation:
    """Completes every held-out prompt k times, as in training, and scores the completions.

    Each process takes its share of the prompts. Random numbers are the evaluation's own, of the
    run's seed and `step`, and the global generators are put back: evaluating, or not, changes
    nothing in training.
    """
    model, accelerator = trainer.model, trainer.accelerator
    rank, processes = accelerator.process_index, accelerator.num_processes
    rows = data.held_out
    each = math.ceil(len(rows) / processes)  # the same for all, since generation is collective
    own = [index % len(rows) for index in range(rank, each * processes, processes)]
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    training = model.training
    model.train(False)
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(evaluation_seed(trainer.config.seed, step, rank))
        judged = _judge(trainer, data, [rows[index] for index in own])
    model.train(training)
    found = dict(gather_object(list(zip(own, judged, strict=True))))
    return summary([found[index] for index in range(len(rows))])


def summary(judged: list[Judged]) -> Evaluation:
    """The rates of all prompts together, and of each part if there are several."""
    names = sorted({item.part for item in judged})
    of = {name: _pass_rate([item for item in judged if item.part == name]) for name in names}
    lengths = np.array([item.lengths for item in judged])
    ended = np.array([item.ended for item in judged])
    return Evaluation(
        *_pass_rate(judged),
        truncation_rate=1 - ended.mean().item(),
        length=lengths.mean().item(),
        reward_failures=int(np.isnan([item.rewards for item in judged]).sum()),
        parts={name: list(rates) for name, rates in of.items()} if len(of) > 1 else {},
    )


def evaluation_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of the evaluation at `step` of runs with `seed`: recipes compared share it."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def clustered_mean(rewards: torch.Tensor) -> tuple[float, float]:
    """Mean of (prompts, samples) rewards, and its standard error over prompts as drawn at random.

    The error is that of the mean of prompt means, s / sqrt(P): it holds the spread between prompts
    and that between the samples of one (Miller, arXiv 2411.00640, section 2.2). A NaN is no sample,
    and a prompt of NaNs no prompt; with less than two prompts an error of them is NaN.
    """
    means = rewards.double().nanmean(1)
    means = means[~means.isnan()]
    stderr = means.std(correction=1) / len(means) ** 0.5 if len(means) > 1 else torch.tensor(np.nan)
    return means.mean().item(), stderr.item()


def _pass_rate(judged: list[Judged]) -> tuple[float, float]:
    return clustered_mean(torch.tensor([item.rewards for item in judged], dtype=torch.float64))


def _judge(trainer: AblationTrainer, data: TaskData, rows: list[Row]) -> list[Judged]:
    """Completes and scores `rows`, as many at a time as memory is likely to hold."""
    samples = trainer.config.task.eval_samples
    at_a_time = max(1, _batch(trainer) // samples)
    judged = []
    for start in range(0, len(rows), at_a_time):
        part = rows[start : start + at_a_time]
        prompts = [row["prompt"] for row in part for _ in range(samples)]
        rollouts = roll_out(prompts, trainer)
        ids = rollouts["completion_ids"]
        lengths = [*map(sum, rollouts["env_mask"])] if "env_mask" in rollouts else [*map(len, ids)]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        for index, row in enumerate(part):
            mine = slice(index * samples, (index + 1) * samples)
            rewards = data.score(texts[mine], [row] * samples).rewards
            ended = [each[-1] in trainer.eos_token_ids for each in ids[mine]]
            judged.append(Judged(row["part"], rewards, lengths[mine], ended))
    return judged


def _batch(trainer: AblationTrainer) -> int:
    """Completions that a process generates at a time."""
    if trainer.use_vllm:
        return trainer.config.task.eval_prompts * trainer.config.task.eval_samples
    if trainer.config.model.embedded:
        return EMBEDDED_BATCH
    return trainer.config.batch.size // int(trainer.accelerator.num_processes)
