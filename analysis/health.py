"""Whether a run can be ranked at all: truncation, collapse, divergence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.curves import Array, Curve

TRUNCATION_LIMIT = 0.10
"""Runs above it broke soon after; healthy ones stay under 5% (arXiv 2510.13786)."""
COLLAPSE_FRACTION = 0.25
COLLAPSE_LEAST = 0.03
"""A reward fallen by a quarter of the run's gain, and by at least three points, has collapsed:
one and a half times the 0.02 by which sound runs of one recipe differ."""
ENTROPY_FRACTION = 0.05
"""Entropy under 5% of where it started: nothing left to explore with."""
RECENT = 3
"""Evaluations averaged, so that no single one decides."""


@dataclass(frozen=True)
class Health:
    """What is wrong with a run, in sentences."""

    problems: list[str] = field(default_factory=list)
    """Reasons not to rank it; empty for a stable run."""
    warnings: list[str] = field(default_factory=list)

    @property
    def stable(self) -> bool:
        """Whether the run may be ranked."""
        return not self.problems


def check(seeds: Sequence[Curve]) -> Health:
    """Examine the seeds of a recipe; any unstable seed makes the recipe unstable."""
    health = Health()
    for c in seeds:
        where = f" (seed {c.seed})" if len(seeds) > 1 and c.seed is not None else ""
        for problem in (_truncation(c), _collapse(c), _not_finite(c)):
            if problem:
                health.problems.append(problem + where)
        for warning in (_entropy(c), _earlier_truncation(c)):
            if warning:
                health.warnings.append(warning + where)
    return health


def _truncation(c: Curve) -> str | None:
    rates = _finite(c.truncation)
    if not len(rates):
        return None
    recent = float(np.mean(rates[-max(RECENT, len(rates) // 4) :]))
    recent = max(recent, float(np.median(rates[-RECENT:])))
    if recent <= TRUNCATION_LIMIT:
        return None
    return f"{recent:.0%} of recent responses truncated, above {TRUNCATION_LIMIT:.0%}"


def _earlier_truncation(c: Curve) -> str | None:
    rates = _finite(c.truncation)
    if not len(rates) or _truncation(c) or rates.max() <= TRUNCATION_LIMIT:
        return None
    return f"truncation reached {rates.max():.0%} earlier and came back"


def _collapse(c: Curve) -> str | None:
    """The last evaluations are far under the best ones before them, beyond the noise."""
    y = c.reward if c.r0 is None else np.concatenate([[c.r0], c.reward])
    if len(y) < 2 * RECENT:
        return None
    smooth = np.convolve(y, np.ones(RECENT) / RECENT, mode="valid")
    peak, last = float(smooth.max()), float(smooth[-1])
    noise = float(np.median(np.abs(np.diff(y)))) / 0.954  # sd of white noise from its differences
    limit = max(
        COLLAPSE_LEAST,
        COLLAPSE_FRACTION * (peak - float(smooth[0])),
        4 * noise * np.sqrt(2 / RECENT),
    )
    if peak - last <= limit:
        return None
    return f"reward collapsed from {peak:.3f} to {last:.3f}"


def _not_finite(c: Curve) -> str | None:
    bad = [name for name, values in c.signals.items() if not np.isfinite(values).all()]
    return f"NaN or infinity in {', '.join(sorted(bad))}" if bad else None


def _entropy(c: Curve) -> str | None:
    for name, values in c.signals.items():
        finite = _finite(values)
        if "entropy" not in name or len(finite) < 2 * RECENT:
            continue
        first, last = float(np.mean(finite[:RECENT])), float(np.mean(finite[-RECENT:]))
        if first > 0 and last < ENTROPY_FRACTION * first:
            return f"entropy collapsed from {first:.3g} to {last:.3g}"
    return None


def _finite(values: Array | None) -> Array:
    return np.zeros(0) if values is None else values[np.isfinite(values)]
