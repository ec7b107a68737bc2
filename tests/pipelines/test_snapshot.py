from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import snapshot
from pipelines.ledger import Ledger


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    for package in snapshot.PACKAGES:
        (folder / package / "inner").mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
        (folder / package / "inner" / "values.yaml").write_text("a: 1\n")
        (folder / package / "__pycache__").mkdir()
    monkeypatch.setattr(snapshot, "CODE", folder)
    return folder


def test_snapshot_has_the_code_and_nothing_else(code: Path, tmp_path: Path) -> None:
    (code / "recipes" / "secrets.txt").write_text("no")
    taken = snapshot.take(Ledger(tmp_path / "out"))
    names = sorted(str(path.relative_to(taken.folder)) for path in taken.folder.rglob("*.*"))
    assert len(names) == 8
    assert "recipes/inner/values.yaml" in names
    assert not list(taken.folder.rglob("__pycache__"))


def test_same_code_is_one_snapshot_and_other_code_another(code: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out")
    first, again = snapshot.take(ledger), snapshot.take(ledger)
    (code / "pipelines" / "new.py").write_text("x = 1\n")
    second = snapshot.take(ledger)
    (code / "recipes" / "new.py").write_text("x = 1\n")
    third = snapshot.take(ledger)
    assert first == again
    assert len({first.folder, second.folder, third.folder}) == 3
    assert first.recipes == second.recipes != third.recipes
    assert sorted(path.name for path in ledger.snapshots.iterdir()) == sorted(
        item.folder.name for item in (first, second, third)
    )


def test_renamed_file_is_other_code(code: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out")
    (code / "recipes" / "a.py").write_text("x = 1\n")
    first = snapshot.take(ledger)
    (code / "recipes" / "a.py").rename(code / "recipes" / "b.py")
    assert snapshot.take(ledger).recipes != first.recipes


def test_commit_is_recorded_and_changes_on_top_of_it_are_marked(code: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out")
    assert snapshot.take(ledger).commit is None
    git = ["git", "-C", str(code), "-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert snapshot.take(ledger).commit == head.stdout.strip()
    (code / "recipes" / "__init__.py").write_text("x = 1\n")
    assert snapshot.take(ledger).commit == head.stdout.strip() + "+"


def test_code_on_the_path_of_a_job_comes_before_installed_and_local_code(tmp_path: Path) -> None:
    from pipelines.submit import variables

    taken = snapshot.take(Ledger(tmp_path))
    where = subprocess.run(
        [sys.executable, "-c", "import pipelines.job as job; print(job.__file__)"],
        env=variables(taken.folder),
        cwd=snapshot.CODE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(taken.folder / "pipelines" / "job.py")
