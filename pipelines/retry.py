"""What was launched, as plans again: from manifests and run folders, not from sweep files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipelines.config import Cluster, Settings, Tracking
from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.job import config_of
from pipelines.ledger import Ledger
from pipelines.manifest import manifest_of, rows_of
from pipelines.plan import Plan, PlannedRun
from recipes.config import Budget


def launched(ledger: Ledger, name: str | None) -> Iterator[tuple[Plan, set[str]]]:
    """The sweeps to launch again for `name`, and which of their runs.

    Args:
        ledger: Where they were launched.
        name: A sweep, a run's id or the beginning of one; None: every sweep there is.

    Raises:
        UserError: Nothing that was launched goes by that name, or a run's folder is gone.
        ServiceError: A manifest is damaged.
    """
    if name is None or name in ledger.known_sweeps():
        for sweep in ledger.known_sweeps() if name is None else [name]:
            plan = _plan(ledger, manifest_of(ledger, sweep))
            yield plan, {run.run_id for run in plan.runs}
        return
    for row in rows_of(ledger, name):
        request = ledger.run(row["run_id"]).history().request
        assert request is not None
        if not request["sweep"]:
            raise UserError(f"run: got {name!r}, allowed: a run of a sweep (`train` it again)")
        yield _plan(ledger, manifest_of(ledger, request["sweep"])), {row["run_id"]}


def _plan(ledger: Ledger, manifest: Record) -> Plan:
    names = ("sweep", "strategy", "compute", "base", "varied", "overrides")
    settings = Settings(
        root=str(ledger.root),
        cluster=Cluster(**manifest["cluster"]),
        tracking=Tracking(**manifest["tracking"]),
    )
    return Plan(
        **{name: manifest[name] for name in names},
        runs=[_planned(ledger, row) for row in manifest["runs"]],
        settings=settings,
        config_dirs=manifest["config_dirs"],
    )


def _planned(ledger: Ledger, row: Record) -> PlannedRun:
    run = ledger.run(row["run_id"])
    if not run.config_file.exists():
        raise UserError(f"run: {run.run_id} has no {run.config_file}, allowed: launch its sweep")
    config = replace(config_of(run), budget=Budget(**row["budget"]))
    resolved = {**run.config(), "budget": row["budget"]}
    return PlannedRun(run.run_id, row["label"], row["choices"], row["seed"], config, resolved)
