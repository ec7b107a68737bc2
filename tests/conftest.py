"""Fixtures of several folders: a root with a tracking store in it, and a training that is fast."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

# Before NumPy and PyTorch are imported, here and in processes started from here: tests run side by
# side, and threads that wait for a core spin meanwhile.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from pipelines import snapshot
from pipelines.ledger import Ledger
from tests import fakes
from tests.fake_slurm import FakeSlurm

THIRD_PARTY_WARNINGS = (
    # MLflow 3.17 with SQLAlchemy 2.1.
    "ignore:The ``noload`` loader strategy is deprecated",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store; making its tables costs seconds, a copy nothing."""
    from pipelines.config import Tracking
    from pipelines.tracking import open_store

    ledger = Ledger(tmp_path_factory.mktemp("store"))
    open_store(ledger, Tracking())
    return ledger.store


@pytest.fixture
def root(tmp_path: Path, fresh_store: Path) -> Path:
    """A root with a tracking store."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    shutil.copy(fresh_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def ledger(root: Path) -> Ledger:
    return Ledger(root)


@pytest.fixture
def fake_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of this process train with `tests.fake_training`, and need no model."""
    from tests import fake_training

    models = SimpleNamespace(ensure_embedded=lambda config, folder: folder)
    monkeypatch.setitem(sys.modules, "recipes.train", fake_training)
    monkeypatch.setitem(sys.modules, "recipes.models", models)


@pytest.fixture
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to a tracking store from this process, for tests that look at none."""
    from pipelines import tracking

    monkeypatch.setattr(tracking, "Shipper", lambda *_: nullcontext())
    monkeypatch.setattr(tracking, "open_store", lambda *_: SimpleNamespace(experiment_id="1"))
    monkeypatch.setattr(tracking, "sync", lambda *_: 0)


@pytest.fixture(scope="session")
def fake_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code, but for its training."""
    return fakes.fake_code(tmp_path_factory.mktemp("code"))


@pytest.fixture
def fake_jobs(fake_training: None, fake_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs train with `tests.fake_training`, here and in processes of their own."""
    monkeypatch.setattr(snapshot, "CODE", fake_tree)


@pytest.fixture
def signals() -> Iterator[None]:
    """Puts back the signal handlers that a job installs."""
    numbers = (signal.SIGTERM, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's clients, on paper."""
    made = FakeSlurm(tmp_path / "slurm")
    made.install(monkeypatch)
    return made
