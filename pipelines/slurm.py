"""Runs as arrays of Slurm jobs: their submission, and what each of their processes does.

submitit writes the batch script and knows a job's environment. What an array is to do is written
down before sbatch is called, under a name that no other array has: whatever becomes of the launcher
or of sbatch's answer, a job that exists is found by that name, and finds its run by it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from pipelines import files, job
from pipelines.config import Cluster
from pipelines.errors import ServiceError
from pipelines.jobs import Jobs, ask
from pipelines.ledger import Ledger

SBATCH_TIMEOUT_S = 60
SCANCEL_TIMEOUT_S = 60
LIMITS = re.compile(r"^(?:MaxArraySize|MaxJobCount)\s*=\s*(\d+)", re.MULTILINE)
FULL = re.compile(r"\w*Submit\w*Limit")
"""Why sbatch refuses what goes beyond the jobs that a user, an account or a QOS may have queued."""
AWAY_S = 60.0
"""How long a job that is to be requeued waits for a controller that does not answer."""
HELD = "launch failed requeued held"
FROM_JOBS = ("SLURM_", "SUBMITIT_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
"""Variables of a job, which jobs launched from it must not take for their own."""
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


class NoRoomError(ServiceError):
    """The queue takes no more jobs of this user for now."""


@dataclass
class Slot:
    """A share of the runs at once, and the arrays that must end before it is free."""

    share: int
    after: str | None = None


@dataclass(frozen=True)
class Order:
    """What is asked of Slurm: runs of one sweep, in one launch."""

    ledger: Ledger
    cluster: Cluster
    sweep: str
    launch: str
    variables: Mapping[str, str]
    """Environment of the jobs."""

    def name(self, number: int) -> str:
        """Of an array, never given twice."""
        return f"{_prefix(self.sweep)}{self.launch}-{number}"


def submit(order: Order, jobs: Jobs, run_ids: Sequence[str]) -> list[str]:
    """Submits arrays with a task for each run, as few as the cluster's limits allow.

    Args:
        order: What is asked for.
        jobs: What is in the queue; with its arrays of this sweep, `parallel` runs at once.
        run_ids: The runs.

    Returns:
        The runs submitted: all, or as many as the queue takes for now.

    Raises:
        ServiceError: Slurm is out of reach, or refused.
    """
    count = -(-len(run_ids) // _largest_array())
    slots = list(_slots(order, jobs, count))
    submitted: list[str] = []
    for number in range(count):
        piece, slot = run_ids[number::count], slots[number % len(slots)]
        taken = _as_many_as_fit(order, number, slot, piece)
        submitted += taken
        if len(taken) < len(piece):
            break
    return submitted


def _slots(order: Order, jobs: Jobs, arrays: int) -> Iterator[Slot]:
    """Shares for `arrays` arrays, of what other arrays of the sweep leave of `parallel`."""
    load: dict[str, int] = {}
    names = {item.array: item.number.split("_")[0] for item in jobs.in_queue}
    for name, number in names.items():
        if name.startswith(_prefix(order.sweep)):
            share = (files.read_json(order.ledger.submission(name)) or {})["share"]
            load[number] = min(share, sum(item.array == name for item in jobs.in_queue))
    free = order.cluster.parallel - sum(load.values())
    if free <= 0:
        yield Slot(order.cluster.parallel, ":".join(load))
        return
    slots = min(arrays, free)
    for place in range(slots):
        yield Slot(free // slots + (place < free % slots))


def _as_many_as_fit(order: Order, number: int, slot: Slot, run_ids: Sequence[str]) -> Sequence[str]:
    """Submits an array of the first of the runs: all, or half of them, or half of those."""
    while run_ids:
        try:
            slot.after = _submit(order, order.name(number), slot, run_ids)
        except NoRoomError:
            run_ids = run_ids[: len(run_ids) // 2]
        else:
            return run_ids
    return ()


def _submit(order: Order, name: str, slot: Slot, run_ids: Sequence[str]) -> str:
    """Submits one array, and returns its number."""
    ledger = order.ledger
    intent = {"sweep": order.sweep, "runs": list(run_ids), "share": slot.share, "time": time()}
    files.write_json(ledger.submission(name), intent)
    script = ledger.submission(name).with_suffix(".sh")
    files.write(script, _script(order, name, slot, len(run_ids)))
    number = _sbatch(script) or _found(ledger, name)
    for task, run_id in enumerate(run_ids):
        # The queue tells it too, by the name of the array, should power fail before it is written.
        ledger.run(run_id).remark("submitted", job=f"{number}_{task}", launch=order.launch)
    return number


def _script(order: Order, name: str, slot: Slot, tasks: int) -> str:
    import submitit

    executor = submitit.SlurmExecutor(order.ledger.submissions)
    executor.update_parameters(**_options(order, name, slot))
    executor.parameters["map_count"] = tasks
    python = order.cluster.python or sys.executable
    words = [*shlex.split(order.cluster.container or ""), python, "-u", "-m", "pipelines.slurm"]
    command = shlex.join([*words, str(order.ledger.root), name])
    return str(executor._make_submission_file_text(command, ""))


def _options(order: Order, name: str, slot: Slot) -> dict[str, Any]:
    cluster = order.cluster
    exports = [f"export {key}={shlex.quote(value)}" for key, value in order.variables.items()]
    options = {
        "job_name": name,
        "time": cluster.time_min,
        "signal_delay_s": cluster.signal_delay_s,
        "nodes": cluster.nodes,
        "ntasks_per_node": cluster.tasks_per_node,
        "cpus_per_task": cluster.cpus_per_task,
        "gpus_per_node": cluster.gpus_per_node or None,
        "mem": cluster.mem_gb and f"{round(1024 * cluster.mem_gb)}M",
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "gres": cluster.gres,
        "exclusive": cluster.exclusive or None,
        "dependency": slot.after and f"afterany:{slot.after}",
        "array_parallelism": slot.share,
        "setup": [*cluster.setup, *exports],
        # Else a process that waits for one that failed would, until the time limit.
        "srun_args": ["--kill-on-bad-exit=1", *cluster.srun],
        "additional_parameters": {"requeue": True, **cluster.extra},
    }
    return {key: value for key, value in options.items() if value is not None}


def _sbatch(script: Path) -> str | None:
    """The number of the array submitted; None where sbatch did not say whether there is one.

    Raises:
        NoRoomError: The queue is full.
        ServiceError: Slurm refused.
    """
    command = ["sbatch", "--parsable", str(script)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SBATCH_TIMEOUT_S, env=_environment()
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise ServiceError(f"cluster: sbatch: {error.strerror}") from error
    if done.returncode == 0:
        return done.stdout.strip().split(";")[0]
    reason = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
    full = FULL.search(done.stderr)
    if full:
        raise NoRoomError(f"cluster: the queue is full: {full[0]}")
    raise ServiceError(f"cluster: sbatch did not take the jobs: {reason}")


def _found(ledger: Ledger, name: str) -> str:
    """The number of the array with this name."""
    numbers = [item.number for item in Jobs(ledger).in_queue if item.array == name]
    if not numbers:
        raise ServiceError(f"cluster: sbatch did not answer within {SBATCH_TIMEOUT_S} s")
    return numbers[0].split("_")[0]


def release(jobs: Jobs) -> list[str]:
    """Has jobs wait their turn again that Slurm itself holds, and returns their numbers.

    It does so where a node could not start a job: one that it took for a duplicate, say, after the
    controller came back with an old state. Those that a person holds are left.
    """
    held = [item.number for item in jobs.in_queue if item.reason.replace("_", " ") == HELD]
    if held:
        ask(("scontrol", "release", *held))
    return held


def cancel(numbers: Sequence[str], with_signal: str | None = None) -> None:
    """Has Slurm end jobs, or send the processes of their steps a signal; those over are left.

    Raises:
        ServiceError: Slurm is out of reach.
    """
    if not numbers:
        return
    options = [f"--signal={with_signal}"] if with_signal else []
    command = ["scancel", *options, *numbers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCANCEL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServiceError(f"cluster: scancel: {error}") from error
    # It is as unhappy about a job that is over as about a controller that does not answer.
    if "Unable to contact" in done.stderr:
        raise ServiceError("cluster: Slurm does not answer (scancel)")


def _environment() -> dict[str, str]:
    """This environment, without what it has from a job in which this runs."""
    if "SLURM_JOB_ID" not in os.environ:
        return dict(os.environ)
    kept = (key for key in os.environ if key in KEPT or not key.startswith(FROM_JOBS))
    return {key: os.environ[key] for key in kept}


def _largest_array() -> int:
    """Tasks that an array may have, and jobs that the queue may.

    Raises:
        ServiceError: Slurm does not answer.
    """
    answer = ask(("scontrol", "show", "config"))
    if answer is None:
        raise ServiceError("cluster: Slurm does not answer (scontrol); nothing was submitted")
    return max(1, min((int(limit) for limit in LIMITS.findall(answer)), default=1))


def _prefix(sweep: str) -> str:
    return f"shortlist-{re.sub(r'[^A-Za-z0-9_.]', '_', sweep)}-"


@dataclass(frozen=True)
class Task:
    """A task of an array, seen from one of its processes."""

    launch: str
    run_id: str
    number: str
    rank: int
    restarts: int
    """How often Slurm put it back into the queue."""

    @classmethod
    def here(cls, ledger: Ledger, name: str) -> Task:
        """The task that this process is of."""
        index = os.environ["SLURM_ARRAY_TASK_ID"]
        asked = files.read_json(ledger.submission(name))
        assert asked is not None
        return cls(
            launch=name.split("-")[-2],
            run_id=asked["runs"][int(index)],
            number=f"{os.environ['SLURM_ARRAY_JOB_ID']}_{index}",
            rank=int(os.environ.get("SLURM_PROCID", "0")),
            restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        )


def work(root: str, name: str) -> int:
    """What a process of a job does: trains the run of its task. Returns its exit status."""
    ledger = Ledger(root)
    task = Task.here(ledger, name)
    run = ledger.run(task.run_id)
    fields = {"job": task.number, "restarts": task.restarts}
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        _distribute()
    if task.rank > 0:
        return job.assist(ledger, run, task.launch, fields)
    taken = job.take_over(run, task.launch, **fields)
    if taken is None:
        return 0
    job.print_to(run.log(taken.attempt))
    try:
        stopped_by = job.train(ledger, taken)
    except Exception:
        if run.history().turn == "requeued":
            _requeue(task.number)
        raise
    finally:
        os.close(taken.lock)
    goes_on = stopped_by and job.ours(run.history(), task.launch)
    reason = _why(task.number, stopped_by) if goes_on else None
    if reason:
        run.event("requeued", attempt=taken.attempt, job=task.number, reason=reason)
        _requeue(task.number)
    return 0


def _distribute() -> None:
    """Sets what torch.distributed reads; MASTER_ADDR stays where the site's set-up has set it."""
    from submitit.helpers import TorchDistributedEnvironment

    address = os.environ.get("MASTER_ADDR")
    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    os.environ["MASTER_ADDR"] = address or os.environ["MASTER_ADDR"]


def _why(number: str, stopped_by: int | None) -> str | None:
    """Why Slurm ends a job that is to go on; None where a person ends it, or Slurm does not say."""
    answer = _patiently(("scontrol", "show", "job", "--oneliner", number))
    known = dict(word.partition("=")[::2] for word in (answer or "").split())
    if known.get("JobState") != "RUNNING":
        return None
    if known.get("PreemptTime", "None") not in ("None", "Unknown"):
        return "preempted"
    return "time limit" if stopped_by == signal.SIGUSR2 else None


def _requeue(number: str) -> None:
    """Has Slurm put this job back into the queue; where it cannot, the next launch submits it."""
    _patiently(("scontrol", "requeue", number))


def _patiently(command: tuple[str, ...]) -> str | None:
    """What a client of Slurm answers, once it does: a controller may be away for a moment."""
    end = monotonic() + AWAY_S
    while (answer := ask(command)) is None and monotonic() < end:
        sleep(AWAY_S / 12)
    return answer


if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]))
