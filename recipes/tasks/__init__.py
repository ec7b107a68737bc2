"""Tasks: prompts to train on, prompts held out for the curve, and a verifiable reward."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from recipes.config import Task

log = logging.getLogger(__name__)


class Row(TypedDict):
    """One prompt and what a right completion is."""

    prompt: str
    """What the tokenizer is given; with ``task.chat``, the user's message of a conversation."""
    answer: str
    """What the reward compares with: plain text, or JSON."""
    part: str
    """Name of the part of the task that it belongs to."""


Reward = Callable[[str, Row], float | None]
"""``reward(completion, row)``: 1.0 if the completion is right, 0.0 if it is wrong."""


@dataclass(frozen=True)
class Part:
    """Prompts of one source and their reward; a task that is no mixture has one part."""

    name: str
    train: list[Row]
    held_out: list[Row]
    reward: Reward
    weight: float = 1.0
    """Share of the prompts trained on that come from here, in relation to the other parts'."""


@dataclass
class Scores:
    """Rewards of some completions, and how many could not be judged."""

    rewards: list[float] = field(default_factory=list)
    """NaN where the reward raised, or returned None, NaN or an infinite value."""
    failures: int = 0
    last_error: str | None = None


class TaskData:
    """A task ready to train on: no prompt is both trained on and held out, or there twice."""

    def __init__(self, parts: Sequence[Part], end_of_thinking: str = "") -> None:
        """Checks `parts`; only what follows `end_of_thinking` in a completion will be judged.

        Raises:
            ValueError: a held-out prompt of one part is trained on in the same or another.
        """
        self.parts = list(parts)
        self.end_of_thinking = end_of_thinking
        self.train = [row for part in parts for row in part.train]
        self.held_out = [row for part in parts for row in part.held_out]
        self._rewards = {part.name: part.reward for part in parts}
        self._told: set[tuple[str, str]] = set()
        shared = {same_text(row) for row in self.train} & {same_text(row) for row in self.held_out}
        if shared:
            raise ValueError(f"{len(shared)} held-out prompts are trained on, e.g. {min(shared)!r}")

    def score(self, completions: Sequence[str], rows: Sequence[Row]) -> Scores:
        """Judges each completion of the row beside it. A reward that fails is told and counted.

        It is logged once for each kind of error, and raises nothing: the others are judged.
        """
        scores = Scores()
        for completion, row in zip(completions, rows, strict=True):
            try:
                reward = self._judge(completion, row)
            except Exception as error:
                reward = math.nan
                scores.failures += 1
                scores.last_error = self._tell(row["part"], error)
            scores.rewards.append(reward)
        return scores

    def _judge(self, completion: str, row: Row) -> float:
        if self.end_of_thinking:
            _, ended, completion = completion.partition(self.end_of_thinking)
            if not ended:
                return 0.0
        reward = self._rewards[row["part"]](completion, row)
        if reward is None or not math.isfinite(reward):
            raise ValueError(f"returned {reward}, allowed: a finite number")
        return float(reward)

    def _tell(self, part: str, error: Exception) -> str:
        """The error in one line, logged if none of its kind was before."""
        kind = type(error).__name__
        line = " ".join(f"{kind}: {error}".split())
        if (part, kind) not in self._told:
            self._told.add((part, kind))
            log.warning("the reward of task %s failed (told once): %s", part, line)
        return line


def same_text(row: Row) -> str:
    """A row's prompt, without what does not make it another one: case and white space."""
    return " ".join(row["prompt"].casefold().split())


def load(task: Task) -> TaskData:
    """The data of a task, the same for every run that has this `task`."""
    from recipes.tasks import digits

    parts = [{"digits": digits.build}[task.name](task)]
    return TaskData(parts, task.end_of_thinking)
