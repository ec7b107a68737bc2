"""The held-out evaluation: its error, its own randomness, what it counts."""

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from recipes import models, tasks
from recipes.evaluate import clustered_mean, evaluate, evaluation_seed
from tests.recipes.conftest import TINY

GENERATION = GenerationConfig(
    max_new_tokens=4, do_sample=True, top_k=0, pad_token_id=0, eos_token_id=[2]
)


def test_the_error_counts_prompts_not_samples() -> None:
    # Prompt means 1, 0, 1/2, 1/2: sd = sqrt(1/6), over sqrt(4) prompts.
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    mean, stderr = clustered_mean(rewards)
    assert mean == 0.5
    assert stderr == pytest.approx((1 / 6) ** 0.5 / 2)


def test_evaluating_changes_no_random_state_and_repeats_itself(models_dir: Path) -> None:
    model, tokenizer = models.load(TINY, models_dir)
    model.train()
    data = tasks.load(TINY.task)
    before = torch.random.get_rng_state()
    first = evaluate(model, tokenizer, GENERATION, data, 4, 64, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training
    torch.rand(10)
    assert evaluate(model, tokenizer, GENERATION, data, 4, 64, seed=3) == first
    assert evaluate(model, tokenizer, GENERATION, data, 4, 64, seed=4) != first


def test_seeds_differ_by_run_seed_and_step() -> None:
    seeds = {evaluation_seed(seed, step) for seed in range(4) for step in range(0, 100, 25)}
    assert len(seeds) == 16


def test_rates_and_lengths_of_known_completions(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = models.load(TINY, models_dir)
    data = tasks.load(TINY.task)
    end, pad, zero = tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer("0")["input_ids"][0]

    def right_then_truncated(input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        completions = []
        for index, ids in enumerate(input_ids):
            digits = sorted(tokenizer.decode(ids, skip_special_tokens=True)[:-1])
            right = [*tokenizer("".join(digits))["input_ids"], end, pad]
            completions.append(right if index % 2 == 0 else [zero] * 4)
        return torch.cat([input_ids, torch.tensor(completions)], 1)

    monkeypatch.setattr(model, "generate", right_then_truncated)
    result = evaluate(model, tokenizer, GENERATION, data, 2, 8, seed=0)
    assert result.pass_rate == 0.5
    assert result.stderr == 0
    assert result.truncation_rate == 0.5
    assert result.length == 3.5  # two digits and the end token; or four tokens without one
