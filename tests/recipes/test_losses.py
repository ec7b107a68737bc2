"""Weights of tokens, and the factors on advantages, against arithmetic by hand."""

import math

import pytest
import torch

from recipes.losses import (
    NATIVE,
    advantage_scale,
    batch_scaled,
    overlong_penalty,
    token_weights,
    varied_groups,
)

# Two prompts with two samples each, of 2 and 4, and 1 and 5 tokens: 12 tokens in all.
LENGTHS = torch.tensor([2, 4, 1, 5])
ALL = torch.ones(4, dtype=torch.bool)
SECOND = torch.tensor([False, False, True, True])


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("sample", [1 / 8, 1 / 16, 1 / 4, 1 / 20]),
        ("prompt", [1 / 12, 1 / 12, 1 / 12, 1 / 12]),  # both prompts have 6 tokens
        ("token", [1 / 12] * 4),
        ("sequence", [1 / 4] * 4),
    ],
)
def test_weights_of_a_whole_batch(over: str, expected: list[float]) -> None:
    weights = token_weights(over, LENGTHS, 2, ALL)
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("sample", [0, 0, 1 / 2, 1 / 10]),
        ("prompt", [0, 0, 1 / 6, 1 / 6]),
        ("token", [0, 0, 1 / 6, 1 / 6]),
        ("sequence", [0, 0, 1 / 2, 1 / 2]),
    ],
)
def test_a_dropped_prompt_leaves_the_denominators(over: str, expected: list[float]) -> None:
    weights = token_weights(over, LENGTHS, 2, SECOND)
    torch.testing.assert_close(weights, torch.tensor(expected))


def test_the_prompt_mean_differs_from_the_token_mean_where_prompts_differ_in_length() -> None:
    lengths = torch.tensor([1, 1, 4, 6])  # prompts of 2 and 10 tokens
    weights = token_weights("prompt", lengths, 2, ALL)
    torch.testing.assert_close(weights, torch.tensor([1 / 4, 1 / 4, 1 / 20, 1 / 20]))


@pytest.mark.parametrize("over", ["sample", "prompt", "token"])
def test_a_mean_of_equal_values_is_that_value(over: str) -> None:
    weights = token_weights(over, LENGTHS, 2, ALL)
    assert (weights * LENGTHS).sum().item() == pytest.approx(1)


@pytest.mark.parametrize("loss", NATIVE)
def test_trl_s_own_mean_is_left_alone(loss: str) -> None:
    scale = advantage_scale(loss, "native", LENGTHS, 2, ALL, micro=4)
    torch.testing.assert_close(scale, torch.ones(4), rtol=0, atol=0)


def test_dropping_scales_the_kept_half_by_two() -> None:
    # As many samples and tokens are dropped as kept, so TRL's denominators are twice too large.
    for loss in NATIVE:
        scale = advantage_scale(loss, "native", LENGTHS, 2, SECOND, micro=4)
        torch.testing.assert_close(scale, torch.tensor([0.0, 0.0, 2.0, 2.0]))


def test_factors_from_one_mean_to_another() -> None:
    to_token = advantage_scale("grpo", "token", LENGTHS, 2, ALL, micro=4)
    torch.testing.assert_close(to_token, LENGTHS * 4 / 12)  # (1/N) / (1/(n |o|))
    to_sample = advantage_scale("dapo", "sample", LENGTHS, 2, ALL, micro=4)
    torch.testing.assert_close(to_sample, 12 / (4 * LENGTHS))


def test_a_mean_over_micro_batches_becomes_one_over_the_batch() -> None:
    # Micro-batches of 6 tokens each, as TRL weighs them: 1/2 x 1/6 a token; here of 3 and 9.
    scale = advantage_scale("bnpo", "native", torch.tensor([2, 1, 4, 5]), 2, ALL, micro=2)
    torch.testing.assert_close(scale, torch.tensor([6.0, 6.0, 18.0, 18.0]) / 12)


@pytest.mark.parametrize(
    ("length", "less"),
    [(0, 0.0), (12_288, 0.0), (12_289, -1 / 2048), (13_312, -0.5), (14_336, -1.0), (20_000, -1.0)],
)
def test_the_overlong_penalty_at_its_corners(length: int, less: float) -> None:
    assert overlong_penalty(length, limit=14_336, cache=2048) == pytest.approx(less)


def test_nothing_kept_is_a_loss_of_zero_not_a_nan() -> None:
    for over in ("sample", "prompt", "token"):
        scale = advantage_scale("grpo", over, LENGTHS, 2, torch.zeros_like(ALL), 4)
        assert scale.tolist() == [0, 0, 0, 0]


def test_a_group_of_equal_rewards_is_found_exactly() -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.0, 0.0, 1e-7, 1.0, 1.0, 1.0])
    assert varied_groups(rewards, 3).tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_a_completion_that_could_not_be_judged_makes_no_difference_in_its_group() -> None:
    nan = math.nan
    rewards = torch.tensor([0.7, nan, 0.7, nan, nan, nan, nan, 1.0, 0.0])
    assert varied_groups(rewards, 3).tolist() == [False] * 6 + [True] * 3


def test_a_batch_s_standard_deviation_is_of_the_rewards_there_are() -> None:
    scaled = batch_scaled(torch.tensor([0.5, -0.5, 0.0]), torch.tensor([1.0, 0.0, math.nan]))
    torch.testing.assert_close(scaled, torch.tensor([0.5, -0.5, 0.0]) / (0.5**0.5 + 1e-4))
    alone = batch_scaled(torch.zeros(2), torch.tensor([1.0, math.nan]))
    assert alone.tolist() == [0, 0]
