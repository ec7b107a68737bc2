"""Sweeps on real, private Slurm clusters. Training is fake but for two tests."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines import race
from pipelines.cancel import stop
from pipelines.cli import main
from pipelines.config import Cluster, Race
from pipelines.errors import ServiceError
from pipelines.launch import launch
from pipelines.ledger import Ledger, RunFiles
from pipelines.plan import Plan
from pipelines.status import statuses
from recipes.config import Budget, Optimizer
from tests.fakes import eval_points, make_plan, tiny_config
from tests.slurm.cluster import PrivateCluster, wait

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("signals")]
SETTINGS: dict[str, object] = {
    "kind": "slurm",
    "parallel": 2,
    "partition": "low",
    "time_min": 60,
    "signal_delay_s": 60,
}
CLEAN = 30
"""Looks after which a job that ended has been cleaned up: where it is started on its node earlier,
Slurm calls it a duplicate, drains the node and holds the job; hence its two minutes."""
on_both = pytest.mark.parametrize("cluster", ["bare", "accounted"], indirect=True)
accounted = pytest.mark.parametrize("cluster", ["accounted"], indirect=True)
fake = pytest.mark.usefixtures("fake_jobs")


class Case:
    """A sweep of fake runs on a cluster, and what is known of it."""

    def __init__(self, root: Path, cluster: PrivateCluster) -> None:
        self.root, self.cluster, self.ledger = root, cluster, Ledger(root)
        self.plan: Plan

    def launch(self, behave: str = "", runs: int = 1, steps: int = 20, **settings: object) -> None:
        """Launches a sweep of so many runs."""
        configs = [tiny_config(steps=steps, seed=seed) for seed in range(runs)]
        self.plan = make_plan(self.root, configs, cluster=Cluster(**{**SETTINGS, **settings}))
        self.behave(behave)
        assert len(launch(self.plan, self.ledger).planned) == runs

    def behave(self, words: str) -> None:
        self.ledger.runs.mkdir(exist_ok=True)
        (self.ledger.runs / "behave").write_text(words)

    def again(self) -> int:
        """Launches it again; returns how many runs were submitted."""
        return len(launch(self.plan, self.ledger).planned)

    @property
    def runs(self) -> list[RunFiles]:
        return [self.ledger.run(run.run_id) for run in self.plan.runs]

    @property
    def run(self) -> RunFiles:
        return self.runs[0]

    @property
    def states(self) -> list[str]:
        return [row.state for row in statuses(self.ledger, self.plan.rows())]

    @property
    def error(self) -> str:
        return str(statuses(self.ledger, self.plan.rows())[0].error)

    @property
    def job(self) -> str:
        """The number of the first run's last job."""
        return str(next(e["job"] for e in reversed(self.run.history().events) if "job" in e))

    @property
    def node(self) -> str:
        return self.cluster.ask("squeue", "--noheader", f"--jobs={self.job}", "--format=%N").strip()

    def until_training(self) -> None:
        wait(lambda: len(self.run.points()) > 2)
        self.behave("")  # of the next attempt

    def until(self, *states: str, seconds: float = 120) -> None:
        """Until each run has one of these states; says so at once if one fails."""

        free = 0

        def there() -> bool:
            nonlocal free
            free = 0 if any(run.running() for run in self.runs) else free + 1
            if free > CLEAN:
                self.cluster.hurry()
            found = self.states
            assert "failed" in states or "failed" not in found, self.error
            return set(found) <= set(states)

        wait(there, seconds)

    def check(self, attempts: int | None = None, ends: dict[str, int] | None = None) -> None:
        """Every run is complete, was trained once, by one process at a time, and has all points."""
        assert self.again() == 0
        assert set(self.states) == {"completed"}
        for run in self.runs:
            names = Counter(item["event"] for item in run.history().events)
            assert names["finished"] == 1
            amount = int(run.history().budget.amount)  # type: ignore[union-attr]
            assert [step for step, _, _ in eval_points(run.points())] == [*range(0, amount + 1, 5)]
            order = [point["attempt"] for point in run.points_since(0)[0]]
            assert order == sorted(order)
        if attempts is not None:
            assert self.run.history().attempts == attempts
        if ends is not None:
            assert dict(self.run.history().ends) == ends


@pytest.fixture
def case(root: Path, cluster: PrivateCluster) -> Case:
    return Case(root, cluster)


@fake
@on_both
def test_arrays_run_so_many_at_a_time_and_are_not_submitted_twice(case: Case) -> None:
    case.launch("slow", runs=7, gres="gpu:1", container="env INSIDE=yes")
    numbers = [
        item["job"]
        for run in case.runs
        for item in run.history().events
        if item["event"] == "submitted"
    ]
    assert sorted(Counter(number.split("_")[0] for number in numbers).values()) == [3, 4]
    assert case.again() == 0
    seen: list[int] = []

    def done() -> bool:
        found = case.states
        assert set(found) <= {"pending", "running", "completed"}
        seen.append(found.count("running"))
        return found == ["completed"] * 7

    wait(done)
    assert max(seen) == 2
    case.check(attempts=1, ends={})
    assert all(run.log(1).exists() for run in case.runs)


@fake
@accounted
def test_more_than_the_queue_takes_is_submitted_later(case: Case) -> None:
    configs = [tiny_config(seed=seed) for seed in range(5)]
    settings = Cluster(**{**SETTINGS, "qos": "few", "account": "us"})
    case.plan = make_plan(case.root, configs, cluster=settings)
    report = launch(case.plan, case.ledger)
    assert len(report.planned) == 2
    assert "3 runs are left" in report.notes[0]

    def done() -> bool:
        case.again()
        return set(case.states) == {"completed"}

    wait(done)
    case.check(attempts=1)


@fake
@on_both
def test_failed_run_says_why_at_once_and_is_not_submitted_again(case: Case) -> None:
    case.launch("fail")
    case.until("failed")
    assert case.error.endswith("ValueError: the loss became a pumpkin")
    assert case.again() == 0
    case.behave("")
    assert len(launch(case.plan, case.ledger, retry=True).planned) == 1
    case.until("completed")
    case.check(attempts=2, ends={"failed": 1})


@fake
def test_error_of_the_second_process_ends_the_first_and_is_told(case: Case) -> None:
    setup = ["export MASTER_ADDR=127.0.0.1"]
    case.launch("slow fail_rank_1", steps=1000, processes=2, setup=setup)
    case.until("planned")
    assert case.error.startswith("process 1 of the run ended:\n")
    assert case.error.endswith("ValueError: the loss became a pumpkin")
    assert case.run.history().turn == "died"


@fake
def test_error_is_tried_again_by_itself_as_often_as_asked(case: Case) -> None:
    case.launch("fail", retries=1)
    case.until("failed")
    assert dict(case.run.history().ends) == {"failed": 2}
    started = [item["job"] for item in case.run.history().events if item["event"] == "started"]
    assert started == [case.job] * 2


@fake
@on_both
def test_python_that_is_killed_goes_on_when_launched_again(case: Case) -> None:
    case.launch("kill 12")
    case.until("planned", seconds=60)
    assert case.again() == 1
    case.until("completed")
    case.check(attempts=2, ends={"lost": 1})


@fake
def test_time_limit_is_signalled_saved_requeued_and_goes_on(case: Case) -> None:
    case.launch("slow", steps=1000)
    case.until_training()
    case.cluster.ask("scontrol", "update", f"JobId={case.job}", "TimeLimit=1")
    wait(lambda: case.run.history().turn == "requeued")
    case.cluster.ask("scontrol", "update", f"JobId={case.job}", "TimeLimit=60")
    assert case.again() == 0
    case.until("completed")
    case.check(attempts=2, ends={"time limit": 1})
    started = [item["job"] for item in case.run.history().events if item["event"] == "started"]
    assert started == [case.job] * 2


@fake
def test_requeue_by_an_administrator_goes_on(case: Case) -> None:
    case.launch("slow", steps=200)
    case.until_training()
    case.cluster.ask("scontrol", "requeue", case.job)
    case.until("completed")
    case.check(attempts=2)
    assert not case.run.history().ends


@fake
@on_both
def test_preempted_run_saves_and_goes_on_by_itself(case: Case) -> None:
    """With the user's signal where there is accounting, with SIGTERM where there is none."""
    case.launch("slow", steps=400)
    case.until_training()
    node = case.node
    urgent = ["--partition=high", f"--nodelist={node}", "--exclusive", "--output=/dev/null"]
    case.cluster.ask("sbatch", *urgent, "--wrap=sleep 1")
    wait(lambda: case.run.history().turn in ("requeued", "interrupted"))
    case.until("completed")
    case.check(attempts=2, ends={"preempted": 1})


@fake
def test_node_that_goes_down_loses_nothing(case: Case) -> None:
    case.launch("slow", steps=400)
    case.until_training()
    node = case.node
    case.cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    case.until("completed")
    case.check(attempts=2)


@fake
def test_of_two_processes_only_the_current_attempt_writes_where_slurmd_was_killed(
    case: Case,
) -> None:
    case.launch("slow", steps=2000)
    case.until_training()
    node = case.node
    case.cluster.stop(node, signal.SIGKILL)
    wait(lambda: case.run.history().attempts == 2 or case.cluster.hurry(), seconds=120)
    assert "still at work" not in case.error
    case.until("completed")
    case.check(attempts=2, ends={"lost": 1})
    assert "a later attempt trains this run" in case.run.log(1).read_text()
    case.cluster.start_node(node)


@fake
def test_controller_that_is_restarted_changes_nothing(case: Case) -> None:
    case.launch("slow", runs=3, steps=50)
    case.until_training()
    case.cluster.stop("slurmctld")
    assert set(case.states) <= {"running", "unknown"}
    case.cluster.start_controller()
    wait(lambda: "unknown" not in case.states)
    case.until("completed")
    case.check(attempts=1, ends={})


@fake
@on_both
def test_controller_that_is_killed_loses_and_doubles_nothing(case: Case) -> None:
    case.launch("slow", runs=3, steps=50)
    case.until_training()
    case.cluster.stop("slurmctld", signal.SIGKILL)
    case.cluster.start_controller()

    def done() -> bool:
        if "unknown" in case.states:
            return False
        case.cluster.hurry()
        case.again()
        return set(case.states) == {"completed"}

    wait(done, seconds=180)
    case.check()


@fake
def test_nothing_is_lost_or_doubled_while_the_controller_is_away(case: Case) -> None:
    case.launch("slow", runs=2, steps=30)
    case.until_training()
    case.cluster.stop("slurmctld")
    with pytest.raises(ServiceError, match="Slurm does not answer"):
        case.again()
    wait(lambda: case.run.history().turn == "finished")
    assert case.states[0] == "completed"
    case.cluster.start_controller()
    wait(lambda: "unknown" not in case.states)
    case.until("completed")
    case.check(attempts=1)


@fake
def test_stopped_runs_save_leave_the_queue_and_stay_stopped_until_retried(case: Case) -> None:
    case.launch("slow", runs=4)
    wait(lambda: len(case.run.points()) > 1)
    ids = [run.run_id for run in case.runs]
    assert stop(case.ledger, ids, "a test") == ids
    assert case.states == ["stopped"] * 4
    ended = [item["event"] for item in case.run.history().events]
    assert ended[ended.index("cancelled") :] == ["cancelled", "checkpoint", "interrupted"]
    wait(lambda: not case.cluster.ask("squeue", "--me", "--noheader").strip())
    assert case.again() == 0
    case.behave("")
    assert len(launch(case.plan, case.ledger, retry=True).planned) == 4
    case.until("completed")
    case.check(attempts=2)
    assert case.runs[3].history().attempts == 1


@fake
def test_run_whose_job_was_cancelled_saves_and_goes_on_when_launched_again(case: Case) -> None:
    case.launch("slow", steps=200)
    case.until_training()
    case.cluster.ask("scancel", case.job)
    case.until("planned")
    assert case.run.history().turn == "interrupted"
    assert case.again() == 1
    case.until("completed")
    case.check(attempts=2)


@fake
def test_job_that_cannot_start_its_training_is_told(case: Case) -> None:
    case.launch(setup=["echo 'module: cuda/99 is not known' >&2", "exit 1"])
    case.until("planned")
    assert case.error.startswith(f"job {case.job} ended before it trained: module: cuda/99")


@fake
def test_options_that_slurm_refuses_are_one_line(
    case: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ServiceError, match=r"[iI]nvalid partition") as caught:
        case.launch(partition="nowhere")
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def test_real_training_on_slurm_can_be_ranked(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    from analysis.ranking import Options
    from pipelines.rank import rank_sweep
    from pipelines.tracking import sync

    configs = [tiny_config(loss, steps=40) for loss in ("grpo", "cispo")]
    plan = make_plan(root, configs, cluster=Cluster(**SETTINGS))
    launch(plan, ledger)
    wait(lambda: [row.state for row in statuses(ledger, plan.rows())] == ["completed"] * 2, 240)
    assert sync(ledger, [run.run_id for run in plan.runs]) == 0
    ranked = rank_sweep(ledger, "tiny", Options())
    assert len(ranked.analysis.document()["fits"]) == 2
    assert (ledger.sweep("tiny").folder / "report.html").exists()


def test_two_processes_train_one_run_and_one_of_them_writes(
    root: Path, ledger: Ledger, cluster: PrivateCluster
) -> None:
    setup = ["export MASTER_ADDR=127.0.0.1"]  # virtual nodes have names that resolve nowhere
    settings = Cluster(**{**SETTINGS, "processes": 2, "setup": setup})
    plan = make_plan(root, [tiny_config(steps=10)], cluster=settings)
    launch(plan, ledger)
    run = ledger.run(plan.runs[0].run_id)
    wait(lambda: run.history().turn in ("finished", "failed"), 300)
    assert run.history().error is None
    assert [step for step, _, _ in eval_points(run.points_since(0)[0])] == [0, 5, 10]
    names = Counter(item["event"] for item in run.history().events)
    assert (names["started"], names["finished"]) == (1, 1)
    states = list((run.folder / "checkpoints" / "step-000010").glob("rng_state_*.pth"))
    assert len(states) == 2  # both were there


@fake
def test_a_race_submits_each_rung_and_leaves_out_what_it_stopped(case: Case) -> None:
    case.behave("spread")
    lrs = dict(zip(("grpo", "cispo", "dapo", "bnpo"), (4e-4, 5e-4, 6e-4, 8e-4), strict=True))
    budget = Budget(amount=40, eval_every=2)
    configs = [tiny_config(n, budget=budget, optimizer=Optimizer(lr=lr)) for n, lr in lrs.items()]
    plan = make_plan(case.root, configs, cluster=Cluster(**SETTINGS))
    case.plan = replace(plan, strategy="grid", race=Race(rungs=[0.4, 1.0]))

    def over() -> bool:
        time.sleep(0.5)
        return race.advance(case.plan, case.ledger).over

    wait(over, 300)
    assert case.states == ["stopped"] * 3 + ["completed"]
    last = [eval_points(run.points())[-1][0] for run in case.runs]
    assert last == [16, 16, 16, 40]
    assert [run.history().attempts for run in case.runs] == [1, 1, 1, 2]
    assert case.again() == 0


ABLATION = """
strategy: one_at_a_time
axes: {loss: [cispo], advantage: [none]}
set: [budget.amount=100, budget.eval_every=5]
"""


@fake
def test_a_promotion_goes_on_through_slurm_and_keeps_its_forecast(
    tmp_path: Path, ledger: Ledger, cluster: PrivateCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three runs of 100 steps; the base goes on to 400: 0.2 + 0.6 s / (s + 20) at step s."""
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_text(ABLATION)
    there = ["cluster=slurm", "cluster.partition=low", "--config-dir", str(tmp_path / "mine")]
    assert main(["launch", "small", f"root={ledger.root}", *there, "--follow"]) == 0
    large = ["promote", "small", f"root={ledger.root}", "budget.amount=400", "budget.eval_every=5"]
    capsys.readouterr()
    assert main([*large, "--name", "best", "--follow", "--json"]) == 0
    promoted = json.loads(capsys.readouterr().out)
    assert promoted["planned"] == [promoted["run_id"]]

    run = ledger.run(promoted["run_id"])
    assert run.history().sweeps == ["small", "best"]
    events = [item for item in run.history().events if item["event"] != "checkpoint"]
    once = ["planned", "submitted", "started", "finished"]
    assert [item["event"] for item in events] == once * 2
    for job in {item["job"] for item in events if item["event"] == "submitted"}:
        assert "JobState=COMPLETED" in cluster.ask("scontrol", "show", "job", job)
    assert [step for step, _, _ in eval_points(run.points())] == [*range(0, 401, 5)]

    assert main(["verify", "best", "--root", str(ledger.root), "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["state"], held["inside"], held["where"]) == ("completed", True, "inside")
    assert (held["run_id"], held["observed"]["evaluations"]) == (run.run_id, 60)
    last = [0.2 + 0.6 * step / (step + 20) for step in (385, 390, 395, 400)]
    assert held["observed"]["reward"] == pytest.approx(sum(last) / 4)
    assert main([*large, "--name", "best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned"] == []
