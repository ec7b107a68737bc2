"""Checkpoints of one run: written aside and then renamed, so that one that exists is complete."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

STATE = "run.json"
"""What the trainer's own files in a checkpoint do not hold: the meter, and metrics not yet logged."""


class Checkpoints:
    """The folder ``checkpoints/`` of a run: ``step-000100/`` for each complete one, and a place aside."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.aside = folder / ".partial"

    def all(self) -> list[Path]:
        """Complete checkpoints by ascending step."""
        if not self.folder.is_dir():
            return []
        found = {path: re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.iterdir()}
        return sorted(path for path, match in found.items() if match)

    def latest(self) -> Path | None:
        """The last complete checkpoint, if there is one."""
        return (self.all() or [None])[-1]

    @staticmethod
    def state(checkpoint: Path) -> dict[str, Any]:
        """What was given to `publish` with this checkpoint."""
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
        return state

    def publish(self, written: Path, step: int, state: dict[str, Any]) -> Path:
        """Makes the folder `written`, which is in `aside`, the checkpoint of `step`; deletes old ones."""
        (written / STATE).write_text(json.dumps(state))
        target = self.folder / f"step-{step:06d}"
        shutil.rmtree(target, ignore_errors=True)
        written.replace(target)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old)
        return target

    def clear_aside(self) -> None:
        """Deletes what an interrupted attempt had half written."""
        shutil.rmtree(self.aside, ignore_errors=True)
