"""A sweep whose runs have known curves, on the real configuration: what promotions start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import yaml

from pipelines import files
from pipelines.ledger import Ledger
from pipelines.plan import Plan, PlannedRun, plan

Known = tuple[float, float, float]
"""A, B and C_mid in steps; R0 is 0.25."""
STEPS, EVERY = 400, 10
PART = "hard"
"""A part of the mixture `TWO`, at half of the pass rate of all."""
TWO = {
    "name": "mixture",
    "parts": {
        "easy": {"name": "digits"},
        PART: {"name": "digits", "max_digits": 5},
    },
}
FLOPS = 1e6
"""Of a step."""
NOISE = 0.004


def rate(step: float, known: Known) -> float:
    A, B, C_mid = known
    return 0.25 if step == 0 else 0.25 + (A - 0.25) / (1 + (C_mid / step) ** B)


def sweep(ledger: Ledger, curves: Mapping[str, Known], **document: object) -> Plan:
    """Writes the sweep ``known``, and its runs as if trained: label to known curve."""
    conf = ledger.root.parent / "conf"
    for folder in ("sweep", "task"):
        (conf / folder).mkdir(parents=True, exist_ok=True)
    (conf / "task" / "two.yaml").write_text(yaml.safe_dump(TWO))
    document = {"set": [f"budget.amount={STEPS}", "optimizer.lr=3e-4"], **document}
    (conf / "sweep" / "known.yaml").write_text(yaml.safe_dump(document))
    made = plan("known", [f"root={ledger.root}"], [conf])
    rng = np.random.default_rng(0)
    for run in made.runs:
        train(ledger, run, curves[run.label], rng)
    manifest = {
        "sweep": made.sweep,
        "strategy": made.strategy,
        "compute": made.compute,
        "metric": made.metric,
        "base": made.base,
        "varied": made.varied,
        "overrides": made.overrides,
        "config_dirs": made.config_dirs,
        "tracking": asdict(made.settings.tracking),
        "commit": "c0ffee",
        "versions": {"trl": "1.16"},
        "runs": made.rows(),
    }
    files.write_json(ledger.sweep("known").manifest_file, manifest)
    return made


def train(ledger: Ledger, run: PlannedRun, known: Known, rng: np.random.Generator) -> None:
    folder = ledger.run(run.run_id)
    folder.create(run.resolved)
    tracking = {"uri": None, "experiment": "shortlist"}
    asked: dict[str, object] = {
        "label": run.label,
        "choices": run.choices,
        "seed": run.seed,
        "tracking": tracking,
    }
    execution, budget = asdict(run.config.execution), asdict(run.config.budget)
    asked |= {"budget": budget, "execution": execution, "recipes": "x", "snapshot": "x"}
    asked["cluster"] = "local"
    folder.event("planned", sweep="known", **asked)
    add(ledger, run.run_id, known, range(0, STEPS + 1, EVERY), rng)
    spent = {"steps": STEPS, "flops": STEPS * FLOPS}
    files.write_json(folder.result_file, {"status": "completed", "compute": spent})
    folder.event("finished")


def add(ledger: Ledger, run_id: str, known: Known, steps: range, rng: np.random.Generator) -> None:
    """Evaluations of a run at `steps`."""
    for step in steps:
        metrics = {
            "eval/pass_rate": rate(step, known) + NOISE * float(rng.standard_normal()),
            "eval/pass_rate_stderr": NOISE,
            "eval/truncation_rate": 0.0,
        }
        part = {
            name.replace("eval/", f"eval/{PART}/"): value / 2 for name, value in metrics.items()
        }
        metrics |= part
        compute = {"steps": step, "flops": step * FLOPS}
        ledger.run(run_id).point(1, step, compute, metrics)
