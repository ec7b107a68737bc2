"""Sweeps on a real, private Slurm cluster. Training is fake but for one test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines import race
from pipelines.config import Cluster, Race
from pipelines.errors import ServiceError
from pipelines.launch import launch
from pipelines.ledger import Ledger, RunFiles
from pipelines.plan import Plan
from pipelines.status import statuses
from recipes.config import Budget, Optimizer
from tests.fakes import eval_points, make_plan, tiny_config
from tests.slurm.cluster import PrivateCluster

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("signals")]
LOSSES = ("grpo", "cispo", "dapo", "bnpo")
SETTINGS = Cluster(kind="slurm", parallel=2, partition="low", time_min=60, signal_delay_s=60)


@pytest.fixture(autouse=True)
def nothing_left(cluster: PrivateCluster) -> Iterator[None]:
    yield
    cluster.ask("scancel", "--me")
    wait(lambda: not cluster.ask("squeue", "--me", "--noheader").strip())


@pytest.fixture
def plan(root: Path) -> Plan:
    return make_plan(root, [tiny_config(loss) for loss in LOSSES], cluster=SETTINGS)


@pytest.fixture
def runs(plan: Plan, ledger: Ledger) -> list[RunFiles]:
    return [ledger.run(run.run_id) for run in plan.runs]


def wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def states(plan: Plan, ledger: Ledger) -> list[str]:
    return [row.state for row in statuses(ledger, plan.rows())]


def steps(run: RunFiles) -> list[int]:
    return [step for step, _, _ in eval_points(run.points())]


def job_id(run: RunFiles) -> str:
    return str(next(e["job"] for e in run.history().events if e["event"] == "submitted"))


def behave(ledger: Ledger, words: str) -> None:
    ledger.runs.mkdir(exist_ok=True)
    (ledger.runs / "behave").write_text(words)


@pytest.mark.usefixtures("fake_jobs")
def test_array_runs_so_many_at_a_time_and_is_not_submitted_twice(
    plan: Plan, ledger: Ledger, runs: list[RunFiles], cluster: PrivateCluster
) -> None:
    behave(ledger, "slow")
    assert len(launch(plan, ledger).planned) == 4
    assert len({job_id(run).split("_")[0] for run in runs}) == 1
    assert launch(plan, ledger).planned == []
    seen: list[int] = []

    def done() -> bool:
        found = states(plan, ledger)
        assert set(found) <= {"pending", "running", "completed"}
        seen.append(found.count("running"))
        return found == ["completed"] * 4

    wait(done)
    assert max(seen) == 2
    assert [steps(run) for run in runs] == [[0, 5, 10, 15, 20]] * 4
    assert [run.history().attempts for run in runs] == [1] * 4
    assert launch(plan, ledger).planned == []
    assert all(run.log(1).exists() for run in runs)


@pytest.mark.usefixtures("fake_jobs")
def test_failed_run_says_why_and_is_not_submitted_again(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    behave(ledger, "fail")
    plan = make_plan(root, [tiny_config()], cluster=SETTINGS)
    launch(plan, ledger)
    wait(lambda: states(plan, ledger) == ["failed"])
    (row,) = statuses(ledger, plan.rows())
    assert row.error is not None
    assert row.error.endswith("ValueError: the loss became a pumpkin")
    assert launch(plan, ledger).planned == []
    behave(ledger, "")
    assert len(launch(plan, ledger, retry=True).planned) == 1
    wait(lambda: states(plan, ledger) == ["completed"])


@pytest.mark.usefixtures("fake_jobs")
def test_run_told_that_its_time_is_up_is_requeued_under_its_id_and_goes_on(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    behave(ledger, "slow")
    plan = make_plan(root, [tiny_config(), tiny_config("cispo")], cluster=SETTINGS)
    launch(plan, ledger)
    run = ledger.run(plan.runs[0].run_id)
    wait(lambda: len(steps(run)) > 1)
    cluster.ask("scancel", "--signal=USR2", job_id(run))
    wait(lambda: run.history().turn == "requeued")
    wait(lambda: states(plan, ledger)[0] == "pending")
    assert launch(plan, ledger).planned == []
    behave(ledger, "")

    def completed() -> bool:
        """Slurm has a requeued job wait two minutes, anew each time it cleans up its first life."""
        for line in cluster.ask("squeue", "--me", "--noheader", "--format=%i %r").splitlines():
            if line.endswith(" BeginTime"):
                cluster.ask("scontrol", "update", f"JobId={line.split()[0]}", "StartTime=now")
        return states(plan, ledger) == ["completed"] * 2

    wait(completed, seconds=180)
    started = [item["job"] for item in run.history().events if item["event"] == "started"]
    assert started == [job_id(run)] * 2
    assert steps(run) == [0, 5, 10, 15, 20]


@pytest.mark.usefixtures("fake_jobs")
def test_cancelled_run_saves_and_goes_on_when_launched_again(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    behave(ledger, "slow")
    plan = make_plan(root, [tiny_config()], cluster=SETTINGS)
    launch(plan, ledger)
    run = ledger.run(plan.runs[0].run_id)
    wait(lambda: len(steps(run)) > 1)
    cluster.ask("scancel", job_id(run))
    wait(lambda: states(plan, ledger) == ["planned"])
    behave(ledger, "")
    assert len(launch(plan, ledger).planned) == 1
    wait(lambda: states(plan, ledger) == ["completed"])
    assert steps(run) == [0, 5, 10, 15, 20]
    assert run.history().attempts == 2


@pytest.mark.usefixtures("fake_jobs")
def test_options_that_slurm_refuses_are_one_line(
    root: Path, ledger: Ledger, cluster: PrivateCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Cluster(kind="slurm", partition="nowhere")
    with pytest.raises(ServiceError, match="Invalid partition") as caught:
        launch(make_plan(root, [tiny_config()], cluster=settings), ledger)
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def test_real_training_on_slurm_can_be_ranked(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    from analysis.ranking import Options
    from pipelines.rank import rank_sweep
    from pipelines.tracking import sync

    configs = [tiny_config(loss, steps=40) for loss in ("grpo", "cispo")]
    plan = make_plan(root, configs, cluster=SETTINGS)
    launch(plan, ledger)
    wait(lambda: states(plan, ledger) == ["completed"] * 2, seconds=240)
    assert sync(ledger, [run.run_id for run in plan.runs]) == 0
    ranked = rank_sweep(ledger, "tiny", Options())
    assert len(ranked.analysis.document()["fits"]) == 2
    assert (ledger.sweep("tiny").folder / "report.html").exists()


@pytest.mark.usefixtures("fake_jobs")
def test_a_race_submits_each_rung_and_leaves_out_what_it_stopped(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    behave(ledger, "spread")
    lrs = dict(zip(LOSSES, (4e-4, 5e-4, 6e-4, 8e-4), strict=True))
    budget = Budget(amount=40, eval_every=2)
    configs = [tiny_config(n, budget=budget, optimizer=Optimizer(lr=lr)) for n, lr in lrs.items()]
    plan = replace(make_plan(root, configs, cluster=SETTINGS), race=Race(rungs=[0.4, 1.0]))

    def over() -> bool:
        time.sleep(0.5)
        return race.advance(plan, ledger).over

    wait(over, 300)
    assert states(plan, ledger) == ["stopped"] * 3 + ["completed"]
    runs = [ledger.run(run.run_id) for run in plan.runs]
    assert [steps(run)[-1] for run in runs] == [16, 16, 16, 40]
    assert [run.history().attempts for run in runs] == [1, 1, 1, 2]
    assert launch(plan, ledger).planned == []
