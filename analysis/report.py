"""What people read of an analysis: report.html, curves.svg, ranking.json, and a table.

``report.html`` is one file that needs no network: `analysis.page` writes what stays still, and
``report.js`` draws what moves from the curves embedded as JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from analysis import page
from analysis.curves import Curve, window
from analysis.fits import Fit
from analysis.notation import amount, chance, interval, rate, unit
from analysis.promise import ALARMS, WINDOW, Kept
from analysis.ranking import Analysis
from analysis.svg import curves_svg, kept_keys, kept_svg
from analysis.words import answer, ceiling, state

EMBEDDED_DRAWS = 40_000
"""Posterior curves in a page, shared out among its runs: about 1 MB."""
SCRIPT = '<script type="application/json" id="data">{}</script>\n<script>\n{}</script>\n'
FILTER_FROM = 13
"""Runs from which a reader is offered to filter them."""


def write(analysis: Analysis, folder: Path, context: Mapping[str, Any]) -> None:
    """Writes ``ranking.json``, ``curves.svg`` and ``report.html``, each whole or not at all.

    Args:
        analysis: what was found.
        folder: where to; made if it is not there.
        context: how it came about, for the last section: ``sweep`` or ``source`` name it, ``time``
            is in Unix seconds, and anything else is shown by its name.

    Raises:
        OSError: the folder cannot be written.
    """
    embedded = embed(analysis)
    # All is drawn before any is written: no new ranking beside an old figure.
    files = {
        "ranking.json": json.dumps(analysis.document(), indent=2, allow_nan=False) + "\n",
        "curves.svg": curves_svg(embedded),
        "report.html": _html(analysis, embedded, context),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        _replace(folder / name, text)


def write_kept(
    path: Path,
    kept: Kept,
    curve: Curve | None,
    evidence: Mapping[str, Any],
    told: Sequence[str],
    document: Mapping[str, Any],
) -> None:
    """Writes the page of a promoted run held against its forecast.

    Args:
        path: Where to, in a folder that exists.
        kept: How it stands.
        curve: All of its evaluations.
        evidence: What was written when it was promoted.
        told: The headline, and the sentences under it.
        document: What is known of it now.

    Raises:
        OSError: The file cannot be written.
    """
    forecast = evidence["forecast"]
    units = unit(forecast["axis"])
    words = [evidence["promotion"], f"promoted {_date(evidence['time'])}"]
    made = {
        "Sweep": evidence["sweep"],
        "Winner": ", ".join([evidence["winner"]["run"], *evidence["winner"]["changes"]]),
        "Run": f"{evidence['run_id']}, {document['state']}",
        "Judged by": forecast.get("metric"),
        "Settings": " ".join(evidence["settings"]),
        "Commit": evidence["commit"],
        "Versions": evidence["versions"],
    }
    body = _template("verify.html").substitute(
        figure=kept_svg(kept, curve, forecast["seen"], f"Compute ({units})"),
        keys=kept_keys(kept, forecast["seen"]),
        window=WINDOW,
        kept=f"{1 - ALARMS:.0%}",
        numbers=page.standing(document, WINDOW),
        notes="".join(f"<li>{escape(note)}</li>" for note in evidence["notes"]),
        made=page.pairs({name: value for name, value in made.items() if value}),
    )
    _replace(path, _page(evidence["promotion"], words, told, body))


def rows(analysis: Analysis) -> tuple[list[str], list[list[str]]]:
    """The ranking as a table of plain text: headers, and one row for each run, best first."""
    at = analysis.options.at
    forecast = [] if at is None else [f"at {amount(at)}", "95%"]
    headers = ["#", "run", *forecast, "A", "A 95%", "B", "C_mid", "best", "state"]
    lines = []
    for rank, (fit, row) in enumerate(zip(analysis.fits, analysis.document()["fits"], strict=True)):
        there = row.get("forecast", {})
        ahead = [rate(there["reward"]), interval(there["interval"])] if there else []
        B, C_mid = row["B"], row["C_mid"]
        lines.append(
            [
                str(rank + 1) if fit.stable and fit.draws else "–",
                fit.run,
                *ahead,
                rate(row["A"]),
                interval(row["A_interval"]),
                "–" if B is None else f"{B:.2f}",
                "–" if C_mid is None else amount(C_mid),
                chance(fit.probability_best),
                state(fit),
            ]
        )
    return headers, lines


def embed(analysis: Analysis) -> dict[str, Any]:
    """The curves as ``report.js`` and `curves_svg` draw them, best first, JSON-able.

    Each run has ``draws`` (d, 4) of (A, B, C_mid, R0) and ``points`` (n, 5) of compute, pass rate,
    standard error or null, whether it was fitted, and the seed's index.
    """
    axis = analysis.options.compute_axis
    count = max(100, min(1000, EMBEDDED_DRAWS // len(analysis.fits)))
    return {
        "unit": unit(axis),
        "label": "Compute" if axis == "compute" else f"Compute ({unit(axis)})",
        "at": analysis.options.at,
        "margin": analysis.margin,
        "runs": [_embed(fit, analysis, count) for fit in analysis.fits],
    }


def _embed(fit: Fit, analysis: Analysis, count: int) -> dict[str, Any]:
    best, d, bounds = fit.best, fit.draws, fit.interval("A")
    draws = np.zeros((0, 4)) if d is None else np.stack([d.A, d.B, d.C_mid, d.R0], axis=1)
    points = [p for i, curve in enumerate(fit.seeds) for p in _points(curve, i, analysis)]
    return {
        "name": fit.run,
        "choices": fit.choices,
        "state": state(fit),
        "fit": None if best is None else [_brief(v) for v in (best.A, best.B, best.C_mid, best.R0)],
        "ceiling": None if bounds is None else [ceiling(fit), *bounds],
        "chance": fit.probability_best if analysis.options.at is None else None,
        "draws": [[_brief(v) for v in draw] for draw in draws[:count]],
        "points": points,
    }


def _points(curve: Curve, seed: int, analysis: Analysis) -> list[list[float | None]]:
    o = analysis.options
    used = window(curve, o.skip_below, o.until)
    errors = [None] * len(used) if curve.stderr is None else map(_brief, curve.stderr)
    found: list[list[float | None]] = []
    if curve.r0 is not None:
        found.append([0.0, _brief(curve.r0), curve.r0_stderr, int(o.measured_r0), seed])
    for compute, value, error, kept in zip(curve.compute, curve.reward, errors, used, strict=True):
        found.append([float(compute), _brief(value), error, int(kept), seed])
    return found


def _brief(value: float) -> float:
    """Five significant digits: what a page can show, at half the size."""
    return float(f"{value:.5g}")


def _html(analysis: Analysis, embedded: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    headline, sentences = answer(analysis)
    context = {**context, "time": _date(context["time"])} if context.get("time") else context
    title = str(context.get("sweep") or context.get("source") or "Learning curves")
    finder = (
        '<label class="hidden" for="filter">Filter runs</label>'
        '<input class="filter" id="filter" type="search" placeholder="Filter runs">'
    )
    body = _template("report.html").substitute(
        unit=escape(embedded["unit"]),
        static=curves_svg(embedded),
        filter=finder if len(analysis.fits) >= FILTER_FROM else "",
        verdicts=page.verdicts(analysis),
        open=page.unsettled(analysis),
        runs=page.runs(analysis),
        made=page.made(analysis, context),
    )
    overline = _overline(analysis, title, context)
    return _page(title, overline, [headline, *sentences], body, embedded)


def _page(
    title: str,
    overline: Sequence[str],
    told: Sequence[str],
    body: str,
    embedded: Mapping[str, Any] | None = None,
) -> str:
    """A whole page: what every one has around its `body`, and ``report.js`` with its data."""
    script = "" if embedded is None else SCRIPT.format(_inert(embedded), _text("report.js"))
    return _template("page.html").substitute(
        scripts="script-src 'unsafe-inline'; " if script else "",
        title=escape(f"{title}: {told[0]}"),
        css=_text("report.css"),
        overline=escape(" · ".join(overline)),
        headline=escape(told[0]),
        lead=escape(" ".join(told[1:])),
        body=body,
        end=script,
    )


def _template(name: str) -> Template:
    return Template(_text(name))


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _overline(analysis: Analysis, title: str, context: Mapping[str, Any]) -> list[str]:
    """Whose report it is: name, size, what is open, date."""
    states = [state(fit) for fit in analysis.fits]
    told = [title, f"{len(states)} run{'s' if len(states) > 1 else ''}"]
    told += [f"{states.count(s)} {s}" for s in ("unresolved", "unstable") if s in states]
    return told + ([str(context["time"])] if context.get("time") else [])


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %B %Y, %H:%M} UTC".lstrip("0")


def _inert(value: object) -> str:
    """JSON that cannot end the script element it stands in, whatever names it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _replace(path: Path, text: str) -> None:
    """Writes aside, then puts in place: a reader sees the old file or the new one."""
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
