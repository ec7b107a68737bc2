"""The sections of report.html that do not move: the answer, verdicts, runs, how it was made.

Every name and sentence that comes from a configuration or a curve passes through `html.escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from analysis.effects import Interaction
from analysis.fits import Fit, windows
from analysis.notation import amount, chance, interval, rate, unit
from analysis.ranking import Analysis
from analysis.verdicts import Verdict
from analysis.words import state

SIGNS = {
    "higher ceiling": ("▲", "up"),
    "same ceiling, faster": ("▶", "up"),
    "lower ceiling": ("▼", "down"),
    "same ceiling, slower": ("◀", "down"),
    "no difference": ("=", "even"),
    "unresolved": ("?", "open"),
    "unstable": ("!", "down"),
}
"""Verdict to its sign, so that colour is never the only way to tell, and its colour class."""
PARAMETERS = {
    "A": "Ceiling A",
    "B": "Efficiency B",
    "C_mid": "Midpoint C_mid",
    "R0": "Start R0",
}
FOLDED_FROM = 24
"""Longer tables of verdicts start folded."""
LISTED = 8
"""Unsettled runs told at once; further ones are folded."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """A table of cells that are markup already; the first of a row is its header."""
    head = "".join(f'<th scope="col">{header}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def pairs(values: Mapping[str, object]) -> str:
    """A definition list; a mapping or a list within it becomes one line."""
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            value = "; ".join(map(str, value))
        rows.append(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def standing(document: Mapping[str, Any], window: int) -> str:
    """A promoted run in numbers: what was forecast, what is seen, and what is forecast now."""
    named = {
        "Forecast": document["forecast"],
        f"Observed, mean of the last {window}": document["observed"],
        "Forecast with its own points": document["refitted"],
    }
    rows = [
        (name, rate(it["reward"]), interval(it.get("interval")), amount(it["compute"]))
        for name, it in named.items()
        if it
    ]
    units = unit(document["forecast"]["axis"])
    notes = "".join(f"<li>{escape(note)}</li>" for note in document["notes"])
    shown = table(("", "Pass rate", "95% interval", f"At {escape(units)}"), rows, "numbers")
    told = f'<h3>What is seen of the run</h3><ul class="open-list">{notes}</ul>' if notes else ""
    return shown + told


def _gap(v: Verdict, margin: float) -> str:
    """The difference with its interval around zero: in A to 5 margins, shaded to one, or in B."""
    if v.difference is None or v.interval is None:
        return ""
    in_b = v.verdict.startswith("same ceiling") or v.verdict == "no difference"
    name, reach = ("efficiency B", 1.5) if in_b else ("ceiling A", 5 * margin)

    def x(value: float) -> float:
        return round(90 + 85 * max(-1.0, min(1.0, value / reach)), 1)

    low, high = v.interval
    text = f"{name}: {v.difference:+.3f}, 95% interval {low:+.3f} to {high:+.3f}"
    zone = f'<rect class="zone" x="{x(-margin)}" width="{x(margin) - x(-margin):.1f}" height="22"/>'
    return (
        f'<svg viewBox="0 0 180 22" role="img" aria-label="{text}"><title>{text}</title>'
        f'{"" if in_b else zone}<path class="zero" d="M90 0v22"/>'
        f'<path class="reach" d="M{x(low)} 11H{x(high)}"/>'
        f'<circle class="dot" cx="{x(v.difference)}" cy="11" r="4"/></svg><small>{name}</small>'
    )


def _verdict(v: Verdict, analysis: Analysis) -> tuple[str, ...]:
    sign, css = SIGNS[v.verdict]
    name = v.choice if v.axis == "run" else f"{v.axis}={v.choice}"
    return (
        f"<b>{escape(name)}</b> <small>against {escape(v.versus)}</small>",
        f'<span class="word {css}"><i aria-hidden="true">{sign}</i> {escape(v.verdict)}</span>',
        _gap(v, analysis.margin),
        escape(f"{v.evidence}."),
    )


def verdicts(analysis: Analysis) -> str:
    """What each choice does: verdict, difference and evidence, in one table."""
    found = analysis.verdicts
    if not found:
        return ""
    shown = table(
        ("Choice", "Verdict", "Difference", "Evidence"),
        [_verdict(v, analysis) for v in found],
        "verdicts",
    )
    if len(found) > FOLDED_FROM:
        shown = f"<details><summary>All {len(found)} comparisons</summary>{shown}</details>"
    title = "How the runs compare" if found[0].axis == "run" else "What each choice does"
    margin = analysis.margin
    note = (
        "A choice with the higher ceiling wins; where ceilings differ by no more than the margin "
        f"of {margin:g} (shaded), the more efficient curve does. Bars are 95% intervals, cut off "
        f"at ±{5 * margin:g} in A and ±1.5 in B."
    )
    return (
        f'<section><h2>{title}</h2><p class="note">{note}</p>{shown}'
        f"{_interactions(analysis.interactions)}</section>"
    )


def _interactions(found: Sequence[Interaction]) -> str:
    if not found:
        return ""
    rows = [
        (
            escape(" with ".join(f"{a}={c}" for a, c in zip(i.axes, i.choices, strict=True))),
            f"{i.difference:+.3f}",
            f"{i.interval[0]:+.3f} to {i.interval[1]:+.3f}",
        )
        for i in found
    ]
    headers = ("Choices together", "Ceiling beyond the sum of both effects", "95% interval")
    return f"<h3>Choices that depend on each other</h3>{table(headers, rows)}"


def _doubts(fit: Fit) -> list[str]:
    """Why a fit should not be relied on: the problems of the run, or the last of its notes."""
    count = int(fit.better_form is not None) + int(not fit.resolved)
    return fit.health.problems or (fit.notes[-count:] if count else [])


def unsettled(analysis: Analysis) -> str:
    """What is unresolved, unstable or poorly described, and what would settle it."""
    doubts = [(fit.run, _doubts(fit)) for fit in analysis.fits]
    items = [
        f"<li><b>{escape(r)}</b>: {escape('; '.join(told))}.</li>" for r, told in doubts if told
    ]
    if not items:
        return ""
    shown = f'<ul class="open-list">{"".join(items[:LISTED])}</ul>'
    if items[LISTED:]:
        more = f'<ul class="open-list">{"".join(items[LISTED:])}</ul>'
        shown += f"<details><summary>{len(items) - LISTED} more</summary>{more}</details>"
    return f"<section><h2>What is not settled</h2>{shown}</section>"


def _parameters(fit: Fit) -> str:
    quoted = fit.best if fit.resolved else None
    rows = []
    for name, said in PARAMETERS.items():
        show, bounds = amount if name == "C_mid" else rate, fit.interval(name)
        value = "unresolved" if quoted is None else show(getattr(quoted, name))
        between = "–" if bounds is None else f"{show(bounds[0])}–{show(bounds[1])}"
        rows.append((said, value, between))
    return table(("Fit", "Value", "95% interval"), rows, "numbers")


def _seeds(fit: Fit) -> str:
    """Each seed's points, last pass rate, and mean distance from the curve they share."""
    rows = []
    for series, curve in enumerate(fit.seeds):
        mine = fit.points.series == series
        gap = f"{np.mean(fit.residuals[mine]):+.3f}" if fit.best and mine.any() else "–"
        last = rate(float(curve.reward[-1])) if len(curve.reward) else "–"
        name = "–" if curve.seed is None else str(curve.seed)
        rows.append((name, str(len(curve.reward)), last, gap))
    return table(("Seed", "Points", "Last", "Mean residual"), rows, "numbers")


def _windows(fit: Fit, measured_r0: bool) -> str:
    cuts = windows(fit, measured_r0)
    rows = [(amount(cut["skip_below"]), rate(cut["A"]), rate(cut["B"])) for cut in cuts]
    return table(("Without points below", "A", "B"), rows, "numbers") if rows else ""


def _rivals(fit: Fit) -> str:
    """How far each form misses the second half, where the sigmoid misses it by more than noise."""
    rows = [(escape(form), rate(error)) for form, error in fit.tail_errors.items()]
    headers = ("Fitted on the first half", "Error on the second")
    return table(headers, rows, "numbers") if rows else ""


def _brief(fit: Fit) -> str:
    """The line of a folded run: its number, name, and parameters or why there are none."""
    if fit.resolved and fit.best and fit.stable:
        best = fit.best
        values = {"A": rate(best.A), "B": f"{best.B:.2f}", "C_mid": amount(best.C_mid)}
        cells = "".join(f"<span>{name} <em>{value}</em></span>" for name, value in values.items())
    else:
        cells = f'<span class="word down">{state(fit)}</span>'
    return f"<b>{escape(fit.run)}</b>{cells}"


def _run(fit: Fit, rank: int, measured_r0: bool) -> str:
    more = {
        "Points fitted": int(np.count_nonzero(fit.points.compute)),
        "Spread around the curve": rate(fit.rmse),
        "Likely to be best": chance(fit.probability_best),
    }
    parts = {
        "Recipe": pairs(fit.choices) if fit.choices else "<p>Not given.</p>",
        "Curve": _parameters(fit) + pairs(more),
        "Residuals against compute": '<div class="residuals"></div>' if fit.best else "",
        "Sensitivity to early points": _windows(fit, measured_r0),
        "Other curves": _rivals(fit),
        "Seeds": _seeds(fit),
        "Notes": "".join(f"<p>{escape(note)}</p>" for note in fit.notes),
    }
    blocks = "".join(f"<div><h3>{h}</h3>{body}</div>" for h, body in parts.items() if body)
    number = rank + 1 if fit.stable and fit.draws is not None else "–"
    return (
        f'<details data-run="{rank}"><summary><span>{number}</span>{_brief(fit)}</summary>'
        f'<div class="deep">{blocks}</div></details>'
    )


def runs(analysis: Analysis) -> str:
    """Every run, folded: its recipe, fit, residuals, window sensitivity and seeds."""
    measured = analysis.options.measured_r0
    return "".join(_run(fit, rank, measured) for rank, fit in enumerate(analysis.fits))


def made(analysis: Analysis, context: Mapping[str, Any]) -> str:
    """How the report came about: what was run, and how it was judged."""
    o = analysis.options
    units = unit(o.compute_axis)
    used = [f"from {amount(o.skip_below)}"] if o.skip_below else []
    used += [f"up to {amount(o.until)}"] if o.until else []
    order = f"A beyond a margin of {analysis.margin:g}, then B at a shared A"
    judged = {
        "Curve": "R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B), arXiv 2510.13786",
        "Points": f"{' '.join(used)} {units}" if used else "all",
        "Order": f"forecast at {amount(o.at)} {units}" if o.at else order,
        "Intervals": "95%, over the curves that the points allow, with noise correlated from one "
        "evaluation to the next",
    }
    shown = {key.replace("_", " ").capitalize(): value for key, value in context.items() if value}
    return pairs({**shown, **judged, **({"Notes": analysis.notes} if analysis.notes else {})})
