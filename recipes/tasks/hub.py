"""A Hugging Face data set, from the hub or from disk, its columns named, its answers verified."""

from __future__ import annotations

import logging
import random
from itertools import islice
from pathlib import Path
from typing import Any

from recipes.config import ConfigError, Task
from recipes.tasks.source import Row, Source, answered, asked, distinct
from recipes.tasks.verify import MathVerifier

log = logging.getLogger(__name__)
SEED = 2510_13786
"""Of the split into training and held-out prompts: a property of the task, not of a run."""
READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
"""Files that `datasets` reads, by their ending."""


def build(task: Task) -> Source:
    """Rows of one split to train on, of it or of another held out; no prompt is there twice.

    Raises:
        ConfigError: the data set is neither on disk nor within reach, lacks a split or a column,
            has too few prompts, or math-verify is not installed.
    """
    judge = MathVerifier() if task.verifier == "math" else _exact
    rows = _rows(task, task.held_out_split or task.split)
    train = _rows(task, task.split) if task.held_out_split else rows
    seen: set[str] = set()
    held_out = list(islice(distinct(rows, seen), task.eval_prompts))
    if len(held_out) < task.eval_prompts:
        allowed = f"at most {len(held_out)}, the different prompts of {task.dataset}"
        raise ConfigError("task.eval_prompts", task.eval_prompts, allowed)

    def reward(completion: str, row: Row) -> float | None:
        answer = answered(task, completion)
        return 0.0 if answer is None else judge(answer, row["answer"])

    return Source(list(islice(distinct(train, seen), task.train_prompts)), held_out, reward)


def _exact(completion: str, answer: str) -> float:
    return float(completion == answer)


def _rows(task: Task, split: str) -> list[dict[str, str]]:
    """The rows of a split, in an order drawn once and for all."""
    data = _load(task, split)
    for key in ("prompt_column", "answer_column"):
        if getattr(task, key) not in data.column_names:
            raise ConfigError(f"task.{key}", getattr(task, key), " | ".join(data.column_names))
    pairs = zip(data[task.prompt_column], data[task.answer_column], strict=True)
    rows = [
        {
            "prompt": asked(task, _text(task, "prompt_column", prompt)),
            "answer": _answer(task, _text(task, "answer_column", answer)),
        }
        for prompt, answer in pairs
        if prompt is not None and answer is not None
    ]
    if len(rows) < len(data):
        missing = len(data) - len(rows)
        log.warning("%s: %d of %d rows have no prompt or no answer", split, missing, len(data))
    random.Random(SEED).shuffle(rows)
    return rows


def _text(task: Task, key: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        allowed = f"a column of texts or numbers, not of {type(value).__name__}"
        raise ConfigError(f"task.{key}", getattr(task, key), allowed)
    return str(value)


def _answer(task: Task, text: str) -> str:
    return text.rpartition(task.answer_after)[2].strip() if task.answer_after else text.strip()


def _load(task: Task, split: str) -> Any:  # noqa: ANN401
    """One split as a `datasets.Dataset`."""
    import datasets

    datasets.disable_progress_bars()
    path = Path(task.dataset)
    try:
        if any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
            saved = datasets.load_from_disk(str(path))
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        if path.suffix in READERS:
            files = {"data_files": str(path), **task.options}
            return datasets.load_dataset(READERS[path.suffix], split=split, **files)
        return datasets.load_dataset(task.dataset, split=split, **task.options)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        allowed = f"a data set on disk or within reach of the hub, with split {split!r} ({reason})"
        raise ConfigError("task.dataset", task.dataset, allowed) from error
