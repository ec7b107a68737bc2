"""Promises hold what they say: the width of the band, false alarms, and drifts found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from analysis import posterior, sigmoid
from analysis.curves import Array
from analysis.forecast import SEED_SPREAD
from analysis.posterior import Draws
from analysis.promise import ALARMS, KEPT, Promise, keep, trailing
from tests.analysis.simulate import SCALERL, noise, one

LAST, TARGET, SPACING = 3000.0, 12000.0, 150.0
LATER = np.arange(LAST + SPACING, TARGET + 1, SPACING)


def sure(A: float = 0.61, tau: float = 0.0, sigma: float = 0.003, rho: float = 0.0) -> Draws:
    """Draws of a curve that is known exactly."""
    return Draws(*(np.full(2000, x) for x in (A, *SCALERL[1:], rho, sigma, tau)))


def width(promise: Promise) -> float:
    low, high = promise.value(1e6, np.random.default_rng(0)).interval
    return (high - low) / (2 * 1.96)


def test_an_evaluation_varies_with_seed_and_noise() -> None:
    known = np.hypot(0.003, 0.01)
    assert width(Promise([sure(tau=0.01)], 0.02)) == pytest.approx(known, rel=0.03)
    assert width(Promise([sure(tau=0.01)], 0.02, seen=10.0)) == pytest.approx(known, rel=0.03)


def test_a_single_seed_varies_by_the_margin_only_where_the_run_is_another() -> None:
    anew = np.hypot(0.003, 0.02 / SEED_SPREAD)
    assert width(Promise([sure()], 0.02)) == pytest.approx(anew, rel=0.03)
    assert width(Promise([sure()], 0.02, seen=10.0)) == pytest.approx(0.003, rel=0.03)


def test_noise_of_simulated_evaluations_is_correlated_as_found() -> None:
    paths = Promise([sure(rho=0.5, sigma=0.01)], 0.02, seen=10.0).evaluations(
        np.full(6, 1e6), np.random.default_rng(0)
    )
    found = np.corrcoef(paths.T)
    np.testing.assert_allclose(found[0], 0.5 ** np.arange(6), atol=0.03)


def test_effects_add_up_on_the_log_odds() -> None:
    """Odds of .5 -> 1, of .6 -> 1.5, of .75 -> 3: together 1 * 1.5 * 3 = 4.5."""
    promise = Promise([sure(A) for A in (0.5, 0.6, 0.75)], 0.02)
    assert promise.at(np.array([1e12]))[:, 0] == pytest.approx(4.5 / 5.5, abs=1e-4)


def test_a_promise_is_the_same_once_written_down() -> None:
    drawn = posterior.draw(one(last=LAST), np.random.default_rng(0))
    promise = Promise([drawn, drawn.take(np.arange(999, -1, -1))], 0.015, seen=LAST)
    again = Promise.read(json.loads(json.dumps(promise.document())))
    assert (again.margin, again.seen) == (0.015, LAST)
    np.testing.assert_allclose(again.at(LATER), promise.at(LATER)[:KEPT], rtol=1e-3)


def test_the_trailing_mean_of_four() -> None:
    means = trailing(np.array([[1.0, 3.0, 5.0, 7.0, 9.0, 1.0]]))
    assert means[0].tolist() == [1.0, 2.0, 3.0, 4.0, 6.0, 5.5]


def test_the_first_evaluation_outside_is_told() -> None:
    exact = sigmoid.value(LATER, *SCALERL)
    fallen = np.where(np.arange(len(LATER)) < 10, exact, exact - 0.05)
    kept = keep(Promise([sure()], 0.02, seen=LAST), LATER, fallen, LATER[:0])
    # A quarter of .05 is 8 deviations of the mean of four, and the band about 3 of them.
    assert (kept.left, kept.where) == (10, "below")
    raised = keep(Promise([sure()], 0.02, seen=LAST), LATER, exact + 0.05, LATER[:0])
    assert (raised.left, raised.where) == (0, "above")
    quiet = keep(Promise([sure()], 0.02, seen=LAST), LATER, exact, LATER[:0])
    assert (quiet.left, quiet.where) == (None, "inside")


def test_without_evaluations_there_is_a_band_and_no_alarm() -> None:
    kept = keep(Promise([sure()], 0.02), np.zeros(0), np.zeros(0), LATER)
    assert (kept.left, len(kept.mean), len(kept.low)) == (None, 0, len(LATER))


def alarms(rng: np.random.Generator, count: int, drop: float) -> list[int | None]:
    """Random curves fitted to `LAST` and watched until `TARGET`, `drop` lower from halfway."""
    found = []
    for i in range(count):
        truth = (rng.uniform(0.45, 0.85), rng.uniform(0.9, 2.4), rng.uniform(500, 2000), 0.2)
        points = one(truth, last=LAST, sd=0.01, rho=0.3, seed=i)
        promise = Promise([posterior.draw(points, rng, kept=400)], 0.02, seen=LAST)
        later = sigmoid.value(LATER, *truth) + noise(rng, len(LATER), 0.01, 0.3)
        found.append(keep(promise, LATER, fall(later, drop), LATER[:0]).left)
    return found


def fall(values: Array, drop: float) -> Array:
    return values - np.where(np.arange(len(values)) >= len(values) // 2, drop, 0.0)


def test_the_share_of_false_alarms_is_what_is_promised() -> None:
    """Looked at 60 times each; 150 runs, so that two standard errors are 3.5 points."""
    left = alarms(np.random.default_rng(0), 150, 0.0)
    assert np.mean([item is not None for item in left]) <= ALARMS + 0.035


def test_a_lasting_fall_is_found() -> None:
    """A fall of .1, in a forecast that is typically sure to .03."""
    left = alarms(np.random.default_rng(1), 40, 0.1)
    assert np.mean([item is not None for item in left]) >= 0.8
