"""A lane: a local process that trains the runs that wait, one after another, each in a child.

What is heavy (torch, TRL, MLflow) is imported once a lane, and each run forked off it, so that a
run that crashes or is killed takes nothing else with it. Forking is safe because no thread has been
started by then: a lane runs with OPENBLAS_NUM_THREADS=1, and never trains or logs itself.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType

from pipelines import files, job
from pipelines.ledger import Ledger, RunFiles
from pipelines.redact import redacted

PRELOAD = ("pipelines.tracking", "recipes.train")
CODE = Path(__file__).resolve().parents[1]
"""The snapshot this lane runs from; it trains only runs that were planned with it."""


def work(root: str, slot: int) -> None:
    """Trains what waits under `root` until nothing does, as lane number `slot`."""
    with suppress(OSError):
        os.setsid()  # out of reach of the terminal's signals
    ledger = Ledger(root)
    lane = Lane(ledger)
    while (held := files.lock(ledger.lane(slot), job.PROBE_S)) is not None:
        os.utime(ledger.lane(slot), (0, 0))  # it has started: the lock tells from now on
        lane.drain()
        os.close(held)
        # Looked at with the slot free: whoever plans a run from now on sees no lane at work.
        waiting = [] if lane.stopped else pending(ledger)
        if not waiting:
            return
        if not any(_snapshot(run) == CODE.name for run in waiting):
            code = ledger.snapshots / _snapshot(waiting[0])
            if not code.is_dir():
                return  # deleted by a person: the next launch plans the run with a new one
            _become(code, root, slot)


def pending(ledger: Ledger) -> list[RunFiles]:
    """The runs that wait for a lane, in the order in which they were planned."""
    waiting = []
    for run in ledger.known_runs():
        history = run.history()
        last, request = history.last, history.request
        if last is None or request is None or request["cluster"] != "local":
            continue
        if last["event"] in ("planned", "requeued"):
            waiting.append((last["time"], run))
    return [run for _, run in sorted(waiting, key=lambda item: item[0]) if not run.running()]


class Lane:
    """Trains claimed runs in children."""

    def __init__(self, ledger: Ledger) -> None:
        self.stopped = False
        self._ledger = ledger
        self._child: ForkProcess | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def drain(self) -> None:
        """Trains until no run waits for this code, or the lane is told to stop."""
        while not self.stopped and self._next() is not None:
            with suppress(Exception):  # a child meets it again, and it becomes the run's error
                for module in PRELOAD:
                    importlib.import_module(module)
            with files.locked(self._ledger.claim_lock):
                run = self._next()
                taken = job.claim(run) if run else None
            if taken:
                self._train(taken)

    def _next(self) -> RunFiles | None:
        waiting = pending(self._ledger)
        return next((run for run in waiting if _snapshot(run) == CODE.name), None)

    def _train(self, taken: job.Claim) -> None:
        fork = get_context("fork")
        self._child = fork.Process(target=_child, args=(self._ledger, taken))
        self._child.start()
        os.close(taken.lock)  # the child's copy keeps the run locked, as long as it lives
        self._child.join()
        code = self._child.exitcode or 0
        self._child = None
        history = taken.run.history()
        if history.turn == "started" and history.attempts == taken.attempt:
            if not job.is_done(taken.run, history):
                _write_end(taken, code)
            closing = fork.Process(target=_close, args=(self._ledger, taken.run))
            closing.start()
            closing.join()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._child and self._child.pid:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, number)


def _child(ledger: Ledger, taken: job.Claim) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job.print_to(taken.run.log(taken.attempt))
    job.train(ledger, taken)


def _write_end(taken: job.Claim, code: int) -> None:
    """Writes down the end of a child that could not do it itself."""
    if code < 0:
        name = signal.Signals(-code).name
        taken.run.event("died", attempt=taken.attempt, error=f"its process was ended by {name}")
        return
    lines = taken.run.log(taken.attempt).read_text(errors="replace").splitlines()
    error = "\n".join(lines[-job.ERROR_LINES :]) or f"its process exited with status {code}"
    taken.run.event("failed", attempt=taken.attempt, error=redacted(error))


def _close(ledger: Ledger, run: RunFiles) -> None:
    """Tells the tracking store of a run that ended without doing so."""
    from pipelines.tracking import Shipper

    request = run.history().request
    assert request is not None
    with Shipper(ledger, run, request):
        pass


def _snapshot(run: RunFiles) -> str:
    request = run.history().request
    return str(request["snapshot"]) if request else ""


def _become(code: Path, root: str, slot: int) -> None:
    """Goes on as a lane of another snapshot."""
    command = [sys.executable, "-u", "-m", "pipelines.lane", root, str(slot)]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": python_path(code)})


def python_path(code: Path) -> str:
    """PYTHONPATH of a job: its snapshot, then what a person had set."""
    kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([str(code), *(path for path in kept if Path(path) != CODE)])


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
