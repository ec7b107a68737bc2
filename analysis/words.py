"""Findings in words, the same in a terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.fits import Fit
from analysis.forecast import FURTHEST, crossing, value
from analysis.notation import amount, chance, interval, rate, unit
from analysis.ranking import Analysis

SURE = 0.9
"""Probability from which a winner is called one without "seems"."""
UNSURE = 0.5
"""Probability under which it is not called one."""


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
    at = analysis.options.at
    return _by_ceiling(analysis, ranked) if at is None else _at(analysis, ranked, at)


def _at(analysis: Analysis, ranked: Sequence[Fit], at: float) -> tuple[str, list[str]]:
    best = ranked[0]
    row = next(row for row in analysis.document()["fits"] if row["run"] == best.run)["forecast"]
    ahead = "is ahead" if (best.probability_best or 0) >= SURE else "seems to be ahead"
    head = f"At {amount(at)} {unit(analysis.options.compute_axis)}, {best.run} {ahead}"
    told = (
        f"Its forecast there is {rate(row['reward'])} (95% interval {interval(row['interval'])})."
    )
    likely = _likely(best, "the best there")
    if len(ranked) > 1:
        likely += f" {ranked[1].run} comes next, at {chance(ranked[1].probability_best)}."
    return head, [told, likely]


def _likely(fit: Fit, what: str) -> str:
    return f"It is {chance(fit.probability_best)} likely to be {what}."


def _open(analysis: Analysis, fit: Fit) -> list[str]:
    bounds = interval(fit.interval("A"))
    told = f"Its ceiling lies somewhere in {bounds}; its points do not say where."
    if fit.needed_compute is None:
        return [told, "Far more compute than it has would be needed to tell."]
    units = unit(analysis.options.compute_axis)
    when = f"{amount(fit.needed_compute)} {units}"
    return [told, f"At about {when} it should be known to the margin."]


def _alone(analysis: Analysis, fit: Fit) -> tuple[str, list[str]]:
    if not fit.resolved or fit.best is None:
        return f"The ceiling of {fit.run} is not settled", _open(analysis, fit)
    half = f"{amount(fit.best.C_mid)} {unit(analysis.options.compute_axis)}"
    told = f"Half of the gain is made at {half}, with an efficiency B of {fit.best.B:.2f}."
    bounds = f"The 95% interval is {interval(fit.interval('A'))}."
    return f"{fit.run} levels off at {rate(fit.best.A)}", [bounds, told]


def _by_ceiling(analysis: Analysis, ranked: Sequence[Fit]) -> tuple[str, list[str]]:
    best, margin = ranked[0], analysis.margin
    if len(ranked) == 1:
        return _alone(analysis, best)
    if not best.resolved:
        head = "leads, but its ceiling is"
        if (best.probability_best or 0.0) >= SURE:
            head = "has the highest ceiling, though how high is"
        lead = [*_open(analysis, best), _likely(best, "the highest")]
        return f"{best.run} {head} not settled", lead
    tops = {f.run: c for f in ranked if f.resolved and (c := ceiling(f)) is not None}
    peak = max(tops.values())
    level = [run for run, top in tops.items() if top >= peak - margin]
    sure = sum(f.probability_best or 0.0 for f in ranked if f.run in level)
    told = f"It levels off at {rate(tops[best.run])} (95% interval {interval(best.interval('A'))})"
    behind = max((top for run, top in tops.items() if run not in level), default=None)
    if sure < UNSURE:
        head = f"The highest ceiling is not settled; {best.run} leads so far"
        lead = [f"{told}. The ceilings of runs trained too short may be higher."]
    elif len(level) > 1:
        head, why = _level(analysis, [f for f in ranked if f.run in level], told)
        lead = [
            why,
            f"One of these {len(level)} is {chance(sure)} likely to have the highest ceiling.",
        ]
    else:
        head = f"{best.run} {'has' if sure >= SURE else 'seems to have'} the highest ceiling"
        gap = "" if behind is None else f", {peak - behind:.3f} above the next"
        lead = [f"{told}{gap}.", _likely(best, "the highest")]
    lead += _overtaking(analysis, ranked)
    rivals = [f.run for f in ranked if not f.resolved and (f.probability_best or 0) > 0.05]
    if rivals:
        lead.append(f"Not ruled out, because unresolved: {_names(rivals)}.")
    return head, lead


def _level(analysis: Analysis, fits: Sequence[Fit], told: str) -> tuple[str, str]:
    """The headline where several runs level off within the margin of each other, and why."""
    best, margin = fits[0], analysis.margin
    draws = [f.draws.A for f in fits if f.draws is not None]
    alike = all(np.mean(np.abs(other - draws[0]) <= margin) >= SURE for other in draws[1:])
    if alike:
        others = _names([f.run for f in fits[1:]])
        head = f"{best.run} is the fastest of {len(fits)} runs with the same ceiling"
        return head, f"{told}, within the margin of {margin:g} of {others}; it gets there first."
    head = f"{len(fits)} runs lead, and cannot be told apart yet"
    names = _names([f.run for f in fits])
    tops = [top for f in fits if (top := ceiling(f)) is not None]
    where = f"{rate(min(tops))} to {rate(max(tops))}"
    why = f"The ceilings of {names} are within the margin of {margin:g} of each other ({where})"
    return head, f"{why}, but not known that well."


def _overtaking(analysis: Analysis, ranked: Sequence[Fit]) -> list[str]:
    """Where the best passes the run that is ahead at the compute spent so far, if another is."""
    spent = max(f.last_compute for f in ranked)
    known = [(f, f.draws) for f in ranked if f.draws is not None]
    (best, draws), (first, others) = known[0], max(known, key=lambda k: value(k[1], spent).middle)
    where = crossing(draws, others, spent, FURTHEST * spent).compute
    if first is best or where is None:
        return []
    units = unit(analysis.options.compute_axis)
    now = f"At the {amount(spent)} {units} spent so far, {first.run} is ahead"
    return [f"{now}; {best.run} should pass it at about {amount(where.middle)}."]


def _names(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return ", ".join(runs[:3]) + more
