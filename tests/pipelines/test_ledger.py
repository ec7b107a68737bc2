from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines import files
from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import History, Ledger, latest, reaches
from recipes.config import Budget


def point(attempt: int, step: int, **metrics: float) -> Record:
    return {
        "attempt": attempt,
        "step": step,
        "time": 0.0,
        "compute": {"steps": step},
        "metrics": metrics or {"eval/pass_rate": attempt / 10},
    }


def seen(points: list[Record]) -> list[tuple[int, int]]:
    return [(item["attempt"], item["step"]) for item in latest(points)]


def test_later_attempt_wins_each_step_and_all_that_lies_beyond() -> None:
    # The second attempt went on from step 50; the third, from step 75, has come to 80 only.
    points = [point(1, step) for step in (0, 25, 50, 75, 100)]
    points += [point(2, step) for step in (75, 100, 125)]
    points += [point(3, step) for step in (80,)]
    assert seen(points) == [(1, 0), (1, 25), (1, 50), (2, 75), (3, 80)]


def test_attempt_from_the_beginning_replaces_everything() -> None:
    points = [point(1, 0), point(1, 25), point(2, 0)]
    assert seen(points) == [(2, 0)]


def test_point_of_two_processes_that_share_an_attempts_number_counts_once() -> None:
    points = [point(1, 5), point(1, 10), point(1, 5, **{"eval/pass_rate": 0.7})]
    kept = [(item["step"], item["metrics"]["eval/pass_rate"]) for item in latest(points)]
    assert kept == [(5, 0.7), (10, 0.1)]


def test_evaluation_is_on_the_disk_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Ledger(tmp_path).run("a")
    run.create({})
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    run.point(1, 5, {"steps": 5}, {"train/loss": 1.0})
    assert synced == []
    run.point(1, 5, {"steps": 5}, {"eval/pass_rate": 0.5})
    assert synced == [run.metrics_file]


def test_training_and_evaluation_points_of_a_step_are_both_kept() -> None:
    points = [point(1, 5, **{"train/loss": 1.0}), point(1, 5, **{"eval/pass_rate": 0.5})]
    assert [item["metrics"] for item in latest(points)] == [
        {"train/loss": 1.0},
        {"eval/pass_rate": 0.5},
    ]


def test_points_are_floats_even_where_json_has_words(tmp_path: Path) -> None:
    run = Ledger(tmp_path).run("abc")
    run.folder.mkdir(parents=True)
    run.point(1, 0, {"steps": 0}, {"train/loss": float("inf"), "eval/pass_rate": 1})
    (only,) = run.points()
    assert only["metrics"] == {"train/loss": float("inf"), "eval/pass_rate": 1.0}
    assert only["compute"] == {"steps": 0.0}


@pytest.mark.parametrize(
    "junk", [{}, {"time": 1}, {"event": "started"}, {"step": 1, "time": 1, "compute": {}}]
)
def test_records_that_lack_what_every_record_has_are_skipped(tmp_path: Path, junk: Record) -> None:
    run = Ledger(tmp_path).run("abc")
    run.folder.mkdir(parents=True)
    run.event("planned")
    files.append(run.events_file, junk)
    run.event("started")
    run.point(1, 0, {"steps": 0}, {"eval/pass_rate": 0.5})
    files.append(run.metrics_file, junk)
    run.point(1, 5, {"steps": 5}, {"eval/pass_rate": 0.6})
    assert [event["event"] for event in run.history().events] == ["planned", "started"]
    for points in (run.points(), run.last_points(), run.points_since(0)[0]):
        assert [item["step"] for item in points] == [0, 5]
    assert run.points_since(0)[1] == run.metrics_file.stat().st_size


@pytest.mark.parametrize("damage", ["", '{"compute": {"st', "{}", '{"compute": null}'])
def test_damaged_result_is_none(tmp_path: Path, damage: str) -> None:
    run = Ledger(tmp_path).run("abc")
    run.folder.mkdir(parents=True)
    run.result_file.write_text(damage)
    assert run.result() is None


def test_damaged_manifest_is_told(tmp_path: Path) -> None:
    sweep = Ledger(tmp_path).sweep("a")
    sweep.folder.mkdir(parents=True)
    sweep.manifest_file.touch()
    with pytest.raises(ServiceError, match=r"manifest\.json is damaged: "):
        sweep.manifest()


def test_config_is_written_once(tmp_path: Path) -> None:
    run = Ledger(tmp_path).run("abc")
    run.create({"seed": 1, "optimizer": {"lr": 5e-4, "eps": 1e-8}})
    run.create({"seed": 2})
    assert run.config() == {"seed": 1, "optimizer": {"lr": 5e-4, "eps": 1e-8}}


def planned(amount: float, axis: str = "steps", sweep: str = "a") -> Record:
    budget = {"axis": axis, "amount": amount, "eval_every": 5, "log_every": 5}
    return {"event": "planned", "budget": budget, "sweep": sweep}


def started(**fields: object) -> Record:
    return {"event": "started", **fields}


def test_the_largest_budget_of_the_axis_asked_for_last_counts() -> None:
    history = History([planned(400), planned(1e9, axis="flops"), planned(100, sweep="b")])
    assert history.budget == Budget("steps", 400, 5, 5)
    assert history.sweeps == ["a", "b"]
    assert History([]).budget is None


def test_news_does_not_change_where_a_run_stands() -> None:
    history = History([planned(10), started(), {"event": "checkpoint"}, {"event": "tea"}])
    assert history.turn == "started"
    assert history.attempts == 1
    assert History([]).turn is None


def test_cancellation_stands_until_the_run_is_planned_again() -> None:
    cancelled = {"event": "cancelled", "why": "a test"}
    ended = [planned(10), started(), cancelled, {"event": "interrupted"}]
    assert History(ended).last == cancelled
    assert History([*ended, planned(10)]).turn == "planned"
    assert History([*ended, planned(10), started()]).turn == "started"


def test_submission_written_down_after_its_job_started_is_old_news() -> None:
    submitted = {"event": "submitted", "job": "7_1"}
    failed = {"event": "failed", "error": "no"}
    assert History([planned(10), started(job="7_1"), failed, submitted]).turn == "failed"
    assert History([planned(10), started(job="6"), failed, submitted]).turn == "submitted"


def test_attempts_without_a_checkpoint_are_counted() -> None:
    died = {"event": "died", "error": "SIGKILL"}
    events = [planned(10), started(), {"event": "checkpoint"}, died, started(), died, started()]
    assert History(events).fruitless == 2
    assert History(events[:3]).fruitless == 0


@pytest.mark.parametrize(("steps", "expected"), [(9, False), (10, True), (11, True)])
def test_a_budget_is_reached_at_its_amount(steps: int, expected: bool) -> None:
    assert reaches({"steps": steps}, Budget("steps", 10)) is expected


def test_a_budget_on_an_axis_that_was_not_counted_is_not_reached() -> None:
    assert not reaches({"steps": 10}, Budget("flops", 1))


def test_a_budget_is_not_reached_by_what_is_no_number(tmp_path: Path) -> None:
    run = Ledger(tmp_path).run("abc")
    files.write_json(run.result_file, {"compute": {"steps": float("nan")}})
    result = run.result()
    assert result is not None
    assert not reaches(result["compute"], Budget("steps", 10))


def test_sweeps_that_were_launched_are_known(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.known_sweeps() == []
    assert ledger.sweep("a").manifest() is None
    ledger.sweep("a").folder.mkdir(parents=True)
    ledger.sweep("a").manifest_file.write_text('{"sweep": "a"}')
    assert ledger.known_sweeps() == ["a"]
    assert ledger.sweep("a").manifest() == {"sweep": "a"}


def test_a_root_with_nothing_but_locks_is_removed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new")
    ledger.clear_if_empty()
    ledger.root.mkdir()
    ledger.launch_lock.touch()
    ledger.clear_if_empty()
    assert not ledger.root.exists()
    ledger.root.mkdir()
    (ledger.root / "precious").touch()
    ledger.launch_lock.touch()
    ledger.clear_if_empty()
    assert sorted(path.name for path in ledger.root.iterdir()) == ["launch.lock", "precious"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".x", "-rf", "a\nb", "\x1b[2J", "x" * 101]
)
def test_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for kind in (ledger.run, ledger.sweep, ledger.promotion):
        with pytest.raises(UserError, match=r": got .*, allowed: up to 100 printable"):
            kind(name)


@pytest.mark.parametrize("name", ["demo", "2026", "été", "it's", "a b", "a$(b);c", "x" * 100])
def test_any_other_name_is_one_folder(name: str, tmp_path: Path) -> None:
    assert Ledger(tmp_path).sweep(name).folder.parent == tmp_path / "sweeps"


def test_ends_are_counted_apart_and_only_errors_count_for_retries() -> None:
    def happened(*names: str, **fields: object) -> list[dict[str, object]]:
        return [{"event": name, "time": 0.0, **fields} for name in names]

    events = [
        *happened("planned", retries=2, cluster="slurm"),
        *happened("submitted", job="1_0"),
        *happened("started", "checkpoint", "interrupted"),
        *happened("requeued", reason="time limit"),
        *happened("started", "interrupted"),
        *happened("requeued", reason="preempted"),
        *happened("started"),  # its node failed
        *happened("planned", retries=2, cluster="slurm"),
        *happened("started", "failed"),
        *happened("requeued", reason="error"),
        *happened("started"),
        *happened("died", reason="filesystem"),
        *happened("requeued", reason="filesystem"),
        *happened("started", "finished"),
    ]
    history = History(events)
    ends = {"time limit": 1, "preempted": 1, "lost": 1, "failed": 1, "filesystem": 1}
    assert dict(history.ends) == ends
    assert (history.errors, history.retries) == (1, 2)
    again = [*events, *happened("planned", retry=True, retries=0, cluster="slurm")]
    assert (History(again).errors, History(again).retries) == (0, 0)


def test_submissions_that_came_to_nothing_are_fruitless_too() -> None:
    asked = {"event": "planned", "cluster": "local"}
    assert History([asked, asked]).fruitless == 2
    remote = {"event": "planned", "cluster": "slurm"}
    assert History([remote, remote]).fruitless == 0  # the queue had no room
    submitted = {"event": "submitted", "job": "1_0"}
    assert History([remote, submitted, remote, submitted]).fruitless == 2
