"""What runs inside a job: one run, trained by one process at a time, its points and events kept.

A process trains a run for as long as no later attempt has started: that is written in the run's
events, which reach further than locks do. Each write asks first whether it is still so.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from threading import Event, Thread
from time import monotonic, sleep
from types import FrameType
from typing import get_type_hints
from uuid import uuid4

from pipelines import files
from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.ledger import HEARTBEAT_S, History, Ledger, RunFiles, reaches
from pipelines.redact import redacted
from recipes.config import Execution, RunConfig
from recipes.sink import Silent

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: a person or a preemption; SIGUSR2: Slurm's word for a time limit that is near."""
ERROR_LINES = 12
"""Last lines of an error that are kept with the event."""
Tell = Callable[[str], None]
PROBE_S = 0.25
"""A lock that is only being looked at is free again within microseconds; one in use is not."""
QUIET_S = 3 * HEARTBEAT_S
"""A heartbeat from another machine that does not change for so long has stopped."""
TAKE_OVER_S = 600.0
"""How long the process before may take to notice that it is no longer the one, and to end."""
FILESYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.EROFS)
"""What is wrong with a disk and not with a run: full, over quota, away, broken, read-only."""
PATIENCE = 3
"""Attempts that may die one after another without a checkpoint; then a person has to look."""


SUPERSEDED = "a later attempt trains this run: this one ends"


class SupersededError(Exception):
    """A later attempt trains the run: this process has to end, and may write nothing more."""


@dataclass(frozen=True)
class Claim:
    """The right to train a run, for as long as the descriptor `lock` is open in some process."""

    run: RunFiles
    attempt: int
    name: str
    """Of the claim, in the event that says that it was made."""
    lock: int


def claim(run: RunFiles, **fields: object) -> Claim | None:
    """Takes a run to train it, and says so in its events; None if taken, done or cancelled."""
    held = files.lock(run.lock_file, PROBE_S)
    if held is None:
        return None
    history = run.history()
    if history.turn == "cancelled" or run.beats_elsewhere() or is_done(run, history):
        os.close(held)
        return None
    attempt, name = _start(run, history, **fields)
    return Claim(run, attempt, name, held)


def take_over(run: RunFiles, launch: str, **fields: object) -> Claim | None:
    """Takes a run for a job that its scheduler has started, from a process that may still train it.

    That one's job is over for the scheduler (its node was given up, say), so it is told to end, and
    waited for.

    Returns:
        The claim; None if the run is done, or is by now another launch's to train.

    Raises:
        TimeoutError: The other process does not end.
    """
    history = run.history()
    if not ours(history, launch) or is_done(run, history):
        return None
    other = run.trained_on()
    attempt, name = _start(run, history, launch=launch, **fields)
    held = files.lock(run.lock_file, TAKE_OVER_S)
    if held is None:
        whose = f"{run.trained_on()}, process {files.last_line(run.lock_file)}"
        error = f"an earlier attempt is still at work on {whose}: end it, and launch again"
        run.event("died", attempt=attempt, error=error)
        raise TimeoutError(error)
    if other not in (None, gethostname()):
        _wait_until_quiet(run)
    if not Tenure(run, name).lasts():
        os.close(held)
        return None
    return Claim(run, attempt, name, held)


def ours(history: History, launch: object) -> bool:
    """Whether a run is for the jobs of `launch`: until it is planned again, or cancelled."""
    request = history.request
    return request is not None and request.get("launch") == launch and history.turn != "cancelled"


def is_done(run: RunFiles, history: History) -> bool:
    """Whether its budget is reached; sees that the events say so too."""
    result = run.result()
    if not (result and history.budget and reaches(result["compute"], history.budget)):
        return False
    if history.turn != "finished":
        run.event("finished", attempt=result["attempt"], step=result["step"])
    return True


def _start(run: RunFiles, history: History, **fields: object) -> tuple[int, str]:
    attempt, name = history.attempts + 1, uuid4().hex[:8]
    run.event("started", attempt=attempt, claim=name, host=gethostname(), **fields)
    return attempt, name


def _wait_until_quiet(run: RunFiles) -> None:
    """Until the heartbeat of another machine stops, by this machine's clock alone."""
    beat, since = files.modified(run.heartbeat_file), monotonic()
    while beat is not None and monotonic() - since < QUIET_S:
        sleep(HEARTBEAT_S / 10)
        now = files.modified(run.heartbeat_file)
        if now != beat:
            beat, since = now, monotonic()


class Tenure:
    """Whether the claim with this name is the last that was made; and whether it was cancelled."""

    def __init__(self, run: RunFiles, name: str) -> None:
        self.cancelled = False
        self._run, self._name = run, name
        self._offset = 0
        self._last = ""

    def lasts(self) -> bool:
        """Reads what is new in the run's events."""
        events, self._offset = self._run.events_since(self._offset)
        for item in events:
            if item["event"] == "started":
                self._last = item["claim"]
            elif item["event"] in ("planned", "cancelled"):
                self.cancelled = item["event"] == "cancelled"
        return self._last == self._name


class Heartbeat:
    """Says every few seconds that a run is being trained, and ends a process that is not to."""

    def __init__(self, run: RunFiles, tenure: Tenure) -> None:
        self._run, self._tenure, self._end = run, tenure, Event()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            if self._tenure.lasts():
                self._run.heartbeat_file.unlink(missing_ok=True)

    def _beat(self) -> None:
        while True:
            with suppress(OSError):  # the training meets it too, where it matters
                files.write(self._run.heartbeat_file, gethostname())
            if self._end.wait(HEARTBEAT_S):
                return
            with suppress(OSError):
                if not self._tenure.lasts():
                    os.write(2, f"{SUPERSEDED}\n".encode())
                    os._exit(1)  # its training may hang in what no exception reaches


class Stop:
    """Remembers that the process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.by: int | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.by = number


class RunSink:
    """Writes what a training reports (`recipes.sink.Sink`), while it is its to write."""

    def __init__(self, taken: Claim, stop: Stop, tell: Tell | None = None) -> None:
        self._run, self._attempt, self._stop = taken.run, taken.attempt, stop
        self._tenure = Tenure(taken.run, taken.name)
        self._tell = tell

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Adds a point of the curve."""
        self.check()
        self._run.point(self._attempt, step, compute, metrics)
        if self._tell and "eval/pass_rate" in metrics:
            rate, error = metrics["eval/pass_rate"], metrics["eval/pass_rate_stderr"]
            self._tell(f"step {step}: pass rate {rate:.3f} (standard error {error:.3f})")

    def event(self, name: str, **fields: object) -> None:
        """Writes down that something happened."""
        self.check()
        self._run.event(name, attempt=self._attempt, **fields)

    def should_stop(self) -> bool:
        """Whether to write a checkpoint and end; also asked before a checkpoint is published."""
        self.check()
        return self._stop.by is not None or self._tenure.cancelled

    def check(self) -> None:
        """Raises SupersededError where a later attempt trains the run."""
        if not self._tenure.lasts():
            raise SupersededError


def train(ledger: Ledger, taken: Claim, tell: Tell | None = None) -> int | None:
    """Trains a claimed run until its budget is reached or it is told to stop.

    Args:
        ledger: Where the run is.
        taken: The right to train it.
        tell: Called with a line for a person after each evaluation.

    Returns:
        The signal that ended it early, or None.

    Raises:
        Exception: Whatever training raised, after it was written down as ``failed``; ``requeued``
            follows where it is to be tried again.
    """
    from pipelines.tracking import Shipper

    run, stop = taken.run, Stop()
    os.pwrite(taken.lock, f"{os.getpid()}\n".encode(), 0)
    request = run.history().request
    assert request is not None
    sink = RunSink(taken, stop, tell)
    try:
        with Heartbeat(run, Tenure(run, taken.name)), Shipper(ledger, run, request):
            try:
                while _train_to_budget(ledger, taken, sink, stop):
                    pass  # more was asked for meanwhile
            except SupersededError:
                raise
            except Exception as error:
                _write_error(run, sink, error)
                raise
    except SupersededError:
        sys.stderr.write(f"{SUPERSEDED}\n")
        return None
    return stop.by


def _write_error(run: RunFiles, sink: RunSink, error: Exception) -> None:
    """Writes down what ended a run, and whether it goes on by itself."""
    if run.history().turn == "died":  # another rank was first, and is why this one ends
        return
    trouble = _disk_trouble(run, error)
    if trouble is None:
        sink.event("failed", error=_last_lines(error))
    else:
        sink.event("died", reason="filesystem", error=f"filesystem: {trouble}")
    history = run.history()
    if trouble is None and history.errors <= history.retries:
        sink.event("requeued", reason="error")
    elif trouble is not None and history.fruitless < PATIENCE:
        sink.event("requeued", reason="filesystem")


def _disk_trouble(run: RunFiles, error: Exception) -> str | None:
    """What is wrong with the disk that a run is on, if anything is.

    A full disk is not always told as such: PyTorch and safetensors raise errors of their own.
    """
    if isinstance(error, OSError) and error.errno in FILESYSTEM:
        return error.strerror
    try:
        files.probe(run.folder)
    except OSError as found:
        return found.strerror
    return None


def _train_to_budget(ledger: Ledger, taken: Claim, sink: RunSink, stop: Stop) -> bool:
    """Trains until the budget asked for now; returns whether a larger one was asked for since."""
    from recipes.train import train as train_run

    run = taken.run
    config = config_of(run)
    result = train_run(config, run.folder, ledger.models, sink)
    if result.status != "completed":
        if run.history().turn != "died":  # of another rank's error, after which Slurm ends all
            sink.event("interrupted", step=result.step, signal=stop.by)
        return False
    document = {**vars(result), "budget": vars(config.budget), "attempt": taken.attempt}
    sink.check()
    files.write_json(run.result_file, document)
    sink.event("finished", step=result.step)
    budget = run.history().budget
    alone = os.environ.get("WORLD_SIZE", "1") == "1"  # others have left by now
    more = budget is not None and not reaches(result.compute, budget)
    return alone and more and not sink.should_stop()


def assist(ledger: Ledger, run: RunFiles, launch: str, fields: Record) -> int:
    """Trains with the process of rank 0 of the same job, which has the claim; returns 0.

    Args:
        ledger: Where the run is.
        run: The run.
        launch: The launch whose job this is.
        fields: What the ``started`` of that process has.
    """
    from recipes.train import train as train_run

    Stop()  # signals are for rank 0, which says when to stop
    end = monotonic() + TAKE_OVER_S + QUIET_S
    while not _begun(history := run.history(), fields):
        over = history.turn == "finished" or not ours(history, launch)
        if over or monotonic() > end:
            return 0
        sleep(PROBE_S)
    try:
        train_run(config_of(run), run.folder, ledger.models, Silent())
    except Exception as error:
        _write_assistants_error(run, fields, error)
        raise
    return 0


def _write_assistants_error(run: RunFiles, fields: Record, error: Exception) -> None:
    """Writes down what ended a process other than rank 0, which is ended with it.

    As ``died``, no error of the run: it raises too where a peer was killed, or its node failed.
    """
    history = run.history()
    last = history.last
    if last and last["event"] == "started" and _begun(history, fields):
        rank = os.environ.get("RANK", "?")
        told = f"process {rank} of the run ended:\n{_last_lines(error)}"
        run.event("died", attempt=last["attempt"], error=told)


def _last_lines(error: Exception) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return redacted("\n".join(lines[-ERROR_LINES:]))


def _begun(history: History, fields: Record) -> bool:
    started = (item for item in reversed(history.events) if item["event"] == "started")
    return fields.items() <= next(started, {}).items()


def print_to(path: Path) -> None:
    """Sends all that this process prints from now on to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def config_of(run: RunFiles) -> RunConfig:
    """The run's typed configuration, with the budget and the layout asked for last.

    Raises:
        UserError: Another version of this code wrote it, which had other settings.
    """
    hints = get_type_hints(RunConfig)
    stored = run.config().items()
    history = run.history()
    assert history.request is not None
    assert history.budget is not None
    try:
        typed = {
            key: hints[key](**item) if isinstance(item, dict) else item for key, item in stored
        }
        execution = Execution(**history.request["execution"])
        return RunConfig(**{**typed, "budget": history.budget, "execution": execution})
    except (TypeError, KeyError) as error:
        allowed = "a run of this version (or take the version that made it, or another root)"
        raise UserError(f"run: got {run.config_file} ({error}), allowed: {allowed}") from error
