"""What the schedulers know of jobs, asked at most once a pass."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property

from pipelines import files
from pipelines.files import Record
from pipelines.ledger import History, Ledger, RunFiles, reaches
from recipes.config import Budget

SQUEUE = ("squeue", "--me", "--noheader", "--array", "--format=%i|%T|%r|%j")
CLIENT_TIMEOUT_S = 20
"""How long Slurm may take to answer; clients of a controller that is away can wait for minutes."""
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING")
NAME = re.compile(r"shortlist-[\w.-]*-([0-9a-f]{8})-\d+")
"""Name of an array: the sweep, the launch that asked for it, and a number."""
WAITS = (
    "None",
    "Priority",
    "Resources",
    "JobArrayTaskLimit",
    "Dependency",
    "BeginTime",
    "Prolog",
    "Cleaning",
    "QOSMaxJobsPerUserLimit",
    "AssocMaxJobsLimit",
)
"""Reasons for which a job waits that pass by themselves (squeue, JOB REASON CODES)."""
ENDED = {"failed": "failed", "cancelled": "stopped"}
"""State after an end that only a person changes."""


@dataclass(frozen=True)
class Job:
    """A task of an array in Slurm's queue."""

    number: str
    status: str
    reason: str
    array: str
    """Name of the array."""


class Jobs:
    """One pass's view of who is at work under a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def state(self, run: RunFiles, history: History, budget: Budget) -> str:
        """Where a run stands with respect to `budget`.

        Returns:
            planned, pending, running, completed, stopped, failed or unknown.
        """
        result = run.result()
        if result and reaches(result["compute"], budget):
            return "completed"
        if run.running():
            return "running"
        last, request = history.last, history.request
        if last is None or request is None:
            return "planned"
        again = last["event"] == "failed" and history.errors <= history.retries
        if last["event"] in ENDED and not again:
            return ENDED[last["event"]]
        if "launch" in request:
            return self._on_slurm(run.run_id, request)
        waits = request.get("cluster") == "local" and last["event"] in ("planned", "requeued")
        return "pending" if waits and self._any_lane else "planned"

    def job(self, run_id: str, history: History) -> Job | None:
        """The job in the queue that is to train a run, or does, if Slurm answers and has one."""
        request = history.request or {}
        return (self._queue or {}).get((request.get("launch"), run_id))

    def trouble(self, run_id: str, history: History) -> str | None:
        """Why a run that waits will not start by itself, as far as Slurm or its job told."""
        if "launch" not in (history.request or {}):
            return None
        job = self.job(run_id, history)
        if job is not None:
            ours = job.status == "PENDING" and job.reason not in WAITS
            release = f" (scontrol release {job.number})" if "held" in job.reason.lower() else ""
            return f"job {job.number} waits: {job.reason}{release}" if ours else None
        last = history.last
        over = {"submitted": "ended before it trained", "started": "ended without a word"}
        if not self.slurm_answers or last is None or "job" not in last or last["event"] not in over:
            return None
        said = files.last_line(self._ledger.submissions / f"{last['job']}_0_log.err")
        return f"job {last['job']} {over[last['event']]}{': ' * bool(said)}{said}"

    @property
    def slurm_answers(self) -> bool:
        """Whether there is a Slurm, and it answers."""
        return self._queue is not None

    @property
    def in_queue(self) -> list[Job]:
        """The jobs of this root that are in the queue."""
        return list((self._queue or {}).values())

    def _on_slurm(self, run_id: str, request: Record) -> str:
        if self._queue is None:
            return "unknown"
        job = self._queue.get((request["launch"], run_id))
        if job is None:
            return "planned"
        return "running" if job.status in RUNNING else "pending"

    @cached_property
    def _any_lane(self) -> bool:
        return self._ledger.any_lane()

    @cached_property
    def _queue(self) -> dict[tuple[str | None, str], Job] | None:
        """(launch, run_id) to job, of this user and root; None where Slurm does not answer.

        By the arrays' names, not their numbers: those are known only when sbatch has answered, and
        a controller that lost its state gives them out again.
        """
        lines = ask(SQUEUE)
        if lines is None:
            return None
        queue: dict[tuple[str | None, str], Job] = {}
        arrays: dict[str, list[str]] = {}
        for line in lines.splitlines():
            fields = line.split("|", 3)
            if len(fields) < len(Job.__dataclass_fields__):
                continue  # a heading, of several clusters
            job = Job(*fields)
            name = NAME.fullmatch(job.array)
            if name is None:
                continue
            if job.array not in arrays:
                asked = files.read_json(self._ledger.submission(job.array), expendable=True) or {}
                arrays[job.array] = asked.get("runs", [])
            task = job.number.rpartition("_")[2]
            if task.isdigit() and int(task) < len(arrays[job.array]):
                queue[name[1], arrays[job.array][int(task)]] = job
        return queue


def ask(command: tuple[str, ...], timeout_s: float | None = None) -> str | None:
    """What a client, of Slurm say, answers; None where it fails, is not there or takes too long."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    limit_s = timeout_s or CLIENT_TIMEOUT_S
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=True, env=plain
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
