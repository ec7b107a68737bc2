"""Tracking where it is real: PostgreSQL behind an MLflow server, and dozens of jobs at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from pipelines import launch, store
from pipelines.config import Tracking
from pipelines.errors import ServiceError
from pipelines.ledger import Ledger, RunFiles
from pipelines.tracking import open_store, read_curves, ship, sync
from tests.fakes import REPOSITORY, eval_points, planned, tiny_config
from tests.services.conftest import Server

pytestmark = pytest.mark.services
JOBS, STEPS = 32, 12
RATES = ("eval/pass_rate", "eval/pass_rate_stderr")
AT_ONCE = """
# Jobs as lanes start them: everything heavy is imported, and then each is forked off.
import os, sys, time
from pipelines import job, tracking
from pipelines.ledger import Ledger

tracking.PERIOD_S = 1.0
ledger, seconds, steps = Ledger(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def work(run):
    taken = job.claim(run)
    job.print_to(run.log(1))
    with tracking.Shipper(ledger, run, run.history().request):
        for step in range(steps):
            metrics = {"eval/pass_rate": step / 100, "eval/pass_rate_stderr": 0.01}
            began = time.monotonic()
            run.point(1, step, {"flops": 1e6 * step}, metrics)
            assert time.monotonic() - began < seconds, "a point waited for the store"
            time.sleep(seconds / steps)
        run.event("finished", attempt=1, step=steps)


children = []
for run in ledger.known_runs():
    children.append(os.fork())
    if children[-1] == 0:
        status = 1
        try:
            work(run)
            status = 0
        finally:
            os._exit(status)
print(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def ask(ledger: Ledger, tracking: Tracking, seed: int = 0, sweep: str = "many") -> RunFiles:
    """A run that was planned without a look at the store: its job makes what it lacks."""
    wanted = planned(tiny_config(seed=seed))
    request = {"tracking": {**asdict(tracking), "experiment_id": None}}
    others = {"cluster": "local", "threads": 1, "snapshot": "code", "recipes": "hash"}
    launch.write_request(ledger, sweep, wanted, {**others, **request})
    return ledger.run(wanted.run_id)


def at_once(ledger: Ledger, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", AT_ONCE, str(ledger.root), str(seconds), str(STEPS)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def check(ledger: Ledger, tracking: Tracking, runs: list[RunFiles]) -> None:
    """Every run is in the store once, in its experiment, with every point once."""
    opened = open_store(ledger, tracking)
    found = opened.client.search_runs([opened.experiment_id])
    ids = {run.run_id for run in runs}
    assert sorted(item.data.tags[store.RUN_TAG] for item in found) == sorted(ids)
    assert {item.info.status for item in found} == {"FINISHED"}
    assert opened.client.search_runs(["0"]) == []
    entries = opened.entries()
    values = list(opened.history(list(entries.values()), "eval/pass_rate"))
    assert len(values) == len(runs) * STEPS
    curves = read_curves(opened, ids, RATES, "flops")
    for run in runs:
        assert eval_points(curves[run.run_id]) == eval_points(run.points())
        assert len(curves[run.run_id]) == STEPS


def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def test_jobs_that_start_at_once_share_a_fresh_sqlite_store(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    runs = [ask(ledger, Tracking(), seed) for seed in range(JOBS)]
    out, _ = at_once(ledger, 6.0).communicate(timeout=300)
    assert out == "0\n"
    assert "".join(run.log(1).read_text() for run in runs) == ""  # no word of a locked database
    sync(ledger, [run.run_id for run in runs])  # what a slow machine left at the end
    check(ledger, Tracking(), runs)
    assert sync(ledger, [run.run_id for run in runs]) == 0


@pytest.mark.usefixtures("login")
def test_jobs_that_start_at_once_outlive_an_outage_of_the_server(
    tmp_path: Path, server: Server
) -> None:
    ledger, tracking = Ledger(tmp_path), Tracking(server.address, "outage")
    runs = [ask(ledger, tracking, seed) for seed in range(JOBS)]
    jobs = at_once(ledger, 90.0)
    wait(lambda: all(run.tracking_file.exists() for run in runs[:4]))
    server.stop()
    time.sleep(60)
    server.start()
    out, _ = jobs.communicate(timeout=300)
    assert out == "0\n"
    assert all(run.history().turn == "finished" for run in runs)
    sync(ledger, [run.run_id for run in runs])
    check(ledger, tracking, runs)
    assert sync(ledger, [run.run_id for run in runs]) == 0


@pytest.mark.usefixtures("login")
def test_curves_are_whole_however_many_points_an_answer_holds(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, tracking = Ledger(tmp_path), Tracking(server.address, "curves")
    runs = [ask(ledger, tracking, seed) for seed in range(5)]
    opened = open_store(ledger, tracking)
    for number, run in enumerate(runs):
        run.event("started", attempt=1)
        for step in range(10 + 5 * number):
            metrics = dict.fromkeys(RATES, step / 100)
            run.point(1, step, {"flops": 1e6 * step}, metrics)
        ship(run, opened)
    monkeypatch.setattr(store, "BULK_POINTS", 20)  # cut off for all, for some, and for one run
    monkeypatch.setattr(store, "BULK_RUNS", 4)
    curves = read_curves(opened, [run.run_id for run in runs], RATES, "flops")
    assert [len(curves[run.run_id]) for run in runs] == [10, 15, 20, 25, 30]
    for run in runs:
        assert eval_points(curves[run.run_id]) == eval_points(run.points())


def test_server_wants_the_password_and_keeps_it_nowhere(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = f"{server.address}/api/2.0/mlflow/experiments/search?max_results=1"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(search)
    assert caught.value.code == 401
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    ledger = Ledger(tmp_path)
    with pytest.raises(ServiceError, match="is out of reach"):
        open_store(ledger, Tracking(server.address))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")  # put back after the test
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    given = server.address.replace("//", f"//{server.name}:{server.password}@")
    tracking = Tracking(given, "secrets")
    run = ask(ledger, tracking)
    run.event("started", attempt=1)
    assert sync(ledger, [run.run_id]) == 0  # it got in
    for secret in (server.password, server.database.password):
        for folder in (tmp_path, server.root):
            kept = [path for path in folder.rglob("*") if path.is_file()]
            assert kept
            assert not [path for path in kept if secret.encode() in path.read_bytes()]
