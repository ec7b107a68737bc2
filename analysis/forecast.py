"""What posterior curves say of compute not spent yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.curves import Array, Points
from analysis.posterior import Draws
from analysis.projection import log
from analysis.sigmoid import rise

LEVEL = (0.025, 0.975)
SEED_SPREAD = 1.96 * np.sqrt(2)
"""Two runs of one recipe differ by less than this many between-seed deviations 95% of the time, so
a margin is this many of them (the reproducibility limit of ISO 5725)."""
NEAREST, FURTHEST = 1.1, 100.0
"""What more compute would settle is sought between these multiples of what was spent."""
POWER = 0.8
"""The usual chance asked of an experiment that it tells what there is to tell."""
AHEAD = 64
"""Draws used, and computes tried, to look ahead."""


@dataclass(frozen=True)
class Estimate:
    """A median with its central 95%; infinite where more than that share of draws is."""

    middle: float
    interval: tuple[float, float]


def interval(draws: Array) -> tuple[float, float]:
    """Central 95% of draws."""
    low, high = np.quantile(draws, LEVEL, method="inverted_cdf")
    return float(low), float(high)


def half_width(draws: Array) -> float:
    """Half the width of the central 95%."""
    low, high = interval(draws)
    return (high - low) / 2


def estimate(draws: Array) -> Estimate:
    """Median and central 95% of draws, which may be infinite."""
    return Estimate(float(np.quantile(draws, 0.5, method="inverted_cdf")), interval(draws))


def value(draws: Draws, compute: float) -> Estimate:
    """The curve at a compute."""
    return estimate(draws.at(np.array([compute]))[:, 0])


def compute_to_reach(draws: Draws, reward: float) -> Estimate:
    """Compute at which the curve passes a reward; infinite where its ceiling is lower.

    C = C_mid (r / (1 - r))^(1/B), with r the fraction of the gain the reward stands for.
    """
    fraction = np.clip((reward - draws.R0) / np.maximum(draws.A - draws.R0, 1e-12), 0, 1)
    with np.errstate(divide="ignore", over="ignore"):
        return estimate(draws.C_mid * (fraction / (1 - fraction)) ** (1 / draws.B))


@dataclass(frozen=True)
class Crossing:
    """Where one curve overtakes another for good."""

    probability: float
    """That they cross in the range looked at."""
    compute: Estimate | None
    """Where, among the draws that do."""


def crossing(a: Draws, b: Draws, low: float, high: float, lead: float = 0.0) -> Crossing:
    """The last compute in [low, high] at which the order of two curves changes.

    Only where the one that ends behind led by more than `lead` before.
    """
    compute = np.geomspace(low, high, 200)
    gap = a.at(compute) - b.at(compute)
    change = (gap[:, 1:] > 0) != (gap[:, :-1] > 0)
    crosses = change.any(axis=1) & ((-np.sign(gap[:, -1:]) * gap).max(axis=1) > lead)
    if not crosses.any():
        return Crossing(0.0, None)
    last = change.shape[1] - 1 - change[crosses, ::-1].argmax(axis=1)
    where = np.sqrt(compute[last] * compute[last + 1])
    return Crossing(float(crosses.mean()), estimate(where))


def compute_to_resolve(points: Points, draws: Draws, margin: float, seen: float) -> float | None:
    """Total compute at which the 95% interval of A should be within the margin.

    `seen` is the fraction of the gain that must have been made by then as well. None if beyond
    100 times the compute.
    """
    total, error = _errors_ahead([points], [draws])
    few = draws.take(np.arange(min(AHEAD, len(draws.A))))
    made = np.median(rise(total[:, None], few.C_mid, few.B), axis=1)
    return _first(total, (np.median(error, axis=0) <= margin) & (made >= seen))


def compute_to_tell(pair: Sequence[tuple[Points, Draws]], margin: float) -> float | None:
    """Total compute, of both, at which two ceilings can be told apart or told equal.

    That is when the 95% interval of their difference is narrower than the difference itself, or
    than the margin where they differ by less, in `POWER` of what is possible; None if beyond 100
    times.
    """
    points, draws = zip(*pair, strict=True)
    total, error = _errors_ahead(points, draws)
    difference = np.abs(draws[0].A - draws[1].A)[: len(error)]
    allowed = np.maximum(difference, margin)[:, None]
    return _first(total, np.mean(error <= allowed, axis=0) >= POWER)


def _first(total: Array, settled: NDArray[np.bool_]) -> float | None:
    return float(total[settled.argmax()]) if settled.any() else None


def _errors_ahead(points: Sequence[Points], draws: Sequence[Draws]) -> tuple[Array, Array]:
    """1.96 standard errors of A, or of the difference of two, were the runs continued.

    For curves drawn from the posterior, the Fisher information of the points had and of points to
    come, as dense as so far, is inverted; AR(1) noise leaves (1 - rho) / (1 + rho) of it.

    Returns:
        (T,) total compute from `NEAREST` to `FURTHEST` times the shorter run's, and (draws, T)
        errors.
    """
    last = min(float(p.compute.max()) for p in points)
    total = np.geomspace(NEAREST * last, FURTHEST * last, AHEAD)
    variance = np.zeros((min(AHEAD, *(len(d.A) for d in draws), AHEAD), AHEAD))
    middles = (np.arange(40) + 0.5) / 40
    for p, d in zip(points, draws, strict=True):
        few, had = d.take(np.arange(len(variance))), float(p.compute.max())
        ahead = np.maximum(total - had, 0.0)[:, None]
        count = ahead * np.count_nonzero(p.compute) / had
        weight = np.broadcast_to(count / len(middles), (AHEAD, len(middles)))
        information = _information(few, p.compute, p.sd**-2.0)[:, None]
        information = information + _information(few, had + ahead * middles, weight)
        noise = few.sigma**2 * (1 + few.rho) / (1 - few.rho)
        variance += np.linalg.inv(information)[..., 0, 0] * noise[:, None]
    return total, 1.96 * np.sqrt(variance)


def _information(d: Draws, compute: Array, weight: Array) -> Array:
    """Fisher information of (A, R0, log C_mid, log B) at unit noise: (S, ..., 4, 4)."""
    shape = (-1,) + (1,) * compute.ndim
    u, B, gain = (np.reshape(a, shape) for a in (np.log(d.C_mid), d.B, d.A - d.R0))
    s = rise(compute, np.exp(u), B)
    slope = gain * s * (1 - s) * B
    distance = np.where(compute > 0, log(compute) - u, 0.0)
    g = np.stack([s, 1 - s, -slope, slope * distance], axis=-1)
    return np.asarray(np.swapaxes(g * weight[..., None], -1, -2) @ g + 1e-9 * np.eye(4))
