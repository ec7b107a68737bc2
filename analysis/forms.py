"""Rival descriptions of a learning curve, and which of them forecasts its held-out tail best.

Every form is R = R0 + (A - R0) s(C; p, q), linear in A and R0 like the sigmoid, so the same bounded
least squares solve it on a grid over (p, q) that zooms onto its best cell. C is relative to the
last compute fitted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.curves import Array, Points
from analysis.projection import normal, solve

Rise = Callable[[Array, Array, Array], Array]
"""s(C; p, q) with C (n,) > 0 and p, q (G, 1): (G, n)."""
STEPS = 25
ZOOMS = 5
TAIL = 0.5
"""The last half of the compute is held out, as the paper does (arXiv 2510.13786)."""
FEWEST = 5
"""Points needed on either side."""
POOR = 1.5
"""A rival whose tail error is this many times smaller shows the sigmoid to be a poor description,
where the sigmoid's error is this many times the noise as well."""


@dataclass(frozen=True)
class Form:
    """A family of curves; p and q are logarithms of its shape parameters, within bounds."""

    rise: Rise
    p: tuple[float, float]
    q: tuple[float, float] = (0.0, 0.0)
    ceiling: float = 1.0
    """The largest A."""


_SCALE = (float(np.log(1e-3)), float(np.log(1e2)))
_POWER = (float(np.log(0.05)), float(np.log(8.0)))

FORMS: dict[str, Form] = {
    # arXiv 2510.13786.
    "sigmoid": Form(lambda C, p, q: 1 / (1 + (np.exp(p) / C) ** np.exp(q)), _SCALE, _POWER),
    # A - D (C + C0)^-B, the saturating power law of pre-training (arXiv 2010.14701).
    "power law": Form(lambda C, p, q: 1 - (1 + C * np.exp(-p)) ** -np.exp(q), _SCALE, _POWER),
    "exponential": Form(lambda C, p, q: -np.expm1(-C * np.exp(-p)), _SCALE),
    # Weibull: exponential with a power in time, as in arXiv 2103.10948, a review of such curves.
    "stretched exponential": Form(
        lambda C, p, q: -np.expm1(-((C * np.exp(-p)) ** np.exp(q))), _SCALE, _POWER
    ),
    # a + b log(C + C0): no ceiling at all. A stands for the value at the last compute.
    "logarithm": Form(lambda C, p, q: np.log1p(C * np.exp(-p)) / np.log1p(np.exp(-p)), _SCALE),
}


@dataclass(frozen=True)
class Fitted:
    """A fitted form."""

    form: str
    A: float
    R0: float
    p: float
    q: float
    unit: float
    """Compute that C = 1 stands for."""
    sse: float

    def at(self, compute: Array) -> Array:
        """(n,) the curve at compute >= 0."""
        C = np.asarray(compute, np.float64)[None] / self.unit
        with np.errstate(divide="ignore"):
            s = FORMS[self.form].rise(C, np.full((1, 1), self.p), np.full((1, 1), self.q))[0]
        return np.asarray(self.R0 + (self.A - self.R0) * s)


def fit_form(name: str, points: Points) -> Fitted:
    """Weighted least squares of one of `FORMS`."""
    form, unit = FORMS[name], float(points.compute.max())
    w, y = points.sd[None] ** -2.0, points.reward[None]
    (p_low, p_high), (q_low, q_high) = form.p, form.q
    best = Fitted(name, np.nan, np.nan, np.nan, np.nan, unit, np.inf)
    for _ in range(ZOOMS):
        p = np.linspace(p_low, p_high, STEPS)
        q = np.linspace(q_low, q_high, STEPS if q_high > q_low else 1)
        grid_p, grid_q = (g.reshape(-1, 1) for g in np.meshgrid(p, q, indexing="ij"))
        with np.errstate(divide="ignore", over="ignore"):
            s = form.rise(points.compute[None] / unit, grid_p, grid_q)
        A, R0, sse = solve(normal(s @ w[0], s**2 @ w[0], (w * y) @ s.T, w, y), (0.0, form.ceiling))
        i = int(np.argmin(sse[0]))
        if sse[0, i] < best.sse:
            found = (A[0, i], R0[0, i], grid_p[i, 0], grid_q[i, 0], unit, sse[0, i])
            best = Fitted(name, *map(float, found))
        reach_p, reach_q = ((g[-1] - g[0]) / STEPS * 2 for g in (p, q))
        p_low, p_high = best.p - reach_p, best.p + reach_p
        q_low, q_high = best.q - reach_q, best.q + reach_q
    return best


def split(points: Points) -> tuple[Points, Points] | None:
    """The first half of the compute and the rest, or None where either has too few points."""
    early = points.compute <= TAIL * points.compute.max()
    if min(np.count_nonzero(points.compute[early]), np.count_nonzero(~early)) < FEWEST:
        return None
    return points.where(early), points.where(~early)


def tail_error(at: Callable[[Array], Array], tail: Points) -> float:
    """Root mean square error of a curve at the held-out points."""
    return float(np.sqrt(np.mean((tail.reward - at(tail.compute)) ** 2)))


def tail_errors(points: Points) -> dict[str, float]:
    """Error of each form on the last half of the compute, fitted on the first.

    Empty where either half has too few points.
    """
    halves = split(points)
    if halves is None:
        return {}
    head, tail = halves
    return {name: tail_error(fit_form(name, head).at, tail) for name in FORMS}


def better_form(errors: dict[str, float], noise: float) -> str | None:
    """The rival that shows the sigmoid to be a poor description of a curve, if any.

    Args:
        errors: From `tail_errors`.
        noise: Standard deviation of one point.
    """
    if not errors:
        return None
    best = min(errors, key=errors.__getitem__)
    ours = errors["sigmoid"]
    return best if ours > POOR * max(errors[best], noise) else None
