"""The stream of prompts: epochs, shares of a mixture, easy prompts, and going on after a stop."""

import random

import pytest

from recipes.sampling import Prompts


def test_an_epoch_has_every_prompt_once_and_the_next_another_order() -> None:
    prompts = Prompts([7], [1.0], seed=3)
    epochs = [[row for _, row in prompts.take(7)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_is_the_seed_s() -> None:
    assert Prompts([50], [1.0], 1).take(120) == Prompts([50], [1.0], 1).take(120)
    assert Prompts([50], [1.0], 1).take(50) != Prompts([50], [1.0], 2).take(50)


@pytest.mark.parametrize("weights", [[3.0, 1.0], [0.75, 0.25]])
def test_a_mixture_has_its_shares_at_every_point(weights: list[float]) -> None:
    prompts = Prompts([5, 1000], weights, seed=0)
    taken = [part for part, _ in prompts.take(400)]
    for count in range(1, 401):
        assert abs(taken[:count].count(0) - 0.75 * count) <= 1
    assert taken.count(0) == 300


def test_easy_prompts_leave_at_the_next_epoch_for_good() -> None:
    prompts = Prompts([6], [1.0], seed=0, max_pass_rate=0.9)
    for part, row in prompts.take(6):
        prompts.record((part, row), passed=[0, 8.9, 9, 10, 5, 9.5][row], samples=10)
    assert prompts.left_out == 0  # nothing changes within an epoch
    assert sorted(row for _, row in prompts.take(3)) == [0, 1, 4]
    assert prompts.left_out == 3
    for row in (3, 5):
        prompts.record((0, row), passed=0, samples=1000)  # an old batch comes in late
    assert sorted(row for _, row in prompts.take(3)) == [0, 1, 4]


def test_the_history_is_over_the_whole_run() -> None:
    prompts = Prompts([2], [1.0], seed=0, max_pass_rate=0.9)
    for passed in (10, 0):  # two epochs: 1.0, then 0.5 in all
        prompts.take(2)
        prompts.record((0, 0), passed=passed if passed else 8, samples=10)
        prompts.record((0, 1), passed=0, samples=10)
    prompts.take(1)
    assert prompts.left_out == 1  # 1.0 after the first epoch was enough


def test_a_batch_s_worth_of_the_hardest_stays() -> None:
    prompts = Prompts([5], [1.0], seed=0, max_pass_rate=0.5, least=2)
    for part, row in prompts.take(5):
        prompts.record((part, row), passed=[9, 6, 10, 7, 8][row], samples=10)
    assert sorted(row for _, row in prompts.take(2)) == [1, 3]
    assert prompts.left_out == 3


def test_a_stream_taken_up_again_is_the_same_stream() -> None:
    def advance(prompts: Prompts, count: int, draws: random.Random) -> list[tuple[int, int]]:
        keys = prompts.take(count)
        for key in keys:
            prompts.record(key, draws.randint(0, 4), 4)
        return keys

    def stream() -> Prompts:
        return Prompts([9, 14], [2.0, 1.0], seed=5, max_pass_rate=0.7, least=3)

    whole, draws = stream(), random.Random(1)
    for _ in range(8):
        advance(whole, 5, draws)
    state, kept = whole.state(), draws.getstate()
    rest = [advance(whole, 5, draws) for _ in range(20)]
    again = stream()
    again.restore(state)
    draws.setstate(kept)
    assert [advance(again, 5, draws) for _ in range(20)] == rest
    assert again.left_out == whole.left_out > 0
