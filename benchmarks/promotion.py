"""Forecasts held to account: runs of the embedded model, forecast from a part of their compute.

Trains the sweep `demo` for real to `LARGE` steps (about eight minutes of one core; under ROOT, runs
that exist are not trained again), and forecasts every run from its points up to a quarter, and
up to a half, as `shortlist promote` does. What comes after them is held against the forecast as by
`shortlist verify`. The forecast is compared with taking the mean of the last four points for the
future, and with a plain least-squares fit.

    python benchmarks/promotion.py [ROOT]
"""

import subprocess
import sys
from typing import Any

import numpy as np
from common import keep as write
from common import plain

from analysis.curves import Curve
from analysis.fits import Fit
from analysis.forecast import LEVEL
from analysis.promise import WINDOW, Promise, keep, trailing
from analysis.ranking import Options
from pipelines.ledger import Ledger
from pipelines.manifest import manifest_of
from pipelines.rank import curves_of, judge_sweep

SMALL, LARGE, EVERY = (300, 600), 1200, 20
"""Steps: a quarter and a half of the whole."""


def train(root: str) -> None:
    """Trains the sweep, or what is left of it."""
    budget = [f"budget.amount={LARGE}", f"budget.eval_every={EVERY}"]
    words = ["launch", "demo", *budget, f"root={root}", "--follow"]
    subprocess.run([sys.executable, "-m", "pipelines.cli", *words], check=True)


def held(fit: Fit, curve: Curve, small: int) -> dict[str, Any]:
    """One run's later points against the forecast from its first ones."""
    assert fit.draws is not None
    new = curve.compute > small
    compute, reward = curve.compute[new], curve.reward[new]
    promise = Promise([fit.draws], 0.02, seen=small)
    kept = keep(promise, compute, reward, compute[:0])
    paths = promise.evaluations(compute, np.random.default_rng(0))
    low, high = np.quantile(paths, LEVEL, axis=0)
    end_low, middle, end_high = np.quantile(trailing(paths)[:, -1], [LEVEL[0], 0.5, LEVEL[1]])
    observed = float(kept.mean[-1])
    before = float(np.mean(curve.reward[~new][-WINDOW:]))
    least = float(np.mean(plain(fit.points, compute[-WINDOW:])))
    return {
        "run": curve.run,
        "resolved": fit.resolved,
        "observed": observed,
        "forecast": float(middle),
        "interval": [float(end_low), float(end_high)],
        "error": float(middle) - observed,
        "error_of_last_value": before - observed,
        "error_of_least_squares": least - observed,
        "covered": bool(end_low <= observed <= end_high),
        "evaluations_covered": float(np.mean((reward >= low) & (reward <= high))),
        "left_band_at_step": None if kept.left is None else float(compute[kept.left]),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of the end of the runs, and how often intervals held."""
    names = ("error", "error_of_last_value", "error_of_least_squares")
    return {
        "mean_absolute": {name: float(np.mean([abs(row[name]) for row in rows])) for name in names},
        "bias": float(np.mean([row["error"] for row in rows])),
        "resolved": sum(row["resolved"] for row in rows),
        "ends_covered": float(np.mean([row["covered"] for row in rows])),
        "evaluations_covered": float(np.mean([row["evaluations_covered"] for row in rows])),
        "inside": sum(row["left_band_at_step"] is None for row in rows),
        "runs": rows,
    }


def main(root: str = "outputs/promotion") -> None:
    """Trains, judges and keeps the result."""
    train(root)
    ledger = Ledger(root)
    manifest = manifest_of(ledger, "demo")
    curves = {item.run: item for item in curves_of(ledger, manifest, "steps")}
    found: dict[str, Any] = {"large_steps": LARGE}
    for small in SMALL:
        fits = judge_sweep(ledger, manifest, Options(until=small), "steps").fits
        rows = [held(fit, curves[fit.run], small) for fit in fits if fit.draws is not None]
        found[f"from_{small}_steps"] = summary(rows)
    write("promotion", found)


if __name__ == "__main__":
    main(*sys.argv[1:2])
