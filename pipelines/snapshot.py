"""The code as it is now, kept for jobs that start later."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from pipelines.jobs import ask
from pipelines.ledger import Ledger

CODE = Path(__file__).resolve().parents[1]
"""The folder this code runs from: a clone, site-packages, or a snapshot itself."""
PACKAGES = ("analysis", "conf", "pipelines", "recipes")
SUFFIXES = (".py", ".yaml")


@dataclass(frozen=True)
class Snapshot:
    """A copy of the code, named by its contents."""

    folder: Path
    recipes: str
    """Hash of the training code alone."""
    commit: str | None
    """Git commit of the code, with ``+`` where files differ from it; None outside a clone."""


def take(ledger: Ledger, own: Mapping[Path, Path] | None = None) -> Snapshot:
    """Copies the code under `ledger`, unless it is there already.

    Args:
        ledger: Where snapshots are kept.
        own: More files, a user's: path in the snapshot to path now. They are training code.
    """
    own = dict(own or {})
    sources = dict(_sources(PACKAGES)) | own
    folder = ledger.snapshots / _digest(sources)
    if not folder.exists():
        ledger.snapshots.mkdir(parents=True, exist_ok=True)
        aside = Path(mkdtemp(prefix=".new-", dir=ledger.snapshots))
        for name, path in sources.items():
            target = aside / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        aside.chmod(0o755)
        try:
            aside.rename(folder)
        except OSError:  # another launch was faster
            shutil.rmtree(aside)
    return Snapshot(folder, _digest(dict(_sources(("recipes",))) | own), _commit())


def _sources(packages: Iterable[str]) -> Iterable[tuple[Path, Path]]:
    for package in packages:
        for path in sorted((CODE / package).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path.relative_to(CODE), path


def _digest(sources: Mapping[Path, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sources.items():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def _commit() -> str | None:
    if not (CODE / ".git").exists():
        return None
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")
    answer = ask(("git", "-C", str(CODE), *describe))
    return None if answer is None else answer.strip()
