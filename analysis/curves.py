"""Learning curves: cleaning, and the points of a recipe's seeds as arrays ready to fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

PERCENT_ABOVE = 1.5
"""Rewards with a median above this are percentages: no pass rate exceeds 1."""
COMPUTE_RANGE = (1e-30, 1e30)
"""Compute that can be fitted and drawn, whatever its unit."""
STDERR_RANGE = (1e-9, 1e3)
"""Standard errors that say something of a pass rate; others are taken as missing."""


class CurveError(ValueError):
    """A curve that cannot be read; its text is one line for the user."""


@dataclass(frozen=True)
class Curve:
    """One run's cleaned learning curve, by ascending compute."""

    run: str
    compute: Array
    """(n,) compute spent at each evaluation, > 0, strictly ascending."""
    reward: Array
    """(n,) held-out pass rate in [0, 1]."""
    stderr: Array | None = None
    """(n,) standard error of each reward, > 0."""
    r0: float | None = None
    """Pass rate measured before training (the point at compute 0)."""
    r0_stderr: float | None = None
    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(n,) position of each point among all evaluations of the run; 0 is the one at compute 0."""
    seed: int | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    truncation: Array | None = None
    """(n,) fraction of held-out responses cut at the length limit; NaN where unknown."""
    signals: Mapping[str, Array] = field(default_factory=dict)
    """Training metrics of any length by step, for health only, e.g. ``train/entropy``."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Points:
    """Points of one recipe, its seeds one after the other, each by ascending compute."""

    compute: Array
    """(n,) compute; 0 for a pass rate measured before training."""
    reward: Array
    """(n,)"""
    sd: Array
    """(n,) relative noise of each point, with root mean square 1: the scale is fitted."""
    gap: Array
    """(n,) evaluations since the previous point of the same seed; inf for its first."""
    series: NDArray[np.int64]
    """(n,) which seed, from 0."""

    def __len__(self) -> int:
        return len(self.compute)

    def where(self, kept: NDArray[np.bool_]) -> "Points":
        """The points of a mask that keeps the first ones of every seed."""
        return Points(*(getattr(self, f)[kept] for f in self.__dataclass_fields__))


def curve(
    run: str,
    compute: ArrayLike,
    reward: ArrayLike,
    stderr: ArrayLike | None = None,
    *,
    choices: Mapping[str, str] | None = None,
    seed: int | None = None,
    truncation: ArrayLike | None = None,
    signals: Mapping[str, ArrayLike] | None = None,
    percent: bool | None = None,
) -> Curve:
    """Clean raw points, in any order, into a `Curve` whose notes say what was done.

    Missing and infinite points are dropped, points at one compute averaged, the point at
    compute 0 becomes R0, negative compute is dropped.

    Args:
        run: Name of the run.
        compute: (n,) compute at each point, any unit.
        reward: (n,) pass rates in [0, 1], or percentages.
        stderr: (n,) their standard errors; missing ones take the median of the others.
        choices: Choice on every axis.
        seed: Seed of the run.
        truncation: (n,) truncation rates.
        signals: Training metrics by name, any length.
        percent: Whether rewards are percentages; None decides as `in_percent`.

    Raises:
        CurveError: Lengths differ, or a compute or a reward is outside the allowed range.
    """
    notes: list[str] = []
    table = _drop(_stacked(run, compute, reward, stderr, truncation), notes)
    _check_compute(run, table[:, 0])
    _to_fractions(run, table, percent, notes)
    table = _merge_repeats(table, notes)
    zero = table[table[:, 0] == 0]
    rest = table[table[:, 0] > 0]
    errors = _fill_errors(np.concatenate([zero[:, 2], rest[:, 2]]), notes)
    good = np.isfinite(rest[:, 1])
    return Curve(
        run=run,
        compute=rest[good, 0],
        reward=rest[good, 1],
        stderr=None if errors is None else errors[len(zero) :][good],
        r0=float(zero[0, 1]) if len(zero) and np.isfinite(zero[0, 1]) else None,
        r0_stderr=float(errors[0]) if errors is not None and len(zero) else None,
        index=np.flatnonzero(good) + 1,
        seed=seed,
        choices=dict(choices or {}),
        truncation=None if truncation is None else rest[good, 3],
        signals={k: np.asarray(v, dtype=np.float64) for k, v in (signals or {}).items()},
        notes=notes,
    )


def _stacked(
    run: str,
    compute: ArrayLike,
    reward: ArrayLike,
    stderr: ArrayLike | None,
    truncation: ArrayLike | None,
) -> Array:
    """(n, 4) the columns side by side, those not given NaN."""
    columns = [_column(run, "compute", compute), _column(run, "reward", reward)]
    for name, values in (("stderr", stderr), ("truncation", truncation)):
        filled = np.full(len(columns[0]), np.nan) if values is None else values
        columns.append(_column(run, name, filled))
        if len(columns[-1]) != len(columns[0]):
            raise CurveError(
                f"{run}: {len(columns[-1])} values of {name}, {len(columns[0])} points"
            )
    if len(columns[1]) != len(columns[0]):
        raise CurveError(
            f"{run}: {len(columns[1])} rewards for {len(columns[0])} values of compute"
        )
    return np.stack(columns, axis=1)


def in_percent(rewards: ArrayLike) -> bool:
    """Whether rewards are in percent, by the median: a stray one among fractions is not."""
    finite = [value for value in np.asarray(rewards, np.float64).tolist() if np.isfinite(value)]
    return bool(finite) and median(finite) > PERCENT_ABOVE


def recipes(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Group seeds of one recipe: the same choices, or the same name where there are none."""
    groups: dict[object, list[Curve]] = {}
    for c in curves:
        key = tuple(sorted(c.choices.items())) if c.choices else c.run
        groups.setdefault(key, []).append(c)
    return list(groups.values())


def points(
    seeds: Sequence[Curve],
    skip_below: float | None = None,
    until: float | None = None,
    measured_r0: bool = True,
) -> Points:
    """Stack the points of a recipe's seeds with skip_below <= compute <= until.

    R0 is kept whatever the window, as a point at compute 0, unless `measured_r0` is false:
    then it is left to the fit.
    """
    rows: list[tuple[float, float, float, float, int]] = []
    for series, c in enumerate(seeds):
        used = window(c, skip_below, until)
        last = -np.inf
        if measured_r0 and c.r0 is not None:
            rows.append((0.0, c.r0, c.r0_stderr or np.nan, np.inf, series))
            last = 0.0
        errors = np.full(len(c.compute), np.nan) if c.stderr is None else c.stderr
        for x, y, e, i in zip(
            c.compute[used], c.reward[used], errors[used], c.index[used], strict=True
        ):
            rows.append((float(x), float(y), float(e), float(i) - last, series))
            last = float(i)
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    return Points(
        compute=table[:, 0],
        reward=table[:, 1],
        sd=_relative(table[:, 2]),
        gap=table[:, 3],
        series=table[:, 4].astype(np.int64),
    )


def window(c: Curve, skip_below: float | None, until: float | None) -> NDArray[np.bool_]:
    """(n,) which points of a curve a fit uses."""
    low = 0.0 if skip_below is None else skip_below
    return (c.compute >= low) & (c.compute <= (np.inf if until is None else until))


def _column(run: str, name: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise CurveError(f"{run}: {name} has a value that is not a number") from None


def _drop(table: Array, notes: list[str]) -> Array:
    """Rows with a usable compute, in order of compute; unusable rewards become NaN."""
    bad = ~np.isfinite(table[:, 0])
    negative = table[:, 0] < 0
    missing = ~np.isfinite(table[:, 1]) & ~bad & ~negative
    table[missing, 1] = np.nan
    for mask, what in (
        (bad, "without a finite compute"),
        (negative & ~bad, "at negative compute"),
        (missing, "without a finite reward"),
    ):
        if mask.any():
            notes.append(f"{_count(mask)} {what} left out")
    kept = table[~bad & ~negative]
    return kept[np.argsort(kept[:, 0], kind="stable")]


def _merge_repeats(table: Array, notes: list[str]) -> Array:
    """One row for each compute: the mean of the finite rewards there."""
    levels, inverse = np.unique(table[:, 0], return_inverse=True)
    if len(levels) == len(table):
        return table
    notes.append(f"{len(table) - len(levels)} repeated points averaged with those at their compute")
    merged = np.full((len(levels), table.shape[1]), np.nan)
    merged[:, 0] = levels
    for j in range(1, table.shape[1]):
        finite = np.isfinite(table[:, j])
        count = np.bincount(inverse[finite], minlength=len(levels))
        total = np.bincount(inverse[finite], table[finite, j], minlength=len(levels))
        merged[count > 0, j] = total[count > 0] / count[count > 0]
    return merged


def _check_compute(run: str, compute: Array) -> None:
    low, high = COMPUTE_RANGE
    wrong = compute[(compute > 0) & ((compute < low) | (compute > high))]
    if len(wrong):
        raise CurveError(f"{run}: compute {wrong[0]:g}: allowed 0, or {low:g} to {high:g}")


def _to_fractions(run: str, table: Array, percent: bool | None, notes: list[str]) -> None:
    """Turn percentages into fractions in place, or refuse what is neither."""
    y = table[:, 1][np.isfinite(table[:, 1])]
    if percent is None:
        percent = in_percent(y)
    top = 100.0 if percent else 1.0
    wrong = y[(y < -1e-9) | (y > top * (1 + 1e-9))]
    if len(wrong):
        told = f"0 to 1, or percentages from 0 to 100 with a median above {PERCENT_ABOVE:g}"
        raise CurveError(f"{run}: reward {wrong[0]:g}: allowed {told}")
    if percent:
        table[:, 1:3] /= 100
        notes.append("rewards given in percent, divided by 100")
    table[:, 1] = np.clip(table[:, 1], 0.0, 1.0)


def _fill_errors(errors: Array, notes: list[str]) -> Array | None:
    """Standard errors with the unusable ones replaced by the median, or None if there are none."""
    low, high = STDERR_RANGE
    usable = (errors >= low) & (errors <= high)
    strange = (errors > 0) & ~usable
    if strange.any():
        notes.append(f"standard error of {_count(strange)} ignored: outside {low:g} to {high:g}")
    if not usable.any():
        return None
    if not usable.all():
        notes.append(f"{_count(~usable)} without a standard error given the median one")
    return np.where(usable, errors, np.median(errors[usable]))


def _relative(errors: Array) -> Array:
    """Noise of each point relative to the others; 1 where unknown.

    No point counts as less than half the median: a pass rate of 0 or 1 has an estimated error
    near zero, and would otherwise fix the curve by itself.
    """
    known = np.isfinite(errors)
    if not known.any():
        return np.ones(len(errors))
    median = float(np.median(errors[known]))
    filled = np.maximum(np.where(known, errors, median), 0.5 * median)
    return np.asarray(filled / np.sqrt(np.mean(filled**2)), dtype=np.float64)


def _count(mask: NDArray[np.bool_]) -> str:
    n = int(mask.sum())
    return f"{n} point" + ("s" if n > 1 else "")
