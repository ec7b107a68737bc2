"""A model that warm-starts in two seconds, shared by the session, and a sink that remembers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes import models, tasks
from recipes.checkpoints import Checkpoints
from recipes.config import Batch, Budget, Execution, Model, Optimizer, RunConfig, Task
from recipes.progress import Progress
from recipes.trainer import AblationTrainer

TINY = RunConfig(
    batch=Batch(prompts=4, generations=4),
    model=Model(hidden_size=32, layers=1, warm_start_batches=100),
    task=Task(min_digits=2, max_digits=2, max_completion_tokens=4, eval_prompts=20),
    optimizer=Optimizer(lr=1e-3, warmup_steps=2),
    budget=Budget(amount=12, eval_every=3, log_every=2),
    execution=Execution(threads=1),
)
"""Two digits, 80 prompts to train on: an epoch is 20 steps of 4 prompts."""

TIMED = {"train/step_time_s"}
"""Metrics that are wall time, and so differ between two equal runs."""


class Recorder:
    """A sink that keeps points by (step, kind), the later one winning, and counts them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.points: dict[tuple[int, str], dict[str, float]] = {}
        self.compute: dict[int, dict[str, float]] = {}
        self.seen: list[tuple[int, str]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stop_at, self.asked = stop_at, 0

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        kind = next(iter(metrics)).split("/")[0]
        self.seen.append((step, kind))
        self.points[step, kind] = {k: v for k, v in metrics.items() if k not in TIMED}
        self.compute[step] = {k: v for k, v in compute.items() if k != "gpu_hours"}

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    def should_stop(self) -> bool:
        self.asked += 1
        return self.asked == self.stop_at


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.ensure_embedded(TINY, folder)
    return folder


def tiny(**changes: Any) -> RunConfig:  # noqa: ANN401
    """The tiny run with some of its parts replaced."""
    return replace(TINY, **changes)


def built(config: RunConfig, models_dir: Path, folder: Path) -> AblationTrainer:
    """A trainer that has not trained yet."""
    model, tokenizer = models.load(config, models_dir)
    progress = Progress(config, Recorder())
    data = tasks.load(config.task)
    return AblationTrainer(config, model, tokenizer, data, Checkpoints(folder, 1), progress)
