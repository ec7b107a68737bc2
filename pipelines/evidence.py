"""What is known of a winner, and what is forecast of it, as it is written beside its recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import time
from typing import Any

import numpy as np

from analysis.forecast import interval
from analysis.promise import Promise
from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.plan import PlannedRun
from pipelines.request import Request
from pipelines.winner import Winner, target
from recipes.config import AXES, Budget

KEPT = ("commit", "recipes", "versions")
"""What the sweep's manifest says of the code."""


@dataclass(frozen=True)
class _Target:
    """The large run, as the winner's evidence looks at it."""

    compute: float
    """Where its budget is spent, on the sweep's axis."""
    every: float
    """Compute between two of its evaluations."""
    goes_on: bool
    """Whether it is the winner's own run."""
    changed: list[str]
    """What it trains otherwise than the winner was."""


def evidence_of(request: Request, winner: Winner, run: PlannedRun) -> Record:
    """The evidence for `run`, the large one of `winner`.

    Raises:
        UserError: The winner was trained as far already.
    """
    manifest, found = request.manifest, _target(request, winner, run)
    document = winner.analysis.document()
    return {
        "promotion": request.name,
        "sweep": request.sweep,
        "strategy": manifest["strategy"],
        "time": time(),
        "command": sys.argv,
        "settings": request.settings,
        "seed": run.seed,
        **{key: manifest.get(key) for key in KEPT},
        "run_id": run.run_id,
        "winner": {
            "run": winner.run,
            "changes": winner.changes,
            "choices": winner.choices,
            "config": {axis: winner.config[axis] for axis in AXES},
        },
        "forced": winner.doubts,
        "changed": found.changed,
        "notes": list(_notes(winner, run.seed, found)),
        "forecast": _forecast(request.judged_by, winner, found),
        "fits": document["fits"],
        "verdicts": document["verdicts"],
    }


def differing(named: Mapping[str, Any], wanted: Mapping[str, Any]) -> Record:
    """The values of `wanted` that `named` has not."""
    return {key: value for key, value in wanted.items() if named.get(key) != value}


def _target(request: Request, winner: Winner, run: PlannedRun) -> _Target:
    rows, axis = request.manifest["runs"], request.judged_by["compute"]
    used = {row["run_id"] for row in rows if row["label"] == winner.run}
    goes_on = run.run_id in used and not winner.changes
    once = replace(run.config, budget=Budget("steps", run.config.budget.eval_every))
    compute, every = (
        target(request.ledger, winner.run_id, large, axis) for large in (run.config, once)
    )
    if goes_on and compute <= winner.last_compute:
        allowed = "more than the winner was trained for, or another seed"
        raise UserError(f"budget.amount: got {run.config.budget.amount:g}, allowed: {allowed}")
    changed = [
        f"{group}.{key}: {winner.config[group].get(key)} -> {value}"
        for group in AXES
        for key, value in differing(winner.config[group], run.resolved[group]).items()
    ]
    return _Target(compute, every, goes_on, changed)


def _forecast(judged_by: Mapping[str, str], winner: Winner, found: _Target) -> Record:
    drawn = [fit.draws for fit in winner.fits if fit.draws is not None]
    seen = winner.last_compute if found.goes_on else 0.0
    promise = Promise(drawn, winner.analysis.margin, seen)
    there = promise.value(found.compute, np.random.default_rng(0))
    return {
        "axis": judged_by["compute"],
        "metric": judged_by["metric"],
        "compute": found.compute,
        "every": found.every,
        "reward": there.middle,
        "interval": there.interval,
        "curve_interval": interval(promise.at(np.array([found.compute]))[:, 0]),
        **promise.document(),
    }


def _notes(winner: Winner, seed: int, found: _Target) -> Iterator[str]:
    if winner.doubts:
        yield f"Forced, although the evidence does not carry it: {'; '.join(winner.doubts)}."
    if winner.changes:
        yield (
            "The combination itself was not run: its forecast adds up effects measured one at a "
            "time, and its interval knows nothing of how they act on each other; --confirm-loo "
            "trains it first."
        )
    yield (
        f"Seed {seed}: continues the run that the forecast was made from; only what comes after "
        "its points can test it (seed=N starts a fresh one)."
        if found.goes_on
        else f"Seed {seed}: a run that starts anew; all of its points test the forecast."
    )
    small = f"{found.compute / winner.last_compute:.3g} times the compute it was made from"
    if found.changed:
        yield f"The forecast holds for what was run, not for {', '.join(found.changed)}; {small}."
    else:
        yield f"The forecast is for the recipe as it was run, at {small}."
