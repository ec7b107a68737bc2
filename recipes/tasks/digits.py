"""Sorting digits: ``4163=`` is answered by ``1346``.

Small enough to train on a laptop's CPU, hard enough that a curve rises and saturates.
"""

from __future__ import annotations

import random

from recipes.config import Task
from recipes.tasks.source import Row, Source

SEED = 2510_13786
"""Of the split into training and held-out prompts: a property of the task, not of a run."""
MAX_TRAIN_PROMPTS = 20_000
"""More are not listed; four digits have 10,000 in all."""
HESITATION = 0.4
"""Chance that a step of the thinking that is taught is written once more: lengths differ even
between thoughts about one prompt, and there is room to learn to think less."""


def build(task: Task) -> Source:
    """Strings of `min_digits` to `max_digits` digits, some to train on and others held out."""
    prompts = sum(10**digits for digits in range(task.min_digits, task.max_digits + 1))
    listed = min(prompts, task.eval_prompts + MAX_TRAIN_PROMPTS)
    chosen = random.Random(SEED).sample(range(prompts), listed)
    rows = [_row(_string(index, task.min_digits)) for index in chosen]
    return Source(rows[task.eval_prompts :], rows[: task.eval_prompts], reward)


def reward(completion: str, row: Row) -> float:
    """1.0 if the completion is exactly the answer, else 0.0."""
    return float(completion == row["answer"])


def thinking(prompt: str, rng: random.Random) -> str:
    """How the warm start teaches to think: an insertion sort, one digit more a step.

    ``4163=`` -> ``4,14,146,1346,``, with steps written again now and then.
    """
    steps = []
    for count in range(1, len(prompt)):
        steps.append("".join(sorted(prompt[:count])) + ",")
        while rng.random() < HESITATION:
            steps.append(steps[-1])
    return "".join(steps)


def _string(index: int, length: int) -> str:
    """String number `index`, counting those of `length` digits first, then longer ones."""
    while index >= 10**length:
        index, length = index - 10**length, length + 1
    return f"{index:0{length}d}"


def _row(digits: str) -> dict[str, str]:
    return {"prompt": f"{digits}=", "answer": "".join(sorted(digits))}
