"""A sweep of 1,000 runs: planning, submission, status and reading curves, against what is usual.

    python benchmarks/thousand_runs.py [planning] [submission] [status] [curves]

* planning: against Hydra's own composition of each job of the same grid, as its multirun does it;
* submission: a launch on a private Slurm, where one is installed, against one sbatch a run;
* status: the command in a process of its own;
* curves: all metrics that a ranking reads, from MLflow, against ``get_metric_history`` run by run.

The usual way is timed on a sample and scaled, since it takes minutes; the sample is in the result.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import keep
from pipelines import files, launch, slurm
from pipelines.compose import CONF
from pipelines.config import Tracking
from pipelines.ledger import Ledger, RunFiles
from pipelines.plan import Plan, plan
from pipelines.status import statuses

RUNS = 1000
AXES = {
    "loss": ["grpo", "cispo", "dapo", "gspo", "dr_grpo"],
    "advantage": ["prompt", "none"],
    "optimizer.lr": [round(1e-4 * step, 5) for step in range(1, 11)],
}
SWEEP = f"strategy: grid\naxes: {AXES}\nseeds: {list(range(10))}\n"
EVALUATIONS, POINTS = 31, 300
"""Of one run: evaluations, and points of training metrics between them."""
EVALUATED = ("eval/pass_rate", "eval/pass_rate_stderr", "eval/truncation_rate")
TRAINED = ("train/entropy", "train/reward", "train/truncation_rate")


def seconds(action: Callable[[], object], times: int = 3) -> float:
    """Wall time of the fastest of several tries: the least disturbed."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return min(taken)


def grid(folder: Path, *overrides: str) -> Plan:
    """The sweep of 1,000 runs."""
    (folder / "sweep").mkdir(parents=True, exist_ok=True)
    (folder / "sweep" / "grid.yaml").write_text(SWEEP)
    made = plan("grid", [f"root={folder / 'root'}", *overrides], [folder])
    assert len(made.runs) == RUNS
    return made


def planning(folder: Path) -> dict[str, Any]:
    """Ours against what Hydra's BasicSweeper does for each of its jobs."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    ours = seconds(lambda: grid(folder))
    sample = 20
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], run_mode=RunMode.MULTIRUN)
        jobs = [
            [
                f"loss={AXES['loss'][n % 5]}",
                f"optimizer.lr={AXES['optimizer.lr'][n % 10]}",
                f"seed={n}",
            ]
            for n in range(sample)
        ]
        sampled = seconds(lambda: [loader.load_sweep_config(master, job) for job in jobs], 2)
    hydra = sampled * RUNS / sample
    return {"ours_s": ours, "hydra_s": hydra, "hydra_sample": sample, "times_faster": hydra / ours}


def submission(folder: Path) -> dict[str, Any]:
    """A launch of 1,000 runs, held in the queue, against as many calls of sbatch."""
    from tests.slurm.cluster import PrivateCluster, missing

    if missing():
        return {"skipped": f"not installed: {', '.join(missing())}"}
    with PrivateCluster(folder / "slurm", "bench", accounting=False) as cluster:
        os.environ["SLURM_CONF"] = str(cluster.configuration)
        made = grid(folder, "cluster=slurm", "+cluster.extra.hold=true", "cluster.parallel=1000")
        ledger = Ledger(folder / "root")
        ledger.root.mkdir()
        launch.prepare(ledger, made.settings, made.runs[:1])  # the model and store are there
        taken = []
        submit = slurm.submit

        def timed(*arguments: Any) -> list[str]:  # noqa: ANN401
            began = time.perf_counter()
            answer = submit(*arguments)
            taken.append(time.perf_counter() - began)
            return answer

        slurm.submit = timed
        began = time.perf_counter()
        report = launch.launch(made, ledger)
        whole = time.perf_counter() - began
        slurm.submit = submit
        assert len(report.planned) == RUNS
        sample = 50
        script = folder / "one.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        one = ["sbatch", "--hold", str(script)]
        each = seconds(lambda: [cluster.ask(*one) for _ in range(sample)], 1) * RUNS / sample
        cluster.ask("scancel", "--me")
    return {
        "launch_s": whole,
        "of_which_slurm_s": taken[0],
        "one_sbatch_a_run_s": each,
        "sbatch_sample": sample,
        "times_faster": each / taken[0],
    }


def status(folder: Path) -> dict[str, Any]:
    """The states of 1,000 runs that are half done, in this process and as a command."""
    ledger = Ledger(folder / "root")
    made = grid(folder)
    request = {"cluster": "local", "threads": 1, "snapshot": "", "recipes": "", "tracking": {}}
    for run in made.runs:
        launch.write_request(ledger, "grid", run, request)
    template = ledger.run(made.runs[0].run_id)
    _train(template)
    for number, run in enumerate(made.runs):
        files_of = ledger.run(run.run_id)
        files_of.remark("started", attempt=1)
        for step in range(0, 300, 10):
            files_of.remark("checkpoint", attempt=1, step=step)
        if files_of.run_id != template.run_id:
            shutil.copy(template.metrics_file, files_of.metrics_file)
        if number % 2:
            files_of.remark("failed", attempt=1, error="ValueError: no")
    files.write_json(ledger.sweep("grid").manifest_file, _manifest(made))
    command = [sys.executable, "-m", "pipelines.cli", "status", "grid", "--root", str(ledger.root)]

    def run_command() -> None:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)

    return {
        "points_of_a_run": len(template.points()),
        "metrics_mb": sum(path.stat().st_size for path in ledger.runs.glob("*/metrics.jsonl"))
        / 1e6,
        "statuses_s": seconds(lambda: statuses(ledger, made.rows())),
        "command_s": seconds(run_command),
        "command_of_no_runs_s": seconds(
            lambda: subprocess.run([*command[:3], "status", "--root", str(folder)], check=False)
        ),
    }


def _manifest(made: Plan) -> dict[str, Any]:
    names = ("sweep", "strategy", "compute", "base", "varied", "overrides")
    document = {name: getattr(made, name) for name in names}
    return {**document, "tracking": asdict(Tracking()), "runs": made.rows()}


def _train(run: RunFiles, count: int = POINTS, others: int = 9) -> None:
    """Points as a training writes them: `count` of training, with so many metrics more."""
    for step in range(count):
        compute = {"steps": step, "tokens": 1e4 * step, "flops": 1e12 * step, "gpu_hours": step / 9}
        if step % max(1, count // (EVALUATIONS - 1)) == 0 or step == count - 1:
            run.point(1, step, compute, dict.fromkeys(EVALUATED, 0.1 + step / 10000.0))
        names = [*TRAINED, *(f"train/other_{number}" for number in range(others))]
        run.point(1, step, compute, dict.fromkeys(names, 0.123456789 + step / 10000.0))


def curves(folder: Path) -> dict[str, Any]:
    """What a ranking reads of 1,000 runs in a SQLite store."""
    from pipelines.tracking import open_store, read_curves, ship

    ledger = Ledger(folder / "root")
    made = grid(folder)
    tracking = {**asdict(Tracking()), "experiment_id": None}
    request = {
        "cluster": "local",
        "threads": 1,
        "snapshot": "",
        "recipes": "",
        "tracking": tracking,
    }
    launch.write_request(ledger, "grid", made.runs[0], request)
    template = ledger.run(made.runs[0].run_id)
    _train(template, EVALUATIONS, others=0)
    store = open_store(ledger, Tracking())
    ship(template, store)
    ids = [run.run_id for run in made.runs]
    _multiply(ledger.store, store.entries()[ids[0]], ids)
    metrics = (*EVALUATED, *TRAINED)
    ours = seconds(lambda: read_curves(store, ids, metrics, "flops"))
    found = read_curves(store, ids, metrics, "flops")
    assert len(found) == RUNS
    points = sum(len(point["metrics"]) for point in found[ids[-1]])
    sample = list(store.entries().values())[:: RUNS // 20]
    keys = (*metrics, "compute/flops", "attempt")

    def one_by_one() -> None:
        for entry in sample:
            for key in keys:
                store.client.get_metric_history(entry, key)

    usual = seconds(one_by_one, 2) * RUNS / len(sample)
    return {
        "values_of_a_run": points,
        "ours_s": ours,
        "run_by_run_s": usual,
        "run_by_run_sample": len(sample),
        "times_faster": usual / ours,
    }


def _multiply(database: Path, entry: str, run_ids: Sequence[str]) -> None:
    """Copies a run of the store under other ids: logging a thousand would take minutes."""
    with sqlite3.connect(database) as connection:
        for run_id in run_ids[1:]:
            new = uuid.uuid4().hex
            for table in ("runs", "metrics", "latest_metrics", "tags", "params"):
                columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
                chosen = ", ".join("?" if name == "run_uuid" else name for name in columns)
                connection.execute(
                    f"insert into {table} select {chosen} from {table} where run_uuid = ?",
                    (new, entry),
                )
            connection.execute(
                "update tags set value = ? where key = 'shortlist.run_id' and run_uuid = ?",
                (run_id, new),
            )
    connection.close()


PARTS = {"planning": planning, "submission": submission, "status": status, "curves": curves}


def main() -> None:
    """Measures the parts asked for, each in a folder of its own, and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    for name in parser.parse_args().parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            result = PARTS[name](Path(folder))
            keep(f"thousand_runs_{name}", {"runs": RUNS, "cpus": os.cpu_count(), **result})


if __name__ == "__main__":
    main()
