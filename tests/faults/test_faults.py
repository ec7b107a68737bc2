"""Processes are killed at every step of launching and training; nothing may be lost or doubled."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from pipelines import tracking
from tests.fake_slurm import FakeSlurm
from tests.faults.killer import STEPS
from tests.faults.world import World

pytestmark = pytest.mark.usefixtures("fake_training", "signals")
NOTHING = {"twice": 0, "lost": 0, "doubled": 0, "stuck": 0}


@pytest.fixture(autouse=True)
def quick_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are sent while a run of no length is trained."""
    monkeypatch.setattr(tracking, "PERIOD_S", 0.01)


def play(folder: Path, store: Path, patch: pytest.MonkeyPatch, seed: int, kills: int) -> World:
    (folder / "outputs").mkdir(parents=True)
    shutil.copy(store, folder / "outputs" / "mlflow.db")
    scheduler = FakeSlurm(folder / "slurm")
    with patch.context() as context:
        scheduler.install(context)
        world = World(folder / "outputs", scheduler, seed, kills)
        world.play()
    return world


def play_until(
    kills: int, folder: Path, store: Path, patch: pytest.MonkeyPatch, seed: int
) -> tuple[Counter[str], int]:
    """Plays world after world until so many processes were killed; nothing may have happened.

    Returns:
        How often a process was killed, by step and when, and the last seed.
    """
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        seed += 1
        world = play(folder / str(seed), store, patch, seed, kills=8)
        killed.update(world.kills())
        assert world.counts() == NOTHING, f"seed {seed}: {world.kills()}\n{world.errors()}"
    return killed, seed


def test_nothing_is_lost_or_doubled(
    tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_until(10, tmp_path, fresh_store, monkeypatch, seed=0)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_over_hundreds_of_kills(
    tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prints the table that is in docs/slurm.md."""
    kills, seed = play_until(300, tmp_path, fresh_store, monkeypatch, seed=100)
    print(f"\n{kills.total()} kills, seeds 101 to {seed}")  # noqa: T201
    for step in (step for steps in STEPS.values() for step in steps):
        row = [kills[f"{step} {when}"] for when in ("before", "amid", "after")]
        print(f"| {step} | {' | '.join(map(str, row))} |")  # noqa: T201
        assert sum(row) > 0
