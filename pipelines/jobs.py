"""What the schedulers know of jobs, asked at most once a pass."""

from __future__ import annotations

import subprocess
from functools import cached_property

from pipelines.files import Record
from pipelines.ledger import History, Ledger, RunFiles, reaches
from recipes.config import Budget

SQUEUE = ("squeue", "--me", "--noheader", "--array", "--format=%i|%T")
SQUEUE_TIMEOUT_S = 20
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING")
ENDED = {"failed": "failed", "cancelled": "stopped"}
"""State after an end that only a person changes."""


class Jobs:
    """One pass's view of who is at work under a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def state(self, files: RunFiles, history: History, budget: Budget) -> str:
        """Where a run stands with respect to `budget`.

        Returns:
            planned, pending, running, completed, stopped, failed or unknown.
        """
        result = files.result()
        if result and reaches(result["compute"], budget):
            return "completed"
        if files.running():
            return "running"
        last = history.last
        if last is None:
            return "planned"
        if last["event"] in ENDED:
            return ENDED[last["event"]]
        if last["event"] in ("planned", "submitted", "started", "requeued"):
            return self._waiting(last)
        return "planned"

    @property
    def slurm_answers(self) -> bool:
        """Whether there is a Slurm, and it answers."""
        return self._queue is not None

    def _waiting(self, last: Record) -> str:
        if "job" not in last:
            local = last["event"] == "planned" and last["cluster"] == "local"
            return "pending" if local and self._any_lane else "planned"
        if self._queue is None:
            return "unknown"
        status = self._queue.get(str(last["job"]))
        if status is None:
            return "planned"
        return "running" if status in RUNNING else "pending"

    @cached_property
    def _any_lane(self) -> bool:
        return self._ledger.any_lane()

    @cached_property
    def _queue(self) -> dict[str, str] | None:
        """Job id to state of this user's Slurm jobs; None where Slurm does not answer."""
        try:
            answer = subprocess.run(
                SQUEUE, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return dict(line.split("|", 1) for line in answer.stdout.split())
