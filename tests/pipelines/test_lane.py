from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pipelines import files, lane, launch
from pipelines.ledger import Ledger, RunFiles
from tests.fakes import behave, eval_points, planned, tiny_config, when

REQUEST = {
    "cluster": "local",
    "threads": 1,
    "snapshot": "code",
    "recipes": "hash",
    "tracking": {"uri": None, "experiment": "shortlist", "experiment_id": "1"},
}
pytestmark = pytest.mark.usefixtures("fake_training", "signals")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane in this process, whose code goes by the name of ``code``."""
    monkeypatch.setattr(lane, "CODE", Path("/somewhere/code"))
    monkeypatch.setattr(os, "setsid", lambda: None)


def ask(ledger: Ledger, loss: str, **changes: object) -> RunFiles:
    wanted = planned(tiny_config(loss, steps=10))
    launch.write_request(ledger, "demo", wanted, {**REQUEST, **changes})
    ledger.lanes.mkdir(exist_ok=True)
    return ledger.run(wanted.run_id)


def test_lane_trains_all_that_waits_in_order_and_ends(ledger: Ledger) -> None:
    runs = [ask(ledger, loss) for loss in ("grpo", "cispo", "dapo")]
    assert [run.run_id for run in lane.pending(ledger)] == [run.run_id for run in runs]
    lane.work(str(ledger.root), 0)
    began = [run.history().events[1] for run in runs]
    assert [item["event"] for item in began] == ["started"] * 3
    assert began == sorted(began, key=lambda item: item["time"])
    assert [run.history().turn for run in runs] == ["finished"] * 3
    assert lane.pending(ledger) == []
    assert not files.is_locked(ledger.lane(0))


def test_lane_that_is_taken_is_left_alone(ledger: Ledger) -> None:
    run = ask(ledger, "grpo")
    with files.locked(ledger.lane(0)):
        lane.work(str(ledger.root), 0)
    assert run.history().turn == "planned"


def test_run_that_is_killed_takes_nothing_else_with_it(ledger: Ledger) -> None:
    behave(ledger, "kill 7")
    runs = [ask(ledger, loss) for loss in ("grpo", "cispo")]
    lane.work(str(ledger.root), 0)
    assert [run.history().turn for run in runs] == ["died", "died"]
    assert runs[0].history().error == "its process was ended by SIGKILL"
    for loss in ("grpo", "cispo"):
        ask(ledger, loss)
    lane.work(str(ledger.root), 0)
    for run in runs:
        assert run.history().turn == "finished"
        assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10]


def test_error_of_a_run_is_in_its_events(ledger: Ledger) -> None:
    behave(ledger, "fail")
    run = ask(ledger, "grpo")
    lane.work(str(ledger.root), 0)
    assert run.history().turn == "failed"
    assert str(run.history().error).endswith("ValueError: the loss became a pumpkin")


def test_child_that_ends_without_a_word_is_a_failure_with_what_it_printed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, "grpo")

    def end(*_: object) -> None:
        os.write(2, b"cannot allocate\n")
        os._exit(9)

    monkeypatch.setattr("pipelines.job.train", end)
    lane.work(str(ledger.root), 0)
    assert run.history().error == "cannot allocate"


def test_code_that_cannot_be_imported_is_the_error_of_its_run(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask(ledger, "grpo")
    monkeypatch.setitem(sys.modules, "recipes.train", None)
    lane.work(str(ledger.root), 0)
    assert run.history().turn == "failed"
    assert "recipes.train" in str(run.history().error)


def test_lane_told_to_stop_has_its_run_write_a_checkpoint_first(ledger: Ledger) -> None:
    behave(ledger, "hold 7")
    runs = [ask(ledger, loss) for loss in ("grpo", "cispo")]
    watcher = when(lambda: len(runs[0].points()) > 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    lane.work(str(ledger.root), 0)
    watcher.join()
    assert [run.history().turn for run in runs] == ["interrupted", "planned"]
    assert (runs[0].folder / "fake-checkpoint.json").exists()


def test_run_planned_as_the_lane_ends_is_trained(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(ledger, "grpo")
    late: list[RunFiles] = []
    real = lane.Lane.drain

    def drain(self: lane.Lane) -> None:
        real(self)
        if not late:
            late.append(ask(ledger, "cispo"))

    monkeypatch.setattr(lane.Lane, "drain", drain)
    lane.work(str(ledger.root), 0)
    assert [run.history().turn for run in (first, *late)] == ["finished", "finished"]


def test_runs_of_another_snapshot_are_left_to_a_lane_of_that_code(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = ask(ledger, "grpo"), ask(ledger, "cispo", snapshot="newer")
    became: list[tuple[Path, str, int]] = []

    def become(code: Path, root: str, slot: int) -> None:
        became.append((code, root, slot))
        raise SystemExit  # as exec, it does not return

    monkeypatch.setattr(lane, "_become", become)
    lane.work(str(ledger.root), 1)
    assert became == []  # there is no such snapshot any more
    (ledger.snapshots / "newer").mkdir(parents=True)
    with pytest.raises(SystemExit):
        lane.work(str(ledger.root), 1)
    assert ours.history().turn == "finished"
    assert other.history().turn == "planned"
    assert became == [(ledger.snapshots / "newer", str(ledger.root), 1)]


def test_what_is_not_for_lanes_or_is_running_does_not_wait_for_one(ledger: Ledger) -> None:
    ask(ledger, "grpo", cluster="slurm")
    run = ask(ledger, "cispo")
    with files.locked(run.lock_file):
        assert lane.pending(ledger) == []
    assert [item.run_id for item in lane.pending(ledger)] == [run.run_id]
