"""The curve in closed form, and its parameters recovered from curves made with known ones."""

import numpy as np
import pytest

from analysis import sigmoid
from analysis.curves import Points, curve, points

TRUTH = (0.61, 1.92, 2542.0, 0.2)
COMPUTE = np.concatenate([[0.0], np.linspace(150, 8000, 40)])


def noisy(seed: int, sd: float = 0.003, truth: tuple[float, ...] = TRUTH) -> Points:
    e = np.random.default_rng(seed).normal(0, sd, len(COMPUTE))
    reward = np.clip(sigmoid.value(COMPUTE, *truth) + e, 0, 1)
    return points([curve("a", COMPUTE, reward)])


def test_value_at_the_start_the_middle_and_far_out() -> None:
    A, B, C_mid, R0 = TRUTH
    assert sigmoid.value(0.0, *TRUTH) == R0
    assert sigmoid.value(C_mid, *TRUTH) == pytest.approx((A + R0) / 2)
    far = 1e6
    assert sigmoid.value(far, *TRUTH) == pytest.approx(A - (A - R0) * (C_mid / far) ** B, abs=1e-7)


def test_a_perfect_curve_gives_its_parameters_back() -> None:
    f = sigmoid.fit(noisy(0, sd=0))
    np.testing.assert_allclose([f.A[0], f.B[0], f.C_mid[0], f.R0[0]], TRUTH, rtol=1e-5)


@pytest.mark.parametrize("truth", [(0.9, 0.6, 500, 0.05), (0.35, 4.0, 6000, 0.3), (1, 1, 3000, 0)])
def test_other_shapes_and_the_bounds_are_recovered(truth: tuple[float, ...]) -> None:
    f = sigmoid.fit(noisy(0, sd=0, truth=truth))
    np.testing.assert_allclose([f.A[0], f.B[0], f.C_mid[0]], truth[:3], rtol=1e-3)
    assert f.R0[0] == pytest.approx(truth[3], abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_squares_is_never_above_the_papers_lattice(seed: int) -> None:
    p = noisy(seed, sd=0.01)
    coarse = (sigmoid.PAPER_A[::10], sigmoid.PAPER_C_MID[:20:2])
    paper = sigmoid.fit(p, method="paper", lattice=coarse)
    ours = sigmoid.fit(p)
    assert ours.sse[0] <= paper.sse[0]
    assert paper.A[0] in sigmoid.PAPER_A
    assert paper.sse[0] < 20 * ours.sse[0]
    assert paper.R0[0] == p.reward[0]


def test_many_at_once_is_each_alone() -> None:
    recipes = [noisy(seed).where(np.arange(41) < n) for seed, n in ((0, 41), (1, 30), (2, 20))]
    together = sigmoid.fit_all(recipes)
    for k, p in enumerate(recipes):
        alone = sigmoid.fit(p)
        assert together.sse[k] == pytest.approx(alone.sse[0], rel=1e-6)
        assert together.A[k] == pytest.approx(alone.A[0], abs=1e-4)


def test_replicates_from_the_fitted_curve_spread_as_the_noise_says() -> None:
    rng = np.random.default_rng(0)
    Y = sigmoid.value(COMPUTE, *TRUTH) + rng.normal(0, 0.003, (300, len(COMPUTE)))
    f = sigmoid.fit_many(COMPUTE[None], Y, np.ones((1, len(COMPUTE))), start=(2542.0, 1.92))
    cold = sigmoid.fit_many(COMPUTE[None], Y, np.ones((1, len(COMPUTE))))
    np.testing.assert_allclose(f.sse, cold.sse, rtol=1e-6)
    assert f.A.mean() == pytest.approx(0.61, abs=0.001)
    steps = np.diag([1e-5, 1e-5, 1e-2, 1e-5])
    jacobian = [
        (sigmoid.value(COMPUTE, *(TRUTH + h)) - sigmoid.value(COMPUTE, *(TRUTH - h)))
        / (2 * h.sum())
        for h in steps
    ]
    error = 0.003 * np.sqrt(np.linalg.inv(np.array(jacobian) @ np.array(jacobian).T)[0, 0])
    assert f.A.std() == pytest.approx(error, rel=0.1)


def test_weights_silence_a_bad_point() -> None:
    reward = sigmoid.value(COMPUTE, *TRUTH)
    reward[20] = 0.9
    weight = np.ones((1, len(COMPUTE)))
    weight[0, 20] = 0
    assert sigmoid.fit_many(COMPUTE[None], reward[None], weight).A[0] == pytest.approx(0.61)


def test_a_fixed_ceiling_is_kept_and_the_rest_refitted() -> None:
    f = sigmoid.fit(noisy(0, sd=0), A=0.65)
    assert f.A[0] == 0.65
    assert f.B[0] < 1.92
    assert f.sse[0] > 1e-6
    assert sigmoid.fit(noisy(0, sd=0), A=0.61).B[0] == pytest.approx(1.92, rel=1e-4)


def test_falling_and_constant_curves_fit_flat() -> None:
    falling = points([curve("a", COMPUTE, np.linspace(0.5, 0.3, len(COMPUTE)))])
    f = sigmoid.fit(falling)
    assert 0 <= f.R0[0] <= f.A[0] <= 1
    assert f.sse[0] == pytest.approx(np.sum((falling.reward - 0.4) ** 2), rel=1e-6)
    flat = sigmoid.fit(points([curve("a", COMPUTE, np.full(len(COMPUTE), 0.4))]))
    assert flat.sse[0] == pytest.approx(0, abs=1e-20)
    assert flat.R0[0] == pytest.approx(0.4)
