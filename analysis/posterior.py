"""What the points of a recipe say about its curve, and how surely: posterior draws.

Given (C_mid, B, rho, kappa) the curve of `analysis.model` is linear in (A, R0) and all else is
closed-form, so a grid over (log C_mid, log B) that zooms onto its own mass, row by row, covers even
the long curved ridge of a run that ended early. Draws are taken from the grid's cells and weighted
by the exact posterior over the cell's density (importance sampling): the grid need not be fine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.curves import Array, Points
from analysis.model import (
    KAPPA,
    LOG_B_PRIOR,
    LOG_C_MID_PRIOR,
    RHO,
    Linear,
    Model,
    given_a,
    log_gain_prior,
    with_start,
)
from analysis.projection import log, rise_at
from analysis.truncated import truncated

GRID = 16
WIDE = 4.5
"""The first grid reaches this many standard deviations of the prior."""
ZOOMS = 6
FULL = 0.25
"""A grid this much of which is kept is fine enough."""
DEPTH = 14.0
"""Cells whose log density is this far under the highest are left out of the next grid."""
KEPT = 1000
WEIGHTED = 2
"""Weighted draws for each one kept."""


@dataclass(frozen=True)
class Draws:
    """Equally likely curves, each field (S,)."""

    A: Array
    B: Array
    C_mid: Array
    R0: Array
    rho: Array
    sigma: Array
    """Noise of one point of average weight."""
    tau: Array
    """Standard deviation of A between seeds; 0 with one seed."""

    def at(self, compute: Array) -> Array:
        """(S, m) each curve at m values of compute."""
        s = rise_at(log(np.atleast_1d(compute)), np.log(self.C_mid)[:, None], self.B[:, None])
        return np.asarray(self.R0[:, None] + (self.A - self.R0)[:, None] * s)

    def take(self, rows: NDArray[np.int64]) -> "Draws":
        """The draws at the given rows."""
        return Draws(*(getattr(self, f)[rows] for f in self.__dataclass_fields__))


Prior = Callable[[Array, Array, Array, Array, Array, Array], Array]
"""Log of a prior density over the model's own, of (A, log B, log C_mid, R0, rho, sigma)."""


def draw(
    points: Points,
    rng: np.random.Generator,
    *,
    A: float | None = None,
    prior: Prior | None = None,
    kept: int = KEPT,
) -> Draws:
    """Posterior draws of a recipe's curve, as many as `kept`.

    Args:
        points: At least three points, two of them at compute > 0.
        rng: Source of randomness.
        A: Fixes the ceiling, as when efficiencies are compared at a shared one.
        prior: Replaces the default prior, as one learned from a sweep does.
        kept: Number of draws.
    """
    model = Model(with_start(points), A)
    u, v, rho, kappa, log_q = _propose(*_zoom(model), WEIGHTED * kept, rng)
    density, linear = model.density(u, v, (rho, kappa))
    log_w = density - log_q
    A_, R0, sigma, log_p = _linear_draws(linear, A, rng)
    log_w += log_p + log_gain_prior(A_, R0)
    if prior is not None:
        log_w += prior(A_, v, u, R0, RHO[rho], sigma)
    rows = resample(np.exp(log_w - log_w.max()), kept, rng)
    tau = KAPPA[kappa] * sigma
    return Draws(A_, np.exp(v), np.exp(u), R0, RHO[rho], sigma, tau).take(rows)


def _linear_draws(
    linear: Linear, A: float | None, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """A, R0 and sigma given the rest, within the bounds, and the log weight that costs."""
    variance = linear.sse / rng.chisquare(linear.dof, len(linear.sse))
    if A is None:
        a, log_p = truncated(linear.A, np.sqrt(variance * linear.v_aa), 0.0, 1.0, rng)
    else:
        a, log_p = linear.A, np.zeros_like(variance)
    mean, sd = given_a(linear, a, variance)
    r0, log_p0 = truncated(mean, sd, 0.0, a, rng)
    return a, r0, np.sqrt(variance), log_p + log_p0


@dataclass(frozen=True)
class _Grid:
    """Rows of log C_mid, evenly spaced; each spans its own range of log B in `GRID` cells."""

    u: Array
    low: Array
    high: Array

    @property
    def width(self) -> Array:
        """(rows,) of a cell in log B."""
        return (self.high - self.low) / GRID

    def centers(self) -> tuple[Array, Array]:
        """(cells,) log C_mid and log B, row by row."""
        v = self.low[:, None] + self.width[:, None] * (np.arange(GRID) + 0.5)
        return np.repeat(self.u, GRID), v.reshape(-1)

    def narrow(self, kept: NDArray[np.bool_]) -> "_Grid":
        """As many rows over the kept cells (rows, cells) and one more all round."""
        rows = np.flatnonzero(kept.any(axis=1))
        first, last = kept.argmax(axis=1), GRID - 1 - kept[:, ::-1].argmax(axis=1)
        low, high = self.low + (first - 1) * self.width, self.low + (last + 2) * self.width
        du = self.u[1] - self.u[0]
        u = np.linspace(self.u[rows[0]] - du, self.u[rows[-1]] + du, GRID)
        return _Grid(u, *(np.interp(u, self.u[rows], edge[rows]) for edge in (low, high)))


def _zoom(model: Model) -> tuple[_Grid, Array]:
    """A grid over the posterior's mass, and its log density there, (cells, rhos, kappas).

    Each pass keeps the cells near the top, and at least `GRID` of them: the first passes are too
    coarse to see a narrow posterior but on its flanks.
    """
    (b, b_sd), (_, c_sd) = LOG_B_PRIOR, LOG_C_MID_PRIOR
    u = np.linspace(model.center - WIDE * c_sd, model.center + WIDE * c_sd, GRID)
    grid = _Grid(u, np.full(GRID, b - WIDE * b_sd), np.full(GRID, b + WIDE * b_sd))
    for _ in range(ZOOMS):
        density, linear = model.density(*grid.centers())
        density = density + model.bounds(linear)
        top = np.logaddexp.reduce(density.reshape(len(density), -1), axis=1).reshape(GRID, GRID)
        kept = top >= min(top.max() - DEPTH, np.partition(top.ravel(), -GRID)[-GRID])
        if kept.mean() > FULL:
            break
        used, grid = grid, grid.narrow(kept)
    else:
        grid = used
    return grid, density


def _propose(
    grid: _Grid, density: Array, size: int, rng: np.random.Generator
) -> tuple[Array, Array, NDArray[np.int64], NDArray[np.int64], Array]:
    """Points spread over the cells by mass: u, v, rho, kappa, and the log density of the draw."""
    mass = (density + np.repeat(np.log(grid.width), GRID)[:, None, None]).reshape(-1)
    chosen = resample(np.exp(mass - mass.max()), size, rng)
    cell, rho, kappa = np.unravel_index(chosen, density.shape)
    row, column = np.divmod(cell, GRID)
    jitter_u, jitter_v = rng.random((2, size))
    u = grid.u[row] + (jitter_u - 0.5) * (grid.u[1] - grid.u[0])
    v = grid.low[row] + (column + jitter_v) * grid.width[row]
    return u, v, rho, kappa, density.reshape(-1)[chosen]


def resample(weights: Array, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows drawn by weight with one random offset, in random order (Kitagawa 1996)."""
    total = np.cumsum(weights)
    marks = (np.arange(size) + rng.random()) * (total[-1] / size)
    return rng.permutation(np.minimum(np.searchsorted(total, marks), len(weights) - 1))
