"""What was launched under a sweep's name."""

from __future__ import annotations

from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.ledger import Ledger


def manifest_of(ledger: Ledger, sweep: str) -> Record:
    """What was launched under the name `sweep`.

    Raises:
        UserError: Nothing was.
    """
    manifest = ledger.sweep(sweep).manifest()
    if manifest is None:
        known = " | ".join(ledger.known_sweeps()) or "none launched yet"
        raise UserError(f"sweep: got {sweep!r}, allowed in {ledger.root}: {known}")
    return manifest
