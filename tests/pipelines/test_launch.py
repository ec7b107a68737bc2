from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines import files, launch, submit
from pipelines.config import Cluster, Tracking
from pipelines.errors import ServiceError, UserError
from pipelines.ledger import Ledger
from pipelines.plan import Plan
from pipelines.tracking import open_store, sync
from tests.fakes import eval_points, make_plan, tiny_config

CONFIGS = [tiny_config(steps=10), tiny_config("cispo", steps=10)]
pytestmark = pytest.mark.usefixtures("fake_training")


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lanes that are started only on paper."""
    started: list[Any] = []
    monkeypatch.setattr(submit, "_start_lane", lambda *arguments: started.append(arguments))
    return started


@pytest.fixture
def plan(root: Path) -> Plan:
    return make_plan(root, CONFIGS)


def planned_events(ledger: Ledger) -> list[int]:
    """How often each run was planned."""
    histories = [run.history().events for run in ledger.known_runs()]
    return [sum(item["event"] == "planned" for item in events) for events in histories]


def test_launch_plans_every_run_and_starts_a_lane_for_each_up_to_the_bound(
    plan: Plan, ledger: Ledger, lanes: list[Any]
) -> None:
    report = launch.launch(plan, ledger)
    assert report.planned == [run.run_id for run in plan.runs]
    assert set(report.states.values()) == {"planned"}
    assert report.line() == "tiny: 2 of 2 runs submitted (found 2 planned)"
    assert planned_events(ledger) == [1, 1]
    assert [slot for _, _, slot, _ in lanes] == [0, 1]
    request = ledger.run(plan.runs[0].run_id).history().request
    assert request is not None
    assert request["sweep"] == "tiny"
    assert request["choices"] == {"loss": "grpo", "batch": "tiny"}
    assert (ledger.snapshots / request["snapshot"] / "pipelines" / "job.py").exists()
    assert request["execution"]["threads"] >= 1
    assert ledger.run(plan.runs[0].run_id).config() == plan.runs[0].resolved


def test_no_more_lanes_than_runs(root: Path, ledger: Ledger, lanes: list[Any]) -> None:
    launch.launch(make_plan(root, CONFIGS, cluster=Cluster(parallel=8)), ledger)
    assert len(lanes) == 2


def test_launching_again_plans_nothing_twice(plan: Plan, ledger: Ledger, lanes: list[Any]) -> None:
    launch.launch(plan, ledger)
    report = launch.launch(plan, ledger)
    assert report.planned == []
    assert set(report.states.values()) == {"pending"}
    assert planned_events(ledger) == [1, 1]
    assert len(lanes) == 2


def test_launches_at_once_plan_each_run_once(plan: Plan, ledger: Ledger, lanes: list[Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: launch.launch(plan, Ledger(ledger.root)), range(4)))
    assert sorted(len(report.planned) for report in reports) == [0, 0, 0, 2]
    assert planned_events(ledger) == [1, 1]
    assert len(lanes) == 2


def test_manifest_says_what_was_launched(plan: Plan, ledger: Ledger) -> None:
    launch.launch(plan, ledger)
    manifest = ledger.sweep("tiny").manifest()
    assert manifest is not None
    assert [row["run_id"] for row in manifest["runs"]] == [run.run_id for run in plan.runs]
    assert manifest["runs"][1]["choices"] == {"loss": "cispo", "batch": "tiny"}
    assert manifest["runs"][1]["budget"]["amount"] == 10
    assert (manifest["strategy"], manifest["compute"]) == ("one_at_a_time", "flops")
    assert manifest["tracking"] == {"uri": None, "experiment": "shortlist"}
    assert manifest["versions"]["trl"]
    assert manifest["snapshot"] in {path.name for path in ledger.snapshots.iterdir()}


def finish(ledger: Ledger, plan: Plan, steps: int) -> None:
    for run in plan.runs:
        result = {"compute": {"steps": steps}, "pass_rate": 0.5, "attempt": 1}
        files.write_json(ledger.run(run.run_id).result_file, result)
        ledger.run(run.run_id).event("started", attempt=1)
        ledger.run(run.run_id).event("finished", attempt=1)


def test_completed_runs_are_left_alone_and_a_larger_budget_continues_them(
    plan: Plan, root: Path, ledger: Ledger
) -> None:
    launch.launch(plan, ledger)
    finish(ledger, plan, 10)
    assert launch.launch(plan, ledger).planned == []
    larger = make_plan(root, [tiny_config(steps=30), CONFIGS[1]])
    assert larger.runs[0].run_id == plan.runs[0].run_id
    assert launch.launch(larger, ledger).planned == [plan.runs[0].run_id]


def test_run_of_two_sweeps_is_trained_once(plan: Plan, root: Path, ledger: Ledger) -> None:
    launch.launch(plan, ledger)
    finish(ledger, plan, 10)
    run = ledger.run(plan.runs[0].run_id)
    sync(ledger, [run.run_id])
    other = make_plan(root, CONFIGS[:1], sweep="other")
    report = launch.launch(other, ledger)
    assert report.planned == []
    assert set(report.states.values()) == {"completed"}
    manifest = ledger.sweep("other").manifest()
    assert manifest is not None
    assert len(manifest["runs"]) == 1
    assert run.history().sweeps == ["tiny", "other"]
    (found,) = (store := open_store(ledger, Tracking())).client.search_runs([store.experiment_id])
    assert found.data.tags["shortlist.sweeps"] == "tiny, other"
    launch.launch(other, ledger)
    assert [item["event"] for item in run.history().events].count("reused") == 1


def test_root_made_here_is_private_and_one_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    for mode in (None, 0o750):
        root = tmp_path / f"{mode}"
        if mode:
            root.mkdir(mode=mode)
        with launch.writable(Ledger(root)):
            (root / "something").touch()
        assert root.stat().st_mode & 0o777 == (mode or 0o700)


def test_failed_runs_wait_for_a_person(plan: Plan, ledger: Ledger) -> None:
    launch.launch(plan, ledger)
    failed = ledger.run(plan.runs[0].run_id)
    failed.event("started", attempt=1)
    failed.event("failed", attempt=1, error="no")
    report = launch.launch(plan, ledger)
    assert report.planned == []
    assert report.notes == [
        f"run {failed.run_id} (loss=grpo) failed; `retry` in place of `launch` tries it again"
    ]
    assert launch.launch(plan, ledger, retry=True).planned == [failed.run_id]


def test_reuse_of_a_run_that_other_code_trained_is_said(
    plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.launch(plan, ledger)
    finish(ledger, plan, 10)
    assert launch.launch(plan, ledger).notes == []
    real = launch.snapshot.take
    monkeypatch.setattr(launch.snapshot, "take", lambda *of: replace(real(*of), recipes="changed"))
    notes = launch.launch(plan, ledger).notes
    assert len(notes) == 2
    assert "other training code" in notes[0]


@pytest.mark.parametrize("name", ["/proc/shortlist", "a-file/outputs"])
def test_root_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").touch()
    root = tmp_path / name
    with pytest.raises(ServiceError, match=r"root: got .* cannot be written") as caught:
        launch.launch(make_plan(root, CONFIGS), Ledger(root))
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_one_line_and_nothing_is_half_made(small_disk: Path) -> None:
    root = small_disk / "outputs"
    with pytest.raises(ServiceError, match="No space left on device"):
        launch.launch(make_plan(root, CONFIGS), Ledger(root))
    assert not root.exists()


def test_read_only_disk_is_one_line(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    root = small_disk / "outputs"
    with pytest.raises(ServiceError, match="Read-only file system"):
        launch.launch(make_plan(root, CONFIGS), Ledger(root))


def test_store_out_of_reach_is_one_line_and_nothing_is_half_made(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    plan = make_plan(root, CONFIGS, tracking=Tracking(uri="http://127.0.0.1:9"))
    with pytest.raises(ServiceError, match=r"tracking.uri: http://127.0.0.1:9 is out of reach"):
        launch.launch(plan, Ledger(root))
    assert not root.exists()


@pytest.mark.usefixtures("signals")
def test_one_run_in_the_foreground(plan: Plan, ledger: Ledger) -> None:
    first = plan.runs[0]
    done = [launch.train_here(first, plan.settings, ledger) for _ in range(2)]
    assert [(row.state, row.progress) for row in done] == [("completed", 1.0)] * 2
    run = ledger.run(first.run_id)
    assert run.history().attempts == 1
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10]


def test_run_that_is_being_trained_is_not_trained_in_the_foreground(
    plan: Plan, ledger: Ledger
) -> None:
    run = ledger.run(plan.runs[0].run_id)
    run.folder.mkdir(parents=True)
    with files.locked(run.lock_file), pytest.raises(UserError, match="is being trained"):
        launch.train_here(plan.runs[0], plan.settings, ledger)


def test_launch_with_nothing_to_do_imports_nothing_heavy(plan: Plan, ledger: Ledger) -> None:
    launch.launch(plan, ledger)
    finish(ledger, plan, 10)
    code = f"""
import json, sys
from pathlib import Path
from pipelines.launch import launch
from pipelines.ledger import Ledger
from tests.fakes import make_plan, tiny_config
root = Path({str(ledger.root)!r})
configs = [tiny_config(steps=10), tiny_config("cispo", steps=10)]
report = launch(make_plan(root, configs), Ledger(root))
heavy = sorted({{"torch", "trl", "mlflow", "submitit"}} & set(sys.modules))
print(json.dumps({{"planned": report.planned, "heavy": heavy}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"planned": [], "heavy": []}
