from __future__ import annotations

import numpy as np
import pytest

from analysis import racing
from analysis.curves import Curve, points
from analysis.racing import Rule, Standing
from tests.analysis.simulate import run

CEILINGS = (0.45, 0.5, 0.55, 0.6, 0.65)


def recipes(
    last: float, seeds: int = 1, ceilings: tuple[float, ...] = CEILINGS
) -> list[list[Curve]]:
    """Recipes whose higher ceilings are the slower to reach."""
    return [
        [
            run(f"A={A}", (A, 1.9, 2500 * (A / 0.55) ** 4, 0.2), last=last, seed=10 * i + j, of=j)
            for j in range(seeds)
        ]
        for i, A in enumerate(ceilings)
    ]


def standing(values: list[float]) -> Standing:
    return Standing("", values=np.array(values))


def test_chance_is_the_share_of_draws_in_which_a_recipe_is_the_best_or_close() -> None:
    drawn = [standing([0.5, 0.6, 0.7, 0.2]), standing([0.6, 0.5, 0.69, 0.1]), standing([0.1] * 4)]
    exact = racing.decide(drawn, Rule(threshold=0.3))
    assert [s.chance for s in exact] == [0.75, 0.25, 0.0]
    assert [s.goes_on for s in exact] == [True, False, False]
    close = racing.decide(drawn, Rule(threshold=0.3, margin=0.02))
    assert [s.chance for s in close] == [0.75, 0.5, 0.0]
    assert [s.goes_on for s in close] == [True, True, False]


def test_the_likeliest_goes_on_whatever_the_threshold() -> None:
    drawn = [standing([1.0, 0.0, 0.0]), standing([0.0, 1.0, 0.5]), Standing("too few points")]
    judged = racing.decide(drawn, Rule(threshold=0.9))
    assert [s.goes_on for s in judged] == [False, True, True]
    assert judged[2].chance is None


def test_the_likeliest_come_first_after_what_cannot_be_judged() -> None:
    chances = {"a": 0.2, "b": 0.5, "new": None, "c": 0.25, "out": 0.05}
    drawn = [Standing(name, chance=c, goes_on=name != "out") for name, c in chances.items()]
    assert [s.run for s in racing.leaders(drawn, 2)] == ["new", "b", "c"]
    assert [s.run for s in racing.leaders(drawn, None)] == ["new", "b", "c", "a"]


def test_a_slow_starter_with_the_highest_ceiling_stays_in() -> None:
    found = racing.judge(recipes(2500), Rule(at=1e5))
    last = [c[0].reward[-3:].mean() for c in recipes(2500)]
    assert int(np.argmax(last)) < 4  # by its last values it would be behind
    assert found[4].goes_on
    assert not found[0].goes_on
    assert sum(s.chance or 0 for s in found) == pytest.approx(1, abs=0.01)


def test_with_more_compute_only_the_best_is_left_and_its_forecast_holds() -> None:
    found = racing.judge(recipes(12000), Rule(at=1e5))
    assert [s.goes_on for s in found] == [False] * 4 + [True]
    forecast = found[4].forecast
    assert forecast is not None
    low, high = forecast.interval
    assert low < 0.65 < high
    assert high - low < 0.03


def test_seeds_count_together_and_an_unstable_recipe_is_out() -> None:
    several = recipes(4000, seeds=2)
    assert len(racing.judge(several, Rule(at=1e5))) == 5
    bad = [run("A=0.65", (0.65, 1.9, 2500, 0.2), last=4000, truncation=0.4)]
    found = racing.judge([*several[:4], bad], Rule(at=1e5))
    assert found[4].problems == ["40% of recent responses truncated, above 10%"]
    assert (found[4].goes_on, found[4].chance) == (False, None)


def test_what_cannot_be_fitted_yet_goes_on() -> None:
    found = racing.judge([*recipes(4000), [run("new", last=450)]], Rule(at=1e5))
    assert (found[-1].chance, found[-1].goes_on) == (None, True)


def test_the_same_curves_are_judged_the_same() -> None:
    first, again = (racing.judge(recipes(4000), Rule(at=1e5)) for _ in range(2))
    assert [s.chance for s in first] == [s.chance for s in again]


def test_few_recipes_are_judged_each_alone() -> None:
    two = [points(c) for c in recipes(4000)[:2]]
    assert len(racing.shared_draws(two, np.random.default_rng(0))) == 2
