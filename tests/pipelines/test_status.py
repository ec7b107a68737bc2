from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipelines import display, files
from pipelines.ledger import Ledger, RunFiles
from pipelines.status import RunStatus, errors, statuses, summary, table
from recipes.config import Budget

ROW = {
    "run_id": "abc",
    "label": "loss=cispo",
    "choices": {"loss": "cispo"},
    "seed": 3,
    "budget": asdict(Budget(amount=100, eval_every=25)),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def run(ledger: Ledger) -> RunFiles:
    made = ledger.run("abc")
    made.create({})
    made.event("planned", cluster="local", budget=ROW["budget"], sweep="a")
    return made


def add(run: RunFiles, attempt: int, step: int, time: float, **metrics: float) -> None:
    record = {"attempt": attempt, "step": step, "time": time, "compute": {"steps": step}}
    files.append(run.metrics_file, {**record, "metrics": metrics or {"train/loss": 1.0}})


def status(ledger: Ledger) -> RunStatus:
    (only,) = statuses(ledger, [ROW])
    return only


def test_run_without_files(ledger: Ledger) -> None:
    assert status(ledger).document() == {
        "run_id": "abc",
        "label": "loss=cispo",
        "choices": {"loss": "cispo"},
        "seed": 3,
        "state": "planned",
        "axis": "steps",
        "compute": 0.0,
        "budget": 100,
        "spent": {},
        "step": None,
        "pass_rate": None,
        "truncation": None,
        "attempts": 0,
        "ends": {},
        "error": None,
        "eta_s": None,
        "health": None,
        "problems": [],
    }


def test_running_run_has_progress_rates_and_time_left(ledger: Ledger, run: RunFiles) -> None:
    run.event("started", attempt=1)
    run.event("started", attempt=2)
    add(run, 1, 0, 0.0)
    evaluation = {"eval/pass_rate": 0.4, "eval/truncation_rate": 0.1}
    add(run, 2, 25, 1000.0, **evaluation)
    add(run, 2, 50, 1010.0)
    with files.locked(run.lock_file):
        row = status(ledger)
    assert (row.state, row.step, row.progress, row.attempts) == ("running", 50, 0.5, 2)
    assert (row.pass_rate, row.truncation) == (0.4, 0.1)
    assert row.eta_s == pytest.approx(20.0)  # 25 steps took 10 s, 50 are left


def test_failed_run_says_why(ledger: Ledger, run: RunFiles) -> None:
    run.event("started", attempt=1)
    run.event("failed", attempt=1, error="Traceback\nValueError: no")
    row = status(ledger)
    assert (row.state, row.error) == ("failed", "Traceback\nValueError: no")
    headers, lines = table([row])
    assert headers[-1] == "error"
    assert lines == [
        ["abc", "loss=cispo", "3", "failed", "0%", *["-"] * 4, "1", "1 failed", "ValueError: no"]
    ]
    told = ["", "abc (loss=cispo): failed", "    Traceback", "    ValueError: no"]
    assert list(errors([row])) == told
    again = [row, replace(row, run_id="d"), replace(row, run_id="e", state="completed", error=None)]
    assert list(errors(again)) == ["", "abc (loss=cispo) and 1 more: failed", *told[2:]]
    assert summary(again) == "3 runs: 2 failed, 1 completed"


def test_ends_are_counted_apart_and_shown_where_there_are_any(
    ledger: Ledger, run: RunFiles
) -> None:
    for reason in ("preempted", "time limit", "preempted"):
        run.event("started", attempt=1)
        run.event("requeued", reason=reason)
    run.event("started", attempt=4)
    assert status(ledger).document()["ends"] == {"preempted": 2, "time limit": 1, "lost": 1}
    with files.locked(run.lock_file):  # somebody is at it: not lost
        row = status(ledger)
    assert row.ends == {"preempted": 2, "time limit": 1}
    headers, lines = table([row, replace(row, ends={})])
    assert headers[-1] == "ended early"
    assert [line[-1] for line in lines] == ["2 preempted, 1 time limit", ""]


def test_error_of_an_earlier_attempt_is_over_once_it_runs_again(
    ledger: Ledger, run: RunFiles
) -> None:
    run.event("started", attempt=1)
    run.event("died", attempt=1, error="its process was ended by SIGKILL")
    assert status(ledger).error == "its process was ended by SIGKILL"
    run.event("started", attempt=2)
    with files.locked(run.lock_file):
        assert status(ledger).error is None


def test_rates_come_from_the_result_where_the_last_evaluation_is_far_back(
    ledger: Ledger, run: RunFiles
) -> None:
    for step in range(2000):
        add(run, 1, step, float(step))
    files.write_json(
        run.result_file, {"compute": {"steps": 100}, "pass_rate": 0.7, "truncation": 0.0}
    )
    assert (status(ledger).state, status(ledger).pass_rate) == ("completed", 0.7)


def test_damaged_result_has_the_run_planned_again(ledger: Ledger, run: RunFiles) -> None:
    run.event("started", attempt=1)
    run.event("finished", attempt=1, step=100)
    files.write_json(run.result_file, {"compute": {"steps": 100}})
    assert status(ledger).state == "completed"
    run.result_file.write_text("")
    assert status(ledger).state == "planned"


@pytest.mark.parametrize(
    ("rates", "truncation", "loss", "word"),
    [
        ([0.2, 0.3, 0.4, 0.5], 0.05, 1.0, "ok"),
        ([0.2, 0.3, 0.4, 0.5], 0.11, 1.0, "truncated"),
        ([0.2, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1], 0.0, 1.0, "collapsed"),
        ([0.2, 0.3], 0.0, float("inf"), "NaN"),
    ],
)
def test_health_is_that_of_the_analysis_in_a_word(
    ledger: Ledger, run: RunFiles, rates: list[float], truncation: float, loss: float, word: str
) -> None:
    for step, rate in enumerate(rates):
        add(run, 1, step, 0.0, **{"eval/pass_rate": rate, "eval/truncation_rate": truncation})
        run.point(1, step, {"steps": float(step)}, {"train/loss": loss})
    row = status(ledger)
    assert row.health == word
    assert len(row.problems) == (word != "ok")
    assert table([row])[1][0][7] == word


def test_numbers_that_are_not_finite_are_null(
    ledger: Ledger, run: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    nan, inf = float("nan"), float("inf")
    run.event("started", attempt=1)
    run.point(1, 0, {"steps": 0.0}, {"eval/pass_rate": 0.5})
    rates = {"eval/pass_rate": nan, "eval/truncation_rate": inf}
    run.point(1, 5, {"steps": inf, "flops": nan, "tokens": 7.0}, rates)
    files.append(run.metrics_file, {})
    with files.locked(run.lock_file):
        row = status(ledger)
    display.emit(row.document())
    document = json.loads(capsys.readouterr().out)
    assert document["spent"] == {"steps": None, "flops": None, "tokens": 7.0}
    names = ("state", "step", "compute", "pass_rate", "truncation", "eta_s")
    assert [document[name] for name in names] == ["running", 5, None, None, None, None]
    assert table([row])[1][0][5:9] == ["-", "-", "-", "-"]
    assert replace(row, compute={"steps": nan}).progress == 0.0


def test_rates_of_a_result_that_are_not_finite_are_unknown(ledger: Ledger, run: RunFiles) -> None:
    result = {"compute": {"steps": 100}, "pass_rate": float("nan"), "truncation": None}
    files.write_json(run.result_file, result)
    assert (status(ledger).pass_rate, status(ledger).truncation) == (None, None)


def test_table_is_plain_text(ledger: Ledger, run: RunFiles) -> None:
    headers, lines = table(statuses(ledger, [ROW]))
    assert headers[-1] == "tries"
    assert lines == [["abc", "loss=cispo", "3", "planned", "0%", "-", "-", "-", "-", "0"]]


def test_asking_for_a_state_imports_nothing_heavy(ledger: Ledger) -> None:
    code = f"""
import sys
from pipelines.ledger import Ledger
from pipelines.status import statuses
import pipelines.follow, pipelines.launch
statuses(Ledger({str(ledger.root)!r}), [])
heavy = {{"torch", "trl", "transformers", "mlflow", "submitit", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
