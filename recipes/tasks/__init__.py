"""Tasks: prompts to train on, prompts held out for the curve, and a verifiable reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from recipes.config import Task


class Row(TypedDict):
    """One prompt and what a right completion is."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class TaskData:
    """A task ready to train on: no prompt of `held_out` is in `train`."""

    train: list[Row]
    held_out: list[Row]
    reward: Callable[[str, str], float]
    """``reward(completion, answer)``: 1.0 if the completion is right, else 0.0."""

    def __post_init__(self) -> None:
        shared = {row["prompt"] for row in self.train} & {row["prompt"] for row in self.held_out}
        if shared:
            raise ValueError(f"{len(shared)} held-out prompts are trained on, e.g. {min(shared)!r}")


def load(task: Task) -> TaskData:
    """The data of a task, the same for every run that has this `task`."""
    from recipes.tasks import digits

    return {"digits": digits.build}[task.name](task)
