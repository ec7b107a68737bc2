"""Which recipes of a sweep differ in one choice only, and how choices act on each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from analysis.curves import Array
from analysis.fits import Fit
from analysis.forecast import interval
from analysis.verdicts import Pair, ceiling


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
        ceiling(f)
        for f in fits
        if f.choices.get(axis) == choice and f.stable and f.draws is not None
    ]
    return float(np.mean(found)) if found else -np.inf
