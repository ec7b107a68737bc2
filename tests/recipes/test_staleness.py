"""How old each batch is when it is trained on, and what is generated when."""

import pytest
import torch

from recipes.config import Staleness
from recipes.staleness import Batch, RolloutQueue, joined, select


class Run:
    """A generator and a trainer: counts steps, and notes the age of each batch and each call."""

    def __init__(self, staleness: Staleness) -> None:
        self.step, self.calls = 0, []
        self.queue = RolloutQueue(staleness, self.generate)

    def generate(self, batches: int) -> list[Batch]:
        self.calls.append((self.step, batches))
        return [Batch({"ids": torch.tensor([self.step])}, 10, self.step) for _ in range(batches)]

    def ages(self, steps: int) -> list[int]:
        found = []
        for _ in range(steps):
            found.append(self.step - self.queue.next().step)
            self.step += 1
        return found


@pytest.mark.parametrize(
    ("staleness", "ages", "calls"),
    [
        (Staleness(), [0] * 8, [(step, 1) for step in range(8)]),
        (Staleness("ppo", 4), [0, 1, 2, 3, 0, 1, 2, 3], [(0, 4), (4, 4)]),
        (Staleness("ppo", 1), [0] * 8, [(step, 1) for step in range(8)]),
        (
            Staleness("pipeline", 3),
            [0, 1, 2, 3, 3, 3, 3, 3],
            [(0, 1)] * 4 + [(step, 1) for step in range(1, 8)],
        ),
    ],
    ids=lambda value: f"{value.kind}-{value.updates}" if isinstance(value, Staleness) else "",
)
def test_ages_and_calls(
    staleness: Staleness, ages: list[int], calls: list[tuple[int, int]]
) -> None:
    run = Run(staleness)
    assert run.ages(8) == ages
    assert run.calls == calls
    assert max(sum(n for at, n in calls if at == step) for step in range(8)) == staleness.at_once


def test_a_queue_taken_up_again_goes_on() -> None:
    whole, first = (Run(Staleness("pipeline", 3)) for _ in range(2))
    ages = whole.ages(9)
    begun = first.ages(5)
    second = Run(Staleness("pipeline", 3))
    second.step = first.step
    second.queue.restore(first.queue.state(), torch.device("cpu"))
    assert begun + second.ages(4) == ages
    assert second.calls == whole.calls[-4:]


def test_generations_of_different_lengths_are_padded_on_their_own_side() -> None:
    one = {
        "prompt_ids": torch.tensor([[5, 6]]),
        "completion_mask": torch.tensor([[1, 1, 0]]),
        "advantages": torch.tensor([0.5]),
    }
    two = {
        "prompt_ids": torch.tensor([[7, 8, 9]]),
        "completion_mask": torch.tensor([[1]]),
        "advantages": torch.tensor([-0.5]),
    }
    rows = joined([one, two], pad_token=99)
    assert rows["prompt_ids"].tolist() == [[99, 5, 6], [7, 8, 9]]
    assert rows["completion_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert rows["advantages"].tolist() == [0.5, -0.5]
    assert select(rows, torch.tensor([1]))["advantages"].tolist() == [-0.5]
