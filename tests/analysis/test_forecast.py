"""Forecasts in closed form where all draws are one curve, and against simulation elsewhere."""

import numpy as np
import pytest

from analysis import forecast, posterior
from analysis.curves import Points
from analysis.posterior import Draws
from analysis.sigmoid import value
from tests.analysis.simulate import SCALERL, one


def exactly(A: float, B: float, C_mid: float, R0: float, tau: float = 0, sigma: float = 0) -> Draws:
    return Draws(*(np.full(400, x, dtype=float) for x in (A, B, C_mid, R0, 0.0, sigma, tau)))


def test_value_and_the_compute_that_reaches_it_are_inverse() -> None:
    d = exactly(*SCALERL)
    at = forecast.value(d, 5000.0)
    assert at.middle == pytest.approx(float(value(5000.0, *SCALERL)))
    assert forecast.compute_to_reach(d, at.middle).middle == pytest.approx(5000.0)


def test_rewards_out_of_reach_take_infinite_compute_and_those_had_none() -> None:
    d = exactly(*SCALERL)
    assert forecast.compute_to_reach(d, 0.7).middle == np.inf
    assert forecast.compute_to_reach(d, 0.1).middle == 0


def test_a_reward_some_draws_never_reach_has_an_infinite_upper_end() -> None:
    d = posterior.draw(one(last=4000), np.random.default_rng(0))
    estimate = forecast.compute_to_reach(d, float(np.median(d.A)) - 0.01)
    assert np.isfinite(estimate.interval[0])
    assert estimate.interval[1] == np.inf


def test_where_two_known_curves_cross() -> None:
    slow, fast = exactly(0.65, 1.7, 10909, 0.2), exactly(0.605, 1.77, 2818, 0.2)
    found = forecast.crossing(slow, fast, 100, 1e7)
    assert found.probability == 1
    assert found.compute is not None
    where = found.compute.middle
    gap = value(where, 0.65, 1.7, 10909, 0.2) - value(where, 0.605, 1.77, 2818, 0.2)
    assert abs(float(gap)) < 1e-3
    assert forecast.crossing(slow, fast, 100, 1000).probability == 0
    assert forecast.crossing(fast, exactly(0.5, 1.77, 2818, 0.2), 100, 1e7).compute is None


def test_the_compute_promised_to_resolve_a_ceiling_does() -> None:
    rng = np.random.default_rng(0)
    p = one(last=3500)
    needed = forecast.compute_to_resolve(p, posterior.draw(p, rng), 0.02, 0.75)
    assert needed is not None
    assert 3500 < needed < 9000
    widths = [
        forecast.half_width(posterior.draw(one(last=needed, seed=s), rng).A) for s in range(10)
    ]
    assert 0.006 < np.median(widths) < 0.03


def test_compute_to_tell_two_ceilings_apart() -> None:
    rng = np.random.default_rng(0)

    def pair(last: float, A: float) -> list[tuple[Points, Draws]]:
        both = one(last=last), one((A, *SCALERL[1:]), last=last, seed=1)
        return [(p, posterior.draw(p, rng)) for p in both]

    told = forecast.compute_to_tell(pair(6000, 0.50), 0.02)
    assert told == pytest.approx(6600)  # at the least that is looked at: it can be already
    open_ = pair(3000, 0.60)
    needed = forecast.compute_to_tell(open_, 0.02)
    assert needed is not None
    assert 3000 < needed < 20000
    assert forecast.compute_to_tell(open_, 0.2) < needed  # type: ignore[operator]
