"""Stops runs: takes back what waits, and asks what is being trained to save and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic, sleep

from pipelines import files, slurm
from pipelines.errors import ServiceError, UserError
from pipelines.jobs import Jobs
from pipelines.ledger import Ledger, RunFiles
from recipes.config import Budget

UNDER_WAY = ("planned", "pending", "running")
"""States of what can be stopped."""
WAIT_S = 600.0
"""How long a run may take to save: it stops at the end of an optimizer step."""
POLL_S = 0.1


def stop(
    ledger: Ledger,
    run_ids: Iterable[str],
    why: str,
    wait_s: float = WAIT_S,
    budgets: Mapping[str, Budget] | None = None,
) -> list[str]:
    """Stops those of the runs that are not over, until `retry` plans them again.

    That they are to stop is written down first, so that nothing starts them again meanwhile, even
    if this process ends here. Then waits until those being trained have saved and gone.

    Args:
        ledger: Where the runs are.
        run_ids: Which.
        why: Kept with the event.
        wait_s: After so long a Slurm job is killed; a process here, or elsewhere, is left to save.
        budgets: Run to what its sweep wants of it, where a race has asked for less so far; what a
            race left or stopped before that is then no longer the race's to take up again.

    Returns:
        The runs that were stopped.

    Raises:
        ServiceError: Slurm is out of reach.
        UserError: A run is being trained by a process on another machine; all others were stopped.
    """
    jobs = Jobs(ledger)
    wanted = budgets or {}
    runs = [run for run in map(ledger.run, run_ids) if _open(jobs, run, wanted.get(run.run_id))]
    with files.locked(ledger.claim_lock):  # no lane is just choosing one of them
        for run in runs:
            run.event("cancelled", why=why)
    busy = [run for run in runs if run.running()]
    slurm.cancel([job for run in runs if run not in busy for job in _jobs(jobs, run)])
    elsewhere = [run for run in busy if not _asked(jobs, run)]
    end = monotonic() + wait_s
    while monotonic() < end and any(run.running() for run in busy if run not in elsewhere):
        sleep(POLL_S)
    slurm.cancel([job for run in busy if run.running() for job in _jobs(jobs, run)])
    if elsewhere:
        hosts = ", ".join(f"{run.run_id} on {_started(run).get('host')}" for run in elsewhere)
        raise UserError(f"cancel: got runs being trained on other machines, cancel there: {hosts}")
    return [run.run_id for run in runs]


def _open(jobs: Jobs, run: RunFiles, budget: Budget | None) -> bool:
    """Whether there is something to stop: the run, or a race that may take it up again."""
    history = run.history()
    if history.budget is None:
        return False
    state = jobs.state(run, history, budget or history.budget)
    if state == "unknown":
        raise ServiceError("cluster: Slurm does not answer (squeue); nothing was cancelled")
    raced = budget is not None and state == "stopped" and "by" in (history.last or {})
    return state in UNDER_WAY or raced


def _asked(jobs: Jobs, run: RunFiles) -> bool:
    """Asks the process that trains a run to save and go; False if it cannot be reached from here.

    A process is told by its id in the lock, once it holds that lock: ids are used again.
    """
    if "job" in _started(run):
        slurm.cancel(_jobs(jobs, run), "TERM")
        return True
    end = monotonic() + POLL_S * 100  # it has the lock, and then says who it is
    while run.running() and monotonic() < end:
        holder = files.holder(run.lock_file)
        if holder is not None:
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGTERM)
            return True
        sleep(POLL_S)
    return not run.running()


def _started(run: RunFiles) -> files.Record:
    events = run.history().events
    return next((item for item in reversed(events) if item["event"] == "started"), {})


def _jobs(jobs: Jobs, run: RunFiles) -> list[str]:
    """Slurm's id of the job in its queue that a run was given to.

    Not by the run's events: a controller that lost its state gives numbers out again.
    """
    queued = jobs.job(run.run_id, run.history())
    return [queued.number] if queued else []
