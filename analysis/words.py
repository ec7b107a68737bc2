"""Numbers and findings in words, the same in a terminal, in the report and in the figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits import Fit
from analysis.ranking import Analysis

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNITS = {
    "steps": "optimizer steps",
    "prompt_tokens": "prompt tokens",
    "generated_tokens": "generated tokens",
    "trained_tokens": "trained tokens",
    "tokens": "tokens",
    "flops": "FLOPs",
    "gpu_hours": "GPU-hours",
}
"""Compute axes of `recipes.meter` as a reader calls them; others keep their own name."""


def amount(compute: float) -> str:
    """A compute to three digits: ``4,000``, ``0.25``, ``1.2×10¹⁶``."""
    if compute == 0:
        return "0"
    if 0.01 <= compute < 1e6:
        digits = float(f"{compute:.3g}")
        return f"{digits:,.0f}" if digits.is_integer() else f"{digits:,g}"
    digit, power = f"{compute:.1e}".split("e")
    raised = f"10{str(int(power)).translate(RAISED)}"
    return raised if digit == "1.0" else f"{digit}×{raised}"


def rate(value: float | None) -> str:
    """A pass rate, or a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def interval(bounds: Sequence[float | None] | None, digits: int = 3) -> str:
    """A 95% interval; an open end is written ∞."""
    if bounds is None:
        return "–"
    low, high = ("∞" if bound is None else f"{bound:.{digits}f}" for bound in bounds)
    return f"{low}–{high}"


def chance(probability: float | None) -> str:
    """A probability as a percentage that never claims certainty."""
    if probability is None:
        return "–"
    if probability > 0.995:
        return ">99%"
    return "<1%" if probability < 0.005 else f"{100 * probability:.0f}%"


def unit(axis: str) -> str:
    """What a compute axis counts, in words."""
    return UNITS.get(axis, "units of compute" if axis == "compute" else axis)


def state(fit: Fit) -> str:
    """Whether a fit's ceiling can be quoted, in a word or two."""
    if not fit.stable:
        return "unstable"
    if fit.draws is None:
        return "without a fit"
    return "resolved" if fit.resolved else "unresolved"


def ceiling(fit: Fit) -> float | None:
    """A where it is resolved, the middle of what it may be where it is not, None without a fit."""
    if fit.draws is None:
        return None
    return fit.best.A if fit.resolved and fit.best else float(np.median(fit.draws.A))


def answer(analysis: Analysis) -> tuple[str, list[str]]:
    """A report's headline, and the sentences under it: what won, why, and how sure that is."""
    ranked = [fit for fit in analysis.fits if fit.stable and fit.draws is not None]
    if not ranked:
        return "No run can be ranked yet", ["None is both stable and long enough to fit a curve."]
    best, at = ranked[0], analysis.options.at
    if at is not None and best.draws is not None:
        values = best.draws.at(np.array([at]))[:, 0]
        low, mid, high = np.quantile(values, [0.025, 0.5, 0.975])
        where = f"{amount(at)} {unit(analysis.options.compute_axis)}"
        told = f"Its forecast there is {mid:.3f} (95% interval {low:.3f}–{high:.3f})."
        return f"At {where}, {best.run} is ahead", [told, _likely(best, "best there")]
    return _by_ceiling(analysis, ranked)


def _likely(fit: Fit, what: str) -> str:
    return f"It is {chance(fit.probability_best)} likely to be {what}."


def _by_ceiling(analysis: Analysis, ranked: Sequence[Fit]) -> tuple[str, list[str]]:
    best, margin = ranked[0], analysis.margin
    bounds = best.interval("A")
    if not best.resolved:
        told = f"Its ceiling lies somewhere in {interval(bounds)}; its points do not say where."
        return f"{best.run} leads, but its ceiling is not settled", [told, _needed(analysis, best)]
    tops = {f.run: c for f in ranked if f.resolved and (c := ceiling(f)) is not None}
    peak = max(tops.values())
    level = [run for run, top in tops.items() if top >= peak - margin]
    sure = sum(f.probability_best or 0.0 for f in ranked if f.run in level)
    told = f"It levels off at {rate(tops[best.run])} (95% interval {interval(bounds)})"
    behind = max((top for run, top in tops.items() if run not in level), default=None)
    if len(level) > 1:
        head = f"{best.run} is the fastest of {len(level)} runs with the same ceiling"
        others = _names([run for run in level if run != best.run])
        lead = [f"{told}, within the margin of {margin:g} of {others}; it gets there first."]
    else:
        head = f"{best.run} {'has' if sure >= 0.9 else 'seems to have'} the highest ceiling"
        gap = "" if behind is None else f", {peak - behind:.3f} above the next"
        lead = [f"{told}{gap}.", _likely(best, "the highest")]
    rivals = [f.run for f in ranked if not f.resolved and (f.probability_best or 0) > 0.05]
    if rivals:
        lead.append(f"Not ruled out, because unresolved: {_names(rivals)}.")
    return head, lead


def _names(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return ", ".join(runs[:3]) + more


def _needed(analysis: Analysis, fit: Fit) -> str:
    if fit.needed_compute is None:
        return "Far more compute than it has would be needed to tell."
    units = unit(analysis.options.compute_axis)
    return f"At about {amount(fit.needed_compute)} {units} it should be known to the margin."
