"""Real processes, signals and kills on this machine; training is fake, so that they are quick."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import files
from pipelines.cancel import stop
from pipelines.ledger import Ledger, RunFiles
from tests.fakes import REPOSITORY, behave, eval_points, planned, tiny_config, wait

LOSSES = ("grpo", "cispo", "dapo")
LAUNCHER = """
import sys
from pathlib import Path
from pipelines.follow import follow
from pipelines.launch import launch
from pipelines import files
from pipelines.ledger import Ledger
from tests.fakes import make_plan, tiny_config

root, losses = Path(sys.argv[1]), sys.argv[2].split(",")
plan = make_plan(root, [tiny_config(loss) for loss in losses])
print(len(launch(plan, Ledger(root), retry="--retry" in sys.argv).planned), flush=True)
if "--follow" in sys.argv:
    print(follow(plan, Ledger(root)), flush=True)
"""


@pytest.fixture
def code(fake_tree: Path, tmp_path: Path) -> Path:
    """A copy of the code that imports nothing heavy."""
    return Path(shutil.copytree(fake_tree, tmp_path / "code"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "outputs")
    made.runs.mkdir(parents=True)
    yield made
    behave(made, "")
    wait(lambda: not any(map(files.is_locked, made.lanes.glob("*"))))  # no process is left behind


@pytest.fixture
def runs(ledger: Ledger) -> list[RunFiles]:
    return [ledger.run(planned(tiny_config(loss)).run_id) for loss in LOSSES]


def launcher(
    ledger: Ledger, code: Path, *flags: str, losses: str = ",".join(LOSSES)
) -> subprocess.Popen[str]:
    """`launch` in a process group of its own, as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(ledger.root), losses, *flags],
        env={**os.environ, "PYTHONPATH": f"{code}:{REPOSITORY}", "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def launch(ledger: Ledger, code: Path, *flags: str, losses: str = ",".join(LOSSES)) -> list[str]:
    """What `launch` printed, after it ended."""
    process = launcher(ledger, code, *flags, losses=losses)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split()


def steps(run: RunFiles) -> list[int]:
    return [step for step, _, _ in eval_points(run.points())]


def pid(run: RunFiles) -> int:
    return int(run.lock_file.read_text())


def parent(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("PPid")))


def finished(runs: list[RunFiles]) -> bool:
    return all(run.history().turn == "finished" for run in runs)


def test_sweep_is_trained_followed_and_not_trained_twice(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    assert launch(ledger, code, "--follow") == ["3", "True"]
    assert [steps(run) for run in runs] == [[0, 5, 10, 15, 20]] * 3
    assert launch(ledger, code, "--follow") == ["0", "True"]
    assert [run.history().attempts for run in runs] == [1, 1, 1]
    assert [run.log(1).read_text() for run in runs] == ["", "", ""]


def test_killed_training_goes_on_from_its_checkpoint_when_launched_again(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    behave(ledger, "hold 12")
    launch(ledger, code, losses="grpo")
    run = runs[0]
    wait(lambda: steps(run) == [0, 5, 10])
    os.kill(pid(run), signal.SIGKILL)
    wait(lambda: run.history().turn == "died" and not ledger.any_lane())
    behave(ledger, "")
    assert launch(ledger, code, losses="grpo") == ["1"]
    wait(lambda: finished([run]))
    assert steps(run) == [0, 5, 10, 15, 20]
    assert [point["attempt"] for point in run.points()] == [1, 1, 1, 2, 2]


def test_killed_lane_leaves_its_run_alone_and_is_replaced(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    behave(ledger, "hold 1")
    launch(ledger, code)
    training = runs[:2]
    wait(lambda: all(steps(run) for run in training))
    for run in training:
        os.kill(parent(pid(run)), signal.SIGKILL)
    time.sleep(0.1)
    assert all(run.running() for run in training)
    again = launcher(ledger, code, "--follow")
    assert again.stdout
    assert again.stdout.readline() == "0\n"
    behave(ledger, "")
    assert again.communicate(timeout=300)[0] == "True\n"
    assert [steps(run) for run in runs] == [[0, 5, 10, 15, 20]] * 3
    assert [run.history().attempts for run in runs] == [1, 1, 1]


def test_code_edited_after_submission_does_not_change_what_is_queued(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    behave(ledger, "hold 7")
    launch(ledger, code)
    training = code / "recipes" / "train.py"
    training.write_text(training.read_text().replace('VERSION = "one"', 'VERSION = "two"'))
    launch(ledger, code, losses="bnpo")
    newer = ledger.run(planned(tiny_config("bnpo")).run_id)
    behave(ledger, "")
    wait(lambda: finished([*runs, newer]))

    def versions(run: RunFiles) -> set[str]:
        return {item["code"] for item in run.history().events if item["event"] == "checkpoint"}

    assert [versions(run) for run in runs] == [{"one"}] * 3
    assert versions(newer) == {"two"}


def test_launches_at_once_train_each_run_once(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    both = [launcher(ledger, code) for _ in range(2)]
    assert sorted(process.communicate(timeout=300)[0] for process in both) == ["0\n", "3\n"]
    wait(lambda: finished(runs))
    assert [run.history().attempts for run in runs] == [1, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_terminal_does_not_end_training(
    ledger: Ledger, runs: list[RunFiles], code: Path, number: signal.Signals
) -> None:
    behave(ledger, "hold 7")
    process = launcher(ledger, code, "--follow")
    wait(lambda: any(steps(run) for run in runs))
    os.killpg(process.pid, number)
    process.communicate(timeout=300)
    behave(ledger, "")
    wait(lambda: finished(runs))
    assert [run.history().attempts for run in runs] == [1, 1, 1]


def test_launch_returns_at_once_and_its_pipe_is_not_held_by_jobs(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    behave(ledger, "hold 1")
    assert launch(ledger, code) == ["3"]  # its pipes are read to the end, so nobody holds them
    assert all(run.result() is None for run in runs)
    behave(ledger, "")


def test_stopped_runs_save_or_never_start_and_stay_stopped_until_retried(
    ledger: Ledger, runs: list[RunFiles], code: Path
) -> None:
    behave(ledger, "hold 7")
    launch(ledger, code)
    first, second, third = runs  # two are trained at a time
    wait(lambda: len(steps(first)) > 1 and len(steps(second)) > 1)
    assert stop(ledger, [first.run_id, third.run_id], "a test") == [first.run_id, third.run_id]
    assert not first.running()
    last = json.loads((first.folder / "fake-checkpoint.json").read_text())["step"]
    ended = [(item["event"], item.get("why")) for item in first.history().events][-3:]
    assert ended == [("cancelled", "a test"), ("checkpoint", None), ("interrupted", None)]
    assert second.running()
    behave(ledger, "")
    wait(lambda: finished([second]))
    assert stop(ledger, [run.run_id for run in runs], "again") == []
    assert launch(ledger, code, "--follow") == ["0", "False"]
    assert third.history().attempts == 0
    assert launch(ledger, code, "--retry", "--follow") == ["2", "True"]
    assert [steps(run) for run in runs] == [[0, 5, 10, 15, 20]] * 3
    assert [run.history().attempts for run in runs] == [2, 1, 1]
    resumed = next(point["step"] for point in first.points_since(0)[0] if point["attempt"] == 2)
    assert resumed > last >= 5


def test_process_that_only_has_the_id_of_an_earlier_one_is_not_signalled(
    ledger: Ledger, runs: list[RunFiles]
) -> None:
    run = runs[0]
    run.create({})
    run.lock_file.write_text(f"{os.getpid()}\n")  # this process, which does not have it open
    assert files.holder(run.lock_file) is None
    held = files.lock(run.lock_file)
    assert held is not None
    assert files.holder(run.lock_file) == os.getpid()
    os.close(held)
