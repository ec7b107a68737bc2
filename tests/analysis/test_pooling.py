"""The prior learned from a sweep finds what its recipes share, and helps those that ended early."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from analysis import pooling, posterior
from analysis.curves import Points
from analysis.forecast import half_width, interval
from analysis.model import SMALL_GAIN
from analysis.posterior import Draws
from tests.analysis.simulate import one


def recipes(last: float, count: int = 10) -> tuple[list[tuple[Points, Draws]], np.ndarray]:
    """Recipes whose A, B and C_mid vary around 0.58, 1.8 and 2700, and their A."""
    rng = np.random.default_rng(5)
    A = 0.58 + 0.02 * rng.normal(size=count)
    B, C_mid = (
        1.8 * np.exp(0.1 * rng.normal(size=count)),
        2700 * np.exp(0.2 * rng.normal(size=count)),
    )
    p = [one((A[i], B[i], C_mid[i], 0.2), last=last, seed=i) for i in range(count)]
    return [(x, posterior.draw(x, rng)) for x in p], A


def test_the_shared_prior_is_where_the_recipes_are() -> None:
    found, A = recipes(8000)
    shared = pooling.learn(found)
    assert np.exp(shared.mean[0]) == pytest.approx(A.mean() - 0.2 + SMALL_GAIN, rel=0.03)
    assert np.exp(shared.mean[1]) == pytest.approx(1.8, rel=0.15)
    assert np.exp(shared.mean[2]) == pytest.approx(2700, rel=0.2)
    assert np.sqrt(shared.covariance[0, 0]) < pooling.START_SD[0]


def test_open_ceilings_come_closer_to_the_truth() -> None:
    found, A = recipes(3000, count=16)
    pooled, said = pooling.lend(found, np.random.default_rng(0))
    assert pooled is not None
    assert said.startswith("pooled, a prior learned from 16 recipes")
    alone = [d for _, d in found]

    def error(draws: Sequence[Draws]) -> float:
        return float(np.mean([abs(np.median(d.A) - a) for d, a in zip(draws, A, strict=True)]))

    assert error(pooled) < 0.95 * error(alone)
    assert np.mean([half_width(d.A) for d in pooled]) < np.mean([half_width(d.A) for d in alone])
    inside = [
        low <= a <= high for (low, high), a in zip((interval(d.A) for d in pooled), A, strict=True)
    ]
    assert np.mean(inside) >= 0.85


def test_a_recipe_unlike_the_others_is_not_pulled_to_them() -> None:
    found, _ = recipes(8000)
    odd = one((0.35, 1.2, 1500, 0.2), last=8000)
    shared = pooling.learn(found)
    d = posterior.draw(
        odd, np.random.default_rng(0), prior=lambda *of: shared.log_ratio(odd, *of[:4])
    )
    assert np.median(d.A) == pytest.approx(0.35, abs=0.02)


def test_runs_of_very_different_scale_are_pooled_relative_to_their_compute() -> None:
    found, _ = recipes(8000)
    assert not pooling.learn(found).relative
    scales = np.geomspace(1, 1e4, len(found))
    scaled = [
        (replace(p, compute=p.compute * k), replace(d, C_mid=d.C_mid * k))
        for (p, d), k in zip(found, scales, strict=True)
    ]
    shared = pooling.learn(scaled)
    assert shared.relative
    assert np.exp(shared.mean[2]) == pytest.approx(2700 / 7950, rel=0.2)


def test_few_recipes_are_left_alone() -> None:
    found, _ = recipes(3000, count=3)
    assert pooling.lend(found, np.random.default_rng(0)) == (
        None,
        "not pooled: 3 recipes, at least 4 are needed",
    )
