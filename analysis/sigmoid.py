"""The saturating curve R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) and its least-squares fit.

Source: arXiv 2510.13786. A is the reward at infinite compute, R0 at none, C_mid the
compute at half of the gain and B the efficiency exponent. `analysis.projection` has the search.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from analysis.curves import Array, Points
from analysis.projection import log, polish, rise_at, starts

Real = Array | float

C_MID_BELOW, C_MID_ABOVE = 30.0, 1e4
"""C_mid is searched from 1/30 of the first compute to 10^4 times the last."""
PAPER_A = np.linspace(0.450, 0.800, 71)
PAPER_C_MID = np.linspace(100.0, 40000.0, 100)
"""The paper's lattice (arXiv 2510.13786)."""


@dataclass(frozen=True)
class Sigmoids:
    """Parameters of K fitted curves, each (K,), and their weighted sums of squares."""

    A: Array
    B: Array
    C_mid: Array
    R0: Array
    sse: Array


def rise(compute: Real, C_mid: Real, B: Real) -> Array:
    """The fraction of the gain reached at a compute: 1 / (1 + (C_mid / C)^B), 0 at C = 0.

    Arguments broadcast against each other.
    """
    return rise_at(log(compute), np.log(C_mid), B)


def value(compute: Real, A: Real, B: Real, C_mid: Real, R0: Real) -> Array:
    """R(C) in [R0, A]; arguments broadcast.

    >>> round(float(value(2542.0, 0.61, 1.92, 2542.0, 0.2)), 3)
    0.405
    """
    s = rise(compute, C_mid, B)
    return np.asarray(R0 * (1 - s) + A * s)


def fit(
    points: Points,
    A: float | None = None,
    method: str = "projection",
    lattice: tuple[Array, Array] = (PAPER_A, PAPER_C_MID),
) -> Sigmoids:
    """Least-squares fit of one recipe's points (K = 1).

    Args:
        points: At least one at compute > 0.
        A: Fixes the ceiling.
        method: "projection", or "paper" for the paper's own procedure, for comparison: a lattice
            of A x C_mid, SciPy's curve_fit for B, points not weighted, and R0 not fitted: it is the
            reward before training, or else the first.
        lattice: The values of A and C_mid tried by "paper".
    """
    if method == "paper":
        return _fit_paper(points, lattice)
    held = (0.0, 1.0) if A is None else (A, A)
    return fit_many(points.compute[None], points.reward[None], points.sd[None] ** -2.0, held)


def fit_all(recipes: Sequence[Points], A: float | None = None) -> Sigmoids:
    """Least-squares fits of K recipes of different lengths in one call, as `fit` does each."""
    longest = max(len(p) for p in recipes)

    def pad(rows: list[Array], fill: float) -> Array:
        padded = [np.pad(r, (0, longest - len(r)), constant_values=fill) for r in rows]
        return np.stack(padded)

    return fit_many(
        pad([p.compute for p in recipes], 0.0),
        pad([p.reward for p in recipes], 0.0),
        pad([p.sd**-2.0 for p in recipes], 0.0),
        (0.0, 1.0) if A is None else (A, A),
    )


def fit_many(
    compute: Array,
    reward: Array,
    weight: Array,
    A_range: tuple[float, float] = (0.0, 1.0),
    start: tuple[float, float] | None = None,
) -> Sigmoids:
    """Global least-squares fits of K curves at once.

    A grid over (log C_mid, log B) gives three starts, one in each third of B; each is polished by
    Levenberg-Marquardt on the projected problem and the best is kept.

    Args:
        compute: (K, n), or (1, n) where all curves share it (bootstrap replicates).
        reward: (K, n) pass rates.
        weight: (K, n) or (1, n) inverse variances; 0 leaves a point out.
        A_range: Bounds of A; equal ones fix it.
        start: (C_mid, B) to start from instead of the grid, as for replicates of a fitted curve.
    """
    x = log(compute)
    reached = np.where((weight > 0) & np.isfinite(x), x, np.nan)
    low = np.nanmin(reached, axis=1) - np.log(C_MID_BELOW)
    high = np.nanmax(reached, axis=1) + np.log(C_MID_ABOVE)
    k = len(reward)
    if start is None:
        u, v = starts(x, reward, weight, low, high, A_range)
    else:
        u, v = (np.full(k, np.log(p)) for p in start)
    solved = polish(x, reward, weight, u, v, (low, high), A_range)
    A, R0, u, v, sse = (a.reshape(-1, k) for a in solved)
    best = np.argmin(sse, axis=0), np.arange(k)
    return Sigmoids(A[best], np.exp(v[best]), np.exp(u[best]), R0[best], sse[best])


def _fit_paper(points: Points, lattice: tuple[Array, Array]) -> Sigmoids:
    R0 = float(points.reward[np.argmin(points.compute)])
    used = points.compute > 0
    C, R = points.compute[used], points.reward[used]
    best = (np.inf, np.nan, np.nan, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        for A in lattice[0]:
            for C_mid in lattice[1]:
                best = min(best, _fit_b(C, R, float(A), float(C_mid), R0))
    sse, a, b, c_mid = (np.array([x]) for x in best)
    return Sigmoids(a, b, c_mid, np.array([R0]), sse)


def _fit_b(
    C: Array, R: Array, A: float, C_mid: float, R0: float
) -> tuple[float, float, float, float]:
    def curve(c: Array, B: float) -> Array:
        return value(c, A, B, C_mid, R0)

    try:
        (B,), *_ = curve_fit(curve, C, R)
    except RuntimeError:
        return (np.inf, np.nan, np.nan, np.nan)
    return (float(np.sum((R - curve(C, B)) ** 2)), A, float(B), C_mid)
