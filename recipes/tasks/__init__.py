"""Tasks: prompts to train on, prompts held out for the curve, and a verifiable reward."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from recipes.config import ConfigError, Task
from recipes.tasks import digits, gym, hub, own
from recipes.tasks.source import Reward, Row, Source, distinct, same_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Part", "Reward", "Row", "Scores", "TaskData", "demonstration", "load"]

BUILDERS: dict[str, Callable[[Task], Source]] = {
    "digits": digits.build,
    "gym": gym.build,
    "hub": hub.build,
}
Keep = Callable[[Iterable[Row]], Iterable[Row]]
log = logging.getLogger(__name__)


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
    """A task ready to train on: no prompt that is held out in any part is trained on."""

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
        shared = _texts(self.train) & _texts(self.held_out)
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


def _texts(rows: Iterable[Row]) -> set[str]:
    return {same_text(row["prompt"]) for row in rows}


def load(task: Task, tokenizer: PreTrainedTokenizerBase | None = None) -> TaskData:
    """The data of a task, the same for every run that has this `task`.

    Args:
        task: what to load; each part of a mixture becomes a part of the data.
        tokenizer: if given, prompts of more than `task.max_prompt_tokens` are left out.

    Raises:
        ConfigError: a part cannot be loaded, or too little of it is left.
    """
    parts = [_part(name, part) for name, part in (task.parts or {task.name: task}).items()]
    seen: set[str] = set()
    for side in ("held_out", "train"):  # in this order: what is held out is not trained on
        for part in parts:
            if tokenizer:
                _keep(part, side, _short(task, tokenizer), "too long")
            _keep(part, side, partial(distinct, seen=seen), "there before, or held out")
    for part in parts:
        if len(part.held_out) < 2 or not part.train:
            counts = f"{len(part.train)} to train on, {len(part.held_out)} held out"
            raise ConfigError(f"task {part.name}", counts, "1 prompt or more, and 2 or more")
    return TaskData(parts, task.end_of_thinking)


def _part(name: str, task: Task) -> Part:
    source = BUILDERS.get(task.name, own.build)(task)

    def rows(given: Sequence[Mapping[str, Any]]) -> list[Row]:
        for row in given:
            texts = (
                [row.get(key) for key in ("prompt", "answer")] if hasattr(row, "get") else [None]
            )
            if not all(isinstance(text, str) for text in texts):
                raise ConfigError(task.name, row, "rows with a prompt and an answer, texts")
        return [Row(prompt=row["prompt"], answer=row["answer"], part=name) for row in given]

    return Part(name, rows(source.train), rows(source.held_out), source.reward, task.weight)


def _keep(part: Part, side: str, keep: Keep, reason: str) -> None:
    """Leaves out some of a part's training or held-out rows, and tells how many."""
    rows: list[Row] = getattr(part, side)
    kept = list(keep(rows))
    if len(kept) < len(rows):
        count = len(rows) - len(kept)
        log.warning("task %s: %d of %d %s prompts: %s", part.name, count, len(rows), side, reason)
    rows[:] = kept


def _short(task: Task, tokenizer: PreTrainedTokenizerBase) -> Keep:
    """Keeps the prompts that are short enough, as the model is given them."""

    def given(prompt: str) -> str:
        if not task.chat:
            return prompt
        message = [{"role": "user", "content": prompt}]
        return str(
            tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        )

    def keep(rows: Iterable[Row]) -> Iterable[Row]:
        rows = list(rows)
        texts = [given(row["prompt"]) for row in rows]
        tokens = tokenizer(texts, add_special_tokens=not task.chat)["input_ids"]
        fits = [len(ids) <= task.prompt_tokens for ids in tokens]
        return itertools.compress(rows, fits)

    return keep


def demonstration(task: Task, row: Row, rng: random.Random) -> str:
    """A right completion, for the warm start of the embedded model."""
    if not task.end_of_thinking:
        return row["answer"]
    of = task.parts.get(row["part"], task)
    thinking = digits.thinking(row["prompt"], rng) if of.name == "digits" else ""
    return thinking + task.end_of_thinking + row["answer"]
