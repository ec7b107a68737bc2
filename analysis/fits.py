"""One recipe judged: its fit, intervals, whether the data bound its ceiling, and what would."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis import forms, posterior, sigmoid
from analysis.curves import Array, Curve, Points, points, window
from analysis.forecast import FURTHEST, LEVEL, SEED_SPREAD, compute_to_resolve, half_width, interval
from analysis.health import Health, check
from analysis.notation import amount
from analysis.posterior import Draws

FEWEST = 5
"""Points below which four parameters are not fitted."""
RISE_SEEN = 0.75
"""Fraction of the gain a run must have made, at least, before its ceiling counts as seen. On the
paper's curve at 4k GPU-hours it is 0.70, and intervals that look narrow there cover badly."""
BOUNDED = 0.05
"""A ceiling known to a twentieth of the run's gain is bounded, if not to the margin."""
PLATEAU = 0.02
"""A run with no more than this left to gain (the paper's margin) has levelled off."""
CUTS = (0.0, 0.03, 0.1, 0.2)
"""Early cuts tried, as fractions of the last compute: the paper's 1.5k and 5k of 50k GPU-hours are
0.03 and 0.1 (ICLR version, on window sensitivity)."""


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
        return sigmoid.value(c, self.A, self.B, self.C_mid, self.R0)


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
    resolved: bool = False
    needed_compute: float | None = None
    """Total compute at which the interval of A should be within the margin."""
    probability_best: float | None = None
    tail_errors: dict[str, float] = field(default_factory=dict)
    """Error of every form of `analysis.forms` on the held-out last half, where the sigmoid's is
    beyond the noise and its own interval."""

    @property
    def choices(self) -> dict[str, str]:
        """The recipe."""
        return dict(self.seeds[0].choices)

    @property
    def stable(self) -> bool:
        """Whether it may be ranked."""
        return self.health.stable

    @property
    def notes(self) -> list[str]:
        """What was done to the points, what is wrong, and what is not known yet."""
        said = list(dict.fromkeys(note for c in self.seeds for note in c.notes))
        said += self.health.problems + self.health.warnings
        if self.better_form is not None:
            said.append(
                f"the sigmoid is a poor description: fitted on the first half it misses the second "
                f"by {self.tail_errors['sigmoid']:.3f}, a {self.better_form} by "
                f"{self.tail_errors[self.better_form]:.3f}"
            )
        rest = self.left_to_gain
        if self.resolved and rest is not None and rest <= PLATEAU:
            said.append(f"plateau: at most {rest:.3f} left to gain")
        if self.draws is None:
            said.append(f"{len(self.points)} usable points: {FEWEST} past the start are needed")
        elif not self.resolved:
            low, high = interval(self.draws.A)
            more = (
                f"would take more than {FURTHEST:.0f} times the compute"
                if self.needed_compute is None
                else f"should be settled at compute {amount(self.needed_compute)}, "
                f"{self.needed_compute / self.last_compute:.1f} times the furthest point"
            )
            said.append(f"ceiling unresolved, somewhere in {low:.3f} to {high:.3f}: {more}")
        return said

    @property
    def noise(self) -> float:
        """Standard deviation of one point."""
        return 0.0 if self.draws is None else float(np.median(self.draws.sigma))

    @property
    def rmse(self) -> float | None:
        """Root mean square residual, unweighted."""
        return None if self.best is None else float(np.sqrt(np.mean(self.residuals**2)))

    @property
    def left_to_gain(self) -> float | None:
        """What the ceiling may still add to the last point, at most (97.5%)."""
        if self.draws is None:
            return None
        rest = self.draws.A - self.draws.at(np.array([self.last_compute]))[:, 0]
        return float(np.quantile(rest, LEVEL[1]))

    @property
    def prompt_error(self) -> float | None:
        """Standard error common to all points: another sample of prompts shifts the whole curve.

        It is the part of the points' standard errors that does not show as scatter around the
        curve. Intervals leave it out, since it cancels between runs on the same prompts.
        """
        errors = [c.stderr for c in self.seeds if c.stderr is not None]
        if not errors or self.draws is None:
            return None
        return float(np.sqrt(max(np.median(np.concatenate(errors)) ** 2 - self.noise**2, 0.0)))

    @property
    def better_form(self) -> str | None:
        """The rival form that describes the curve clearly better than the sigmoid, if any."""
        return forms.better_form(self.tail_errors, self.noise)

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
        f.draws = posterior.draw(f.points, rng)
        settle(f, margin)
    _try_rivals(enough, rng)
    return fits


def _try_rivals(fits: Sequence[Fit], rng: np.random.Generator) -> None:
    """Compare the forms where the sigmoid's first half, with its interval, misses the second."""
    tried = [(f, halves) for f in fits if (halves := forms.split(f.points)) is not None]
    early = _least_squares([head for _, (head, _) in tried])
    for (f, (head, tail)), curve in zip(tried, early, strict=True):
        if forms.tail_error(curve.at, tail) <= forms.POOR * f.noise:
            continue
        low, high = interval(posterior.draw(head, rng).at(tail.compute).mean(axis=1))
        if not low <= tail.reward.mean() <= high:
            f.tail_errors = forms.tail_errors(f.points)


def settle(f: Fit, margin: float) -> None:
    """Decide whether the draws of a fit bound its ceiling, and if not, what compute would.

    Least squares know no prior: where a parameter of theirs is outside its interval, the curve is
    refitted with A at the median.
    """
    if f.draws is None:
        return
    intervals = {name: interval(getattr(f.draws, name)) for name in ("A", "B", "C_mid")}
    if f.best is not None and not all(
        low <= getattr(f.best, name) <= high for name, (low, high) in intervals.items()
    ):
        (f.best,) = _parameters(sigmoid.fit(f.points, A=float(np.median(f.draws.A))))
    d = f.draws
    seen = float(np.quantile(sigmoid.rise(f.last_compute, d.C_mid, d.B), LEVEL[0]))
    allowed = max(margin, BOUNDED * float(np.median(d.A - d.R0)))
    f.resolved = half_width(d.A) <= allowed and seen >= RISE_SEEN
    f.needed_compute = None if f.resolved else compute_to_resolve(f.points, d, margin, RISE_SEEN)


def seed_margin(fits: Sequence[Fit]) -> float | None:
    """Margin measured from seeds: how far two runs of one recipe differ 95% of the time.

    1.96 sqrt(2) times the pooled standard deviation of A between the seeds of a recipe, each
    fitted alone by least squares.
    """
    squares, count = 0.0, 0
    for f in fits:
        alone = [f.points.where(f.points.series == j) for j in range(len(f.seeds))]
        fitted = _least_squares([p for p in alone if np.count_nonzero(p.compute) >= FEWEST])
        if f.stable and f.resolved and len(fitted) > 1:
            squares += float(np.var([p.A for p in fitted])) * len(fitted)
            count += len(fitted) - 1
    return SEED_SPREAD * float(np.sqrt(squares / count)) if count else None


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
    return _parameters(sigmoid.fit_all(recipes))


def _parameters(s: sigmoid.Sigmoids) -> list[Parameters]:
    return [Parameters(*map(float, row)) for row in zip(s.A, s.B, s.C_mid, s.R0, strict=True)]
