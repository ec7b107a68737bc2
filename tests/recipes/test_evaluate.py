"""The held-out evaluation: its error, its own randomness, what it counts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes import models
from recipes.config import Length, Model
from recipes.evaluate import Judged, clustered_mean, evaluate, evaluation_seed, summary
from recipes.progress import TrainingError
from recipes.tasks import Row, Scores, TaskData
from recipes.trainer import AblationTrainer
from tests.recipes.conftest import TINY, built, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def trainer(models_dir: Path, tmp_path: Path) -> AblationTrainer:
    return built(TINY, models_dir, tmp_path)


def test_the_error_counts_prompts_not_samples() -> None:
    # Prompt means 1, 0, 1/2, 1/2: sd = sqrt(1/6), over sqrt(4) prompts.
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    mean, stderr = clustered_mean(rewards)
    assert mean == 0.5
    assert stderr == pytest.approx((1 / 6) ** 0.5 / 2)


def test_what_could_not_be_judged_is_no_sample() -> None:
    nan = math.nan
    # Prompt means 1, 0, 1/2 of those judged; the last prompt has none.
    rewards = torch.tensor([[1.0, nan], [0.0, 0.0], [1.0, 0.0], [nan, nan]])
    mean, stderr = clustered_mean(rewards)
    assert mean == 0.5
    assert stderr == pytest.approx(0.5 / 3**0.5)
    assert math.isnan(clustered_mean(torch.tensor([[1.0]]))[1])


def test_a_mixture_is_evaluated_together_and_part_by_part() -> None:
    def judged(part: str, *rewards: float) -> Judged:
        return Judged(part, list(rewards), [2, 4], [True, False])

    prompts = [
        judged("math", 1, 1),
        judged("code", 0, 0),
        judged("math", 1, 0),
        judged("code", 1, 0),
    ]
    assert summary(prompts).metrics() == pytest.approx(
        {
            "eval/pass_rate": 0.5,
            "eval/pass_rate_stderr": (0.5 / 3) ** 0.5 / 2,  # means 1, 0, 1/2, 1/2
            "eval/truncation_rate": 0.5,
            "eval/length": 3,
            "eval/reward_failures": 0,
            "eval/math/pass_rate": 0.75,
            "eval/math/pass_rate_stderr": 0.25,  # means 1, 1/2: sd sqrt(1/8), over sqrt(2)
            "eval/code/pass_rate": 0.25,
            "eval/code/pass_rate_stderr": 0.25,
        }
    )
    assert summary(prompts[::2]).parts == {}


def test_evaluating_changes_no_random_state_and_repeats_itself(trainer: AblationTrainer) -> None:
    trainer.model.train()
    before = torch.random.get_rng_state()
    first = evaluate(trainer, trainer.data, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert trainer.model.training
    torch.rand(10)
    assert evaluate(trainer, trainer.data, 3) == first
    assert evaluate(trainer, trainer.data, 4) != first


def test_seeds_differ_by_run_seed_and_step_and_process() -> None:
    seeds = {
        evaluation_seed(seed, step, rank)
        for seed in range(4)
        for step in range(0, 100, 25)
        for rank in range(3)
    }
    assert len(seeds) == 48


def test_rates_and_lengths_of_known_completions(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trainer.processing_class
    end, pad, zero = tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer("0")["input_ids"][0]

    def right_then_truncated(input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        completions = []
        for index, ids in enumerate(input_ids):
            digits = sorted(tokenizer.decode(ids, skip_special_tokens=True)[:-1])
            right = [*tokenizer("".join(digits))["input_ids"], end, pad]
            completions.append(right if index % 2 == 0 else [zero] * 4)
        return torch.cat([input_ids, torch.tensor(completions)], 1)

    monkeypatch.setattr(trainer.model, "generate", right_then_truncated)
    trainer.config = tiny(task=replace(TINY.task, eval_samples=2))
    result = evaluate(trainer, trainer.data, 0)
    assert result.pass_rate == 0.5
    assert result.stderr == 0
    assert result.truncation_rate == 0.5
    assert result.length == 3.5  # two digits and the end token; or four tokens without one
    assert result.reward_failures == 0


def test_failures_of_the_reward_are_counted_and_in_no_rate(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_fails(_: TaskData, completions: Sequence[str], rows: Sequence[Row]) -> Scores:
        return Scores([1.0, math.nan] * (len(completions) // 2), len(completions) // 2, "it broke")

    monkeypatch.setattr(TaskData, "score", half_fails)
    result = evaluate(trainer, trainer.data, 0)
    assert result.pass_rate == 1
    assert result.reward_failures == 20 * 4 / 2


def test_a_reward_that_always_fails_ends_the_run(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: TaskData, completions: Sequence[str], rows: Sequence[Row]) -> Scores:
        return Scores([math.nan] * len(completions), len(completions), "it broke")

    monkeypatch.setattr(TaskData, "score", fails)
    with pytest.raises(TrainingError, match="step 0: the reward failed for every held-out"):
        trainer.evaluate()


def test_processes_share_the_prompts(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty prompts for three: seven each, the last of which one process has for form's sake."""
    shares: list[list[tuple[int, Judged]]] = []

    def gather(share: list[tuple[int, Judged]]) -> list[tuple[int, Judged]]:
        shares.append(share)
        return [item for one in shares for item in one]

    monkeypatch.setattr("recipes.evaluate.gather_object", gather)
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 3)
    for rank in range(3):
        monkeypatch.setattr(type(trainer.accelerator), "process_index", rank)
        if rank < 2:
            with pytest.raises(KeyError):  # not all are there yet
                evaluate(trainer, trainer.data, 0)
        else:
            result = evaluate(trainer, trainer.data, 0)
    assert [len(share) for share in shares] == [7, 7, 7]
    assert sorted(index for share in shares for index, _ in share) == [0, *range(20)]
    found = dict(item for share in shares for item in share)
    rates = [sum(found[index].rewards) / 4 for index in range(20)]
    assert result.pass_rate == pytest.approx(sum(rates) / 20)


def test_an_evaluation_generates_as_training_does(models_dir: Path, tmp_path: Path) -> None:
    task = replace(TINY.task, max_completion_tokens=8, end_of_thinking="=")
    interrupt = Length("interrupt", earliest=0.0, latest=0.25)
    unused_to_it = Model(path=str(models.ensure_embedded(TINY, models_dir)))
    config = tiny(task=task, model=unused_to_it)
    thinking = built(replace(config, length=interrupt), models_dir, tmp_path)
    assert evaluate(thinking, thinking.data, 0).pass_rate > 0.1  # judged after the forced "="
    plain = built(config, models_dir, tmp_path)
    assert evaluate(plain, plain.data, 0).pass_rate < 0.1  # it hardly ever writes one
