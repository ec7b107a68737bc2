"""Recipes of one sweep lend each other strength: a prior on their curves learned from them all.

A multivariate normal over (log(A - R0), log B, log C_mid) is estimated from the recipes' posterior
draws, each weighted by the normal's density over that of the prior it was drawn
under. A recipe may also be unlike the others: `UNLIKE` of the new prior is the old one (the
exchangeable-nonexchangeable mixture of Neuenschwander et al., Pharm. Stat. 15, 2016). A choice that
changes everything is then not pulled to the crowd.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from analysis.curves import Array, Points
from analysis.model import SMALL_GAIN, log_prior
from analysis.noise import Noise
from analysis.posterior import Draws, draw, resample

UNLIKE = 0.1
FEWEST = 4
"""Recipes needed to learn a prior from."""
START_SD = np.array([0.5, 0.3, 0.5])
START_COUNT = 3.0
"""Spread expected of recipes, and the number of recipes that expectation counts as. Over the
paper's runs (ICLR version, table 1, with R0 0.2) the deviations are 0.1, 0.2 and 0.6; gains of
other models and tasks differ by more."""
ROUNDS = 15
THINNED = 250
"""Draws of each recipe used to learn."""
ENOUGH = 0.7
"""Effective share of draws (Kish 1965) above which weighting them is as good as drawing anew."""
TRIED = 16
"""Recipes a pooled forecast is tried on before it is trusted."""
HEAD = 0.5
"""The trial fits the first half of a recipe's compute and forecasts its last point."""


@dataclass(frozen=True)
class Shared:
    """The learned prior: a multivariate Student t over (log gain, log B, log C_mid)."""

    mean: Array
    """(3,)"""
    covariance: Array
    """(3, 3)"""
    dof: float
    """Few recipes leave the mean and covariance uncertain: heavier tails."""
    relative: bool
    """C_mid is counted in units of each recipe's last compute."""

    def log_ratio(self, points: Points, A: Array, v: Array, u: Array, R0: Array) -> Array:
        """(S,) log of this prior over the default one."""
        d2, log_det = self.distance(_coordinates(points, A, v, u, R0, self.relative))
        tails = gammaln((self.dof + 3) / 2) - gammaln(self.dof / 2) - 1.5 * np.log(self.dof / 2)
        like = tails - 0.5 * log_det - (self.dof + 3) / 2 * np.log1p(d2 / self.dof)
        new = like + np.log(1 - UNLIKE) - _log_old(points, A, v, u, R0)
        return np.asarray(np.logaddexp(new, np.log(UNLIKE)))

    def distance(self, z: Array) -> tuple[Array, float]:
        """Squared Mahalanobis distance of (S, 3) from the mean, and log det of 2 pi covariance."""
        off = np.linalg.solve(np.linalg.cholesky(self.covariance), (z - self.mean).T)
        return (off**2).sum(axis=0), float(np.linalg.slogdet(2 * np.pi * self.covariance)[1])


def learn(recipes: Sequence[tuple[Points, Draws]]) -> Shared:
    """Estimate the prior that recipes share, from their draws under the default one."""
    few = [(p, d.take(np.arange(min(THINNED, len(d.A))))) for p, d in recipes]
    plain = [(p, d.A, np.log(d.B), np.log(d.C_mid), d.R0) for p, d in few]
    relative = _scattered([float(np.median(row[3])) for row in plain], [p for p, _ in few])
    z = [_coordinates(*row, relative) for row in plain]
    old = [_log_old(*row) for row in plain]
    spread = np.maximum(START_SD, np.std([np.median(one, axis=0) for one in z], axis=0))
    shared = Shared(np.median(np.concatenate(z), axis=0), np.diag(spread**2), np.inf, relative)
    stacked = np.concatenate(z)
    for _ in range(ROUNDS):
        d2, log_det = shared.distance(stacked)
        like = np.split(-0.5 * (d2 + log_det), len(z))
        ratio = [(1 - UNLIKE) * np.exp(one - o) for one, o in zip(like, old, strict=True)]
        w = np.concatenate([r / (r + UNLIKE).sum() for r in ratio])
        members = float(w.sum())
        mean = w @ stacked / members
        scatter = (w[:, None] * (stacked - mean)).T @ (stacked - mean)
        covariance = (scatter + START_COUNT * np.diag(START_SD**2)) / (members + START_COUNT)
        shared = Shared(mean, covariance * (1 + 1 / members), members + START_COUNT - 3, relative)
    return shared


def _coordinates(points: Points, A: Array, v: Array, u: Array, R0: Array, relative: bool) -> Array:
    """(S, 3) log gain, log B and log C_mid."""
    unit = float(np.log(points.compute.max())) if relative else 0.0
    return np.stack([np.log(A - R0 + SMALL_GAIN), v, u - unit], axis=-1)


def _log_old(points: Points, A: Array, v: Array, u: Array, R0: Array) -> Array:
    """(S,) log density of the default prior over the same coordinates."""
    return log_prior(points, A, v, u, R0) + np.log(A - R0 + SMALL_GAIN)


def _scattered(log_c_mid: Sequence[float], points: Sequence[Points]) -> bool:
    """Whether C_mid is more alike relative to each recipe's compute, as across model sizes."""
    last = np.log([p.compute.max() for p in points])
    return bool(np.std(log_c_mid - last) < np.std(log_c_mid) - 1e-9)


def lend(
    recipes: Sequence[tuple[Points, Draws]], rng: np.random.Generator
) -> tuple[list[Draws] | None, str]:
    """New draws for every recipe under the prior they share, where that forecasts better.

    Tried on the sweep itself: each recipe's first half, alone and pooled, forecasts the mean of its
    last points.

    Returns:
        The draws, or None where each recipe is better off alone, and a sentence that says which.
    """
    if len(recipes) < FEWEST:
        return None, f"not pooled: {len(recipes)} recipes, at least {FEWEST} are needed"
    alone, pooled = _trial([p for p, _ in recipes[:TRIED]], rng)
    said = f"forecasts from the first half are off by {pooled:.4f} pooled, {alone:.4f} alone"
    if not pooled < alone:
        return None, f"not pooled: {said}"
    return redraw(recipes, rng), f"pooled, a prior learned from {len(recipes)} recipes: {said}"


def _trial(points: Sequence[Points], rng: np.random.Generator) -> tuple[float, float]:
    """Mean absolute errors at the end, alone and pooled; infinite where there is too little."""
    heads = [p.where(p.compute <= HEAD * p.compute.max()) for p in points]
    kept = [(p, h) for p, h in zip(points, heads, strict=True) if np.count_nonzero(h.compute) >= 5]
    if len(kept) < FEWEST:
        return np.inf, np.inf
    alone = [draw(h, rng) for _, h in kept]
    shared = redraw([(h, d) for (_, h), d in zip(kept, alone, strict=True)], rng)

    def error(draws: Sequence[Draws]) -> float:
        misses = []
        for (p, _), d in zip(kept, draws, strict=True):
            end = np.argsort(p.compute)[-5:]
            misses.append(np.median(d.at(p.compute[end]).mean(axis=1)) - p.reward[end].mean())
        return float(np.mean(np.abs(misses)))

    return error(alone), error(shared)


def redraw(
    recipes: Sequence[tuple[Points, Draws]], rng: np.random.Generator, enough: float = ENOUGH
) -> list[Draws]:
    """Draws under the shared priors of noise and curves.

    The ones had are weighted, where more than the share `enough` of them would count.
    """
    noise = Noise(recipes)
    with_noise = [
        (p, d.take(_weighted(noise.log_ratio(p, d.rho, d.sigma), rng)[0])) for p, d in recipes
    ]
    shared = learn(with_noise)

    def prior(p: Points, *of: Array) -> Array:
        *curve, rho, sigma = of
        return shared.log_ratio(p, *curve) + noise.log_ratio(p, rho, sigma)

    found = []
    for p, d in recipes:
        log_w = prior(p, d.A, np.log(d.B), np.log(d.C_mid), d.R0, d.rho, d.sigma)
        rows, effective = _weighted(log_w, rng)
        found.append(d.take(rows) if effective > enough else draw(p, rng, prior=partial(prior, p)))
    return found


def _weighted(log_w: Array, rng: np.random.Generator) -> tuple[NDArray[np.int64], float]:
    """Rows drawn by weight, and the effective share of them (Kish 1965)."""
    w = np.exp(log_w - log_w.max())
    return resample(w, len(w), rng), float(w.sum() ** 2 / (w**2).sum() / len(w))
