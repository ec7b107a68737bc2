"""Unstable runs are named, each for its reason; sound ones are left alone."""

import numpy as np
import pytest

from analysis.curves import Curve, curve
from analysis.health import check
from tests.analysis.simulate import run

STEPS = np.arange(1, 21)
RISING = 0.2 + 0.4 * STEPS / (STEPS + 5)


def health(reward: np.ndarray = RISING, **given: object) -> tuple[list[str], list[str]]:
    h = check([curve("a", STEPS, reward, **given)])  # type: ignore[arg-type]
    return h.problems, h.warnings


@pytest.mark.parametrize("seed", range(20))
def test_noisy_sound_runs_are_stable(seed: int) -> None:
    assert check([run(sd=0.02, seed=seed, truncation=0.04)]).stable


def test_truncation_above_a_tenth_is_unstable() -> None:
    assert health(truncation=np.full(20, 0.12)) == (
        ["12% of recent responses truncated, above 10%"],
        [],
    )
    rising = np.where(STEPS > 17, 0.2, 0.02)
    assert health(truncation=rising)[0] == ["20% of recent responses truncated, above 10%"]


def test_truncation_that_came_back_is_a_warning() -> None:
    early = np.where(STEPS < 5, 0.3, 0.02)
    assert health(truncation=early) == ([], ["truncation reached 30% earlier and came back"])


def test_a_fallen_reward_has_collapsed() -> None:
    broken = np.where(STEPS > 15, 0.3, RISING)
    (problem,), _ = health(broken)
    assert problem == "reward collapsed from 0.495 to 0.300"


def test_a_dip_within_the_noise_has_not() -> None:
    assert health(RISING - np.where(STEPS > 17, 0.02, 0))[0] == []


def test_nan_in_training_names_the_metric() -> None:
    problems, _ = health(signals={"train/loss": [1.0, np.nan], "train/entropy": [1.0, 0.9]})
    assert problems == ["NaN or infinity in train/loss"]


def test_entropy_collapse_is_a_warning() -> None:
    fallen = {"train/entropy": np.geomspace(1.0, 0.001, 12)}
    assert health(signals=fallen)[1] == ["entropy collapsed from 0.606 to 0.00213"]


def test_one_unstable_seed_is_named_among_several() -> None:
    seeds: list[Curve] = [run(of=0), run(of=1, truncation=0.5)]
    assert check(seeds).problems == ["50% of recent responses truncated, above 10% (seed 1)"]
