"""Numbers as people read them, the same in a terminal, in the report and in the figure."""

from __future__ import annotations

from collections.abc import Sequence

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNITS = {
    "steps": "optimizer steps",
    "prompt_tokens": "prompt tokens",
    "generated_tokens": "generated tokens",
    "scored_tokens": "scored tokens",
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
    return raised if digit == "1.0" else f"{digit.removesuffix('.0')}×{raised}"


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
