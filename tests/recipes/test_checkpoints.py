from __future__ import annotations

from pathlib import Path

import pytest

from recipes.checkpoints import STATE, Checkpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def save(checkpoints: Checkpoints, step: int) -> Path:
    written = checkpoints.aside / f"checkpoint-{step}"
    (written / "rng").mkdir(parents=True)
    (written / "weights").write_text("w" * 100)
    (written / "rng" / "0").write_text("r" * 10)
    return checkpoints.publish(written, step, {"step": step})


def names(checkpoints: Checkpoints) -> list[str]:
    return [path.name for path in checkpoints.all()]


def test_last_ones_are_kept_with_their_state(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None
    for step in (5, 10, 15):
        save(checkpoints, step)
    assert names(checkpoints) == ["step-000010", "step-000015"]
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoints.state(latest) == {"step": 15}
    assert not checkpoints.aside.exists()


def truncate(path: Path) -> None:
    with (path / "weights").open("r+") as file:
        file.truncate(50)


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lambda path: (path / "rng" / "0").unlink(),
        lambda path: (path / STATE).unlink(),
        lambda path: (path / STATE).write_text('{"sizes": {'),
        lambda path: (path / STATE).write_text("null"),
    ],
)
def test_damaged_one_is_passed_over_told_and_replaced(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    for step in (5, 10):
        save(checkpoints, step)
    damage(checkpoints.folder / "step-000010")  # type: ignore[operator]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.name == "step-000005"
    assert "step-000010 is damaged" in caplog.text
    save(checkpoints, 10)
    assert names(checkpoints) == ["step-000005", "step-000010"]
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoints.state(latest) == {"step": 10}


def test_last_good_one_is_kept_though_later_ones_are_damaged(checkpoints: Checkpoints) -> None:
    for step in (5, 10):
        save(checkpoints, step)
    truncate(checkpoints.folder / "step-000010")
    save(checkpoints, 12)
    assert names(checkpoints) == ["step-000005", "step-000012"]


def test_checkpoint_of_a_process_that_was_replaced_goes(checkpoints: Checkpoints) -> None:
    for step in (5, 20):
        save(checkpoints, step)
    save(checkpoints, 10)
    assert names(checkpoints) == ["step-000005", "step-000010"]


def test_one_is_kept_where_one_is_asked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for step in (5, 10):
        save(checkpoints, step)
    assert names(checkpoints) == ["step-000010"]
