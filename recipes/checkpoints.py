"""Checkpoints of one run: written aside and then renamed, so that one that exists is complete."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

STATE = "run.json"
"""Holds what the trainer's own files do not: the meter, metrics not yet reported, files' sizes."""

logger = logging.getLogger(__name__)


class Checkpoints:
    """The folder ``checkpoints/`` of a run: ``step-000100/`` and so on, and a place aside."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.aside = folder / ".partial"

    def all(self) -> list[Path]:
        """Checkpoints by ascending step."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.iterdir())
        steps = sorted(int(match[1]) for match in found if match)
        return [self._of(step) for step in steps]

    def latest(self) -> Path | None:
        """The last checkpoint that has all that was written, if there is one."""
        for checkpoint in reversed(self.all()):
            if _is_whole(checkpoint):
                return checkpoint
            logger.warning("%s is damaged: passed over for the one before", checkpoint)
        return None

    @staticmethod
    def state(checkpoint: Path) -> dict[str, Any]:
        """What was given to `publish` with this checkpoint."""
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())["state"]
        return state

    def publish(self, written: Path, step: int, state: dict[str, Any]) -> Path:
        """Makes the folder `written`, which is in `aside`, a checkpoint; deletes old ones.

        Later ones go too: they are damaged, or of a process that this one has replaced.
        """
        document = {"sizes": _sizes(written), "state": state}
        (written / STATE).write_text(json.dumps(document))
        target = self._of(step)
        earlier = [path for path in self.all() if path < target]
        kept = (
            [path for path in earlier if _is_whole(path)][1 - self.keep :] if self.keep > 1 else []
        )
        if target.exists():
            self._discard(target)
        written.replace(target)
        for old in self.all():
            if old != target and old not in kept:
                self._discard(old)
        self.clear_aside()
        return target

    def _discard(self, checkpoint: Path) -> None:
        """Moves it aside first, so that one half deleted is no checkpoint."""
        checkpoint.replace(self.aside / f"old-{checkpoint.name}")

    def clear_aside(self) -> None:
        """Deletes old checkpoints, and what an interrupted attempt had half written."""
        shutil.rmtree(self.aside, ignore_errors=True)

    def _of(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"


def _sizes(checkpoint: Path) -> dict[str, int]:
    paths = (path for path in checkpoint.rglob("*") if path.is_file() and path.name != STATE)
    return {str(path.relative_to(checkpoint)): path.stat().st_size for path in paths}


def _is_whole(checkpoint: Path) -> bool:
    """Whether every file is there, and as long as it was when it was written.

    A rename can reach a disk before what was renamed does, when a machine or a file server goes.
    """
    try:
        sizes = json.loads((checkpoint / STATE).read_text())["sizes"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return bool(sizes == _sizes(checkpoint))
