"""curves.svg: the fitted curves as a figure for papers, written by hand and the same every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.curves import Array, Curve
from analysis.notation import amount
from analysis.promise import WINDOW, Kept
from analysis.sigmoid import value

WIDTH, HEIGHT = 720, 430
LEFT, RIGHT, TOP, BOTTOM = 58, 520, 16, 380
SHOWN = 6
"""Curves with colour, points and band; those further down are thin grey lines."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, jfly.uni-koeln.de/color, without black and yellow."""
SHAPES = (
    '<circle id="m0" r="3.2"/>',
    '<rect id="m1" x="-2.9" y="-2.9" width="5.8" height="5.8"/>',
    '<path id="m2" d="M0-3.9 3.6 2.6-3.6 2.6Z"/>',
    '<path id="m3" d="M0-4.2 4.2 0 0 4.2-4.2 0Z"/>',
    '<path id="m4" d="M0 3.9 3.6-2.6-3.6-2.6Z"/>',
    '<path id="m5" d="M-1.3-3.9h2.6v2.6h2.6v2.6h-2.6v2.6h-2.6v-2.6h-2.6v-2.6h2.6Z"/>',
    f'<clipPath id="axes"><path d="M{LEFT} {TOP - 4}H{RIGHT + 4}V{BOTTOM + 4}H{LEFT}Z"/>'
    "</clipPath>",
)
STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#222}.tick{fill:#555;font-size:11px}"
    ".grid{stroke:#e4e4e4}.axis{stroke:#444;fill:none}.fit{fill:none;stroke-width:1.8}"
    ".ahead{stroke-dasharray:5 4}.muted{fill:none;stroke:#bbb}.at{stroke:#222;stroke-dasharray:2 3}"
)

THEMED = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:var(--ink)}.tick{fill:var(--soft);"
    "font-size:11px}.grid,.seen{stroke:var(--line)}.axis{stroke:var(--faint);fill:none}"
    ".seen{stroke:var(--soft);stroke-dasharray:2 3}.band{fill:var(--c0);opacity:.16}"
    ".middle{fill:none;stroke:var(--c0);stroke-width:1.6;stroke-dasharray:5 4}"
    ".mean{fill:none;stroke:var(--c1);stroke-width:2}.point{fill:var(--c1);opacity:.6}"
    ".made{fill:var(--page);stroke:var(--soft)}.out{fill:none;stroke:var(--bad);stroke-width:2.4}"
    "@media(max-width:520px){svg text,svg .tick{font-size:16px}text[transform]{display:none}}"
)
"""For a figure within a page, in the page's colours, light or dark."""


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values from low to high, about as many as wanted."""
    rough = (high - low) / wanted
    power = 10 ** np.floor(np.log10(rough))
    step = float(next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9)))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [k * step for k in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, with 2 and 5 between them where there are few."""
    span = float(np.log10(high / low))
    every, steps = max(1, round(span / 8)), (1, 2, 5) if span < 3 else (1,)
    powers = range(int(np.floor(np.log10(low))), int(np.log10(high)) + 1, every)
    return [step * 10.0**p for p in powers for step in steps if low <= step * 10.0**p <= high]


def quantiles(run: Mapping[str, Any], compute: Array) -> Array:
    """The 2.5%, 50% and 97.5% points of a run's draws at each compute: (n,) -> (3, n)."""
    A, B, C_mid, R0 = np.array(run["draws"], dtype=np.float64).T[:, :, None]
    return np.asarray(np.quantile(value(compute, A, B, C_mid, R0), [0.025, 0.5, 0.975], axis=0))


class _Axes:
    """Places compute (log; from 0 on, linear) and pass rate on the figure."""

    def __init__(self, low: float, high: float, bottom: float, top: float) -> None:
        self.low, self.high, self.bottom, self.top = low, max(high, 1.01 * low), bottom, top

    def x(self, compute: Array | float) -> Array:
        compute = np.asarray(compute)
        if self.low == 0:
            part = compute / self.high
        else:
            part = np.log(compute / self.low) / np.log(self.high / self.low)
        return np.asarray(LEFT + part * (RIGHT - LEFT))

    def marks(self) -> list[float]:
        """Round values of compute."""
        return ticks(0, self.high, 5) if self.low == 0 else decades(self.low, self.high)

    def y(self, rate: Array | float) -> Array:
        part = (np.asarray(rate) - self.bottom) / (self.top - self.bottom)
        return np.asarray(BOTTOM - part * (BOTTOM - TOP))


def _axes(page: Mapping[str, Any]) -> _Axes:
    points = np.array([p[:2] for run in page["runs"] for p in run["points"] if p[0] > 0])
    if not len(points):
        return _Axes(1.0, 10.0, 0.0, 1.0)
    low, high = points[:, 0].min(), max(points[:, 0].max(), page["at"] or 0.0)
    drawn = [run for run in page["runs"][:SHOWN] if run["draws"]]
    ends = [quantiles(run, np.array([high]))[1, 0] for run in drawn]
    bottom, top = min(points[:, 1].min(), *ends, 1), max(points[:, 1].max(), *ends, 0)
    pad = 0.06 * (top - bottom) or 0.05
    return _Axes(low, high, max(0.0, bottom - pad), min(1.0, top + pad))


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def _line(css: str, d: str) -> str:
    return f'<path class="{css}" d="{d}"/>'


def _path(x: Array, y: Array) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _frame(axes: _Axes, label: str) -> list[str]:
    out = []
    for rate in ticks(axes.bottom, axes.top, 5):
        y = float(axes.y(rate))
        out.append(_line("grid", f"M{LEFT} {y:.1f}H{RIGHT}"))
        out.append(_text(LEFT - 8, y + 4, f"{rate:.2f}", 'class="tick" text-anchor="end"'))
    for compute in axes.marks():
        x = float(axes.x(compute))
        out.append(_line("axis", f"M{x:.1f} {BOTTOM}v5"))
        out.append(_text(x, BOTTOM + 18, amount(compute), 'class="tick" text-anchor="middle"'))
    across, up = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 16 {up:.1f})"'
    out.append(_line("axis", f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"))
    out.append(_text(across, HEIGHT - 12, label, 'text-anchor="middle"'))
    out.append(_text(16, up, "Held-out pass rate", turned))
    return out


def _mark(rank: int, x: Array | float, y: Array | float, hollow: bool = False) -> str:
    fill, stroke = ("#fff", COLOURS[rank]) if hollow else (COLOURS[rank], "#fff")
    place = f'x="{float(x):.1f}" y="{float(y):.1f}"'
    return f'<use href="#m{rank}" {place} fill="{fill}" stroke="{stroke}" stroke-width=".9"/>'


def _fit(axes: _Axes, run: Mapping[str, Any], rank: int) -> list[str]:
    """The fitted curve, solid to the last point and dashed beyond, and its 95% band."""
    spent = [p[0] for p in run["points"] if p[0] > 0]
    grid = np.geomspace(min(spent), axes.high, 97)
    x, (low, mid, high) = axes.x(grid), axes.y(quantiles(run, grid))
    if rank >= SHOWN:
        return [_line("muted", _path(x, mid))]
    seen = int(np.sum(grid <= max(spent) * (1 + 1e-9)))
    edge = _path(np.append(x, x[::-1]), np.append(high, low[::-1]))
    stroke = f'fit" stroke="{COLOURS[rank]}'
    out = [f'<path d="{edge}Z" fill="{COLOURS[rank]}" opacity=".12"/>']
    if seen > 1:
        out.append(_line(stroke, _path(x[:seen], mid[:seen])))
    if seen < len(grid):
        first = max(seen - 1, 0)
        out.append(_line("ahead " + stroke, _path(x[first:], mid[first:])))
    return out


def _run(axes: _Axes, run: Mapping[str, Any], rank: int) -> str:
    points = [p for p in run["points"] if p[0] > 0 and rank < SHOWN]
    marks = [_mark(rank, axes.x(p[0]), axes.y(p[1]), hollow=not p[3]) for p in points]
    fit = _fit(axes, run, rank) if run["draws"] else []
    return f'<g clip-path="url(#axes)"><g opacity=".62">{"".join(marks)}</g>{"".join(fit)}</g>'


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights pushed apart evenly until they are a gap from each other, within the axes."""
    placed = list(wanted)
    order = [int(i) for i in np.argsort(wanted, kind="stable")]
    for _ in range(200):
        for above, below in pairwise(order):
            short = (gap - (placed[below] - placed[above])) / 2
            if short > 0:
                placed[above] = max(placed[above] - short, TOP)
                placed[below] = min(placed[below] + short, BOTTOM)
    return placed


def _labels(axes: _Axes, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each coloured curve beside its right end."""
    edge = np.array([axes.high])
    drawn = [run for run in runs if run["draws"] or run["points"]]
    rates = [quantiles(r, edge)[1, 0] if r["draws"] else r["points"][-1][1] for r in drawn]
    ends = [float(axes.y(rate)) for rate in rates]
    out = []
    for rank, (run, end, y) in enumerate(zip(drawn, ends, _spread(ends, 18), strict=True)):
        name = run["name"] if len(run["name"]) <= 24 else f"{run['name'][:12]}…{run['name'][-11:]}"
        out.append(_line("grid", f"M{RIGHT + 2} {end:.1f}L{RIGHT + 14} {y:.1f}"))
        out.append(_mark(rank, RIGHT + 22, y) + _text(RIGHT + 31, y + 4, name))
    return out


def curves_svg(page: Mapping[str, Any]) -> str:
    """The figure of the runs of a report, best first: points, fits and 95% bands on log compute.

    Args:
        page: what `analysis.report` embeds in its page: ``label``, ``at`` and ``runs``.
    """
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    axes, runs = _axes(page), page["runs"]
    target = f"M{axes.x(page['at']):.1f} {TOP}V{BOTTOM}" if page["at"] else ""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{STYLE}</style><defs>{''.join(SHAPES)}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *_frame(axes, page["label"]),
        *([_line("at", target)] if target else []),
        *[_run(axes, run, rank) for rank, run in reversed(list(enumerate(runs)))],
        *_labels(axes, runs[:SHOWN]),
        "</svg>\n",
    ]
    return "\n".join(lines)


def kept_svg(kept: Kept, curve: Curve | None, seen: float, label: str) -> str:
    """The figure of a promoted run: its band, its evaluations, and where it left, for a page.

    Compute is linear: on a log axis, what made the forecast would fill most of the figure.

    Args:
        kept: The run held against its forecast.
        curve: All of its evaluations; those up to `seen` made the forecast and are hollow.
        seen: Compute, 0 for a run that started anew.
        label: Of the compute axis.
    """
    points = [] if curve is None else list(zip(curve.compute, curve.reward, strict=True))
    rates = [*kept.low, *kept.high, *(rate for _, rate in points)]
    pad = 0.06 * (max(rates) - min(rates)) or 0.05
    bottom, top = max(0.0, min(rates) - pad), min(1.0, max(rates) + pad)
    axes = _Axes(0.0, float(kept.compute[-1]), float(bottom), float(top))
    x, y = axes.x(kept.compute), axes.y
    edge = _path(np.append(x, x[::-1]), np.append(y(kept.high), y(kept.low)[::-1]))
    told = "The run's pass rate against compute, and the band that it should keep to"
    lines = [
        f'<svg viewBox="0 0 {RIGHT + 12} {HEIGHT}" role="img" aria-label="{told}">',
        f"<style>{THEMED}</style>",
        *_frame(axes, label),
        _line("band", f"{edge}Z") + _line("middle", _path(x, y(kept.middle))),
        _line("seen", f"M{axes.x(seen):.1f} {TOP}V{BOTTOM}") if seen else "",
        *(_dot(axes.x(c), y(r), "made" if c <= seen * (1 + 1e-9) else "point") for c, r in points),
        _line("mean", _path(x[: len(kept.mean)], y(kept.mean))) if len(kept.mean) else "",
    ]
    if kept.left is not None:
        lines.append(_dot(x[kept.left], y(kept.mean[kept.left]), "out", 8))
    return "\n".join([*lines, "</svg>"])


def _dot(x: Array | float, y: Array | float, css: str, size: float = 3.4) -> str:
    return f'<circle class="{css}" cx="{float(x):.1f}" cy="{float(y):.1f}" r="{size}"/>'


def kept_keys(kept: Kept, seen: float) -> str:
    """What each mark of `kept_svg` stands for, as a list for the same page."""
    marks = {
        "one evaluation": _dot(0, 0, "point"),
        f"mean of the last {WINDOW}": _line("mean", "M-10 0h20"),
        "forecast of that mean": _line("middle", "M-10 0h20"),
        "band it should keep to": '<rect class="band" x="-10" y="-6" width="20" height="12"/>',
    }
    if seen:
        marks["made the forecast"] = _dot(0, 0, "made")
    if kept.left is not None:
        marks["left the band"] = _dot(0, 0, "out", 7)
    shown = '<svg viewBox="-12 -9 24 18" aria-hidden="true">{}</svg>{}'
    items = "".join(f"<li>{shown.format(mark, told)}</li>" for told, mark in marks.items())
    return f'<ul class="keys">{items}</ul>'
