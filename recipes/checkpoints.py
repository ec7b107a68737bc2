"""Checkpoints of one run: written aside and then renamed, so that one that exists is complete."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

STATE = "run.json"
"""Holds what the trainer's own files do not: the meter, and metrics not yet reported."""


class Checkpoints:
    """The folder ``checkpoints/`` of a run: ``step-000100/`` and so on, and a place aside."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.aside = folder / ".partial"

    def all(self) -> list[Path]:
        """Complete checkpoints by ascending step."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.iterdir())
        steps = sorted(int(match[1]) for match in found if match)
        return [self._of(step) for step in steps]

    def latest(self) -> Path | None:
        """The last complete checkpoint, if there is one."""
        complete = self.all()
        return complete[-1] if complete else None

    @staticmethod
    def state(checkpoint: Path) -> dict[str, Any]:
        """What was given to `publish` with this checkpoint."""
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
        return state

    def publish(self, written: Path, step: int, state: dict[str, Any]) -> Path:
        """Makes the folder `written`, which is in `aside`, a checkpoint; deletes old ones."""
        (written / STATE).write_text(json.dumps(state))
        target = self._of(step)
        written.replace(target)
        for old in self.all()[: -self.keep]:
            old.replace(self.aside / old.name)  # so that one half deleted is no checkpoint
        self.clear_aside()
        return target

    def clear_aside(self) -> None:
        """Deletes old checkpoints, and what an interrupted attempt had half written."""
        shutil.rmtree(self.aside, ignore_errors=True)

    def _of(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"
