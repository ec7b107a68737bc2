"""Disks that fill up and come back, file servers that forget a handle, clocks that are set."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines import files, job, launch
from pipelines.jobs import Jobs
from pipelines.ledger import Ledger, RunFiles
from tests.fakes import eval_points, planned, tiny_config

pytestmark = pytest.mark.usefixtures("fake_training", "signals")
REQUEST = {
    "cluster": "here",
    "threads": 1,
    "snapshot": "code",
    "recipes": "hash",
    "tracking": {"uri": "http://127.0.0.1:9", "experiment": "shortlist", "experiment_id": "1"},
}
CONFIG = tiny_config(steps=20)
STEPS = [0, 5, 10, 15, 20]


def ask(ledger: Ledger) -> RunFiles:
    launch.write_request(ledger, "a", planned(CONFIG), REQUEST)
    return ledger.run(planned(CONFIG).run_id)


def train(ledger: Ledger, run: RunFiles) -> None:
    taken = job.claim(run)
    assert taken is not None
    try:
        job.train(ledger, taken)
    finally:
        os.close(taken.lock)


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.tracking.FLUSH_S", 0.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, with little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"." * 512)


def test_run_whose_disk_fills_up_goes_on_when_there_is_room(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(disk / "outputs")
    run = ask(ledger)
    real = job.RunSink.point

    def point(sink: job.RunSink, step: int, *rest: object) -> None:
        if step == 15:
            fill(disk / "others")
            while run.metrics_file.stat().st_size % 4096:  # what is left of its last page
                try:
                    files.append(run.metrics_file, {"attempt": 1})
                except OSError:
                    break
        real(sink, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(job.RunSink, "point", point)
        with pytest.raises(OSError, match="No space left on device"):
            train(ledger, run)
    assert run.result() is None
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10]
    assert Jobs(ledger).state(run, run.history(), CONFIG.budget) == "planned"
    (disk / "others").unlink()
    train(ledger, run)
    assert [step for step, _, _ in eval_points(run.points())] == STEPS
    assert Jobs(ledger).state(run, run.history(), CONFIG.budget) == "completed"


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_file_handle_that_a_server_lost_is_opened_again_and_nothing_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(files, "STALE_WAITS_S", (0.0, 0.0))
    real, lost = getattr(os, call), [True, True]

    def stale(*arguments: object, **options: object) -> object:
        if call != "fsync" and lost and lost.pop():
            raise OSError(errno.ESTALE, "Stale file handle")
        result = real(*arguments, **options)
        if call == "fsync" and lost and lost.pop():
            raise OSError(errno.ESTALE, "Stale file handle")
        return result

    path = tmp_path / "log.jsonl"
    files.append(path, {"n": 1}, sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, stale)
        files.append(path, {"n": 2}, sync=True)
    assert not lost
    files.append(path, {"n": 2}, sync=True)  # on purpose
    assert files.read(path)[0] == [{"n": 1}, {"n": 2}, {"n": 2}]


def test_handle_that_stays_lost_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STALE_WAITS_S", (0.0,))

    def stale(*_: object) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "write", stale)
    with pytest.raises(OSError, match="Stale"):
        files.append(tmp_path / "log.jsonl", {"n": 1})


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_clock_that_jumps_neither_loses_nor_reorders_anything(
    root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    run = ask(ledger)
    real = job.RunSink.event

    def event(sink: job.RunSink, name: str, **fields: object) -> None:
        real(sink, name, **fields)
        if name == "checkpoint" and fields["step"] == 10:
            monkeypatch.setattr("pipelines.ledger.time", lambda: time.time() + jump)
            raise RuntimeError("it ends here")

    with monkeypatch.context() as patch:
        patch.setattr(job.RunSink, "event", event)
        with pytest.raises(RuntimeError):
            train(ledger, run)
    ask(ledger)
    train(ledger, run)
    assert [step for step, _, _ in eval_points(run.points())] == STEPS
    assert run.history().turn == "finished"
    lane = ledger.lane(0)
    lane.parent.mkdir()
    lane.touch()
    assert not ledger.at_work(lane)  # "just started", by a clock of another day
