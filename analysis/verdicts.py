"""What a sweep says of a choice: matched pairs of recipes judged by the paper's rule."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis import posterior
from analysis.curves import Array
from analysis.fits import Fit
from analysis.forecast import compute_to_tell, interval

HIGHER, LOWER = "higher ceiling", "lower ceiling"
FASTER, SLOWER = "same ceiling, faster", "same ceiling, slower"
NO_DIFFERENCE, UNRESOLVED, UNSTABLE = "no difference", "unresolved", "unstable"
PAIRS_REFITTED = 16
"""Matched pairs of a comparison whose efficiency is refitted at a shared ceiling."""


@dataclass(frozen=True)
class Verdict:
    """One choice against another on one axis."""

    axis: str
    choice: str
    versus: str
    verdict: str
    evidence: str
    """One sentence with the numbers."""
    difference: float | None = None
    """In A, or in B at a shared A when the ceiling is the same: choice minus versus."""
    interval: tuple[float, float] | None = None
    runs: list[str] = field(default_factory=list)
    """The runs of the choice that were compared."""
    needed_compute: float | None = None
    """Compute the runs should reach before it can be told, where it is unresolved."""


Pair = tuple[Fit, Fit]


def compare(
    axis: str,
    choice: str,
    versus: str,
    pairs: Sequence[Pair],
    margin: float,
    rng: np.random.Generator,
) -> Verdict:
    """The verdict on a choice from recipes that differ in nothing else, averaged over the pairs.

    Beyond the margin A decides. Within it each pair's A is fixed to the value they share, B is
    refitted, and the higher B is the faster (arXiv 2510.13786).
    """
    runs = [a.run for a, _ in pairs]
    sound = [(a, b) for a, b in pairs if a.stable and b.stable]
    if not sound:
        broken = {f.run: f.health.problems[0] for pair in pairs for f in pair if not f.stable}
        evidence = "; ".join(f"{run}: {problem}" for run, problem in broken.items())
        return Verdict(axis, choice, versus, UNSTABLE, evidence, runs=runs)
    fitted = [(a, b) for a, b in sound if a.draws is not None and b.draws is not None]
    if not fitted:
        return Verdict(axis, choice, versus, UNRESOLVED, "too few points to fit a curve", runs=runs)
    difference = np.mean([a.draws.A - b.draws.A for a, b in fitted if a.draws and b.draws], axis=0)
    middle, (low, high) = float(np.median(difference)), interval(difference)
    said = f"A differs by {middle:+.3f} ({low:+.3f} to {high:+.3f}); the margin is {margin:.3g}"
    of = "" if len(fitted) == 1 else f" over {len(fitted)} pairs"
    if abs(middle) > margin and low * high > 0:
        word = HIGHER if middle > 0 else LOWER
        return Verdict(axis, choice, versus, word, said + of, middle, (low, high), runs)
    if abs(middle) > margin or (high - low) / 2 > margin:
        needed = _needed(fitted, margin) if len(fitted) == 1 else None
        said += of if needed is None else f"; both at compute {needed:.3g} should tell"
        return Verdict(axis, choice, versus, UNRESOLVED, said, middle, (low, high), runs, needed)
    return _efficiency(Verdict(axis, choice, versus, "", said + of, runs=runs), fitted, rng)


def _efficiency(v: Verdict, pairs: Sequence[Pair], rng: np.random.Generator) -> Verdict:
    """Within the margin: B refitted with A shared."""
    chosen = [
        pairs[i] for i in np.linspace(0, len(pairs) - 1, min(len(pairs), PAIRS_REFITTED), dtype=int)
    ]
    ratios, choice_b, versus_b = [], [], []
    for a, b in chosen:
        shared = float(np.mean([ceiling(a), ceiling(b)]))
        b_a, b_b = efficiency(a, shared, rng), efficiency(b, shared, rng)
        ratios.append(b_a - b_b)
        choice_b.append(float(np.median(b_a)))
        versus_b.append(float(np.median(b_b)))
    difference = np.mean(ratios, axis=0)
    middle, (low, high) = float(np.median(difference)), interval(difference)
    word = NO_DIFFERENCE if low <= 0 <= high else FASTER if middle > 0 else SLOWER
    evidence = (
        f"{v.evidence}; at a shared A, B is {np.mean(choice_b):.2f} against {np.mean(versus_b):.2f}"
        f" ({low:+.2f} to {high:+.2f})"
    )
    return Verdict(v.axis, v.choice, v.versus, word, evidence, middle, (low, high), v.runs)


def _needed(pairs: Sequence[Pair], margin: float) -> float | None:
    """Compute the two runs of a pair should reach to be told apart."""
    known = [(f.points, f.draws) for f in pairs[0] if f.draws is not None]
    return compute_to_tell(known, margin)


def efficiency(f: Fit, A: float, rng: np.random.Generator) -> Array:
    """Posterior draws of B with the ceiling fixed."""
    return posterior.draw(f.points, rng, A=A).B


def ceiling(f: Fit) -> float:
    """Median of A over the draws, NaN without any."""
    return float(np.median(f.draws.A)) if f.draws is not None else float("nan")
