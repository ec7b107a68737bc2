"""What was launched under a sweep's name."""

from __future__ import annotations

from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger

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
