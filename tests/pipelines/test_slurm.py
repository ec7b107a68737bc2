from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines import job, launch
from pipelines import slurm as arrays
from pipelines.config import Cluster
from pipelines.errors import ServiceError
from pipelines.ledger import Ledger
from pipelines.plan import Plan
from recipes.config import ConfigError
from tests.fake_slurm import FakeSlurm
from tests.fakes import behave, eval_points, make_plan, tiny_config, when

pytestmark = pytest.mark.usefixtures("fake_training", "signals")


def sweep(root: Path, runs: int, **cluster: object) -> Plan:
    configs = [tiny_config(steps=10, seed=seed) for seed in range(runs)]
    return make_plan(root, configs, cluster=Cluster(**{"kind": "slurm", "parallel": 4, **cluster}))


def start(
    ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, place: int = 0, rank: int = 0
) -> int:
    """Does what the job at this place of the queue would."""
    number, _, _, name = slurm.queue()[place]
    array, task = number.split("_")
    variables = {"JOB_ID": "99", "ARRAY_JOB_ID": array, "ARRAY_TASK_ID": task, "PROCID": str(rank)}
    for key, value in variables.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    monkeypatch.setattr(job, "print_to", lambda path: None)
    return arrays.work(str(ledger.root), name)


def started(ledger: Ledger, plan: Plan, run: int = 0) -> list[str]:
    history = ledger.run(plan.runs[run].run_id).history()
    return [item["job"] for item in history.events if item["event"] == "started"]


def test_one_array_has_a_task_for_each_run(root: Path, ledger: Ledger, slurm: FakeSlurm) -> None:
    plan = sweep(root, 3)
    assert len(launch.launch(plan, ledger).planned) == 3
    (array,) = slurm.submitted()
    assert array["array"] == "0-2%3"
    assert "requeue" in array
    assert [line[0] for line in slurm.queue()] == ["1_0", "1_1", "1_2"]
    history = ledger.run(plan.runs[2].run_id).history()
    assert [item["event"] for item in history.events] == ["planned", "submitted"]
    assert history.events[1]["job"] == "1_2"
    assert array["job-name"] == f"shortlist-tiny-{history.events[0]['launch']}-0"
    report = launch.launch(plan, ledger)
    assert (report.planned, set(report.states.values())) == ([], {"pending"})
    assert len(slurm.submitted()) == 1


def test_arrays_are_split_under_the_limit_and_share_what_runs_at_once(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    slurm.limits(array=4)
    plan = sweep(root, 10, parallel=5)
    launch.launch(plan, ledger)
    arrays = slurm.submitted()
    assert [array["array"] for array in arrays] == ["0-3%2", "0-2%2", "0-2%1"]
    assert [array.get("dependency") for array in arrays] == [None] * 3
    jobs = [
        item["job"]
        for run in plan.runs
        for item in ledger.run(run.run_id).history().events
        if item["event"] == "submitted"
    ]
    assert sorted(jobs) == sorted(line[0] for line in slurm.queue())


def test_arrays_that_would_be_too_many_at_once_wait_for_another(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    slurm.limits(array=2)
    launch.launch(sweep(root, 8, parallel=2), ledger)
    arrays = slurm.submitted()
    assert [array["array"] for array in arrays] == ["0-1%1"] * 4
    waits = [array.get("dependency") for array in arrays]
    assert waits == [None, None, "afterany:1", "afterany:2"]


def test_arrays_in_the_queue_count_for_what_runs_at_once(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    launch.launch(sweep(root, 4, parallel=3), ledger)
    launch.launch(sweep(root, 6, parallel=3), ledger)
    assert [array.get("dependency") for array in slurm.submitted()] == [None, "afterany:1"]
    slurm.set_queue(slurm.queue()[3:])  # one is left of the first four
    launch.launch(sweep(root, 7, parallel=4), ledger)
    assert slurm.submitted()[-1]["array"] == "0-3%1"  # 3 that went, 1 new: 4 less 1 less 2


def test_full_queue_takes_what_fits_and_the_rest_later(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    slurm.write("room", "5")
    plan = sweep(root, 8)
    report = launch.launch(plan, ledger)
    assert len(report.planned) == 4
    assert report.notes == [
        "cluster: the queue takes no more of your jobs now; 4 runs are left: "
        "launch again later, or with --follow"
    ]
    slurm.write("room", "100")
    report = launch.launch(plan, ledger)
    assert len(report.planned) == 4
    assert sorted(report.states.values()) == ["pending"] * 4 + ["planned"] * 4
    assert len(slurm.queue()) == 8


def test_launches_at_once_agree(root: Path, ledger: Ledger, slurm: FakeSlurm) -> None:
    plan = sweep(root, 2)
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: launch.launch(plan, Ledger(root)), range(3)))
    assert sorted(len(report.planned) for report in reports) == [0, 0, 2]
    assert len(slurm.queue()) == 2


def test_sbatch_that_submitted_and_did_not_say_so_is_not_asked_again(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SBATCH_TIMEOUT_S", 1)
    slurm.write("hang")
    plan = sweep(root, 2)
    assert len(launch.launch(plan, ledger).planned) == 2
    assert launch.launch(plan, ledger).planned == []
    assert len(slurm.queue()) == 2
    start(ledger, slurm, monkeypatch)
    assert ledger.run(plan.runs[0].run_id).history().turn == "finished"


def test_jobs_that_slurm_holds_are_released_and_those_that_a_person_holds_are_not(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    plan = sweep(root, 2)
    launch.launch(plan, ledger)
    lines = slurm.queue()
    reasons = ("launch failed requeued held", "JobHeldUser")
    slurm.set_queue(
        [[line[0], "PENDING", why, line[3]] for line, why in zip(lines, reasons, strict=True)]
    )
    report = launch.launch(plan, ledger)
    assert [line for line in slurm.asked() if "release" in line] == ["scontrol release 1_0"]
    assert report.notes[0] == "released 1_0: Slurm held what it could not start"
    assert report.notes[-1].endswith("job 1_1 waits: JobHeldUser (scontrol release 1_1)")


def test_launcher_that_died_after_sbatch_leaves_jobs_that_are_found(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep(root, 2)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "_found", die)
        patch.setattr(arrays, "_sbatch", lambda script: os.system(f"sbatch {script}") and None)
        with pytest.raises(KeyboardInterrupt):
            launch.launch(plan, ledger)
    assert len(slurm.queue()) == 2
    assert launch.launch(plan, ledger).planned == []
    start(ledger, slurm, monkeypatch, place=1)
    assert ledger.run(plan.runs[1].run_id).history().turn == "finished"


def test_job_of_an_earlier_launch_leaves_the_run_to_the_later(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep(root, 1)
    launch.launch(plan, ledger)
    jobs = slurm.queue()
    slurm.set_queue([])  # its controller lost it, for a while
    launch.launch(plan, ledger)
    slurm.set_queue(jobs + slurm.queue())
    start(ledger, slurm, monkeypatch, place=0)
    assert started(ledger, plan) == []
    start(ledger, slurm, monkeypatch, place=1)
    start(ledger, slurm, monkeypatch, place=1)  # requeued after it was done: nothing
    assert started(ledger, plan) == ["2_0"]
    assert ledger.run(plan.runs[0].run_id).history().turn == "finished"


@pytest.mark.parametrize(
    ("about", "number", "reason"),
    [
        ("JobState=RUNNING PreemptTime=None", signal.SIGUSR2, "time limit"),
        ("JobState=RUNNING PreemptTime=2026-01-01T00:00:00", signal.SIGUSR2, "preempted"),
        ("JobState=RUNNING PreemptTime=2026-01-01T00:00:00", signal.SIGTERM, "preempted"),
        ("JobState=RUNNING PreemptTime=None", signal.SIGTERM, None),
        ("JobState=CANCELLED PreemptTime=None", signal.SIGTERM, None),
        ("", signal.SIGUSR2, None),
    ],
)
def test_job_told_to_end_saves_and_is_requeued_if_it_is_to_go_on(
    root: Path,
    ledger: Ledger,
    slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    about: str,
    number: signal.Signals,
    reason: str | None,
) -> None:
    plan = sweep(root, 1)
    launch.launch(plan, ledger)
    slurm.write("job", about)
    behave(ledger, "hold 3")
    run = ledger.run(plan.runs[0].run_id)
    when(run.points, lambda: os.kill(os.getpid(), number))
    start(ledger, slurm, monkeypatch)
    requeued = [line for line in slurm.asked() if line.startswith("scontrol requeue")]
    assert requeued == (["scontrol requeue 1_0"] if reason else [])
    assert run.history().turn == ("requeued" if reason else "interrupted")
    assert dict(run.history().ends) == ({reason: 1} if reason else {})
    behave(ledger, "")
    start(ledger, slurm, monkeypatch)
    assert [step for step, _, _ in eval_points(run.points())] == [0, 5, 10]


def test_controller_that_is_away_for_a_moment_is_asked_again_to_requeue(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep(root, 1)
    launch.launch(plan, ledger)
    slurm.write("job", "JobState=RUNNING PreemptTime=None")
    behave(ledger, "hold 3")
    ask = arrays.ask

    def away(command: tuple[str, ...]) -> str | None:
        answer = ask(command)
        (slurm.folder / "down").unlink(missing_ok=True)  # back after the first question
        return answer

    monkeypatch.setattr(arrays, "ask", away)
    monkeypatch.setattr(arrays, "sleep", lambda seconds: None)
    slurm.write("down")
    run = ledger.run(plan.runs[0].run_id)
    when(run.points, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    start(ledger, slurm, monkeypatch)
    assert dict(run.history().ends) == {"time limit": 1}
    assert "scontrol requeue 1_0" in slurm.asked()


def test_error_is_tried_again_as_often_as_asked_by_the_job_itself(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep(root, 1, retries=1)
    launch.launch(plan, ledger)
    behave(ledger, "fail")
    run = ledger.run(plan.runs[0].run_id)
    for turn in ("requeued", "failed"):
        with pytest.raises(ValueError, match="pumpkin"):
            start(ledger, slurm, monkeypatch)
        assert run.history().turn == turn
    assert slurm.asked().count("scontrol requeue 1_0") == 1
    assert dict(run.history().ends) == {"failed": 2}


def test_options_of_a_site_come_from_the_cluster(
    root: Path, ledger: Ledger, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    plan = sweep(
        root,
        1,
        time_min=60,
        signal_delay_s=90,
        nodes=2,
        gpus_per_node=2,
        cpus_per_task=3,
        mem_gb=8,
        partition="low",
        account="us",
        qos="long",
        constraint="a100|h100",
        gres="gpu:h100:2",
        exclusive=True,
        setup=["module load cuda"],
        container="apptainer exec --nv '/images/r l.sif'",
        python="/opt/bin/python",
        srun=["--mpi=none"],
        extra={"reservation": "friday; rm -rf ~", "contiguous": True},
    )
    launch.launch(plan, ledger)
    script = slurm.script()
    lines = script.splitlines()
    assert {
        "#SBATCH --time=60",
        "#SBATCH --signal=USR2@90",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mem=8192M",
        "#SBATCH --partition=low",
        "#SBATCH --account=us",
        "#SBATCH --qos=long",
        "#SBATCH --constraint='a100|h100'",
        "#SBATCH --gres=gpu:h100:2",
        "#SBATCH --exclusive",
        "#SBATCH --reservation='friday; rm -rf ~'",
        "#SBATCH --contiguous",
        "#SBATCH --requeue",
        "module load cuda",
    } <= set(lines)
    (path,) = [line for line in lines if line.startswith("export PYTHONPATH=")]
    assert path.endswith(":/mine")
    command = next(line for line in lines if line.startswith("srun "))
    assert " --mpi=none apptainer exec --nv '/images/r l.sif' /opt/bin/python -u -m " in command
    assert lines.index("module load cuda") < lines.index(command)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "gpu\nrm -rf ~"}, "cluster.partition: got"),
        ({"srun": ["--mpi=none\n"]}, r"cluster.srun\[0\]: got"),
        ({"extra": {"array": "0-9"}}, "cluster.extra: got 'array', allowed: long names"),
        ({"extra": {"job-name": "x"}}, "cluster.extra: got 'job-name'"),
        ({"extra": {"x=1\ny": "x"}}, "cluster.extra: got"),
        ({"extra": {"reservation": ["a"]}}, "cluster.extra.reservation: got"),
        ({"container": "run 'x"}, "cluster.container: got"),
        ({"retries": -1}, "cluster.retries: got -1, allowed: a number >= 0"),
        ({"processes": 0}, "cluster.processes: got 0"),
        ({"kind": "local", "processes": 2}, "cluster.processes: got 2, allowed: 1"),
    ],
)
def test_options_that_cannot_be_are_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Cluster(**{"kind": "slurm", **changes})
    assert len(str(caught.value).splitlines()) == 1


def test_batch_that_processes_cannot_share_is_refused_before_anything_is_submitted(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.processes: got .3 on 1 nodes"):
        launch.launch(sweep(root, 1, processes=3), ledger)
    assert slurm.queue() == []


def test_refusal_is_one_line(root: Path, ledger: Ledger, slurm: FakeSlurm) -> None:
    slurm.write("refuse", "sbatch: error: x\nsbatch: error: invalid partition specified: gpu\n")
    with pytest.raises(ServiceError, match="invalid partition specified: gpu") as caught:
        launch.launch(sweep(root, 1), ledger)
    assert len(str(caught.value).splitlines()) == 1


def test_scheduler_that_does_not_answer_changes_nothing(
    root: Path, ledger: Ledger, slurm: FakeSlurm
) -> None:
    plan = sweep(root, 2)
    slurm.write("down")
    with pytest.raises(ServiceError, match="Slurm does not answer"):
        launch.launch(plan, ledger)
    assert not ledger.run(plan.runs[0].run_id).folder.exists()


def test_machine_without_slurm_is_one_line(
    root: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match="cluster: Slurm does not answer"):
        launch.launch(sweep(root, 1), ledger)
    assert not ledger.runs.exists()


def test_job_launched_from_a_job_does_not_take_that_ones_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CONF", "WORLD_SIZE"):
        monkeypatch.setenv(key, "1")
    found = arrays._environment()
    assert found.keys().isdisjoint({"SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "WORLD_SIZE"})
    assert {"SLURM_CONF", "PATH"} <= found.keys()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert arrays._environment()["WORLD_SIZE"] == "1"
