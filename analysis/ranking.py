"""A sweep judged: every recipe's fit, the order, the verdicts, and all of it as one document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from analysis import effects, pooling, sigmoid, verdicts
from analysis.curves import COMPUTE_RANGE, Array, Curve, CurveError, recipes
from analysis.effects import Interaction
from analysis.fits import Fit, judge, seed_margin, settle
from analysis.forecast import interval
from analysis.verdicts import Verdict

STRATEGIES = ("grid", "one_at_a_time", "leave_one_out", "adaptive")


@dataclass(frozen=True)
class Options:
    """What is asked of the curves."""

    at: float | None = None
    """Compute to forecast at and to rank by; None ranks by the ceilings."""
    until: float | None = None
    """Only points with compute <= until are fitted."""
    margin: float = 0.02
    """Differences in A within it are none: three runs of one recipe differ by up to 0.015
    (arXiv 2510.13786)."""
    skip_below: float | None = None
    """Points with compute < skip_below are left out (the paper: about the first epoch)."""
    compute_axis: str = "compute"
    """Name of the compute axis, for labels."""
    measured_r0: bool = True
    """Use the pass rate before training as a point; False leaves R0 to the fit."""
    pool: bool = True
    """Let the recipes of a sweep lend each other strength where that forecasts better."""
    margin_from_seeds: bool = False
    """Measure the margin from recipes run with several seeds, instead of `margin`."""
    seed: int = 0
    """Seed of the posterior draws."""

    def __post_init__(self) -> None:
        for name in ("at", "until", "margin", "skip_below"):
            given = getattr(self, name)
            if given is None or (np.isfinite(given) and given > 0):
                continue
            if name == "skip_below" and given == 0:
                continue
            raise CurveError(f"{name}: got {given!r}, allowed: a number > 0")
        low, high = COMPUTE_RANGE
        if self.at is not None and not low <= self.at <= high:
            raise CurveError(f"at: got {self.at:g}, allowed: {low:g} to {high:g}")


@dataclass
class Analysis:
    """Everything said of a set of curves."""

    options: Options
    fits: list[Fit]
    """Best first."""
    verdicts: list[Verdict]
    interactions: list[Interaction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    margin: float = 0.02
    """The margin used."""

    @property
    def order(self) -> list[str]:
        """Names of the runs, best first."""
        return [f.run for f in self.fits]

    def document(self) -> dict[str, Any]:
        """The JSON document of `shortlist fit` and `rank`: no NaN, unresolved parameters null."""
        o = self.options
        return {
            "options": {
                "at": o.at,
                "until": o.until,
                "margin": self.margin,
                "skip_below": o.skip_below,
                "compute_axis": o.compute_axis,
            },
            "fits": [_row(f, o.at) for f in self.fits],
            "verdicts": [asdict(v) for v in self.verdicts],
            "interactions": [asdict(i) for i in self.interactions],
            "order": self.order,
            "notes": self.notes,
        }


def analyse(
    curves: Sequence[Curve],
    options: Options = Options(),
    strategy: str | None = None,
    base: Mapping[str, str] | None = None,
) -> Analysis:
    """Judge curves: fits, order, and verdicts in the way the sweep's strategy calls for.

    Args:
        curves: One for each run; seeds of a recipe are fitted together.
        options: See `Options`.
        strategy: How the recipes were made, one of `STRATEGIES`; None compares every recipe with
            the best.
        base: The recipe that the others of a one-at-a-time or leave-one-out sweep differ from.

    Raises:
        CurveError: No curves, or an unknown strategy.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise CurveError(f"strategy: got {strategy!r}, allowed: {' | '.join(STRATEGIES)}")
    analysis = order(curves, options)
    rng = np.random.default_rng(options.seed)
    for axis, choice, versus, pairs in _comparisons(analysis, strategy, base):
        verdict = verdicts.compare(axis, choice, versus, pairs, analysis.margin, rng)
        analysis.verdicts.append(verdict)
    if strategy == "grid":
        analysis.interactions = effects.interactions(analysis.fits, analysis.margin)
    return analysis


def order(curves: Sequence[Curve], options: Options = Options()) -> Analysis:
    """Fits, probabilities and order alone, without verdicts: what a race asks for at every pass.

    Raises:
        CurveError: No curves.
    """
    if not curves:
        raise CurveError("curves: got none, allowed: at least one run")
    rng = np.random.default_rng(options.seed)
    fits = judge(
        recipes(curves),
        rng,
        margin=options.margin,
        skip_below=options.skip_below,
        until=options.until,
        measured_r0=options.measured_r0,
    )
    analysis = Analysis(options, fits, [], margin=options.margin)
    if options.margin_from_seeds:
        _measure_margin(analysis)
    if options.pool:
        _pool(analysis, rng)
    _probabilities(analysis)
    analysis.fits = _ordered(analysis)
    return analysis


def _measure_margin(analysis: Analysis) -> None:
    """The margin within which two runs of one recipe differ 95% of the time."""
    measured = seed_margin(analysis.fits)
    if measured is None:
        analysis.notes.append(
            f"margin not measured: no recipe with several fitted seeds; {analysis.margin:g} is used"
        )
        return
    analysis.margin = measured
    for f in analysis.fits:
        settle(f, measured)


def _pool(analysis: Analysis, rng: np.random.Generator) -> None:
    """Redraw every recipe's curve under a prior learned from all, if any ceiling is open."""
    ranked = [f for f in analysis.fits if f.stable]
    known = [(f.points, f.draws) for f in ranked if f.draws is not None]
    if len(known) < pooling.FEWEST or all(f.resolved for f in ranked):
        return
    draws, said = pooling.lend(known, rng)
    analysis.notes.append(said)
    for f, d in zip([f for f in ranked if f.draws is not None], draws or (), strict=False):
        f.draws = d
        settle(f, analysis.margin)


def _comparisons(
    analysis: Analysis, strategy: str | None, base: Mapping[str, str] | None
) -> list[tuple[str, str, str, list[verdicts.Pair]]]:
    fits = analysis.fits
    if strategy in ("one_at_a_time", "leave_one_out"):
        found = effects.against_base(fits, base or {})
        if found or len(fits) == 1:
            return found
        analysis.notes.append("no run of the base recipe: runs are compared with the best instead")
    elif strategy in ("grid", "adaptive"):
        found = effects.within_grid(fits, base)
        if found:
            return found
    best = fits[0]
    return [("run", f.run, best.run, [(f, best)]) for f in fits[1:]]


def _probabilities(analysis: Analysis) -> None:
    """How often each stable recipe is the best over the posterior, at the compute asked for."""
    ranked = [f for f in analysis.fits if f.stable and f.draws is not None]
    if not ranked:
        return
    values = np.stack([_draws_at(f, analysis.options.at) for f in ranked])
    wins = np.bincount(values.argmax(axis=0), minlength=len(ranked)) / values.shape[1]
    for f, p in zip(ranked, wins, strict=True):
        f.probability_best = float(p)


def _draws_at(f: Fit, at: float | None) -> Array:
    if f.draws is None:
        raise ValueError(f"{f.run} has no draws")
    return f.draws.A if at is None else f.draws.at(np.array([at]))[:, 0]


def _ordered(analysis: Analysis) -> list[Fit]:
    """Best first: by forecast at `at`, or by A, and by B at a shared A within the margin of it.

    An unresolved ceiling counts at the low end of its interval, so that it outranks only what it
    surely beats. Recipes that cannot be ranked come last: unfitted, then unstable.
    """
    ranked = [f for f in analysis.fits if f.stable and f.draws is not None]
    at = analysis.options.at
    if at is not None:
        ranked.sort(key=lambda f: -float(np.median(_draws_at(f, at))))
    else:
        ranked = _by_ceiling(ranked, analysis.margin)
    unfitted = [f for f in analysis.fits if f.stable and f.draws is None]
    return ranked + unfitted + [f for f in analysis.fits if not f.stable]


def _by_ceiling(fits: Sequence[Fit], margin: float) -> list[Fit]:
    """The leader's group is all within the margin of it; then the next group, and so on."""
    ceilings = {
        f.run: f.best.A if f.resolved and f.best else interval(_draws_at(f, None))[0] for f in fits
    }
    left = sorted(fits, key=lambda f: -ceilings[f.run])
    ordered: list[Fit] = []
    while left:
        group = [f for f in left if ceilings[f.run] >= ceilings[left[0].run] - margin]
        left = left[len(group) :]
        if len(group) > 1:
            shared = float(np.mean([ceilings[f.run] for f in group]))
            B = sigmoid.fit_all([f.points for f in group], A=shared).B
            group = [group[i] for i in np.argsort(-B)]
        ordered += group
    return ordered


def _row(f: Fit, at: float | None) -> dict[str, Any]:
    quoted = f.best if f.resolved else None
    row: dict[str, Any] = {
        "run": f.run,
        "runs": [c.run for c in f.seeds],
        "choices": f.choices,
        "seeds": [c.seed for c in f.seeds if c.seed is not None],
    }
    for name in ("A", "B", "C_mid", "R0"):
        row[name] = None if quoted is None else getattr(quoted, name)
    for name in ("A", "B", "C_mid"):
        row[f"{name}_interval"] = f.interval(name)
    row |= {
        "rmse": f.rmse,
        "prompt_error": f.prompt_error,
        "n_points": int(np.count_nonzero(f.points.compute)),
        "resolved": f.resolved,
        "stable": f.stable,
        "notes": f.notes,
        "needed_compute": f.needed_compute,
        "probability_best": f.probability_best,
    }
    if at is not None:
        values = None if f.draws is None else _draws_at(f, at)
        row["forecast"] = {
            "compute": at,
            "reward": None if values is None else float(np.median(values)),
            "interval": None if values is None else interval(values),
        }
    return row
