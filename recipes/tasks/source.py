"""What a task's data are made of, and what the sources of it have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar

from recipes.config import Task
from recipes.task_config import QUESTION


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


Prompted = TypeVar("Prompted", bound=Mapping[str, Any])


class Source(NamedTuple):
    """What builds a task returns; rows have a ``prompt`` and an ``answer``, both text."""

    train: Sequence[Mapping[str, Any]]
    held_out: Sequence[Mapping[str, Any]]
    reward: Reward


def same_text(prompt: str) -> str:
    """A prompt without what does not make it another one: case and white space."""
    return " ".join(prompt.casefold().split())


def distinct(rows: Iterable[Prompted], seen: set[str]) -> Iterator[Prompted]:
    """The rows whose prompts are not in `seen`, which they are added to as they are taken."""
    for row in rows:
        key = same_text(row["prompt"])
        if key not in seen:
            seen.add(key)
            yield row


def asked(task: Task, question: str) -> str:
    """The prompt that puts a data set's question."""
    return task.template.replace(QUESTION, question)


def answered(task: Task, completion: str) -> str | None:
    """The part of a completion that is judged; None if it lacks the tags that mark it."""
    if not task.answer_tag:
        return completion.strip()
    tag = re.escape(task.answer_tag)
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", completion, re.DOTALL)
    return found[-1].strip() if found else None
