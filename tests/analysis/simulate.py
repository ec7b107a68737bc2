"""Curves made with known parameters, for the tests of the analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis import sigmoid
from analysis.curves import Array, Curve, Points, curve, points

SCALERL = (0.61, 1.92, 2542.0, 0.2)
"""A, B, C_mid of the paper's ScaleRL run (arXiv 2510.13786) and its start."""


def compute(last: float = 8000, spacing: float = 150) -> Array:
    return np.concatenate([[0.0], np.arange(spacing, last + 1, spacing)])


def noise(rng: np.random.Generator, n: int, sd: float = 0.003, rho: float = 0.0) -> Array:
    e = rng.normal(0, sd, n)
    for i in range(1, n):
        e[i] = rho * e[i - 1] + np.sqrt(1 - rho**2) * e[i]
    return e


def run(
    name: str = "a",
    truth: Sequence[float] = SCALERL,
    *,
    last: float = 8000,
    sd: float = 0.003,
    rho: float = 0.0,
    seed: int = 0,
    choices: Mapping[str, str] | None = None,
    of: int | None = None,
    truncation: float | None = None,
) -> Curve:
    """A run; `seed` makes its noise, `of` is its own seed among those of its recipe."""
    C = compute(last)
    reward = sigmoid.value(C, *truth) + noise(np.random.default_rng(seed), len(C), sd, rho)
    cut = None if truncation is None else np.full(len(C), truncation)
    return curve(name, C, np.clip(reward, 0, 1), choices=choices, seed=of, truncation=cut)


def one(truth: Sequence[float] = SCALERL, **settings: float) -> Points:
    return points([run(truth=truth, **settings)])  # type: ignore[arg-type]
