"""What a sweep says of each choice: matched pairs of recipes judged by the paper's rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

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
    refitted, and the higher B is the faster (arXiv 2510.13786, section 3.2).
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
        shared = float(np.mean([_ceiling(a), _ceiling(b)]))
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


def _ceiling(f: Fit) -> float:
    return float(np.median(f.draws.A)) if f.draws is not None else float("nan")


def against_base(
    fits: Sequence[Fit], base: Mapping[str, str]
) -> list[tuple[str, str, str, list[Pair]]]:
    """Comparisons of one-at-a-time and leave-one-out sweeps: (axis, choice, versus, pairs).

    Each recipe that differs from the base on one axis is compared with the base.
    """
    home = next((f for f in fits if f.choices == dict(base)), None)
    found: list[tuple[str, str, str, list[Pair]]] = []
    for f in fits if home is not None else ():
        changed = [axis for axis in base if f.choices.get(axis) != base[axis]]
        if home is not None and len(changed) == 1:
            axis = changed[0]
            found.append((axis, f.choices.get(axis, ""), base[axis], [(f, home)]))
    return found


def within_grid(
    fits: Sequence[Fit], base: Mapping[str, str] | None
) -> list[tuple[str, str, str, list[Pair]]]:
    """Main effects of a grid: every choice against its axis' reference, all else equal.

    The reference is the base's choice, or the one whose recipes have the highest mean ceiling.
    """
    found = []
    for axis, levels in _levels(fits).items():
        versus = (base or {}).get(axis)
        if versus not in levels:
            versus = max(levels, key=lambda c: _mean_ceiling(fits, axis, c))
        by_rest = {_rest(f, axis): f for f in fits if f.choices.get(axis) == versus}
        for choice in (c for c in levels if c != versus):
            pairs = [
                (f, by_rest[_rest(f, axis)])
                for f in fits
                if f.choices.get(axis) == choice and _rest(f, axis) in by_rest
            ]
            if pairs:
                found.append((axis, choice, str(versus), pairs))
    return found


@dataclass(frozen=True)
class Interaction:
    """How much a choice's effect on A depends on another axis' choice."""

    axes: tuple[str, str]
    choices: tuple[str, str]
    versus: tuple[str, str]
    difference: float
    interval: tuple[float, float]


def interactions(fits: Sequence[Fit], margin: float) -> list[Interaction]:
    """Two-way interactions in A beyond the margin whose interval excludes none, largest first.

    A difference of differences over matched sets of four recipes: with axes a and b at levels 1
    and 0, A11 - A01 - A10 + A00.
    """
    sound = [f for f in fits if f.stable and f.draws is not None]
    cells = {tuple(sorted(f.choices.items())): f for f in sound}
    found = []
    for (a, levels_a), (b, levels_b) in combinations(_levels(sound).items(), 2):
        for a0, a1 in combinations(levels_a, 2):
            for b0, b1 in combinations(levels_b, 2):
                draws = _contrasts(sound, cells, (a, a0, a1), (b, b0, b1))
                if not draws:
                    continue
                mean = np.mean(draws, axis=0)
                middle, (low, high) = float(np.median(mean)), interval(mean)
                if abs(middle) > margin and low * high > 0:
                    found.append(Interaction((a, b), (a1, b1), (a0, b0), middle, (low, high)))
    return sorted(found, key=lambda i: -abs(i.difference))


def _contrasts(
    fits: Sequence[Fit],
    cells: Mapping[tuple[tuple[str, str], ...], Fit],
    first: tuple[str, str, str],
    second: tuple[str, str, str],
) -> list[Array]:
    (a, a0, a1), (b, b0, b1) = first, second
    found = []
    for f in fits:
        if (f.choices.get(a), f.choices.get(b)) != (a1, b1):
            continue
        corners = [
            cells.get(tuple(sorted({**f.choices, a: x, b: y}.items())))
            for x, y in ((a1, b1), (a0, b1), (a1, b0), (a0, b0))
        ]
        ceilings = [c.draws.A for c in corners if c is not None and c.draws is not None]
        if len(ceilings) == 4:
            found.append(ceilings[0] - ceilings[1] - ceilings[2] + ceilings[3])
    return found


def _levels(fits: Sequence[Fit]) -> dict[str, list[str]]:
    """Choices seen on every axis that varies, in order of appearance."""
    seen: dict[str, dict[str, None]] = {}
    for f in fits:
        for axis, choice in f.choices.items():
            seen.setdefault(axis, {})[choice] = None
    return {axis: list(choices) for axis, choices in seen.items() if len(choices) > 1}


def _rest(f: Fit, axis: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in f.choices.items() if k != axis))


def _mean_ceiling(fits: Sequence[Fit], axis: str, choice: str) -> float:
    found = [
        _ceiling(f)
        for f in fits
        if f.choices.get(axis) == choice and f.stable and f.draws is not None
    ]
    return float(np.mean(found)) if found else -np.inf
