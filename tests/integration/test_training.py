"""The real training in real jobs: killed half-way, and nothing is lost, doubled or changed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from pipelines import launch
from pipelines.config import Cluster, Tracking
from pipelines.follow import follow
from pipelines.ledger import Ledger, RunFiles
from pipelines.tracking import open_store, read_curves, sync
from recipes.config import Batch, Execution, Model, RunConfig
from tests.fakes import eval_points, make_plan, tiny_config, wait

STEPS = 40


def config(loss: str) -> RunConfig:
    """A small run of the embedded model as it is by default: a smaller one never solves a task."""
    return tiny_config(
        loss, steps=STEPS, batch=Batch(4, 8), model=Model(), execution=Execution(threads=1)
    )


def training_points(run: RunFiles) -> list[tuple[int, float, float]]:
    """(step, loss, reward) of each logged step."""
    return [
        (point["step"], point["metrics"]["train/loss"], point["metrics"]["train/reward"])
        for point in run.points()
        if "train/loss" in point["metrics"]
    ]


def test_run_killed_half_way_equals_one_that_was_not_value_by_value(
    root: Path, ledger: Ledger, tmp_path: Path, fresh_store: Path, signals: None
) -> None:
    # Two runs in one lane, so that it is still there when the first is launched again.
    configs = [config("grpo"), config("cispo")]
    plan = make_plan(root, configs, cluster=Cluster(parallel=1))
    run = ledger.run(plan.runs[0].run_id)
    launch.launch(plan, ledger)
    wait(lambda: any(step >= STEPS // 3 for step, _, _ in eval_points(run.points())))
    os.kill(int(run.lock_file.read_text()), signal.SIGKILL)
    assert follow(plan, ledger)

    other = Ledger(tmp_path / "other")
    other.models.mkdir(parents=True)
    shutil.copytree(ledger.models, other.models, dirs_exist_ok=True)
    shutil.copy(fresh_store, other.store)
    uninterrupted = other.run(run.run_id)
    launch.train_here(plan.runs[0], plan.settings, other)

    assert [item["event"] for item in run.history().events].count("died") == 1
    assert [point["attempt"] for point in run.points()][-1] == 2
    evaluations = eval_points(run.points())
    assert [step for step, _, _ in evaluations] == list(range(0, STEPS + 1, 5))
    assert evaluations == eval_points(uninterrupted.points())
    assert training_points(run) == training_points(uninterrupted)
    rewards = [reward for _, _, reward in training_points(run)]
    assert len(set(rewards)) > 1  # or equality would say nothing

    run_ids = [planned.run_id for planned in plan.runs]
    assert sync(ledger, run_ids) == 0
    store = open_store(ledger, Tracking())
    curves = read_curves(store, run_ids, ("eval/pass_rate",), "flops")
    assert eval_points(curves[run.run_id]) == evaluations
    entries = store.client.search_runs([store.experiment_id])
    assert [entry.info.status for entry in entries] == ["FINISHED", "FINISHED"]
