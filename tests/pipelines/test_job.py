from __future__ import annotations

import errno
import os
import signal
import threading
import time
from dataclasses import asdict, replace
from socket import gethostname

import pytest
import yaml

from pipelines import files, job, launch
from pipelines.config import Tracking
from pipelines.errors import UserError
from pipelines.ledger import Ledger, RunFiles
from pipelines.tracking import open_store, read_curves, sync
from recipes.config import Budget, RunConfig
from tests.fakes import behave, eval_points, planned, tiny_config, wait, when

pytestmark = pytest.mark.usefixtures("fake_training", "signals")

REQUEST = {
    "cluster": "local",
    "threads": 3,
    "snapshot": "code",
    "recipes": "hash",
    "tracking": {"uri": None, "experiment": "shortlist", "experiment_id": "1"},
}


def ask(ledger: Ledger, config: RunConfig, sweep: str = "a", **changes: object) -> RunFiles:
    launch.write_request(ledger, sweep, planned(config), {**REQUEST, **changes})
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
    behave(ledger, "hold 7")
    when(lambda: len(run.points()) > 1, lambda: os.kill(os.getpid(), number))
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


def takeover(run: RunFiles, **fields: object) -> job.Claim | None:
    return job.take_over(run, "1234abcd", job="7_0", **fields)


def test_of_two_processes_only_the_later_attempt_writes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks do not reach the other machine: both hold one."""
    monkeypatch.setattr(files, "lock", lambda path, wait_s=0: os.open(path, os.O_RDWR | os.O_CREAT))
    run = ask(ledger, tiny_config(steps=20), launch="1234abcd")
    real, later = job.RunSink.event, []

    def event(sink: job.RunSink, name: str, **fields: object) -> None:
        real(sink, name, **fields)
        if name == "checkpoint" and not later:
            later.append(takeover(run))

    monkeypatch.setattr(job.RunSink, "event", event)
    first = takeover(run)
    assert first is not None
    before = run.folder / "fake-checkpoint.json"
    assert job.train(ledger, first) is None  # it ends, and says nothing
    assert [item["event"] for item in run.history().events][-2:] == ["checkpoint", "started"]
    assert [point["step"] for point in run.points()] == [0, 5]
    assert run.result() is None
    saved = before.read_text()
    with pytest.raises(job.SupersededError):
        job.RunSink(first, job.Stop()).point(6, {}, {})
    assert before.read_text() == saved
    (second,) = later
    assert second is not None
    job.train(ledger, second)
    assert [(point["attempt"], point["step"]) for point in run.points()] == [
        (1, 0), (1, 5), (2, 10), (2, 15), (2, 20)
    ]  # fmt: skip
    assert run.result()["attempt"] == 2  # type: ignore[index]


def test_error_of_a_process_that_was_replaced_is_not_the_runs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "lock", lambda path, wait_s=0: os.open(path, os.O_RDWR | os.O_CREAT))
    run = ask(ledger, tiny_config(), launch="1234abcd")
    first = takeover(run)
    assert first is not None
    takeover(run)
    behave(ledger, "fail")
    assert job.train(ledger, first) is None
    assert run.history().turn == "started"


def test_job_waits_for_the_process_before_it_to_notice_and_end(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=100), launch="1234abcd")
    behave(ledger, "hold 7")
    first = takeover(run)
    assert first is not None
    found: list[job.Claim | None] = []
    thread = when(lambda: len(run.points()) > 1, lambda: found.append(takeover(run)))
    job.train(ledger, first)
    assert found == []
    os.close(first.lock)
    thread.join()
    assert found[0] is not None
    assert found[0].attempt == 2


def test_process_that_does_not_end_is_told_after_a_while(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "TAKE_OVER_S", 0.1)
    run = ask(ledger, tiny_config(), launch="1234abcd")
    with files.locked(run.lock_file), pytest.raises(TimeoutError, match="still at work"):
        takeover(run)
    assert run.history().turn == "died"


def test_job_waits_until_the_heartbeat_of_another_machine_stops(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, tiny_config(), launch="1234abcd")
    began, passed = time.time(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        if passed <= 45:
            beat()

    def beat() -> None:
        run.heartbeat_file.write_text("elsewhere")
        os.utime(run.heartbeat_file, (began + passed, began + passed))

    monkeypatch.setattr(job, "monotonic", lambda: passed)
    monkeypatch.setattr(job, "sleep", sleep)
    beat()
    assert takeover(run) is not None
    assert passed == 45 + job.QUIET_S


def test_heartbeat_is_there_while_a_run_is_trained(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, tiny_config(steps=5))
    seen: list[str | None] = []
    real = job.RunSink.point

    def point(sink: job.RunSink, *rest: object) -> None:
        while run.trained_on() is None:
            time.sleep(0.01)
        seen.append(run.trained_on())
        real(sink, *rest)

    monkeypatch.setattr(job.RunSink, "point", point)
    train(ledger, run)
    assert set(seen) == {gethostname()}
    assert not run.heartbeat_file.exists()


def test_process_that_was_replaced_ends_even_if_its_training_hangs(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(), launch="1234abcd")
    first = takeover(run)
    assert first is not None
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with job.Heartbeat(run, job.Tenure(run, first.name)):
            job.HEARTBEAT_S = 0.05
            time.sleep(600)
    wait(run.heartbeat_file.exists)
    run.event("started", attempt=2, claim="another")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    os.close(first.lock)


def test_cancellation_in_the_events_stops_a_process_that_no_signal_reaches(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=100))
    behave(ledger, "hold 7")
    thread = when(lambda: len(run.points()) > 1, lambda: run.event("cancelled", why="a test"))
    assert train(ledger, run) is None
    thread.join()
    assert events(run)[-1] == "interrupted"
    assert run.result() is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
def test_disk_that_is_full_or_away_is_no_error_of_the_run(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run = ask(ledger, tiny_config(steps=10))

    def point(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(RunFiles, "point", point)
        with pytest.raises(OSError, match=os.strerror(code)):
            train(ledger, run)
    assert events(run)[-2:] == ["died", "requeued"]
    assert dict(run.history().ends) == {"filesystem": 1}
    assert str(run.history().events[-2]["error"]) == f"filesystem: {os.strerror(code)}"
    train(ledger, run)
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10]


def test_process_of_another_rank_trains_when_rank_0_does_and_writes_nothing(
    ledger: Ledger,
) -> None:
    run = ask(ledger, tiny_config(steps=5), launch="1234abcd")
    fields = {"job": "7_0", "restarts": 1}
    run.event("started", attempt=1, claim="x", job="7_0", restarts=0)  # before it was requeued
    threading.Timer(0.5, lambda: takeover(run, restarts=1)).start()
    assert job.assist(ledger, run, "1234abcd", fields) == 0
    assert run.points() == []
    assert (run.folder / "fake-checkpoint.json").exists()  # it trained
    assert events(run) == ["planned", "started", "started"]


def test_error_of_another_rank_is_shown_and_is_why_rank_0_ends(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=5), launch="1234abcd")
    behave(ledger, "fail")
    fields = {"job": "7_0", "restarts": 0}
    taken = job.claim(run, **fields)
    assert taken is not None
    with pytest.raises(ValueError, match="pumpkin"):
        job.assist(ledger, run, "1234abcd", fields)
    with pytest.raises(ValueError, match="pumpkin"):
        job.train(ledger, taken)
    os.close(taken.lock)
    assert events(run) == ["planned", "started", "died"]
    assert dict(run.history().ends) == {"lost": 1}
    error = str(run.history().error)
    assert error.startswith("process ? of the run ended:\nTraceback")
    assert error.endswith("ValueError: the loss became a pumpkin")
    with pytest.raises(ValueError, match="pumpkin"):  # the attempt is over: nothing to say
        job.assist(ledger, run, "1234abcd", fields)
    assert len(events(run)) == 3


@pytest.mark.parametrize("damage", ["task", "rewards"])
def test_run_of_another_version_is_one_line(ledger: Ledger, damage: str) -> None:
    run = ask(ledger, tiny_config())
    stored = run.config()
    stored[damage] = {"of_another_version": 1}
    files.write(run.config_file, yaml.safe_dump(stored))
    with pytest.raises(
        UserError, match=r"run: got .*config\.yaml \(.*, allowed: a run of"
    ) as caught:
        job.config_of(run)
    assert len(str(caught.value).splitlines()) == 1


def test_process_of_another_rank_leaves_when_the_run_is_another_launchs(ledger: Ledger) -> None:
    run = ask(ledger, tiny_config(steps=5), launch="ffffffff")
    assert job.assist(ledger, run, "1234abcd", {"job": "7_0", "restarts": 0}) == 0
    assert not (run.folder / "fake-checkpoint.json").exists()


def test_store_that_hangs_delays_the_end_of_a_run_by_a_bounded_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.tracking.FLUSH_S", 0.5)
    run = ask(ledger, tiny_config(steps=5))
    with files.locked(ledger.store_lock):
        began = time.monotonic()
        train(ledger, run)
        assert time.monotonic() - began < 30  # without a bound it would never end
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
