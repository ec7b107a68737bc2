"""A user's own task: its module is found, kept with the code, and imported by jobs from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import own_code, snapshot, submit
from pipelines.errors import UserError
from pipelines.ledger import Ledger
from pipelines.plan import plan
from recipes.config import RunConfig, Task

SOURCE = """
def build(task):
    rows = [{"prompt": f"{n}=", "answer": str(n)} for n in range(60)]
    return rows[8:], rows[:8], lambda completion, row: float(completion == row["answer"])
"""
IN_A_JOB = """
from recipes import tasks
from recipes.config import Task
import mine
print(mine.__file__, len(tasks.load(Task("mine:build")).train))
"""


def own(name: str) -> RunConfig:
    return RunConfig(task=Task(name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user stands; a module in it, and in ``conf`` another of the same name."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "mine.py").write_text("other = 1")
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/data.txt"):
        (tmp_path / "package" / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_is_looked_for_in_config_dirs_then_here_then_among_what_is_installed(
    folder: Path,
) -> None:
    mine = {Path("mine.py"): folder / "mine.py"}
    assert own_code.find([own("mine:build"), own("mine:build")], []) == mine
    assert own_code.find([own("mine:build")], [folder / "conf"]) == {
        Path("mine.py"): folder / "conf" / "mine.py"
    }
    assert own_code.find([own("numpy.linalg:norm"), RunConfig()], []) == {}
    assert set(own_code.find([own("package.inner:build")], [])) == {
        Path("package/__init__.py"),
        Path("package/inner/__init__.py"),
    }
    mixture = RunConfig(task=Task("mixture", parts={"a": Task("mine:build"), "b": Task()}))
    assert own_code.find([mixture], []) == mine


def test_a_sweep_over_a_module_that_is_nowhere_is_refused_when_planned(folder: Path) -> None:
    (folder / "conf" / "sweep" / "s.yaml").write_text(
        "set: [task.name=gone:build]\naxes: {loss: [grpo]}\n"
    )
    with pytest.raises(UserError, match=r"task.name: got 'gone:build', allowed: module:function"):
        plan("s", config_dirs=[folder / "conf"])


def test_jobs_import_the_module_as_it_was_when_they_were_submitted(folder: Path) -> None:
    ledger = Ledger(folder / "outputs")
    files = own_code.find([own("mine:build")], [])
    code = snapshot.take(ledger, files)
    assert snapshot.take(ledger).recipes != code.recipes  # it is training code
    (folder / "mine.py").write_text("changed = 1")
    assert snapshot.take(ledger, files).folder != code.folder
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", IN_A_JOB],
        env={**os.environ, **submit.variables(code.folder)},
        cwd=elsewhere,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{code.folder / 'mine.py'} 52\n", done.stderr
