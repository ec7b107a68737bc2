"""Several optimizer batches of one generation, and refilled ones, on rewards that are given."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipes import tasks
from recipes.arguments import SCALE_REWARDS
from recipes.batches import OptimizerBatches
from recipes.config import Advantage, Batch, Filtering, RunConfig, Staleness
from recipes.progress import Progress, TrainingError
from recipes.staleness import Rows
from tests.recipes.conftest import Recorder, tiny

NAN = math.nan
TWO = Batch(prompts=2, generations=2)


class Rollouts:
    """One-token completions whose rewards are `given`, group after group; advantages as TRL's."""

    def __init__(self, config: RunConfig, given: list[list[float]]) -> None:
        self.rewards = self.passed = list[float]()
        self.last_error = "it broke"
        self._given = given
        assert SCALE_REWARDS[config.advantage.scale] == "none"
        accelerator: Any = SimpleNamespace(num_processes=1, process_index=0, device="cpu")
        self.progress = Progress(config, Recorder())
        scorer: Any = self
        self.batches = OptimizerBatches(
            config, tasks.load(config.task), self.progress, accelerator, scorer, self._roll_out, 0
        )

    def _roll_out(self, inputs: list[dict[str, Any]]) -> Rows:
        groups = [self._given.pop(0) for _ in range(len(inputs) // 2)]
        self.rewards = self.passed = [reward for group in groups for reward in group]
        rewards = torch.tensor(groups)
        one = torch.ones(len(inputs), 1, dtype=torch.long)
        return {
            "prompt_ids": one,
            "prompt_mask": one,
            "completion_ids": one,
            "completion_mask": one,
            "advantages": (rewards - rewards.nanmean(1, keepdim=True)).nan_to_num(0).flatten(),
        }

    def next(self) -> list[float]:
        """Advantages of the next batch."""
        advantages: list[float] = self.batches.next().rows["advantages"].tolist()
        return advantages

    def measured(self, name: str) -> list[float]:
        return self.progress._window[f"train/{name}"]


def batch_config(**changes: Any) -> RunConfig:  # noqa: ANN401
    return tiny(batch=TWO, advantage=Advantage("batch"), **changes)


def scaled(rewards: list[list[float]]) -> list[float]:
    """(reward - mean of its group) / (standard deviation of all + 1e-4), by hand."""
    flat = [reward for group in rewards for reward in group]
    mean = sum(flat) / len(flat)
    std = (sum((r - mean) ** 2 for r in flat) / (len(flat) - 1)) ** 0.5
    return [(r - sum(group) / len(group)) / (std + 1e-4) for group in rewards for r in group]


@pytest.mark.parametrize("staleness", [Staleness("ppo", 2), Staleness("pipeline", 1)])
def test_each_batch_of_one_generation_has_its_own_standard_deviation(staleness: Staleness) -> None:
    first, second = [[1.0, 0.0], [1.0, 0.0]], [[0.1, 0.0], [0.0, 0.0]]
    rollouts = Rollouts(batch_config(staleness=staleness), [*first, *second, *first])
    assert rollouts.next() == pytest.approx(scaled(first))
    assert rollouts.next() == pytest.approx(scaled(second))


def test_a_refilled_batch_has_one_standard_deviation_for_all_of_its_rounds() -> None:
    config = batch_config(filtering=Filtering("resample"))
    rollouts = Rollouts(config, [[1.0, 0.0], [1.0, 1.0], [0.5, 0.0], [0.0, 0.0]])
    assert rollouts.next() == pytest.approx(scaled([[1.0, 0.0], [0.5, 0.0]]))
    assert rollouts.measured("zero_variance_groups") == [0.5]
    assert rollouts.measured("generation_rounds") == [2]


def test_a_round_in_which_nothing_can_be_judged_is_generated_again() -> None:
    config = batch_config(filtering=Filtering("resample"))
    given = [[1.0, 0.0], [1.0, 1.0], [NAN, NAN], [NAN, NAN], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    rollouts = Rollouts(config, given)
    assert rollouts.next() == pytest.approx(scaled([[1.0, 0.0], [0.0, 1.0]]))
    assert rollouts.measured("reward_failures") == [4]


def test_nothing_that_varies_ends_with_the_rounds_and_moves_nothing() -> None:
    rollouts = Rollouts(batch_config(filtering=Filtering("resample", rounds=3)), [[1.0, 1.0]] * 6)
    assert rollouts.next() == [0, 0, 0, 0]
    assert rollouts.measured("generation_rounds") == [3]
    assert rollouts.progress.meter.generated_tokens == 12


def test_a_batch_in_which_nothing_can_be_judged_ends_the_run() -> None:
    with pytest.raises(TrainingError, match="the reward failed for every completion: it broke"):
        Rollouts(batch_config(), [[NAN, NAN], [NAN, NAN]]).next()


def test_failures_are_summed_and_all_else_is_averaged() -> None:
    config = tiny(batch=TWO, advantage=Advantage("none"))
    rollouts = Rollouts(config, [[1.0, NAN], [1.0, 0.0], [NAN, 0.0], [1.0, NAN]])
    progress = rollouts.progress
    for step in (1, 2):  # reported every second step
        rollouts.next()
        state: Any = SimpleNamespace(global_step=step, log_history=[])
        told: Any = None
        progress.on_log(told, state, told, logs={"loss": step, "grad_norm": 1.0})
    recorder: Any = progress.sink
    assert recorder.points[2, "train"]["train/reward_failures"] == 3
    assert recorder.points[2, "train"]["train/zero_variance_groups"] == 0.75
    assert recorder.points[2, "train"]["train/loss"] == 1.5
