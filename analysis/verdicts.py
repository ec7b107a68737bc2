"""What a sweep says of a choice: matched pairs of recipes judged by the paper's rule."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import posterior
from analysis.curves import Array
from analysis.fits import Fit
from analysis.forecast import FURTHEST, compute_to_tell, crossing, interval
from analysis.notation import amount

HIGHER, LOWER = "higher ceiling", "lower ceiling"
FASTER, SLOWER = "same ceiling, faster", "same ceiling, slower"
NO_DIFFERENCE, UNRESOLVED, UNSTABLE = "no difference", "unresolved", "unstable"
LOOKED_AT = 200
"""Draws in which two curves are looked at for a crossing."""
REFITTED = 400
"""Draws of B at a shared ceiling."""
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
    crossing: float | None = None
    """Compute at which the curves of a single pair more likely than not cross for good."""


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
    verdict = Verdict(axis, choice, versus, UNRESOLVED, "", runs=[a.run for a, _ in pairs])
    sound = [(a, b) for a, b in pairs if a.stable and b.stable]
    if not sound:
        broken = {f.run: f.health.problems[0] for pair in pairs for f in pair if not f.stable}
        said = "; ".join(f"{run}: {problem}" for run, problem in broken.items())
        return replace(verdict, verdict=UNSTABLE, evidence=said)
    fitted = [(a, b) for a, b in sound if a.draws is not None and b.draws is not None]
    if not fitted:
        return replace(verdict, evidence="too few points to fit a curve")
    verdict = _ceilings(verdict, fitted, margin)
    if verdict.verdict == NO_DIFFERENCE:
        verdict = _efficiency(verdict, fitted, rng)
    return _crossing(verdict, fitted, margin) if len(fitted) == 1 else verdict


def _ceilings(verdict: Verdict, pairs: Sequence[Pair], margin: float) -> Verdict:
    """Judged by A alone: a difference, none, or unresolved."""
    difference = np.mean([a.draws.A - b.draws.A for a, b in pairs if a.draws and b.draws], axis=0)
    middle, (low, high) = float(np.median(difference)), interval(difference)
    said = f"A differs by {middle:+.3f} ({low:+.3f} to {high:+.3f}); the margin is {margin:.3g}"
    said += "" if len(pairs) == 1 else f" over {len(pairs)} pairs"
    verdict = replace(verdict, evidence=said, difference=middle, interval=(low, high))
    if abs(middle) > margin and low * high > 0:
        return replace(verdict, verdict=HIGHER if middle > 0 else LOWER)
    if abs(middle) <= margin and (high - low) / 2 <= margin:
        return replace(verdict, verdict=NO_DIFFERENCE)
    needed = _needed(pairs[0], margin) if len(pairs) == 1 else None
    if needed is not None:
        said += f"; both at compute {amount(needed)} should tell"
    return replace(verdict, verdict=UNRESOLVED, evidence=said, needed_compute=needed)


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
    return replace(v, verdict=word, evidence=evidence, difference=middle, interval=(low, high))


def _needed(pair: Pair, margin: float) -> float | None:
    """Compute the two runs of a pair should reach to be told apart."""
    known = [(f.points, f.draws) for f in pair if f.draws is not None]
    return compute_to_tell(known, margin)


def _crossing(v: Verdict, pairs: Sequence[Pair], margin: float) -> Verdict:
    """Where the order of two curves turns for good, if more likely than not it visibly does."""
    (a, b) = pairs[0]
    if a.draws is None or b.draws is None:
        return v
    few = np.arange(LOOKED_AT)
    low, high = min(a.last_compute, b.last_compute), max(a.last_compute, b.last_compute)
    found = crossing(
        a.draws.take(few), b.draws.take(few), low / FURTHEST, high * FURTHEST, margin / 2
    )
    if found.compute is None or found.probability <= 0.5:
        return v
    where = found.compute.middle
    return replace(v, evidence=f"{v.evidence}; the curves cross at {amount(where)}", crossing=where)


def efficiency(f: Fit, A: float, rng: np.random.Generator) -> Array:
    """Posterior draws of B with the ceiling fixed."""
    return posterior.draw(f.points, rng, A=A, kept=REFITTED).B


def ceiling(f: Fit) -> float:
    """Median of A over the draws, NaN without any."""
    return float(np.median(f.draws.A)) if f.draws is not None else float("nan")
