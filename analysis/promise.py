"""What was forecast of a run before it was trained, and whether it keeps to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.curves import Array
from analysis.forecast import LEVEL, SEED_SPREAD, Estimate, estimate
from analysis.posterior import Draws
from analysis.sigmoid import rise

WINDOW = 4
"""Evaluations whose mean is held against the band: the noise of a single one would hide a drift of
its size, and a longer window would tell late."""
ALARMS = 0.05
"""Share of runs that leave the band at some evaluation although they keep to the forecast."""
PATHS = 4
"""Simulated runs for each posterior curve."""
KEPT = 500
"""Posterior curves that are written down."""


@dataclass(frozen=True)
class Promise:
    """A forecast as it was made, with all that is needed to hold a run against it later."""

    parts: Sequence[Draws]
    """The recipe's posterior curves; or a base's and those of single changes to it, see `at`."""
    margin: float
    """Two runs of one recipe differ by less than this in A."""
    seen: float = 0.0
    """Compute up to which the run's own points made the forecast, and so cannot test it; 0 for a
    run that starts anew."""

    def at(self, compute: Array) -> Array:
        """(S, m) the recipe's curve at m values of compute.

        Effects of several changes, measured one at a time, are added up on the log-odds, so that
        the sum stays a pass rate: logit(base) + sum over changes of logit(change) - logit(base).
        """
        base, *changes = (part.at(compute) for part in self.parts)
        if not changes:
            return base
        odds = _logit(base) + sum(_logit(change) - _logit(base) for change in changes)
        return np.asarray(1 / (1 + np.exp(-odds)))

    def evaluations(self, compute: Array, rng: np.random.Generator) -> Array:
        """(S `PATHS`, m) evaluations that a run of the recipe may have at evenly spaced computes.

        Noise is AR(1). Between seeds the rise varies by the spread found (tau). With one seed, a
        run that starts anew varies by what the margin implies, one that goes on does not.
        """
        d = self.parts[0]
        rows = np.tile(np.arange(len(d.A)), PATHS)
        alone = 0.0 if self.seen else self.margin / SEED_SPREAD
        tau = np.where(d.tau > 0, d.tau, alone)[rows] * rng.normal(size=len(rows))
        noise = rng.normal(size=(len(rows), len(compute)))
        rho = d.rho[rows]
        for i in range(1, len(compute)):
            noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
        seed = tau[:, None] * rise(compute, d.C_mid[rows, None], d.B[rows, None])
        return np.clip(self.at(compute)[rows] + seed + d.sigma[rows, None] * noise, 0, 1)

    def value(self, compute: float, rng: np.random.Generator) -> Estimate:
        """One evaluation of a run of the recipe at a compute."""
        return estimate(self.evaluations(np.array([compute]), rng)[:, 0])

    def document(self) -> dict[str, Any]:
        """All of it as JSON; `KEPT` curves of each part, to five digits."""
        names = Draws.__dataclass_fields__
        parts = [part.take(np.arange(min(KEPT, len(part.A)))) for part in self.parts]
        rounded = [
            {name: [float(f"{value:.5g}") for value in getattr(part, name)] for name in names}
            for part in parts
        ]
        return {"margin": self.margin, "seen": self.seen, "parts": rounded}

    @staticmethod
    def read(document: Mapping[str, Any]) -> Promise:
        """The promise of a `document`."""
        parts = [
            Draws(**{name: np.array(values, np.float64) for name, values in part.items()})
            for part in document["parts"]
        ]
        return Promise(parts, document["margin"], document["seen"])


@dataclass(frozen=True)
class Kept:
    """A run held against its promise, evaluation by evaluation."""

    compute: Array
    """(m,) compute of the evaluations there are, and of those to come."""
    low: Array
    middle: Array
    high: Array
    """(m,) the band for `mean`, and its middle."""
    mean: Array
    """(n,) mean of the last `WINDOW` evaluations, at each there is."""
    left: int | None
    """The first evaluation at which the mean was outside."""

    @property
    def where(self) -> str:
        """``inside``, ``above`` or ``below``: where the mean was when it left, if it left."""
        if self.left is None:
            return "inside"
        return "above" if self.mean[self.left] > self.high[self.left] else "below"


def keep(promise: Promise, compute: Array, reward: Array, ahead: Array, seed: int = 0) -> Kept:
    """Holds evaluations against a promise.

    The band is simultaneous (a sup-t band, Montiel Olea and Plagborg-Moller, J. Appl. Econom. 34,
    2019): pointwise 95% intervals of the trailing mean, widened by one factor so that `ALARMS` of
    simulated runs leave it at any evaluation, past or to come. Looking often costs nothing then.

    Args:
        promise: What was forecast.
        compute: (n,) compute of the evaluations to hold against it, ascending, evenly spaced.
        reward: (n,) their pass rates.
        ahead: (k,) compute of the evaluations still to come, n + k > 0.
        seed: Of the simulated runs.
    """
    looks = np.concatenate([compute, ahead])
    paths = trailing(promise.evaluations(looks, np.random.default_rng(seed)))
    low, middle, high = np.quantile(paths, [LEVEL[0], 0.5, LEVEL[1]], axis=0)
    below, above = (np.maximum(side, 1e-9) for side in (middle - low, high - middle))
    worst = np.maximum((middle - paths) / below, (paths - middle) / above).max(axis=1)
    factor = float(np.quantile(worst, 1 - ALARMS))
    low, high = np.clip([middle - factor * below, middle + factor * above], 0, 1)
    mean = trailing(reward[None])[0] if len(reward) else reward
    outside = np.flatnonzero((mean < low[: len(mean)]) | (mean > high[: len(mean)]))
    return Kept(looks, low, middle, high, mean, int(outside[0]) if len(outside) else None)


def trailing(values: Array) -> Array:
    """(S, m) mean of each value and up to `WINDOW` - 1 before it."""
    total = np.cumsum(values, axis=1)
    total[:, WINDOW:] -= total[:, :-WINDOW].copy()
    return np.asarray(total / np.minimum(np.arange(1, values.shape[1] + 1), WINDOW))


def _logit(rate: Array) -> Array:
    inside = np.clip(rate, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))
