from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipelines import files
from pipelines.jobs import Jobs
from pipelines.ledger import Ledger, RunFiles
from recipes.config import Budget

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


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Puts a `squeue` that runs `script` before any other, and returns the log of its calls."""
    binary, calls = folder / "bin" / "squeue", folder / "calls"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho called >> {calls}\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    return calls


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
    ("answer", "expected"),
    [
        ("7_1|PENDING", "pending"),
        ("7_1|CONFIGURING", "pending"),
        ("7_1|REQUEUED", "pending"),
        ("7_1|RUNNING", "running"),
        ("7_1|COMPLETING", "running"),
        ("7_2|RUNNING", "planned"),
        ("", "planned"),
    ],
)
def test_state_of_a_slurm_job(
    run: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: str
) -> None:
    squeue(tmp_path, monkeypatch, f"echo '{answer}'")
    plan(run, "slurm")
    run.event("submitted", job="7_1")
    assert state(run) == expected


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 5"])
def test_scheduler_that_does_not_answer_is_unknown_never_failed(
    run: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    squeue(tmp_path, monkeypatch, script)
    monkeypatch.setattr("pipelines.jobs.SQUEUE_TIMEOUT_S", 0.3)
    plan(run, "slurm")
    run.event("submitted", job="7")
    assert state(run) == "unknown"


def test_slurm_is_asked_once_a_pass_and_only_if_a_run_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = squeue(tmp_path, monkeypatch, "echo '7_1|RUNNING'; echo '7_2|PENDING'")
    ledger = Ledger(tmp_path)
    runs = [ledger.run(name) for name in ("one", "two", "three")]
    for number, run in enumerate(runs):
        run.create({})
        plan(run, "slurm")
        run.event("submitted", job=f"7_{number}")
    jobs = Jobs(ledger)
    found: list[Any] = [jobs.state(run, run.history(), BUDGET) for run in runs]
    assert found == ["planned", "running", "pending"]
    assert calls.read_text().split() == ["called"]
    files.write_json(runs[0].result_file, {"compute": {"steps": 100}})
    Jobs(ledger).state(runs[0], runs[0].history(), BUDGET)
    assert calls.read_text().split() == ["called"]


def test_planned_for_slurm_but_never_submitted_is_planned(run: RunFiles, tmp_path: Path) -> None:
    plan(run, "slurm")
    ledger = Ledger(tmp_path)
    ledger.lanes.mkdir()
    with files.locked(ledger.lane(0)):
        assert state(run) == "planned"
