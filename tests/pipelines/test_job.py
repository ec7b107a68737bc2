from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipelines import files, job, launch
from pipelines.config import Tracking
from pipelines.ledger import Ledger, RunFiles
from pipelines.tracking import open_store, read_curves, sync
from recipes.config import Budget, RunConfig
from tests.fakes import eval_points, planned, tiny_config

pytestmark = pytest.mark.usefixtures("fake_training", "signals")

REQUEST = {
    "cluster": "local",
    "threads": 3,
    "snapshot": "code",
    "recipes": "hash",
    "tracking": {"uri": None, "experiment": "shortlist", "experiment_id": "1"},
}


def ask(ledger: Ledger, config: RunConfig, sweep: str = "a") -> RunFiles:
    launch.write_request(ledger, sweep, planned(config), REQUEST)
    return ledger.run(planned(config).run_id)


def train(ledger: Ledger, run: RunFiles) -> int | None:
    taken = job.claim(run)
    assert taken is not None
    try:
        return job.train(ledger, taken)
    finally:
        os.close(taken.lock)


def events(run: RunFiles) -> list[str]:
    return [item["event"] for item in run.history().events]


def behave(ledger: Ledger, words: str) -> None:
    (ledger.runs / "behave").write_text(words)


def test_run_is_trained_to_its_budget(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=12))
    assert train(ledger, run) is None
    assert events(run) == ["planned", "started", "checkpoint", "checkpoint", "finished"]
    result = run.result()
    assert result is not None
    assert (result["status"], result["step"], result["attempt"]) == ("completed", 12, 1)
    assert result["budget"]["amount"] == 12
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10, 12]
    assert not run.running()


def test_run_is_claimed_by_one_at_a_time_and_not_when_done(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=5))
    first = job.claim(run)
    assert first is not None
    assert job.claim(run) is None
    job.train(ledger, first)
    os.close(first.lock)
    assert job.claim(run) is None
    assert run.history().attempts == 1
    assert run.history().turn == "finished"


def test_larger_budget_continues_the_run(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=10))
    train(ledger, run)
    ask(ledger, tiny_config(steps=20), sweep="b")
    train(ledger, run)
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10, 15, 20]
    result = run.result()
    assert result is not None
    assert (result["step"], result["attempt"]) == (20, 2)


def test_budget_raised_while_it_trains_is_trained_to_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, tiny_config(steps=5))
    real = job.RunSink.point

    def point(sink: job.RunSink, step: int, *rest: object) -> None:
        if step == 5:
            monkeypatch.setattr(job.RunSink, "point", real)
            ask(ledger, tiny_config(steps=10), sweep="b")
        real(sink, step, *rest)

    monkeypatch.setattr(job.RunSink, "point", point)
    train(ledger, run)
    assert events(run).count("started") == 1
    assert events(run)[-1] == "finished"
    assert run.result()["step"] == 10  # type: ignore[index]


def test_error_is_written_down_with_its_last_lines(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config())
    behave(ledger, "fail")
    with pytest.raises(ValueError, match="pumpkin"):
        train(ledger, run)
    error = run.history().error
    assert error is not None
    assert error.splitlines()[-1] == "ValueError: the loss became a pumpkin"
    assert len(error.splitlines()) <= job.ERROR_LINES
    assert run.history().turn == "failed"
    assert run.result() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signal_ends_it_with_a_checkpoint_from_which_it_goes_on(
    ledger: Ledger, number: signal.Signals
) -> None:
    run = ask(ledger, tiny_config(steps=12))
    behave(ledger, "slow")
    threading.Timer(0.35, lambda: os.kill(os.getpid(), number)).start()
    assert train(ledger, run) == number
    interrupted = run.history().events[-1]
    assert (interrupted["event"], interrupted["signal"]) == ("interrupted", number)
    assert 0 < interrupted["step"] < 12
    assert run.result() is None
    behave(ledger, "")
    train(ledger, run)
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10, 12]


def test_configuration_is_the_stored_one_with_budget_and_layout_asked_for_last(
    ledger: Ledger,
) -> None:
    config = tiny_config("cispo", steps=10, seed=4)
    run = ask(ledger, config)
    ask(ledger, replace(config, budget=Budget(amount=30, eval_every=10)))
    expected = replace(
        config,
        budget=Budget(amount=30, eval_every=10),
        execution=replace(config.execution, threads=3),
    )
    assert asdict(job.config_of(run)) == asdict(expected)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_ID": "9"}, "9"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2"),
    ],
)
def test_slurm_task_trains_under_its_job_id_and_logs_to_the_runs_folder(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    run = ask(ledger, tiny_config(steps=5))
    printed: list[Path] = []
    monkeypatch.setattr(job, "print_to", printed.append)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    job.slurm_task(str(ledger.root), run.run_id)
    job.slurm_task(str(ledger.root), run.run_id)  # done: nothing
    assert [item["job"] for item in run.history().events if item["event"] == "started"] == [
        expected
    ]
    assert printed == [run.log(1)]


def test_slurm_task_near_its_time_limit_is_requeued(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, tiny_config(steps=12))
    behave(ledger, "slow")
    requeued: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: requeued.append(number))
    monkeypatch.setattr(job, "print_to", lambda path: None)
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    threading.Timer(0.35, lambda: os.kill(os.getpid(), signal.SIGUSR2)).start()
    job.slurm_task(str(ledger.root), run.run_id)
    assert requeued == [signal.SIGUSR2]
    assert run.history().turn == "requeued"


def test_store_that_hangs_delays_the_end_of_a_run_by_a_bounded_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.tracking.FLUSH_S", 0.5)
    run = ask(ledger, tiny_config(steps=5))
    with files.locked(ledger.store_lock):
        began = time.monotonic()
        train(ledger, run)
        assert time.monotonic() - began < 3
    assert run.history().turn == "finished"


def test_store_that_is_down_costs_nothing_and_gets_everything_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.tracking.FLUSH_S", 0.2)
    run = ask(ledger, tiny_config(steps=20))
    ledger.store.rename(ledger.root / "away.db")
    ledger.store.mkdir()  # no database can be opened there
    assert train(ledger, run) is None
    assert run.history().turn == "finished"
    ledger.store.rmdir()
    (ledger.root / "away.db").rename(ledger.store)
    sync(ledger, [run.run_id])
    assert sync(ledger, [run.run_id]) == 0
    store = open_store(ledger, Tracking())
    curves = read_curves(store, [run.run_id], ("eval/pass_rate",), "flops")
    assert eval_points(curves[run.run_id]) == eval_points(run.points())
