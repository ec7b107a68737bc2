"""Submits what a sweep is missing. With `submit`, the one place where planning has effects."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from time import time
from typing import Any
from uuid import uuid4

from pipelines import files, job, own_code, slurm, snapshot, submit
from pipelines.config import Cluster, Settings
from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.jobs import Jobs
from pipelines.ledger import PRIVATE, Ledger
from pipelines.plan import Plan, PlannedRun
from pipelines.redact import redacted
from pipelines.snapshot import Snapshot
from pipelines.status import RunStatus, statuses
from recipes.config import Budget, ConfigError

VERSIONS = ("shortlist", "torch", "transformers", "trl", "mlflow", "numpy", "submitit")


@dataclass(frozen=True)
class LaunchReport:
    """What a launch found and did."""

    sweep: str
    states: dict[str, str]
    """run_id to the state it was found in."""
    planned: list[str] = field(default_factory=list)
    """The runs that were submitted."""
    notes: list[str] = field(default_factory=list)
    """What a person should know."""

    def line(self) -> str:
        """The report in one line, and one more for each note."""
        found = list(self.states.values())
        counts = ", ".join(f"{found.count(state)} {state}" for state in dict.fromkeys(found))
        head = f"{self.sweep}: {len(self.planned)} of {len(found)} runs submitted (found {counts})"
        return "\n".join([head, *self.notes])

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return asdict(self)


def launch(
    plan: Plan,
    ledger: Ledger,
    *,
    retry: bool = False,
    only: Container[str] | None = None,
    shares: Mapping[str, float] | None = None,
) -> LaunchReport:
    """Submits the runs of `plan` that are neither done nor under way; safe to call at any time.

    Args:
        plan: What is wanted.
        ledger: What there is.
        retry: Whether runs that failed or were stopped are submitted again too.
        only: The runs that may be submitted; None: any.
        shares: Run to the share of its budget that it may spend for now, also if it was stopped;
            others are left alone.

    Raises:
        ServiceError: The root cannot be written, or the tracking store or scheduler is out of
            reach; nothing was submitted.
    """
    with writable(ledger), files.locked(ledger.launch_lock):
        jobs = Jobs(ledger)
        runs = plan.runs if shares is None else _limited(plan.runs, shares)
        states = {run.run_id: _state(jobs, ledger, run) for run in runs}
        cluster = plan.settings.cluster
        if "unknown" in states.values() or not (cluster.kind == "local" or jobs.slurm_answers):
            raise ServiceError("cluster: Slurm does not answer (squeue); nothing was submitted")
        again = ("failed", "stopped") if retry else ("stopped",) if shares else ()
        todo = [run for run in runs if states[run.run_id] in ("planned", *again)]
        todo = [run for run in todo if only is None or run.run_id in only]
        own = own_code.find((run.config for run in plan.runs), plan.config_dirs)
        own_code.importable(own)
        released = slurm.release(jobs) if cluster.kind == "slurm" else []
        request = prepare(ledger, plan.settings, todo) if todo else {}
        request |= {"launch": uuid4().hex[:8]} if cluster.kind == "slurm" else {}
        request |= {"retry": True} if retry else {}
        code = snapshot.take(ledger, own)
        report = LaunchReport(plan.sweep, states, [run.run_id for run in todo])
        if released:
            report.notes.append(
                f"released {', '.join(released)}: Slurm held what it could not start"
            )
        report.notes.extend(_notes(ledger, runs, jobs, states, code, retry=retry))
        for run in todo:
            write_request(ledger, plan.sweep, run, {**request, **_names(code)})
        _write_manifest(ledger, plan, code)
        report.notes.extend(_reuse(ledger, plan.sweep, states))
        if cluster.kind == "local":
            submit.top_up(ledger, cluster)
        elif todo:
            _submit(plan, ledger, jobs, request["launch"], code, report)
        return report


def _submit(
    plan: Plan, ledger: Ledger, jobs: Jobs, launch: str, code: Snapshot, report: LaunchReport
) -> None:
    cluster, variables = plan.settings.cluster, submit.variables(code.folder)
    order = slurm.Order(ledger, cluster, plan.sweep, launch, variables)
    submitted = set(slurm.submit(order, jobs, report.planned))
    left = [run_id for run_id in report.planned if run_id not in submitted]
    report.planned[:] = [run_id for run_id in report.planned if run_id in submitted]
    if left:
        report.notes.append(
            f"cluster: the queue takes no more of your jobs now; {len(left)} runs are left: "
            "launch again later, or with --follow"
        )


def _limited(runs: Sequence[PlannedRun], shares: Mapping[str, float]) -> list[PlannedRun]:
    """Those of the runs that have a share, with that much of their budget."""
    return [
        replace(run, config=replace(run.config, budget=part(run.config.budget, shares[run.run_id])))
        for run in runs
        if run.run_id in shares
    ]


def part(budget: Budget, share: float) -> Budget:
    """A share of a budget; of one in steps, up to the next evaluation."""
    if share >= 1:
        return budget
    amount = budget.amount * share
    if budget.axis == "steps":
        amount = min(budget.amount, math.ceil(amount / budget.eval_every) * budget.eval_every)
    return replace(budget, amount=amount)


def train_here(
    run: PlannedRun,
    settings: Settings,
    ledger: Ledger,
    tell: job.Tell | None = None,
    config_dirs: Sequence[Path] = (),
) -> RunStatus:
    """Trains one run in this process, or what is left of it; `tell` gets a line an evaluation.

    Returns:
        Where it stands then: completed, or planned if a signal ended it early.

    Raises:
        UserError: Another process is training it.
        ServiceError: As for `launch`.
    """
    with writable(ledger), files.locked(ledger.launch_lock):
        if _state(Jobs(ledger), ledger, run) == "completed":
            return _status(ledger, run)
        own = own_code.find([run.config], config_dirs)
        own_code.importable(own)
        request = prepare(ledger, settings, [run]) | {"cluster": "here"}
        write_request(ledger, "", run, {**request, **_names(snapshot.take(ledger, own))})
        taken = job.claim(ledger.run(run.run_id))
    if taken is None:
        raise UserError(f"run {run.run_id}: is being trained, by another process")
    try:
        job.train(ledger, taken, tell)
    finally:
        os.close(taken.lock)
    return _status(ledger, run)


def prepare(ledger: Ledger, settings: Settings, runs: Sequence[PlannedRun]) -> Record:
    """What jobs find ready when they start: the experiment, and the models that are built here.

    Returns:
        What every request has in common, for `write_request`.

    Raises:
        ServiceError: The tracking store is out of reach.
    """
    from pipelines.tracking import open_store

    experiment_id = open_store(ledger, settings.tracking).experiment_id
    embedded = {repr((run.config.model, run.config.task)): run.config for run in runs}
    for config in embedded.values():
        if config.model.embedded:
            from recipes.models import ensure_embedded

            ensure_embedded(config, ledger.models)
    cluster = settings.cluster
    for run in runs:
        _check_layout(run, cluster)
    cpus = cluster.cpus_per_task if cluster.kind == "slurm" else _cpus() // cluster.parallel
    return {
        "cluster": cluster.kind,
        "threads": max(1, cpus),
        "retries": cluster.retries,
        "tracking": {**asdict(settings.tracking), "experiment_id": experiment_id},
    }


def _check_layout(run: PlannedRun, cluster: Cluster) -> None:
    """A batch is split evenly over the processes of a run."""
    world = cluster.nodes * cluster.tasks_per_node if cluster.kind == "slurm" else 1
    batch, micro = run.config.batch.size, run.config.execution.micro_batch
    if batch % ((micro or 1) * world):
        got = f"{cluster.tasks_per_node} on {cluster.nodes} nodes"
        allowed = f"processes that divide the batch of {batch} evenly"
        raise ConfigError("cluster.processes", got, f"{allowed} (run {run.run_id}, {run.label})")


def write_request(ledger: Ledger, sweep: str, run: PlannedRun, request: Record) -> None:
    """Makes the run's folder, and writes down that it is to be trained."""
    folder = ledger.run(run.run_id)
    folder.create(run.resolved)
    execution = run.config.execution
    folder.event(
        "planned",
        sweep=sweep,
        label=run.label,
        choices=run.choices,
        seed=run.seed,
        budget=asdict(run.config.budget),
        execution=asdict(replace(execution, threads=execution.threads or request["threads"])),
        **request,
    )


def _names(code: Snapshot) -> Record:
    return {"snapshot": code.folder.name, "recipes": code.recipes, "commit": code.commit}


def _status(ledger: Ledger, run: PlannedRun) -> RunStatus:
    row = {**vars(run), "budget": asdict(run.config.budget)}
    return statuses(ledger, [row])[0]


def _state(jobs: Jobs, ledger: Ledger, run: PlannedRun) -> str:
    folder = ledger.run(run.run_id)
    history = folder.history()
    state = jobs.state(folder, history, run.config.budget)
    if state == "completed" and history.turn in ("started", "died") and not folder.running():
        job.is_done(folder, history)  # it was killed before it could say so
    return state


def _notes(
    ledger: Ledger,
    runs: Sequence[PlannedRun],
    jobs: Jobs,
    states: Mapping[str, str],
    code: Snapshot,
    *,
    retry: bool,
) -> Iterator[str]:
    for run in runs:
        history = ledger.run(run.run_id).history()
        trouble = jobs.trouble(run.run_id, history) if states[run.run_id] == "pending" else None
        if trouble:
            yield f"run {run.run_id} ({run.label}): {trouble}"
        if states[run.run_id] == "failed" and not retry:
            again = "`retry` in place of `launch` tries it again"
            yield f"run {run.run_id} ({run.label}) failed; {again}"
        if history.attempts and history.request and history.request["recipes"] != code.recipes:
            yield f"run {run.run_id} ({run.label}) was trained by other training code than today's"


def _reuse(ledger: Ledger, sweep: str, states: Mapping[str, str]) -> Iterator[str]:
    """Has runs that need no training know of this sweep too, also in the tracking store."""
    reused = []
    for run_id in (name for name, state in states.items() if state != "planned"):
        folder = ledger.run(run_id)
        if sweep not in folder.history().sweeps:
            folder.event("reused", sweep=sweep)
            reused.append(run_id)
    if reused:
        from pipelines.tracking import sync

        try:
            sync(ledger, reused)
        except ServiceError as error:
            yield f"{error}; `sync` tells it later of {len(reused)} runs of other sweeps"


def _write_manifest(ledger: Ledger, plan: Plan, code: Snapshot) -> None:
    document = {
        "sweep": plan.sweep,
        "strategy": plan.strategy,
        "compute": plan.compute,
        "metric": plan.metric,
        "base": plan.base,
        "varied": plan.varied,
        "overrides": [redacted(word) for word in plan.overrides],
        "config_dirs": plan.config_dirs,
        "command": [redacted(word) for word in sys.argv],
        "time": time(),
        "cluster": asdict(plan.settings.cluster),
        "tracking": asdict(plan.settings.tracking),
        "versions": {"python": python_version(), **{name: version(name) for name in VERSIONS}},
        **_names(code),
        "runs": plan.rows(),
    }
    files.write_json(ledger.sweep(plan.sweep).manifest_file, document)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def writable(ledger: Ledger) -> Iterator[None]:
    """Sees that the root takes files, and tells in one line where it does not, now or later."""
    made = not ledger.root.exists()
    try:
        ledger.root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        files.probe(ledger.root)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ServiceError(
            f"root: got {str(ledger.root)!r}, which cannot be written: {reason}"
        ) from error
    finally:
        if made:  # and nothing came of it
            ledger.clear_if_empty()
