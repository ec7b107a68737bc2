"""Checks what runs depend on: versions, filesystem, GPU, scheduler, tracking store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipelines import files, jobs
from pipelines.config import Settings
from pipelines.errors import ServiceError, UserError
from pipelines.launch import VERSIONS, writable
from pipelines.ledger import Ledger
from pipelines.redact import shown

NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "glusterfs", "fuse", "pvfs")
"""Beginnings of the types of filesystems that other machines share."""
LITTLE_GB = 10.0
"""A few checkpoints of a large model."""
GPU_TIMEOUT_S = 60
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
LOCK_PROBE = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    check: str
    level: str
    """``ok``; ``warn``: it works, but; ``fail``: runs would not."""
    text: str


def examine(ledger: Ledger, settings: Settings) -> Iterator[Finding]:
    """Every check, in turn; none leaves anything behind.

    Args:
        ledger: The root that runs would go to.
        settings: Where they would be trained and logged.
    """
    yield _versions()
    yield from _filesystem(ledger, settings)
    yield _gpu(settings)
    yield _slurm(settings)
    yield _store(ledger, settings)


def _versions() -> Finding:
    told, missing = [f"python {sys.version.split()[0]}"], []
    for name in VERSIONS:
        try:
            told.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("versions", "fail", f"not installed: {', '.join(missing)}")
    return Finding("versions", "ok", ", ".join(told))


def _filesystem(ledger: Ledger, settings: Settings) -> Iterator[Finding]:
    name, root = "filesystem", ledger.root
    kind, network = filesystem_of(root)
    try:
        with writable(ledger):
            locks = _locks(root)
            free = shutil.disk_usage(root).free / 1e9
    except ServiceError as error:
        yield Finding(name, "fail", str(error))
        return
    level = "ok" if free >= LITTLE_GB else "warn"
    yield Finding(name, level, f"{root}: {kind}, writable, {free:.0f} GB free")
    if not locks:
        yield Finding(name, "fail", f"{root}: flock does not exclude: runs could be trained twice")
    if settings.cluster.kind == "slurm" and not network:
        text = f"{root} is on {kind}, which nodes may not see: cluster=slurm needs a shared root"
        yield Finding(name, "warn", text)
    if root.exists() and root.stat().st_mode & 0o022:
        yield Finding(name, "warn", f"{root}: others can write there, and so into runs (chmod)")


def _locks(folder: Path) -> bool:
    """Whether a lock held here keeps another process out."""
    probe = folder / ".probe.lock"
    try:
        with files.locked(probe):
            command = [sys.executable, "-c", LOCK_PROBE, str(probe)]
            return subprocess.run(command, capture_output=True).returncode != 0
    finally:
        probe.unlink(missing_ok=True)


def filesystem_of(path: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, bool]:
    """Type of the filesystem that `path` is, or would be, on, and whether machines share it."""
    kind, longest = "unknown", -1
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return kind, False
    for line in lines:
        _, point, found, *_ = line.split()
        at = Path(point.replace(r"\040", " "))
        if len(at.parts) >= longest and path.absolute().is_relative_to(at):
            kind, longest = found, len(at.parts)
    return kind, kind.startswith(NETWORK)


def _gpu(settings: Settings) -> Finding:
    wanted = settings.cluster.kind == "local" and settings.cluster.gpus_per_node
    answer = jobs.ask(NVIDIA, GPU_TIMEOUT_S)
    if answer is None:
        return Finding("gpu", "fail" if wanted else "ok", "none here (nvidia-smi does not answer)")
    found = answer.strip().splitlines()
    level = "fail" if wanted and len(found) < wanted else "ok"
    return Finding("gpu", level, f"{len(found)}: {'; '.join(dict.fromkeys(found))}")


def _slurm(settings: Settings) -> Finding:
    wanted = settings.cluster.kind == "slurm"
    answer = jobs.ask(("scontrol", "ping"))
    if answer is None or "UP" not in answer:
        there = "does not answer" if shutil.which("scontrol") else "is not installed here"
        return Finding("slurm", "fail" if wanted else "ok", f"Slurm {there}")
    told = (jobs.ask(("sinfo", "--version")) or "").strip()
    partitions = (jobs.ask(("sinfo", "--noheader", "--format=%R")) or "").split()
    partition = settings.cluster.partition
    if wanted and partition and partition not in partitions:
        text = f"cluster.partition: got {partition!r}, allowed: {' | '.join(sorted(partitions))}"
        return Finding("slurm", "fail", text)
    accounting = jobs.ask(("sacctmgr", "--noheader", "show", "cluster")) is not None
    books = "with accounting" if accounting else "without accounting (not needed)"
    names = ", ".join(sorted(set(partitions)))
    return Finding("slurm", "ok", f"{told}, {books}; partitions: {names}")


def _store(ledger: Ledger, settings: Settings) -> Finding:
    uri = settings.tracking.uri
    if uri is None or uri.startswith("sqlite"):
        path = ledger.store if uri is None else Path(uri.removeprefix("sqlite:///"))
        kind, network = filesystem_of(path)
        if network or settings.cluster.kind == "slurm":
            why = f"SQLite on {kind}" if network else "SQLite, with cluster=slurm"
            text = f"{path}: {why} is corrupted or locked by several machines: `shortlist server`"
            return Finding("tracking", "fail", text)
        if not path.exists():
            return Finding("tracking", "ok", f"{path}: SQLite, made by the first launch")
    from pipelines.tracking import open_store

    try:
        entries = open_store(ledger, settings.tracking).entries()
    except (ServiceError, UserError) as error:
        return Finding("tracking", "fail", str(error))
    where = shown(uri or str(ledger.store))
    return Finding("tracking", "ok", f"{where}: answers, {len(entries)} runs in its experiment")
