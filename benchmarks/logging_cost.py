"""What logging costs a training: CPU time of writing points and of the thread that feeds MLflow.

One run of the embedded model, on one thread, trained as a job trains it: points into
``metrics.jsonl``, and from there into a SQLite store every few seconds. Of the CPU time of the
process the shares of (a) calls that the training loop waits for, and (b) the tracking thread are
taken by the threads' own clocks, since the difference of two trainings drowns in their noise.

    python benchmarks/logging_cost.py [--steps 400]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import transformers

from benchmarks.common import keep
from pipelines import job, launch, tracking
from pipelines.config import Tracking
from pipelines.ledger import Ledger
from pipelines.plan import single
from recipes.models import ensure_embedded

spent: dict[str, float] = {"loop": 0.0, "thread": 0.0}
"""CPU seconds of logging."""


def timed(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its CPU time added to `spent`."""

    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[where] += time.thread_time() - began

    return call


def main() -> None:
    """Trains, and keeps the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    transformers.logging.disable_progress_bar()
    for name in ("point", "event", "should_stop"):
        setattr(job.RunSink, name, timed("loop", getattr(job.RunSink, name)))
    tracking.Shipper._work = timed("thread", tracking.Shipper._work)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder)
        planned, settings = single([f"root={folder}", "budget=small", f"budget.amount={steps}"])
        ensure_embedded(planned.config, ledger.models)
        experiment = tracking.open_store(ledger, Tracking()).experiment_id
        request: Mapping[str, Any] = {
            "cluster": "here",
            "threads": 1,
            "snapshot": "",
            "recipes": "",
            "tracking": {**asdict(Tracking()), "experiment_id": experiment},
        }
        launch.write_request(ledger, "", replace(planned), dict(request))
        run = ledger.run(planned.run_id)
        taken = job.claim(run)
        assert taken is not None
        began = time.process_time()
        job.train(ledger, taken)
        whole = time.process_time() - began
        points = len(run.points())
        sent = tracking.open_store(ledger, settings.tracking).entries()
        assert run.run_id in sent
    shares = {f"{where}_share": seconds / whole for where, seconds in spent.items()}
    total = sum(spent.values()) / whole
    keep(
        "logging_cost",
        {
            "steps": steps,
            "points": points,
            "cpu_s": whole,
            **shares,
            "share": total,
            "cpus": os.cpu_count(),
        },
    )


if __name__ == "__main__":
    main()
