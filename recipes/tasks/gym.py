"""Any data set of reasoning-gym (arXiv 2505.24760) by its name, judged by its own scorer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from recipes.config import ConfigError, Task
from recipes.tasks.source import Row, Source, answered, asked, distinct

HELD_OUT_SEED = 2510_13786
TRAIN_SEED = 0
"""Item i of a data set is drawn from seed + i, so that seeds this far apart share none."""
CHUNK = 500
"""Items of one data set, reasoning-gym's own default; more come from the seeds that follow."""
TRIES = 20
"""Items drawn for each that is wanted, at most: small data sets repeat themselves."""


def build(task: Task) -> Source:
    """Items of one range of seeds to train on, of another held out; no prompt is there twice.

    Raises:
        ConfigError: there is no such data set, it refuses its options, it has too few prompts, or
            reasoning-gym is not installed.
    """
    items = _Items(task)
    held_out = items.draw(HELD_OUT_SEED, task.eval_prompts)
    if len(held_out) < task.eval_prompts:
        allowed = f"at most {len(held_out)}, the different prompts of {task.dataset}"
        raise ConfigError("task.eval_prompts", task.eval_prompts, allowed)
    return Source(items.draw(TRAIN_SEED, task.train_prompts or 0), held_out, items.reward)


class _Items:
    """Items drawn so far, each prompt once, and what their data set scores them by."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._scorer = _create(task, HELD_OUT_SEED)
        self._entries: dict[str, dict[str, Any]] = {}
        self._seen: set[str] = set()

    def draw(self, seed: int, count: int) -> list[dict[str, str]]:
        """At most `count` rows, from the seeds that begin with `seed`."""
        last = seed + TRIES * max(count, CHUNK)
        items = (item for at in range(seed, last, CHUNK) for item in self._chunk(at))
        return list(itertools.islice(distinct(items, self._seen), count))

    def reward(self, completion: str, row: Row) -> float | None:
        """The data set's own score, from 0 to 1."""
        answer = answered(self._task, completion)
        score: float | None = self._scorer.score_answer(answer, self._entries[row["prompt"]])
        return score

    def _chunk(self, seed: int) -> Iterator[dict[str, str]]:
        data_set = _create(self._task, seed)
        for index in range(CHUNK):
            try:
                entry = data_set[index]
            except IndexError:  # it has no more
                return
            prompt = asked(self._task, entry["question"])
            self._entries.setdefault(prompt, entry)
            yield {"prompt": prompt, "answer": str(entry["answer"] or "")}


def _create(task: Task, seed: int) -> Any:  # noqa: ANN401
    """A chunk of the data set."""
    try:
        from reasoning_gym import factory
    except ImportError as error:
        allowed = "digits | hub, without reasoning-gym (pip install 'shortlist[tasks]')"
        raise ConfigError("task.name", "gym", allowed) from error
    if task.dataset not in factory.DATASETS:
        raise ConfigError("task.dataset", task.dataset, " | ".join(sorted(factory.DATASETS)))
    try:
        return factory.create_dataset(task.dataset, **{**task.options, "seed": seed, "size": CHUNK})
    except (AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError("task.options", dict(task.options), f"what {reason}") from error
