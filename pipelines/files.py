"""Files that survive a crash: appended lines, documents replaced whole, and locks."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pipelines.errors import ServiceError

Record = dict[str, Any]
"""One line of a JSON-lines file."""
Result = TypeVar("Result")
PROBE_BYTES = 1 << 16
STALE_WAITS_S = (0.1, 1.0, 5.0)
"""How long it takes until a file whose handle was lost (ESTALE, of NFS) is opened again."""


def append(path: Path, record: Mapping[str, object], *, sync: bool = False) -> None:
    """Adds `record` as one line, in one write; `sync` waits until the disk has it.

    A line that a crash cut off is closed first, so that no record is ever glued to it.

    Raises:
        OSError: The line could not be written whole (a full disk).
    """
    line = (dumps(record) + "\n").encode()
    tries = itertools.count()
    _persistently(lambda: _append(path, line, sync=sync, again=next(tries) > 0))


def _append(path: Path, line: bytes, *, sync: bool, again: bool) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        before = os.pread(descriptor, len(line), max(0, size - len(line)))
        if not (again and before == line):  # an earlier try wrote it, and lost the file only then
            line = line if before.endswith(b"\n") or not size else b"\n" + line
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _persistently(action: Callable[[], Result]) -> Result:
    """Does it, and does it again with a new handle where a file server has lost the one it had."""
    for wait_s in STALE_WAITS_S:
        try:
            return action()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            time.sleep(wait_s)
    return action()


def read(path: Path, offset: int = 0) -> tuple[list[Record], int]:
    """The whole records of a JSON-lines file from byte `offset`, and the offset after the last.

    Broken lines are skipped; the last one, while it has no end, is left for the next call.
    """
    try:
        data = _persistently(lambda: _bytes(path, offset))
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return list(_records(data[:end].splitlines())), offset + end


def _bytes(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def _end(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read()


def tail(path: Path, mark: bytes = b"", last: int = 0, size: int = 1 << 16) -> list[Record]:
    """Whole records among the last `size` bytes of a JSON-lines file.

    Args:
        path: The file.
        mark: Only lines with this in them are read: most of the time goes into reading JSON.
        last: And the first line, and so many at the end.
        size: Bytes.
    """
    try:
        data = _end(path, size)
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    end = len(lines) - last
    # The very first may be cut off.
    kept = [line for n, line in enumerate(lines) if mark in line or n < 2 or n >= end]
    return list(_records(kept))


def last_line(path: Path, size: int = 1 << 12) -> str:
    """The last line of a text that is not empty; nothing where there is none."""
    try:
        lines = _end(path, size).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _records(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        try:
            record = json.loads(line.decode())
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def dumps(document: object, indent: int | None = None) -> str:
    """`document` as strict JSON: what is not finite becomes ``"nan"``, ``"inf"`` or ``"-inf"``."""
    return json.dumps(strict(document, str), indent=indent, allow_nan=False, default=str)


def strict(value: object, told: Callable[[float], object]) -> object:
    """A JSON document in which what is not finite, and so no JSON, is as `told` says."""
    if isinstance(value, float) and not math.isfinite(value):
        return told(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item, told) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item, told) for item in value]
    return value


def write(path: Path, text: str) -> None:
    """Replaces `path` by `text` in one step: a reader sees the old document or the new one."""
    _persistently(lambda: _replace(path, text))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    try:
        with aside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def probe(folder: Path) -> None:
    """Sees that `folder` takes files, by one that is deleted again.

    Raises:
        OSError: It does not: the disk is full, say.
    """
    path = folder / ".probe"
    write(path, "." * PROBE_BYTES)
    path.unlink(missing_ok=True)


def write_json(path: Path, document: object) -> None:
    """Replaces `path` by `document` in one step."""
    write(path, dumps(document, indent=1) + "\n")


def read_json(path: Path, *, expendable: bool = False) -> Record | None:
    """The document at `path`, or None where there is none.

    Args:
        path: Where it is.
        expendable: It can be made again: a damaged one counts as none.

    Raises:
        ServiceError: It is damaged (cut off, say), and not expendable.
    """
    try:
        document = json.loads(path.read_text())
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        return None
    except ValueError as error:  # not JSON, or not even text
        if expendable:
            return None
        raise ServiceError(f"{path} is damaged: {error}") from error
    return document


def lock(path: Path, wait_s: float = math.inf) -> int | None:
    """Takes the lock `path`; None if others still hold it after `wait_s`.

    The descriptor returned *is* the lock: it is held until every copy of it is closed, by whichever
    process has one, so the kernel releases it however its holder ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if math.isinf(wait_s):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(descriptor)
                return None
            time.sleep(0.01)
        else:
            return descriptor


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock `path`, waiting for it as long as it takes."""
    descriptor = lock(path)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def modified(path: Path) -> float | None:
    """When `path` was last written, as the server of its filesystem has it now; None without it.

    Opened, because NFS then asks the server, and else may answer from memory.
    """
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def is_locked(path: Path) -> bool:
    """Whether someone holds the lock `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who only look never see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """Id of the process of this machine that has the lock `path`, if it wrote it there.

    Found among open files (Linux's ``/proc``), so that an id that is now another's is none.
    """
    try:
        first, *_ = path.read_text().split() or [""]
        opened = {os.path.realpath(item) for item in Path("/proc", first, "fd").iterdir()}
    except OSError:
        return None
    return int(first) if first.isdigit() and os.path.realpath(path) in opened else None
