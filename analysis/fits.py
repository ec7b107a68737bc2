"""One recipe judged: its fit, intervals, whether the data bound its ceiling, and what would."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis import posterior, sigmoid
from analysis.curves import Array, Curve, Points, points, window
from analysis.health import Health, check
from analysis.posterior import Draws

FEWEST = 5
"""Points below which four parameters are not fitted."""
RISE_SEEN = 0.75
"""Fraction of the gain a run must have made, at least, before its ceiling counts as seen. On the
paper's curve at 4k GPU-hours it is 0.70, and intervals that look narrow there cover badly."""
BOUNDED = 0.1
"""A ceiling known to a tenth of the run's gain is bounded, if not to the margin."""
CUTS = (0.0, 0.03, 0.1, 0.2)
"""Early cuts tried, as fractions of the last compute: the paper's 1.5k and 5k of 50k GPU-hours are
0.03 and 0.1 (ICLR version, on window sensitivity)."""
FURTHEST = 100.0
"""Forecasts of what more compute would settle go no further than this multiple."""
LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Parameters:
    """A point on the curve's four parameters."""

    A: float
    B: float
    C_mid: float
    R0: float

    def at(self, compute: Array | float) -> Array:
        """The curve's value at each compute."""
        c = np.asarray(compute, np.float64)
        return sigmoid.value(c, *(np.float64(p) for p in (self.A, self.B, self.C_mid, self.R0)))


@dataclass
class Fit:
    """The judged curve of one recipe, all its seeds together."""

    run: str
    """Name of its first run."""
    seeds: list[Curve]
    points: Points
    """What was fitted; compute 0 is the pass rate before training."""
    health: Health
    best: Parameters | None = None
    """Least squares; None where there are too few points. Not to be quoted when unresolved."""
    draws: Draws | None = None
    """Posterior curves, the source of every interval."""
    rmse: float | None = None
    resolved: bool = False
    needed_compute: float | None = None
    """Total compute at which the interval of A should be within the margin."""
    probability_best: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def choices(self) -> dict[str, str]:
        """The recipe."""
        return dict(self.seeds[0].choices)

    @property
    def stable(self) -> bool:
        """Whether it may be ranked."""
        return self.health.stable

    @property
    def last_compute(self) -> float:
        """The furthest point fitted."""
        return float(self.points.compute.max()) if len(self.points) else 0.0

    @property
    def residuals(self) -> Array:
        """(n,) reward minus the least-squares curve at the fitted points."""
        return self.points.reward - (0 if self.best is None else self.best.at(self.points.compute))

    def interval(self, name: str) -> tuple[float, float] | None:
        """95% interval of A, B, C_mid, R0 or tau."""
        return None if self.draws is None else interval(getattr(self.draws, name))

    def left_out(self, skip_below: float | None, until: float | None) -> list[tuple[Array, Array]]:
        """(compute, reward) of each seed's points outside the fitted window."""
        masks = [~window(c, skip_below, until) for c in self.seeds]
        return [(c.compute[m], c.reward[m]) for c, m in zip(self.seeds, masks, strict=True)]


def interval(draws: Array) -> tuple[float, float]:
    """Central 95% of draws."""
    low, high = np.quantile(draws, LEVEL)
    return float(low), float(high)


def half_width(draws: Array) -> float:
    """Half the width of the central 95%."""
    low, high = interval(draws)
    return (high - low) / 2


def judge(
    recipes: Sequence[Sequence[Curve]],
    rng: np.random.Generator,
    *,
    margin: float,
    skip_below: float | None = None,
    until: float | None = None,
    measured_r0: bool = True,
) -> list[Fit]:
    """Fit every recipe (a list of its seeds' curves), and say which ceilings the data bound."""
    fits = []
    for seeds in recipes:
        p = points(seeds, skip_below, until, measured_r0)
        fits.append(Fit(seeds[0].run, list(seeds), p, check(seeds)))
    enough = [f for f in fits if np.count_nonzero(np.unique(f.points.compute)) >= FEWEST]
    for f, best in zip(enough, _least_squares([f.points for f in enough]), strict=True):
        f.best = best
        f.rmse = float(np.sqrt(np.mean(f.residuals**2)))
        f.draws = posterior.draw(f.points, rng)
        settle(f, margin)
    for f in fits:
        f.notes[:0] = _notes(f)
    return fits


def settle(f: Fit, margin: float) -> None:
    """Decide whether the draws of a fit bound its ceiling, and if not, what compute would."""
    if f.draws is None:
        return
    d = f.draws
    seen = float(np.quantile(sigmoid.rise(np.float64(f.last_compute), d.C_mid, d.B), LEVEL[0]))
    allowed = max(margin, BOUNDED * float(np.median(d.A - d.R0)))
    f.resolved = half_width(d.A) <= allowed and seen >= RISE_SEEN
    f.needed_compute = None if f.resolved else needed_compute(f.points, d, margin)


def needed_compute(p: Points, d: Draws, margin: float) -> float | None:
    """Total compute at which 1.96 standard errors of A come under the margin, None if beyond 100x.

    For curves drawn from the posterior the Fisher information of a run continued with evaluations
    as dense as so far is inverted, with AR(1) noise counted as (1 - rho) / (1 + rho) of the points;
    the median over the draws is taken.
    """
    few = d.take(np.arange(min(64, len(d.A))))
    last = float(p.compute.max())
    multiples = np.geomspace(1.0, FURTHEST, 60)
    density = np.count_nonzero(p.compute) / last
    inner = np.linspace(0, 1, 41)[1:]
    future = last + np.outer(multiples - 1, inner) * last
    information = _information(few, p.compute, 1 / p.sd**2)[:, None] + _information(
        few, future, np.broadcast_to((multiples - 1)[:, None] * last * density / 40, future.shape)
    )
    noise = few.sigma**2 * (1 + few.rho) / (1 - few.rho)
    variance = np.linalg.inv(information)[..., 0, 0] * noise[:, None]
    settled = 1.96 * np.sqrt(np.median(variance, axis=0)) <= margin
    settled &= (
        np.median(sigmoid.rise(last * multiples[:, None], few.C_mid, few.B), axis=1) > RISE_SEEN
    )
    return float(last * multiples[settled.argmax()]) if settled.any() else None


def _information(d: Draws, compute: Array, weight: Array) -> Array:
    """Fisher information of (A, R0, log C_mid, log B) at unit noise: (S, ..., 4, 4)."""
    shape = (-1,) + (1,) * compute.ndim
    u, B, gain = (np.reshape(a, shape) for a in (np.log(d.C_mid), d.B, d.A - d.R0))
    s = sigmoid.rise(compute, np.exp(u), B)
    with np.errstate(divide="ignore"):
        x = np.where(compute > 0, np.log(compute), 0.0)
    slope = gain * s * (1 - s) * B
    g = np.stack([s, 1 - s, -slope, slope * (x - u)], axis=-1)
    information = np.swapaxes(g * weight[..., None], -1, -2) @ g
    return np.asarray(information + 1e-9 * np.eye(4))


def windows(f: Fit, measured_r0: bool = True) -> list[dict[str, float]]:
    """A and B refitted with the early points left out, at each of `CUTS`."""
    tried = [
        (cut * f.last_compute, points(f.seeds, cut * f.last_compute, f.last_compute))
        for cut in CUTS
    ]
    kept = [(cut, p) for cut, p in tried if np.count_nonzero(p.compute) >= FEWEST]
    fitted = _least_squares([p for _, p in kept])
    return [
        {"skip_below": cut, "A": b.A, "B": b.B} for (cut, _), b in zip(kept, fitted, strict=True)
    ]


def _least_squares(recipes: list[Points]) -> list[Parameters]:
    if not recipes:
        return []
    s = sigmoid.fit_all(recipes)
    return [Parameters(*map(float, row)) for row in zip(s.A, s.B, s.C_mid, s.R0, strict=True)]


def _notes(f: Fit) -> list[str]:
    notes = [note for c in f.seeds for note in c.notes]
    notes = list(dict.fromkeys(notes)) + f.health.problems + f.health.warnings
    if f.draws is None:
        notes.append(f"{len(f.points)} usable points: at least {FEWEST} after the start are needed")
    elif not f.resolved:
        low, high = interval(f.draws.A)
        more = (
            f"would need more than {FURTHEST:.0f} times the compute"
            if f.needed_compute is None
            else f"expected to be settled at compute {f.needed_compute:.3g}, "
            f"{f.needed_compute / f.last_compute:.1f} times what it has"
        )
        notes.append(f"ceiling unresolved, somewhere in {low:.3f} to {high:.3f}: {more}")
    return notes
