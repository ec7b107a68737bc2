from __future__ import annotations

import os
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any

import pytest

from pipelines import files
from pipelines.jobs import Jobs
from pipelines.ledger import Ledger, RunFiles
from recipes.config import Budget
from tests.fake_slurm import FakeSlurm

LAUNCH = "0123abcd"
NAME = f"shortlist-a-{LAUNCH}-0"
BUDGET = Budget(amount=100)
BUDGET_FIELDS = {"axis": "steps", "amount": 100, "eval_every": 5, "log_every": 5}


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    made = Ledger(tmp_path).run("abc")
    made.create({})
    return made


def state(run: RunFiles, budget: Budget = BUDGET) -> str:
    ledger = Ledger(run.folder.parents[1])
    return Jobs(ledger).state(run, run.history(), budget)


def plan(run: RunFiles, cluster: str = "local") -> None:
    run.event("planned", cluster=cluster, budget=BUDGET_FIELDS, sweep="a")


def submit(run: RunFiles, name: str = NAME, task: int = 0, runs: int = 1) -> None:
    """Plans a run, as task `task` of an array of so many."""
    run.event("planned", cluster="slurm", budget=BUDGET_FIELDS, sweep="a", launch=LAUNCH)
    names = [f"other-{number}" for number in range(runs)]
    names[task] = run.run_id
    files.write_json(Ledger(run.folder.parents[1]).submission(name), {"runs": names, "share": 1})


def test_run_nobody_asked_for_is_planned(tmp_path: Path) -> None:
    assert state(Ledger(tmp_path).run("new")) == "planned"


def test_planned_run_is_pending_while_a_lane_is_at_work(run: RunFiles, tmp_path: Path) -> None:
    plan(run)
    assert state(run) == "planned"
    ledger = Ledger(tmp_path)
    ledger.lanes.mkdir()
    with files.locked(ledger.lane(0)):
        assert state(run) == "pending"
    # Just started: it takes a moment until a lane has its lock.
    assert state(run) == "pending"
    os.utime(ledger.lane(0), (0, 0))
    assert state(run) == "planned"


def test_run_is_running_as_long_as_its_lock_is_held(run: RunFiles) -> None:
    plan(run)
    run.event("started", attempt=1)
    with files.locked(run.lock_file):
        assert state(run) == "running"
    assert state(run) == "planned"  # its process ended without a word


def test_completed_depends_on_the_budget_asked_for(run: RunFiles) -> None:
    plan(run)
    files.write_json(run.result_file, {"compute": {"steps": 100, "flops": 1e9}})
    assert state(run) == "completed"
    assert state(run, Budget(amount=50)) == "completed"
    assert state(run, Budget(amount=200)) == "planned"
    assert state(run, Budget("flops", 1e9)) == "completed"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("failed", "failed"),
        ("cancelled", "stopped"),
        ("died", "planned"),
        ("interrupted", "planned"),
        ("finished", "planned"),
    ],
)
def test_state_after_an_end(run: RunFiles, event: str, expected: str) -> None:
    plan(run)
    run.event("started", attempt=1)
    run.event(event, attempt=1, error="no")
    assert state(run) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("PENDING", "pending"),
        ("CONFIGURING", "pending"),
        ("REQUEUED", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
    ],
)
def test_state_of_a_slurm_job(run: RunFiles, slurm: FakeSlurm, status: str, expected: str) -> None:
    submit(run, task=1, runs=2)
    slurm.set_queue([["7_1", status, "None", NAME]])
    assert state(run) == expected
    run.event("started", attempt=1, claim="a")
    run.event("interrupted", attempt=1)
    assert state(run) == expected  # as long as it is in the queue, it goes on


@pytest.mark.parametrize(
    "line",
    [
        ["7_2", "RUNNING", "None", NAME],
        ["7_1", "RUNNING", "None", "shortlist-a-ffffffff-0"],
        ["7_1", "RUNNING", "None", "somebody-elses"],
        ["7_1", "RUNNING", "None", "../" + NAME],
        ["7", "RUNNING", "None", NAME],
        ["CLUSTER: one"],
    ],
)
def test_other_jobs_are_not_its(run: RunFiles, slurm: FakeSlurm, line: list[str]) -> None:
    submit(run, task=1, runs=2)
    slurm.set_queue([line])
    assert state(run) == "planned"


def test_job_is_found_by_name_even_if_sbatch_never_answered_and_numbers_come_again(
    run: RunFiles, slurm: FakeSlurm
) -> None:
    run.event("planned", cluster="slurm", budget=BUDGET_FIELDS, sweep="a", launch="00000000")
    run.event("submitted", job="7_0", launch="00000000")
    submit(run)
    slurm.set_queue([["7_0", "PENDING", "None", NAME]])  # of a controller that lost its state
    assert state(run) == "pending"
    slurm.set_queue([["7_0", "PENDING", "None", "shortlist-a-00000000-0"]])
    assert state(run) == "planned"  # an earlier launch's: it ends as it starts


@pytest.mark.parametrize("switch", ["down", "hang_squeue"])
def test_scheduler_that_does_not_answer_is_unknown_never_failed(
    run: RunFiles, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setattr("pipelines.jobs.CLIENT_TIMEOUT_S", 0.5)
    submit(run)
    slurm.write(switch)
    assert state(run) == "unknown"


def test_slurm_is_asked_once_a_pass_and_only_if_a_run_needs_it(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    ledger = Ledger(tmp_path)
    runs = [ledger.run(name) for name in ("one", "two", "three")]
    for run in runs:
        run.create({})
        run.event("planned", cluster="slurm", budget=BUDGET_FIELDS, sweep="a", launch=LAUNCH)
    files.write_json(ledger.submission(NAME), {"runs": ["one", "two", "three"]})
    slurm.set_queue([["7_1", "RUNNING", "None", NAME], ["7_2", "PENDING", "Priority", NAME]])
    jobs = Jobs(ledger)
    found: list[Any] = [jobs.state(run, run.history(), BUDGET) for run in runs]
    assert found == ["planned", "running", "pending"]
    assert slurm.asked() == ["squeue"]
    files.write_json(runs[0].result_file, {"compute": {"steps": 100}})
    Jobs(ledger).state(runs[0], runs[0].history(), BUDGET)
    assert slurm.asked() == ["squeue"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Priority", None),
        ("JobHeldAdmin", "job 7_0 waits: JobHeldAdmin (scontrol release 7_0)"),
        ("PartitionTimeLimit", "job 7_0 waits: PartitionTimeLimit"),
    ],
)
def test_job_that_waits_for_a_person_is_told(
    run: RunFiles, slurm: FakeSlurm, reason: str, expected: str | None
) -> None:
    submit(run)
    slurm.set_queue([["7_0", "PENDING", reason, NAME]])
    assert Jobs(Ledger(run.folder.parents[1])).trouble(run.run_id, run.history()) == expected


def test_job_that_ended_before_it_trained_is_told_with_what_it_said(
    run: RunFiles, slurm: FakeSlurm
) -> None:
    ledger = Ledger(run.folder.parents[1])
    submit(run)
    run.event("submitted", job="7_0", launch=LAUNCH)
    (ledger.submissions / "7_0_0_log.err").write_text("a\nmodule: not found\n\n")
    assert state(run) == "planned"
    told = Jobs(ledger).trouble(run.run_id, run.history())
    assert told == "job 7_0 ended before it trained: module: not found"
    run.event("started", attempt=1, claim="x", job="7_0")
    (ledger.submissions / "7_0_0_log.err").write_text("slurmstepd: error: 1 oom_kill event\n")
    told = Jobs(ledger).trouble(run.run_id, run.history())
    assert told == "job 7_0 ended without a word: slurmstepd: error: 1 oom_kill event"


def test_error_is_a_failure_when_it_has_been_tried_again_as_often_as_asked(
    run: RunFiles,
) -> None:
    run.event("planned", cluster="local", budget=BUDGET_FIELDS, sweep="a", retries=1)
    run.event("failed", error="no")
    assert state(run) == "planned"
    run.event("failed", error="no")
    assert state(run) == "failed"
    run.event("planned", cluster="local", budget=BUDGET_FIELDS, sweep="a", retries=1, retry=True)
    run.event("failed", error="no")
    assert state(run) == "planned"


def test_heartbeat_tells_of_a_process_that_locks_do_not_reach(run: RunFiles) -> None:
    plan(run)
    run.heartbeat_file.write_text("another-machine")
    assert state(run) == "running"
    run.heartbeat_file.write_text(gethostname())
    assert state(run) == "planned"  # here, the lock tells
    run.heartbeat_file.write_text("another-machine")
    os.utime(run.heartbeat_file, (time() - 70, time() - 70))
    assert state(run) == "planned"


def test_planned_for_slurm_but_never_submitted_is_planned(run: RunFiles, tmp_path: Path) -> None:
    plan(run, "slurm")
    ledger = Ledger(tmp_path)
    ledger.lanes.mkdir()
    with files.locked(ledger.lane(0)):
        assert state(run) == "planned"
