from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.cli import main
from pipelines.config import Cluster, Settings, Tracking
from pipelines.doctor import Finding, examine, filesystem_of
from pipelines.ledger import Ledger

MOUNTS = """
overlay / overlay rw 0 0
/dev/sda1 /data ext4 rw 0 0
server:/home /data/home nfs4 rw 0 0
lustre@tcp:/big /big\\040disk lustre rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS.lstrip())
    return path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/x", ("overlay", False)),
        ("/data/x", ("ext4", False)),
        ("/data/home/me/outputs", ("nfs4", True)),
        ("/data/homeless", ("ext4", False)),
        ("/big disk/x", ("lustre", True)),
    ],
)
def test_filesystem_is_that_of_the_longest_mount(
    path: str, expected: tuple[str, bool], mounts: Path
) -> None:
    assert filesystem_of(Path(path), mounts) == expected


def of(check: str, findings: list[Finding]) -> list[Finding]:
    return [item for item in findings if item.check == check]


def test_sound_machine_is_told_in_a_line_a_check_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    monkeypatch.setenv("SHORTLIST_ROOT", str(root))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [
        "versions",
        "filesystem",
        "gpu",
        "slurm",
        "tracking",
    ]
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    assert not root.exists()


def test_sqlite_on_a_network_filesystem_or_for_a_cluster_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    slurm = Settings(cluster=Cluster(kind="slurm"))
    (told,) = of("tracking", list(examine(ledger, slurm)))
    assert told.level == "fail"
    assert "SQLite, with cluster=slurm" in told.text
    monkeypatch.setattr(doctor, "filesystem_of", lambda _: ("nfs4", True))
    (told,) = of("tracking", list(examine(ledger, Settings())))
    assert told.level == "fail"
    assert told.text.endswith("is corrupted or locked by several machines: `shortlist server`")


def test_what_is_broken_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    words = [f"root={blocked}/root", "tracking.uri=http://127.0.0.1:9", "cluster.gpus_per_node=2"]
    assert main(["doctor", *words, "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    failed = {item["check"]: item["text"] for item in checks if item["level"] == "fail"}
    assert set(failed) == {"filesystem", "gpu", "tracking"}
    assert "cannot be written" in failed["filesystem"]
    assert "http://127.0.0.1:9 is out of reach" in failed["tracking"]


def test_root_that_others_can_write_is_told_and_locks_that_do_not_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(doctor, "LOCK_PROBE", "pass")
    found = of("filesystem", list(examine(Ledger(tmp_path), Settings(tracking=Tracking()))))
    assert [item.level for item in found] == ["ok", "fail", "warn"]
