from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipelines import files
from pipelines.errors import ServiceError


def test_appended_records_are_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number in range(3):
        files.append(path, {"n": number}, sync=True)
    records, offset = files.read(path)
    assert records == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert offset == path.stat().st_size
    files.append(path, {"n": 3})
    assert files.read(path, offset) == ([{"n": 3}], path.stat().st_size)


def test_line_cut_off_by_a_crash_is_neither_read_nor_glued_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    files.append(path, {"n": 1})
    whole = path.stat().st_size
    with path.open("a") as file:
        file.write('{"n": 2, "half')
    assert files.read(path) == ([{"n": 1}], whole)
    files.append(path, {"n": 3})
    assert files.read(path)[0] == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize("junk", ["", "\n", "[1]\n", "\x00\x00\n", "{'a'}\n"])
def test_junk_is_skipped(tmp_path: Path, junk: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(junk)
    files.append(path, {"n": 1})
    assert files.read(path)[0] == [{"n": 1}]


def test_missing_file_is_empty(tmp_path: Path) -> None:
    assert files.read(tmp_path / "none") == ([], 0)
    assert files.tail(tmp_path / "none") == []
    assert files.read_json(tmp_path / "none") is None


def test_tail_reads_the_last_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number in range(100):
        files.append(path, {"n": number})
    assert [record["n"] for record in files.tail(path, size=30)] == [97, 98, 99]
    assert len(files.tail(path)) == 100
    kept = [record["n"] for record in files.tail(path, b"5", last=2)]
    assert kept == [0, 1, *(n for n in range(2, 98) if "5" in str(n)), 98, 99]


def test_numbers_that_json_lacks_become_words(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    files.append(path, {"a": float("nan"), "b": [float("inf")], "c": {"d": float("-inf")}})
    (record,) = files.read(path)[0]
    assert record == {"a": "nan", "b": ["inf"], "c": {"d": "-inf"}}
    assert float(record["c"]["d"]) == float("-inf")


def test_full_disk_is_told_and_leaves_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "document.json"
    files.write_json(path, {"old": True})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(path, {"new": True})
    assert files.read_json(path) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b'{"runs": [', b"[1]", b"null", b"\xff\x00"])
def test_damaged_document_is_told_in_a_line_or_counts_as_none(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(damage)
    with pytest.raises(ServiceError) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert len(str(caught.value).splitlines()) == 1
    assert files.read_json(path, expendable=True) is None


def test_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
    with pytest.raises(OSError, match="No space left"):
        files.append(tmp_path / "log.jsonl", {"n": 1})
    monkeypatch.undo()
    files.append(tmp_path / "log.jsonl", {"n": 2})
    assert files.read(tmp_path / "log.jsonl")[0] == [{"n": 2}]


def test_reader_sees_the_old_document_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    documents = [{"value": text * 2000} for text in "ab"]
    files.write_json(path, documents[0])
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for document in documents:
                files.write_json(path, document)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(300):
            assert json.loads(path.read_text()) in documents
    finally:
        stop.set()
        writer.join()


def test_lock_is_held_once_and_freed_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"""
import sys, time
from pathlib import Path
from pipelines import files
assert files.lock(Path({str(path)!r})) is not None
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert files.is_locked(path)
        assert files.is_locked(path)  # looking takes nothing
        assert files.lock(path, wait_s=0.05) is None
        holder.kill()
    assert not files.is_locked(path)
    descriptor = files.lock(path, wait_s=0)
    assert descriptor is not None
    assert files.is_locked(path)
    os.close(descriptor)


def test_lock_that_does_not_exist_is_free(tmp_path: Path) -> None:
    assert not files.is_locked(tmp_path / "lock")
    with files.locked(tmp_path / "lock"):
        assert files.is_locked(tmp_path / "lock")
    assert not files.is_locked(tmp_path / "lock")
