"""What runs inside a job: one run, trained under its lock, its points and events written down."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import get_type_hints

from pipelines import files
from pipelines.ledger import Ledger, RunFiles, reaches
from recipes.config import Execution, RunConfig

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: a person or a preemption; SIGUSR2: submitit's word for a time limit that is near."""
ERROR_LINES = 12
"""Last lines of an error that are kept with the event."""
Tell = Callable[[str], None]
PROBE_S = 0.25
"""A lock that is only being looked at is free again within microseconds; one in use is not."""


@dataclass(frozen=True)
class Claim:
    """The right to train a run, for as long as the descriptor `lock` is open in some process."""

    run: RunFiles
    attempt: int
    lock: int


def claim(run: RunFiles, **fields: object) -> Claim | None:
    """Takes a run to train it, and says so in its events; None if taken, done or cancelled."""
    held = files.lock(run.lock_file, PROBE_S)
    if held is None:
        return None
    history = run.history()
    if history.turn == "cancelled":
        os.close(held)
        return None
    result = run.result()
    if result and history.budget and reaches(result["compute"], history.budget):
        run.event("finished", attempt=result["attempt"], step=result["step"])
        os.close(held)
        return None
    attempt = history.attempts + 1
    run.event("started", attempt=attempt, host=os.uname().nodename, **fields)
    return Claim(run, attempt, held)


class Stop:
    """Remembers that the process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.by: int | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.by = number


class RunSink:
    """Writes what a training reports (`recipes.train.Sink`)."""

    def __init__(self, taken: Claim, stop: Stop, tell: Tell | None = None) -> None:
        self._run, self._attempt, self._stop = taken.run, taken.attempt, stop
        self._tell = tell

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Adds a point of the curve."""
        self._run.point(self._attempt, step, compute, metrics)
        if self._tell and "eval/pass_rate" in metrics:
            rate, error = metrics["eval/pass_rate"], metrics["eval/pass_rate_stderr"]
            self._tell(f"step {step}: pass rate {rate:.3f} (standard error {error:.3f})")

    def event(self, name: str, **fields: object) -> None:
        """Writes down that something happened."""
        self._run.event(name, attempt=self._attempt, **fields)

    def should_stop(self) -> bool:
        """Whether to write a checkpoint and end."""
        return self._stop.by is not None


def train(ledger: Ledger, taken: Claim, tell: Tell | None = None) -> int | None:
    """Trains a claimed run until its budget is reached or it is told to stop.

    Args:
        ledger: Where the run is.
        taken: The right to train it.
        tell: Called with a line for a person after each evaluation.

    Returns:
        The signal that ended it early, or None.

    Raises:
        Exception: Whatever training raised, after it was written down as ``failed``.
    """
    from pipelines.tracking import Shipper

    run, stop = taken.run, Stop()
    os.pwrite(taken.lock, f"{os.getpid()}\n".encode(), 0)
    request = run.history().request
    assert request is not None
    with Shipper(ledger, run, request):
        try:
            while _train_to_budget(ledger, taken, RunSink(taken, stop, tell), stop):
                pass  # more was asked for meanwhile
        except Exception as error:
            last = "".join(traceback.format_exception(error)).splitlines()[-ERROR_LINES:]
            run.event("failed", attempt=taken.attempt, error="\n".join(last))
            raise
    return stop.by


def _train_to_budget(ledger: Ledger, taken: Claim, sink: RunSink, stop: Stop) -> bool:
    """Trains until the budget asked for now; returns whether a larger one was asked for since."""
    from recipes.train import train as train_run

    run = taken.run
    config = config_of(run)
    result = train_run(config, run.folder, ledger.models, sink)
    if result.status != "completed":
        run.event("interrupted", attempt=taken.attempt, step=result.step, signal=stop.by)
        return False
    document = {**vars(result), "budget": vars(config.budget), "attempt": taken.attempt}
    files.write_json(run.result_file, document)
    run.event("finished", attempt=taken.attempt, step=result.step)
    budget = run.history().budget
    return stop.by is None and budget is not None and not reaches(result.compute, budget)


def slurm_task(root: str, run_id: str) -> None:
    """One task of a Slurm array: trains one run, and has it requeued when its time is up."""
    ledger = Ledger(root)
    number = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        number = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    taken = claim(ledger.run(run_id), job=number)
    if taken is None:
        return
    print_to(taken.run.log(taken.attempt))
    requeue = signal.getsignal(signal.SIGUSR2)  # submitit's: requeues this job and exits
    if train(ledger, taken) == signal.SIGUSR2 and callable(requeue):
        taken.run.event("requeued", attempt=taken.attempt, job=number)
        requeue(signal.SIGUSR2, None)


def print_to(path: Path) -> None:
    """Sends all that this process prints from now on to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def config_of(run: RunFiles) -> RunConfig:
    """The run's typed configuration, with the budget and the layout asked for last."""
    hints = get_type_hints(RunConfig)
    stored = run.config().items()
    typed = {key: hints[key](**item) if isinstance(item, dict) else item for key, item in stored}
    history = run.history()
    assert history.request is not None
    assert history.budget is not None
    execution = Execution(**history.request["execution"])
    return RunConfig(**{**typed, "budget": history.budget, "execution": execution})
