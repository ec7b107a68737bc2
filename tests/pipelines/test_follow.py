from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines import follow
from pipelines.config import Cluster
from pipelines.errors import ServiceError
from pipelines.ledger import Ledger
from pipelines.plan import Plan
from pipelines.status import RunStatus
from recipes.config import Budget
from tests.fakes import make_plan, tiny_config


def row(state: str, step: int = 0, fruitless: int = 0, error: str | None = None) -> RunStatus:
    return RunStatus(
        run_id="abc",
        label="loss=cispo",
        choices={},
        seed=1,
        state=state,
        compute={"steps": float(step)},
        budget=Budget(amount=100),
        step=step,
        pass_rate=0.5 if step else None,
        truncation=None,
        attempts=1,
        fruitless=fruitless,
        error=error,
        eta_s=9.0 if state == "running" and step else None,
    )


class World:
    """Plays back statuses, and counts what `follow` does about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scenes: Sequence[list[RunStatus]]) -> None:
        self.scenes = list(scenes)
        self.done: list[str] = []
        monkeypatch.setattr(follow, "statuses", lambda ledger, rows: self.scenes.pop(0))
        monkeypatch.setattr(follow, "launch", lambda plan, ledger: self.done.append("launch"))
        monkeypatch.setattr(follow, "sleep", lambda seconds: self.done.append(f"sleep {seconds:g}"))
        monkeypatch.setattr(
            follow.submit, "top_up", lambda ledger, cluster: self.done.append("top up")
        )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(tmp_path, [tiny_config()])


def test_follows_until_all_is_done(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenes = [row("pending"), row("running"), row("running", 10), row("running", 30)]
    world = World(monkeypatch, [[item] for item in [*scenes, row("completed", 100)]])
    assert follow.follow(plan, Ledger(tmp_path))
    assert world.done == ["top up", "sleep 1"] * 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "abc  loss=cispo  pending  0%",
        "abc  loss=cispo  running  0%",
        "abc  loss=cispo  running  30%  pass rate 0.500  9 s left",
        "abc  loss=cispo  completed  100%  pass rate 0.500",
    ]


def test_service_that_is_away_for_a_while_does_not_end_it(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenes = [[row(state)] for state in ("planned", "planned", "planned", "completed")]
    world = World(monkeypatch, scenes)
    answers = iter([None, ServiceError("cluster: away"), ServiceError("cluster: away")])

    def launch(plan: Plan, ledger: Ledger) -> None:
        answer = next(answers)
        if answer:
            raise answer

    monkeypatch.setattr(follow, "launch", launch)
    assert follow.follow(plan, Ledger(tmp_path))
    assert world.done == ["sleep 1"] * 3
    assert capsys.readouterr().err.count("cluster: away; tried again") == 1


def test_service_that_is_away_from_the_beginning_is_told(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise ServiceError("cluster: away")

    World(monkeypatch, [[row("planned")]])
    monkeypatch.setattr(follow, "launch", away)
    with pytest.raises(ServiceError, match="away"):
        follow.follow(plan, Ledger(tmp_path))


def test_run_whose_process_died_is_launched_again(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, [[row("planned", 10, fruitless=1)], [row("completed", 100)]])
    assert follow.follow(plan, Ledger(tmp_path))
    assert world.done == ["launch", "sleep 1"]


def test_run_that_dies_again_and_again_without_a_checkpoint_is_left_to_a_person(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(
        monkeypatch, [[row("planned", 10, fruitless=3, error="a\nits process was ended")]]
    )
    assert not follow.follow(plan, Ledger(tmp_path))
    assert world.done == []
    given_up = "1 runs did not come to a checkpoint in 3 tries, and are left: its process was ended"
    assert capsys.readouterr().err.splitlines()[-1] == given_up


def test_lane_that_can_never_start_is_given_up_with_what_it_said(
    root: Path,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fake_training: None,
) -> None:
    """Lanes are started for real, with code that cannot even be imported."""
    (tmp_path / "broken" / "pipelines").mkdir(parents=True)
    code = "raise ImportError('libcudart.so.12 is not there')"
    (tmp_path / "broken" / "pipelines" / "__init__.py").write_text(code)
    monkeypatch.setattr("pipelines.lane.python_path", lambda code: str(tmp_path / "broken"))
    monkeypatch.setattr(Ledger, "any_lane", lambda self: not self.last_said())
    monkeypatch.setattr(Ledger, "at_work", lambda self, lane: lane.exists() and self.any_lane())
    monkeypatch.setattr(follow, "PATIENCE", 1)
    made = make_plan(root, [tiny_config()])
    assert not follow.follow(made, ledger)
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("1 runs did not come to a checkpoint in 1 tries, and are left: ")
    assert "libcudart.so.12 is not there" in told
    assert ledger.run(made.runs[0].run_id).history().attempts == 0


def test_job_that_slurm_holds_is_launched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path, [tiny_config()], cluster=Cluster(kind="slurm"))
    scenes = [[row("pending", error="job 7_0 waits: launch failed requeued held")]]
    world = World(monkeypatch, [*scenes, [row("completed", 100)]])
    assert follow.follow(plan, Ledger(tmp_path))
    assert world.done == ["launch", "sleep 15"]


def test_failure_is_shown_and_is_the_answer(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    World(monkeypatch, [[row("failed", error="Traceback\nValueError: no")]])
    assert not follow.follow(plan, Ledger(tmp_path))
    assert capsys.readouterr().err == "abc  loss=cispo  failed  0%  ValueError: no\n"


def test_a_scheduler_is_not_asked_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path, [tiny_config()], cluster=Cluster(kind="slurm"))
    world = World(monkeypatch, [[row("unknown")], [row("completed", 100)]])
    assert follow.follow(plan, Ledger(tmp_path))
    assert world.done == ["sleep 15"]


def test_terminal_shows_a_bar_with_pass_rate_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    made: Any = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(follow, "Console", lambda stderr: made)
    with follow.Bars() as bars:
        bars.show([row("pending")])
        bars.show([row("running", 40)])
        bars.show([row("completed", 100)])
    text = screen.getvalue()
    assert "loss=cispo seed=1" in text
    assert "100%" in text
    assert "completed  pass rate 0.500" in text
