"""Cleaning: what is dropped, merged, rescaled or refused, and the exact points left."""

import numpy as np
import pytest

from analysis.curves import CurveError, curve, points, recipes


def test_rows_in_any_order_become_ascending_with_the_start_set_apart() -> None:
    c = curve("a", [30, 0, 10, 20], [0.4, 0.1, 0.2, 0.3], [0.04, 0.01, 0.02, 0.03])
    assert c.compute.tolist() == [10, 20, 30]
    assert c.reward.tolist() == [0.2, 0.3, 0.4]
    assert c.stderr is not None
    assert c.stderr.tolist() == [0.02, 0.03, 0.04]
    assert (c.r0, c.r0_stderr) == (0.1, 0.01)
    assert c.index.tolist() == [1, 2, 3]
    assert c.notes == []


def test_repeated_compute_is_averaged() -> None:
    c = curve("a", [10, 20, 10, 10], [0.1, 0.5, 0.2, np.nan])
    assert c.compute.tolist() == [10, 20]
    np.testing.assert_allclose(c.reward, [0.15, 0.5])
    assert any("2 repeated points averaged" in note for note in c.notes)


def test_unusable_points_are_left_out_and_counted() -> None:
    c = curve("a", [-5, 10, np.inf, 20, 30, 40], [0.1, 0.2, 0.3, np.nan, np.inf, 0.4])
    assert c.compute.tolist() == [10, 40]
    assert c.notes == [
        "1 point without a finite compute left out",
        "1 point at negative compute left out",
        "2 points without a finite reward left out",
    ]
    assert c.index.tolist() == [1, 4]  # the gap in evaluations is remembered


def test_percentages_are_recognised_and_their_errors_with_them() -> None:
    c = curve("a", [1, 2], [20.0, 35.0], [2.0, 3.0])
    np.testing.assert_allclose(c.reward, [0.2, 0.35])
    assert c.stderr is not None
    np.testing.assert_allclose(c.stderr, [0.02, 0.03])
    assert c.notes == ["rewards given in percent, divided by 100"]


def test_low_percentages_are_only_known_when_told() -> None:
    assert curve("a", [1, 2], [0.5, 1.0], percent=True).reward.tolist() == [0.005, 0.01]
    assert curve("a", [1, 2], [0.5, 1.0]).reward.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("reward", "percent"),
    [
        ([0.5, 1.2], None),
        ([-0.2, 0.5], None),
        ([5, 120], None),
        ([2], False),
        ([0.2, 0.3, 0.4, 1.6], None),
    ],
)
def test_rewards_outside_the_range_are_refused_in_one_line(
    reward: list[float], percent: bool | None
) -> None:
    with pytest.raises(CurveError, match=r"^a: reward .*allowed 0 to 1") as refused:
        curve("a", range(1, len(reward) + 1), reward, percent=percent)
    assert "\n" not in str(refused.value)


def test_a_reward_out_of_range_is_not_hidden_by_an_average() -> None:
    with pytest.raises(CurveError, match=r"^a: reward 1\.6: allowed 0 to 1"):
        curve("a", [1, 2, 2, 3], [0.2, 0.3, 1.6, 0.4])


@pytest.mark.parametrize(("compute", "told"), [(1e300, r"1e\+300"), (1e-31, "1e-31")])
def test_compute_beyond_what_can_be_drawn_is_refused(compute: float, told: str) -> None:
    with pytest.raises(CurveError, match=rf"^a: compute {told}: allowed 0, or 1e-30 to 1e\+30$"):
        curve("a", [0, 1, compute], [0.1, 0.2, 0.3])
    c = curve("a", [0, 1e-30, 1e30, -1e300], [0.1, 0.2, 0.3, 0.4])
    assert c.compute.tolist() == [1e-30, 1e30]


def test_absurd_standard_errors_are_as_good_as_missing() -> None:
    c = curve("a", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], [0.02, 1e160, 0.04, 1e-200])
    assert c.stderr is not None
    np.testing.assert_allclose(c.stderr, [0.02, 0.03, 0.04, 0.03])
    assert c.notes[0] == "standard error of 2 points ignored: outside 1e-09 to 1000"
    nothing = curve("a", [1, 2], [0.1, 0.2], [1e300, 1e300])
    assert nothing.stderr is None
    assert nothing.notes == ["standard error of 2 points ignored: outside 1e-09 to 1000"]


def test_lengths_and_words_are_refused() -> None:
    with pytest.raises(CurveError, match="2 rewards for 3 values of compute"):
        curve("a", [1, 2, 3], [0.1, 0.2])
    with pytest.raises(CurveError, match="3 values of stderr, 2 points"):
        curve("a", [1, 2], [0.1, 0.2], [1, 2, 3])
    with pytest.raises(CurveError, match="reward has a value that is not a number"):
        curve("a", [1, 2], ["x", "y"])


def test_missing_errors_take_the_median_and_tiny_ones_are_raised() -> None:
    c = curve("a", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], [0.02, np.nan, 0.02, 1e-9])
    assert c.stderr is not None
    assert c.stderr.tolist() == [0.02, 0.02, 0.02, 1e-9]
    sd = points([c]).sd
    np.testing.assert_allclose(sd[3] / sd[0], 0.5)
    np.testing.assert_allclose(np.mean(sd**2), 1)


def test_seeds_group_by_choices_or_by_name() -> None:
    a = curve("r1", [1], [0.1], choices={"loss": "grpo"}, seed=0)
    b = curve("r2", [1], [0.1], choices={"loss": "grpo"}, seed=1)
    c = curve("r3", [1], [0.1], choices={"loss": "cispo"})
    d, e = curve("x", [1], [0.1], seed=0), curve("x", [1], [0.1], seed=1)
    assert recipes([a, c, b, d, e]) == [[a, b], [c], [d, e]]


def test_points_keep_the_start_in_any_window_and_know_their_gaps() -> None:
    a = curve("a", [0, 10, 20, 30], [0.1, 0.2, 0.3, 0.4])
    p = points([a, a], skip_below=15, until=25)
    assert p.compute.tolist() == [0, 20, 0, 20]
    assert p.gap.tolist() == [np.inf, 2, np.inf, 2]
    assert p.series.tolist() == [0, 0, 1, 1]
    assert points([a], measured_r0=False).compute.tolist() == [10, 20, 30]


@pytest.mark.parametrize("rows", [([], []), ([np.nan], [0.1]), ([0], [0.1])])
def test_nothing_left_is_an_empty_curve_not_an_error(rows: tuple[list[float], list[float]]) -> None:
    assert len(curve("a", *rows).compute) == 0
