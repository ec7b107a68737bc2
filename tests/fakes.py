"""Small plans without a configuration folder, and a training that takes no time."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.config import Cluster, Settings, Tracking
from pipelines.plan import Plan, PlannedRun, run_id_of
from recipes.config import Batch, Budget, Loss, Model, RunConfig, Task

REPOSITORY = Path(__file__).resolve().parents[1]


def tiny_config(loss: str = "grpo", steps: float = 20, seed: int = 0, **changes: Any) -> RunConfig:
    """The smallest run that really trains: about 0.05 s a step."""
    config = RunConfig(
        loss=Loss(name=loss),
        batch=Batch(prompts=2, generations=4),
        model=Model(hidden_size=16, layers=1, warm_start_batches=10),
        task=Task(eval_prompts=8, eval_samples=2),
        budget=Budget(amount=steps, eval_every=5, log_every=5),
        seed=seed,
    )
    return replace(config, **changes)


def planned(config: RunConfig, label: str = "") -> PlannedRun:
    resolved = asdict(config)
    return PlannedRun(
        run_id=run_id_of(resolved),
        label=label or f"loss={config.loss.name}",
        choices={"loss": config.loss.name, "batch": "tiny"},
        seed=config.seed,
        config=config,
        resolved=resolved,
    )


def make_plan(root: Path, configs: Sequence[RunConfig], sweep: str = "tiny", **settings: Any) -> Plan:
    runs = [planned(config) for config in configs]
    changes = {"cluster": Cluster(), "tracking": Tracking(), **settings}
    return Plan(
        sweep=sweep,
        strategy="one_at_a_time",
        compute="flops",
        base=runs[0].choices,
        varied=["loss"],
        runs=runs,
        settings=Settings(root=str(root), **changes),
        overrides=[],
    )


def eval_points(points: Sequence[dict[str, Any]]) -> list[tuple[int, float, float]]:
    """(step, flops, pass rate) of each evaluation."""
    return [
        (point["step"], point["compute"]["flops"], point["metrics"]["eval/pass_rate"])
        for point in points
        if "eval/pass_rate" in point["metrics"]
    ]


def fake_code(folder: Path) -> Path:
    """A copy of the code whose training is `fake_train`: for jobs in processes of their own."""
    for package in ("analysis", "conf", "pipelines", "recipes"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, folder / package, ignore=ignore)
    text = Path(__file__).with_name("fake_training.py").read_text()
    (folder / "recipes" / "train.py").write_text(text)
    return folder
