from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.entities import Run

from pipelines import files, launch, tracking
from pipelines.config import Tracking
from pipelines.errors import ServiceError, UserError
from pipelines.ledger import Ledger, RunFiles
from pipelines.store import LINE, Store, shown, told
from pipelines.tracking import log_ranking, open_store, read_curves, ship, sync
from tests.fakes import eval_points, planned, tiny_config, wait

REQUEST = {
    "cluster": "local",
    "threads": 1,
    "snapshot": "code",
    "recipes": "hash",
    "tracking": {"uri": None, "experiment": "shortlist", "experiment_id": "1"},
}


@pytest.fixture
def store(ledger: Ledger) -> Store:
    return open_store(ledger, Tracking())


@pytest.fixture
def run(ledger: Ledger) -> RunFiles:
    return ask(ledger)


def ask(ledger: Ledger, loss: str = "grpo", **changes: object) -> RunFiles:
    wanted = planned(tiny_config(loss))
    launch.write_request(ledger, "demo", wanted, {**REQUEST, **changes})
    run = ledger.run(wanted.run_id)
    run.event("started", attempt=1)
    return run


def evaluate(run: RunFiles, step: int, rate: float, attempt: int = 1) -> None:
    compute = {"steps": float(step), "flops": 1e6 * step}
    run.point(attempt, step, compute, {"eval/pass_rate": rate, "eval/pass_rate_stderr": 0.01})


def rows(ledger: Ledger, table: str) -> int:
    with sqlite3.connect(ledger.store) as connection:
        (count,) = connection.execute(f"select count(*) from {table}").fetchone()
    connection.close()
    return int(count)


def entry(store: Store, run: RunFiles) -> Run:
    (found,) = store.client.search_runs(
        [store.experiment_id], f"tags.`shortlist.run_id`='{run.run_id}'"
    )
    return found


def test_points_arrive_with_their_compute_once_however_often_they_are_sent(
    ledger: Ledger, store: Store, run: RunFiles
) -> None:
    for step in (0, 5, 10):
        evaluate(run, step, step / 100)
    assert ship(run, store) == 3
    count = rows(ledger, "metrics")
    assert count == 3 * 5  # attempt, two compute axes, two metrics
    assert ship(run, store) == 0
    run.tracking_file.unlink()  # as if killed before the cursor was written
    assert ship(run, store) == 3
    assert rows(ledger, "metrics") == count
    assert rows(ledger, "runs") == 1


def test_run_has_parameters_and_a_tag_for_every_choice(store: Store, run: RunFiles) -> None:
    ship(run, store)
    found = entry(store, run)
    assert found.info.run_name == "loss=grpo"
    assert found.data.params["optimizer.lr"] == str(tiny_config().optimizer.lr)
    assert found.data.params["model.hidden_size"] == "16"
    assert found.data.params["seed"] == "0"
    assert found.info.start_time == round(1000 * run.history().events[1]["time"])
    assert not [name for name in found.data.params if name.startswith(("budget", "execution"))]
    assert found.data.tags["axis.loss"] == "grpo"
    assert found.data.tags["axis.batch"] == "tiny"
    assert found.data.tags["shortlist.sweeps"] == "demo"


def test_status_follows_the_run_and_a_resumed_run_goes_on_in_its_place(
    store: Store, run: RunFiles
) -> None:
    def status() -> str:
        ship(run, store)
        return str(entry(store, run).info.status)

    assert status() == "RUNNING"
    run.event("died", attempt=1, error="SIGKILL")
    assert status() == "KILLED"
    run.event("started", attempt=2)
    assert status() == "RUNNING"
    run.event("failed", attempt=2, error="no")
    assert status() == "FAILED"
    run.event("started", attempt=3)
    run.event("finished", attempt=3)
    assert status() == "FINISHED"
    ended = run.history().events[-1]["time"]
    assert entry(store, run).info.end_time == round(1000 * ended)


def test_curves_come_out_as_they_are_in_the_files(
    ledger: Ledger, store: Store, run: RunFiles
) -> None:
    other = ask(ledger, "cispo")
    for step in (0, 5, 10, 15):
        evaluate(run, step, step / 100)
        evaluate(other, step, step / 50)
    for step in (15, 20):  # resumed from step 10
        evaluate(run, step, step / 10, attempt=2)
    run.point(2, 17, {"flops": 17e6}, {"train/loss": float("nan")})
    sync(ledger, [run.run_id, other.run_id])
    ids = [run.run_id, other.run_id, "unknown"]
    rates = ("eval/pass_rate", "eval/pass_rate_stderr")
    curves = read_curves(store, ids, rates, "flops")
    assert set(curves) == {run.run_id, other.run_id}
    for item in (run, other):
        assert eval_points(curves[item.run_id]) == eval_points(item.points())
    assert [point["attempt"] for point in curves[run.run_id]] == [1, 1, 1, 2, 2]
    assert curves[other.run_id][1]["metrics"] == {
        "eval/pass_rate": 0.1,
        "eval/pass_rate_stderr": 0.01,
    }


def test_more_points_than_one_request_takes_arrive_all(
    ledger: Ledger, store: Store, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.store.BATCH", 7)
    for step in range(20):
        evaluate(run, step, 0.5)
    ship(run, store)
    assert rows(ledger, "metrics") == 100


def test_store_that_was_down_is_brought_up_to_date_once(ledger: Ledger, run: RunFiles) -> None:
    ledger.store.rename(ledger.root / "away.db")
    ledger.store.mkdir()  # cannot be opened as a database
    evaluate(run, 0, 0.2)
    evaluate(run, 5, 0.3)
    with pytest.raises(ServiceError, match="is out of reach") as caught:
        sync(ledger, [run.run_id])
    assert len(str(caught.value).splitlines()) == 1
    ledger.store.rmdir()
    (ledger.root / "away.db").rename(ledger.store)
    assert sync(ledger, [run.run_id]) == 2
    assert sync(ledger, [run.run_id]) == 0


def test_run_that_died_without_a_word_is_closed_by_sync_and_goes_on_later(
    ledger: Ledger, store: Store, run: RunFiles
) -> None:
    evaluate(run, 0, 0.2)
    with files.locked(run.lock_file):
        sync(ledger, [run.run_id])
    assert entry(store, run).info.status == "RUNNING"
    sync(ledger, [run.run_id])  # nobody holds its lock any more
    found = entry(store, run).info
    last = run.points()[-1]["time"]
    assert (found.status, found.end_time) == ("KILLED", round(1000 * last))
    run.event("started", attempt=2)
    with files.locked(run.lock_file):
        sync(ledger, [run.run_id])
    assert entry(store, run).info.status == "RUNNING"


def test_run_that_was_never_started_has_no_entry(ledger: Ledger, store: Store) -> None:
    wanted = planned(tiny_config("dapo"))
    launch.write_request(ledger, "demo", wanted, REQUEST)
    assert sync(ledger, [wanted.run_id]) == 0
    assert store.entries() == {}


def test_sync_with_nothing_to_do_asks_the_store_once(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ask(ledger, loss) for loss in ("grpo", "cispo", "dapo")]
    for run in runs:
        evaluate(run, 0, 0.2)
        run.event("finished", attempt=1)
    ids = [run.run_id for run in runs]
    assert sync(ledger, ids) == 3
    monkeypatch.setattr(Store, "find", None)
    monkeypatch.setattr("mlflow.MlflowClient.get_run", None)
    monkeypatch.setattr("mlflow.MlflowClient.log_batch", None)
    assert sync(ledger, ids) == 0


def test_experiment_that_another_made_first_is_used(ledger: Ledger, store: Store) -> None:
    client = store.client
    answers = [None, client.get_experiment_by_name("shortlist")]
    store.client = SimpleNamespace(
        get_experiment_by_name=lambda _: answers.pop(0), create_experiment=client.create_experiment
    )
    assert store._experiment("shortlist", None) == store.experiment_id
    assert answers == []


def test_deleted_experiment_is_told(ledger: Ledger, store: Store) -> None:
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(
        UserError, match=r"tracking\.experiment: got 'shortlist', which was deleted"
    ):
        open_store(ledger, Tracking())


def test_store_that_was_lost_is_filled_again(
    ledger: Ledger, run: RunFiles, fresh_store: Path
) -> None:
    evaluate(run, 0, 0.2)
    sync(ledger, [run.run_id])
    shutil.copy(fresh_store, ledger.store)
    assert sync(ledger, [run.run_id]) == 1
    assert rows(ledger, "runs") == 1


def test_run_that_was_deleted_in_mlflow_is_made_anew_and_keeps_no_other_from_its_store(
    ledger: Ledger, store: Store, run: RunFiles
) -> None:
    evaluate(run, 0, 0.2)
    sync(ledger, [run.run_id])
    store.client.delete_run(entry(store, run).info.run_id)
    evaluate(run, 5, 0.3)
    assert sync(ledger, [run.run_id]) == 2
    assert entry(store, run).data.metrics["eval/pass_rate"] == 0.3


def test_run_never_planned_has_nothing_to_send(ledger: Ledger) -> None:
    assert sync(ledger, ["unknown"]) == 0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PERIOD_S", 0.1)


@pytest.mark.usefixtures("quick")
def test_points_arrive_while_the_run_goes_on(ledger: Ledger, store: Store, run: RunFiles) -> None:
    request = run.history().request
    assert request is not None
    with tracking.Shipper(ledger, run, request):
        evaluate(run, 0, 0.2)
        wait(lambda: rows(ledger, "metrics"))
        assert rows(ledger, "metrics") == 5
        evaluate(run, 5, 0.2)
    assert rows(ledger, "metrics") == 10


@pytest.mark.usefixtures("quick")
def test_locked_store_is_waited_for_at_the_end_and_nothing_is_lost(
    ledger: Ledger, store: Store, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "FLUSH_S", 300.0)  # a busy machine takes its time
    connection = sqlite3.connect(ledger.store, check_same_thread=False)
    connection.execute("begin exclusive")
    threading.Timer(1.0, connection.rollback).start()
    request = run.history().request
    assert request is not None
    with tracking.Shipper(ledger, run, request):
        evaluate(run, 0, 0.2)
    connection.close()
    assert rows(ledger, "metrics") == 5


def test_ranking_puts_fits_on_runs_and_the_report_on_one_of_its_own(
    ledger: Ledger, store: Store, run: RunFiles
) -> None:
    ship(run, store)
    folder = ledger.sweep("demo").folder
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<html>")
    fits = {run.run_id: {"A": 0.7, "B": 1.5, "verdict": "higher ceiling"}, "unknown": {"A": 1.0}}
    for _ in range(2):
        log_ranking(ledger, Tracking(), "demo", fits)
    found = entry(store, run)
    assert (found.data.metrics["fit/A"], found.data.metrics["fit/B"]) == (0.7, 1.5)
    assert found.data.tags["verdict"] == "higher ceiling"
    (report,) = store.client.search_runs([store.experiment_id], "tags.`shortlist.sweep` = 'demo'")
    assert (report.info.run_name, report.info.status) == ("demo", "FINISHED")
    assert report.info.end_time >= report.info.start_time
    (artifact,) = store.client.list_artifacts(report.info.run_id)
    assert artifact.path == "report.html"


def test_address_that_cannot_be_reached_is_one_line(ledger: Ledger) -> None:
    began = time.monotonic()
    with pytest.raises(
        ServiceError, match=r"tracking.uri: http://127.0.0.1:9 is out of reach"
    ) as caught:
        open_store(ledger, Tracking(uri="http://127.0.0.1:9"))
    assert len(str(caught.value).splitlines()) == 1
    assert time.monotonic() - began < 60  # MLflow's own retries take two minutes


def test_password_in_an_address_is_not_shown() -> None:
    assert shown("postgresql://me:secret@host:5432/db") == "postgresql://host:5432/db"
    assert shown("postgresql://me:se/c@ret@host/db") == "postgresql://host/db"
    assert shown("sqlite:////a/b@c.db") == "sqlite:////a/b@c.db"
    assert told(OSError("no http://me:s3cret@host:1/x (a@b)")) == "no http://host:1/x (a@b)"
    # Even where it would be cut off before its end.
    assert told(OSError("x" * (LINE - 10) + " http://me:s3cret@host")).endswith("x http://ho")
    assert told(OSError()) == "OSError"


@pytest.mark.usefixtures("quick")
def test_password_is_not_in_what_a_store_says(
    ledger: Ledger,
    run: RunFiles,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracking, "FLUSH_S", 0.1)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")  # put back after the test
    address = Tracking(uri="http://me:s3cret@127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"API request to http://127\.0\.0\.1:9/api") as caught:
        open_store(ledger, address)
    assert "s3cret" not in str(caught.value)
    request = {"tracking": {**asdict(address), "experiment_id": "1"}}
    with tracking.Shipper(ledger, run, request):
        wait(lambda: "API request to http://127.0.0.1:9/api" in caplog.text)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("damage", ["", '{"uri": "x'])
def test_damaged_cursor_has_all_sent_again(
    ledger: Ledger, store: Store, run: RunFiles, damage: str
) -> None:
    evaluate(run, 0, 0.2)
    files.append(run.metrics_file, {"time": 1})
    assert ship(run, store) == 1
    run.tracking_file.write_text(damage)
    assert ship(run, store) == 1
    assert rows(ledger, "metrics") == 5


def test_cursor_says_which_store_it_is_about(ledger: Ledger, store: Store, run: RunFiles) -> None:
    files.write_json(run.tracking_file, {"uri": "http://elsewhere", "entry": "x", "offset": 10**6})
    evaluate(run, 0, 0.2)
    assert ship(run, store) == 1
    cursor = files.read_json(run.tracking_file)
    assert cursor is not None
    assert cursor["uri"] == store.uri
