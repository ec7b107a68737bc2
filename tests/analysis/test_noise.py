"""The noise that recipes share is found, and forced on none that is noisier than the others."""

from collections.abc import Sequence

import numpy as np
import pytest

from analysis import posterior
from analysis.curves import Points, points
from analysis.model import RHO, log_sigma_prior
from analysis.noise import LOG_SIGMA, Noise
from analysis.posterior import Draws
from tests.analysis.simulate import one, run


def recipes(rho: float, count: int = 12) -> list[tuple[Points, Draws]]:
    """Recipes of 19 evaluations each, with noise of sd .008 and their own curves."""
    rng = np.random.default_rng(3)
    truths = [(rng.uniform(0.45, 0.65), 1.5, rng.uniform(1e3, 4e3), 0.2) for _ in range(count)]
    made = [
        points([run(truth=t, last=2900, sd=0.008, rho=rho, seed=i)]) for i, t in enumerate(truths)
    ]
    return [(p, posterior.draw(p, rng)) for p in made]


@pytest.mark.parametrize(("rho", "low", "high"), [(0.0, -0.15, 0.2), (0.6, 0.4, 0.7)])
def test_a_dozen_short_recipes_tell_the_noise_that_they_share(
    rho: float, low: float, high: float
) -> None:
    noise = Noise(recipes(rho))
    assert noise.mass.sum() == pytest.approx(1)
    assert low < float(noise.mass.sum(axis=1) @ RHO) < high
    sigma = np.exp(float(noise.mass.sum(axis=0) @ LOG_SIGMA))
    assert sigma == pytest.approx(0.008, rel=0.2)


def test_a_recipe_has_the_noise_of_the_others_where_its_points_do_not_say() -> None:
    found = recipes(0.6)
    noise, (p, alone) = Noise(found), found[0]
    like = noise.log_ratio(p, np.array([0.6, -0.3]), np.array([0.008, 0.008]))
    assert like[0] > like[1] + 2
    w = np.exp(noise.log_ratio(p, alone.rho, alone.sigma))
    spread = [np.std(np.log(alone.sigma)), _deviation(np.log(alone.sigma), w)]
    assert spread[1] < 0.75 * spread[0]


def test_a_recipe_unlike_the_others_keeps_its_own_noise() -> None:
    noise = Noise(recipes(0.0))
    odd = one(last=8000, sd=0.04)
    d = posterior.draw(
        odd,
        np.random.default_rng(0),
        prior=lambda *of: noise.log_ratio(odd, of[4], of[5]),
    )
    assert np.median(d.sigma) == pytest.approx(0.04, rel=0.15)


def test_the_default_prior_of_log_sigma_has_unit_mass() -> None:
    p = one(last=3000, sd=0.008)
    log_sigma = np.linspace(np.log(1e-6), np.log(1e3), 20001)
    density = np.exp(log_sigma_prior(p, np.exp(log_sigma)))
    assert np.trapezoid(density, log_sigma) == pytest.approx(1, abs=1e-3)


def _deviation(x: Sequence[float] | np.ndarray, w: np.ndarray) -> float:
    mean = np.average(x, weights=w)
    return float(np.sqrt(np.average((x - mean) ** 2, weights=w)))
