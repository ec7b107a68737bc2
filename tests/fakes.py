"""Small plans without a configuration folder, and a training that takes no time."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines import job, lane
from pipelines.config import Cluster, Settings, Tracking
from pipelines.ledger import Ledger
from pipelines.plan import Plan, PlannedRun, run_id_of
from recipes.config import Batch, Budget, Loss, Model, RunConfig, Task

REPOSITORY = Path(__file__).resolve().parents[1]


def tiny_config(
    loss: str = "grpo", steps: float = 20, seed: int = 0, **changes: object
) -> RunConfig:
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


def make_plan(
    root: Path, configs: Sequence[RunConfig], sweep: str = "tiny", **settings: object
) -> Plan:
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


def behave(ledger: Ledger, words: str) -> None:
    """Tells `tests.fake_training` what to do."""
    ledger.runs.mkdir(exist_ok=True)
    (ledger.runs / "behave").write_text(words)


def wait(condition: Callable[[], object], seconds: float = 300) -> None:
    """Until it holds; so long only where something is wrong, or the machine is very busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def when(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Does `action` from another thread as soon as `condition` holds."""

    def watch() -> None:
        wait(condition)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def train_waiting(ledger: Ledger) -> None:
    """What the local lanes would do, here."""
    for run in lane.pending(ledger):
        taken = job.claim(run)
        assert taken is not None
        try:
            with suppress(ValueError):  # as `fake_training` fails
                job.train(ledger, taken)
        finally:
            os.close(taken.lock)
    for path in ledger.lanes.glob("*.lock"):
        os.utime(path, (0, 0))


FAKE_MODULES = {
    "recipes/train.py": Path(__file__).with_name("fake_training.py").read_text(),
    "recipes/models.py": "def ensure_embedded(config, folder): ...",
    "pipelines/tracking.py": """
from contextlib import nullcontext
from types import SimpleNamespace

def Shipper(*_): return nullcontext()
def open_store(*_): return SimpleNamespace(experiment_id="1")
""",
}


def fake_code(folder: Path) -> Path:
    """A copy of the code that imports nothing heavy, for jobs in processes of their own."""
    for package in ("analysis", "conf", "pipelines", "recipes"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, folder / package, ignore=ignore)
    for name, text in FAKE_MODULES.items():
        (folder / name).write_text(text)
    return folder
