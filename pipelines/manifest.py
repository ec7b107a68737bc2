"""What was launched: the runs of a sweep, one run by its id, or all there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger, RunFiles

KEYS = {"sweep", "strategy", "compute", "base", "varied", "overrides", "tracking", "runs"}
"""What is read of a manifest."""


def manifest_of(ledger: Ledger, sweep: str) -> Record:
    """What was launched under the name `sweep`.

    Raises:
        UserError: Nothing was.
        ServiceError: What was written down is damaged.
    """
    manifest = ledger.sweep(sweep).manifest()
    if manifest is None:
        known = " | ".join(ledger.known_sweeps()) or "none launched yet"
        raise UserError(f"sweep: got {sweep!r}, allowed in {ledger.root}: {known}")
    if not manifest.keys() >= KEYS:
        raise ServiceError(f"{ledger.sweep(sweep).manifest_file} is damaged: launch it again")
    return manifest


def rows_of(ledger: Ledger, name: str | None) -> list[Record]:
    """Rows of runs as a manifest keeps them.

    Args:
        ledger: Where they were launched.
        name: A sweep, a run's id or the beginning of one run's id; None: every run there is.

    Raises:
        UserError: Nothing goes by that name, or several runs do.
        ServiceError: A manifest is damaged.
    """
    if name is None:
        sweeps = [manifest_of(ledger, sweep)["runs"] for sweep in ledger.known_sweeps()]
        rows = {row["run_id"]: row for runs in sweeps for row in runs}
        others = (run for run in ledger.known_runs() if run.run_id not in rows)
        return [*rows.values(), *_rows(others)]
    if name in ledger.known_sweeps():
        return list(manifest_of(ledger, name)["runs"])
    found = [run for run in ledger.known_runs() if run.run_id.startswith(name)]
    if len(found) > 1:
        ids = " | ".join(run.run_id for run in found)
        raise UserError(f"run: got {name!r}, allowed: more of {ids}")
    if not found:
        manifest_of(ledger, name)  # which says what there is
    return list(_rows(found))


def _rows(runs: Iterable[RunFiles]) -> Iterator[Record]:
    for run in runs:
        history = run.history()
        if history.request and history.budget:
            kept = {key: history.request[key] for key in ("label", "choices", "seed")}
            yield {"run_id": run.run_id, **kept, "budget": asdict(history.budget)}
