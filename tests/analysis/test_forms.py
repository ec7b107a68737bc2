"""Each form fits its own curves, and held-out tails tell which is the better description."""

import numpy as np
import pytest

from analysis import forms, sigmoid
from analysis.curves import curve, points
from tests.analysis.simulate import SCALERL, compute, noise, one

C = compute(8000)


@pytest.mark.parametrize("name", forms.FORMS)
def test_every_form_fits_its_own_curve(name: str) -> None:
    truth = forms.Fitted(name, 0.6, 0.2, np.log(0.3), np.log(1.4), 8000.0, 0.0)
    p = points([curve("a", C, truth.at(C))])
    found = forms.fit_form(name, p)
    assert found.sse < 1e-5
    np.testing.assert_allclose(found.at(C), truth.at(C), atol=2e-3)


def test_the_sigmoid_here_is_the_sigmoid_there() -> None:
    p = one(sd=0.01)
    a, b = forms.fit_form("sigmoid", p), sigmoid.fit(p)
    assert a.sse == pytest.approx(b.sse[0], rel=1e-3)
    assert abs(a.A - b.A[0]) < 0.01


def test_a_sigmoids_tail_is_told_best_by_the_sigmoid() -> None:
    errors = forms.tail_errors(one(sd=0.001, last=12000))
    assert set(errors) == set(forms.FORMS)
    assert errors["sigmoid"] < 0.006
    assert errors["sigmoid"] < errors["exponential"]
    assert errors["sigmoid"] < errors["logarithm"]
    assert forms.better_form(errors, 0.001) is None or errors["sigmoid"] < 0.005


def test_a_straight_logarithm_is_called_one() -> None:
    reward = 0.1 + 0.08 * np.log1p(C / 300) + noise(np.random.default_rng(0), len(C), 0.001)
    errors = forms.tail_errors(points([curve("a", C, reward)]))
    assert min(errors, key=errors.__getitem__) == "logarithm"
    assert forms.better_form(errors, 0.001) == "logarithm"


def test_noise_excuses_the_sigmoid_and_short_curves_are_not_tried() -> None:
    assert forms.better_form({"sigmoid": 0.02, "exponential": 0.01}, 0.02) is None
    assert forms.better_form({"sigmoid": 0.02, "exponential": 0.01}, 0.005) == "exponential"
    assert forms.tail_errors(points([curve("a", C[:6], sigmoid.value(C[:6], *SCALERL))])) == {}
    assert forms.better_form({}, 0.01) is None
