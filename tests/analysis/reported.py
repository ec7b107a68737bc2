"""Analyses for the tests of the report, made once: curves with known parameters and noise."""

from functools import cache

import numpy as np

from analysis.curves import Array, Curve, curve
from analysis.ranking import Analysis, Options, analyse
from analysis.sigmoid import value

COMPUTE = np.arange(250.0, 8001.0, 250.0)
SKIP_BELOW = 700.0
AT = 1000.0
HOSTILE = "</script><b>&\"'${x}$x"
"""A run name that tries to be markup, a script and a template."""


def made(run: str, A: float, B: float, C_mid: float, n: int = 32, **more: object) -> Curve:
    """A curve from R0 = 0.2 with noise of 0.005, the same every time for its name."""
    rng = np.random.default_rng(list(run.encode()))
    x = COMPUTE[:n]
    truth: Array = value(x, *map(np.float64, (A, B, C_mid, 0.2)))
    y = np.append(0.2, truth) + rng.normal(0, 0.005, n + 1)
    return curve(run, np.append(0.0, x), y, np.full(n + 1, 0.005), **more)  # type: ignore[arg-type]


@cache
def crossing(at: float | None = None) -> Analysis:
    """Four runs: early is ahead at first, late has the highest ceiling; one unstable, one short."""
    base = {"loss": "grpo", "length": "truncate"}
    curves = [
        made("early", 0.50, 2.0, 900, choices=base, seed=0),
        made("early", 0.50, 2.0, 900, choices=base, seed=1),
        made(HOSTILE, 0.62, 2.0, 2200, choices={**base, "loss": HOSTILE}, seed=0),
        made(
            "long",
            0.55,
            1.8,
            1500,
            choices={**base, "length": "long"},
            truncation=np.full(33, 0.2),
        ),
        made("short", 0.55, 1.8, 1500, n=3, choices={**base, "length": "short"}),
    ]
    options = Options(at=at, skip_below=SKIP_BELOW, compute_axis="gpu_hours")
    return analyse(curves, options, "one_at_a_time", base)


@cache
def close() -> Analysis:
    """Three runs within the margin of each other, of which `quick` is the most efficient."""
    return analyse(
        [
            made("quick", 0.600, 2.6, 1200),
            made("steady", 0.605, 1.7, 1200),
            made("far below", 0.4, 1.7, 1200),
        ]
    )


@cache
def hopeless() -> Analysis:
    """One run too short to fit, one that is cut off too often."""
    cut = np.full(33, 0.2)
    return analyse([made("short", 0.5, 2.0, 900, n=3), made("cut", 0.5, 2.0, 900, truncation=cut)])


@cache
def many(count: int = 20) -> Analysis:
    """More runs than a page shows at once."""
    rng = np.random.default_rng(0)
    tops = rng.uniform(0.4, 0.65, count)
    return analyse([made(f"run-{i}", A, 2.0, 1500, n=12) for i, A in enumerate(tops)])
