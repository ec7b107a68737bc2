"""Starts jobs: lanes on this machine, arrays on Slurm. The only module that imports submitit."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from pipelines import job, lane
from pipelines.config import Cluster
from pipelines.errors import ServiceError
from pipelines.ledger import Ledger

FOREVER_MIN = 60 * 24 * 365
"""A local job has no time limit; submitit wants one (and takes 2 minutes if told none)."""
FOREVER = 10**6
"""Requeues that submitit allows a run before it gives up on it."""
SCANCEL_TIMEOUT_S = 60
IGNORED = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all that were started from it. Children inherit that it is ignored, so
neither Ctrl-C in ``--follow`` nor a closed terminal ends a training."""
_lanes: list[Any] = []
"""submitit's handles of lanes started here; asked now and then, or they become zombies."""
atexit.register(_lanes.clear)  # while the modules that their destructors need are still there


def top_up(ledger: Ledger, cluster: Cluster) -> int:
    """Starts as many local lanes as there are runs waiting and lanes free.

    Returns:
        Number of lanes started.
    """
    _lanes[:] = [started for started in _lanes if not started.done()]
    ledger.lanes.mkdir(exist_ok=True)
    waiting = lane.pending(ledger)
    free = [slot for slot in range(cluster.parallel) if not ledger.at_work(ledger.lane(slot))]
    for slot, run in zip(free, waiting, strict=False):
        request = run.history().request
        assert request is not None
        ledger.lane(slot).touch()
        _start_lane(ledger, cluster, slot, ledger.snapshots / request["snapshot"])
    return min(len(free), len(waiting))


def _start_lane(ledger: Ledger, cluster: Cluster, slot: int, code: Path) -> None:
    import submitit

    executor = submitit.LocalExecutor(ledger.submissions)
    first = slot * cluster.gpus_per_node
    executor.update_parameters(
        timeout_min=FOREVER_MIN,
        gpus_per_node=cluster.gpus_per_node,
        visible_gpus=list(range(first, first + cluster.gpus_per_node)),
    )
    with _environment(_variables(code)), _detached():
        _lanes.append(executor.submit(lane.work, str(ledger.root), slot))


def array(
    ledger: Ledger, cluster: Cluster, sweep: str, run_ids: Sequence[str], code: Path
) -> list[str]:
    """Submits one Slurm array, with a task for each run.

    Returns:
        Their job ids.

    Raises:
        ServiceError: Slurm is out of reach, or refused.
    """
    import submitit

    root = str(ledger.root)
    try:
        executor = submitit.SlurmExecutor(ledger.submissions, max_num_timeout=FOREVER)
        executor.update_parameters(**_sbatch_options(cluster, sweep, code))
        with redirect_stderr(StringIO()):  # sbatch's own words are in the error
            jobs = executor.map_array(SlurmTask(), [root] * len(run_ids), list(run_ids))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ServiceError(f"cluster: sbatch did not take the jobs: {reason}") from error
    for run_id, submitted in zip(run_ids, jobs, strict=True):
        ledger.run(run_id).event("submitted", job=submitted.job_id)
    return [submitted.job_id for submitted in jobs]


def cancel(job_ids: Sequence[str], with_signal: str | None = None) -> None:
    """Has Slurm end jobs, or send the processes of their steps a signal; those over are left.

    Raises:
        ServiceError: Slurm is out of reach.
    """
    if not job_ids:
        return
    options = [f"--signal={with_signal}"] if with_signal else []
    command = ["scancel", *options, *job_ids]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCANCEL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServiceError(f"cluster: scancel: {error}") from error
    # It is as unhappy about a job that is over as about a controller that does not answer.
    if "Unable to contact" in done.stderr:
        raise ServiceError("cluster: Slurm does not answer (scancel)")


class SlurmTask:
    """`job.slurm_task`, in the form in which submitit can submit it again when its time is up."""

    def __call__(self, root: str, run_id: str) -> None:
        """Trains the run."""
        job.slurm_task(root, run_id)

    def checkpoint(self, root: str, run_id: str) -> Any:  # noqa: ANN401
        """What to run after a requeue: the same; the run's own checkpoint is on disk by then."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, root, run_id)


def _sbatch_options(cluster: Cluster, sweep: str, code: Path) -> dict[str, Any]:
    exports = [f"export {key}={shlex.quote(value)}" for key, value in _variables(code).items()]
    options = {
        "job_name": f"shortlist-{sweep}",
        "time": cluster.time_min,
        "signal_delay_s": cluster.signal_delay_s,
        "nodes": cluster.nodes,
        "cpus_per_task": cluster.cpus_per_task,
        "gpus_per_node": cluster.gpus_per_node or None,
        "mem_gb": cluster.mem_gb,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "array_parallelism": cluster.parallel,
        "setup": [*cluster.setup, *exports],
        "additional_parameters": dict(cluster.extra) or None,
    }
    return {key: value for key, value in options.items() if value is not None}


def _variables(code: Path) -> dict[str, str]:
    """The environment of a job: its code comes from `code`, before any installed or local copy."""
    return {
        "PYTHONPATH": lane.python_path(code),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads would outlive no fork (see `lane`)
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _detached() -> Iterator[None]:
    """Lets children started meanwhile outlive this process, its terminal and its pipes."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    null = os.open(os.devnull, os.O_RDWR)
    saved = {number: os.dup(number) for number in range(3)}
    try:
        for number in saved:
            os.dup2(null, number)
        yield
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)
        for number, handler in handlers.items():
            signal.signal(number, handler)
