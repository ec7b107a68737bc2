"""The gradient of one optimizer batch, against its formula and against TRL's own."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from recipes import models, tasks
from recipes.arguments import arguments
from recipes.checkpoints import Checkpoints
from recipes.config import (
    Advantage,
    Aggregation,
    Budget,
    ConfigError,
    Execution,
    Loss,
    Precision,
    RunConfig,
)
from recipes.progress import Progress
from recipes.trainer import AblationTrainer
from tests.recipes.conftest import Recorder, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Observed(AblationTrainer):
    """Remembers the rollouts as generated, and the gradient before it is clipped."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        original = GRPOTrainer._generate_and_score_completions

        def remember(trainer: GRPOTrainer, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            self.rollouts = original(trainer, inputs)
            return dict(self.rollouts)

        GRPOTrainer._generate_and_score_completions = remember
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            GRPOTrainer._generate_and_score_completions = original

    def _prepare_inputs(self, turn: object) -> dict[str, Any]:
        self.trained: dict[str, Any] = super()._prepare_inputs(turn)
        return self.trained

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        self.gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
        return super()._clip_grad_norm(model)


def observe(models_dir: Path, folder: Path, **changes: Any) -> Observed:  # noqa: ANN401
    """One optimizer step; the same rollouts whatever the loss, for they come before it."""
    config: RunConfig = tiny(budget=Budget(amount=1, eval_every=100, log_every=1), **changes)
    model, tokenizer = models.load(config, models_dir)
    progress, aside = Progress(config, Recorder()), Path(tempfile.mkdtemp(dir=folder))
    data = tasks.load(config.task)
    trainer = Observed(config, model, tokenizer, data, Checkpoints(aside, 1), progress)
    trainer.go_on(None)
    return trainer


@pytest.mark.parametrize(("over", "native"), [("sample", "grpo"), ("token", "dapo")])
def test_a_mean_that_trl_has_equals_trl_s(
    over: str, native: str, models_dir: Path, tmp_path: Path
) -> None:
    other = {"sample": "dapo", "token": "grpo"}[over]
    ours = observe(models_dir, tmp_path, loss=Loss(other), aggregation=Aggregation(over))
    theirs = observe(models_dir, tmp_path, loss=Loss(native))
    assert torch.equal(theirs.rollouts["completion_ids"], ours.rollouts["completion_ids"])
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-4, atol=2e-6)
    unscaled = observe(models_dir, tmp_path, loss=Loss(other))
    assert not torch.allclose(unscaled.gradient, theirs.gradient, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("scale", ["prompt", "batch", "none"])
def test_advantages_by_hand(scale: str, models_dir: Path, tmp_path: Path) -> None:
    trainer = observe(models_dir, tmp_path, advantage=Advantage(scale))
    texts = trainer.processing_class.batch_decode(
        trainer.rollouts["completion_ids"], skip_special_tokens=True
    )
    prompts = trainer.processing_class.batch_decode(
        trainer.rollouts["prompt_ids"], skip_special_tokens=True
    )
    rewards = [
        float(text == "".join(sorted(p[:-1]))) for text, p in zip(texts, prompts, strict=True)
    ]
    groups = torch.tensor(rewards, dtype=torch.float64).view(4, 4)
    assert 0 < groups.mean() < 1
    std = {"prompt": groups.std(1, keepdim=True), "batch": groups.std(), "none": 1}[scale]
    expected = (groups - groups.mean(1, keepdim=True)) / (std + (0 if scale == "none" else 1e-4))
    torch.testing.assert_close(
        trainer.trained["advantages"].double(), expected.flatten(), rtol=1e-5, atol=1e-6
    )
    varied = (groups.amax(1) > groups.amin(1)).double().mean().item()
    logged = trainer.progress.sink.points[1, "train"]
    assert logged["train/zero_variance_groups"] == pytest.approx(1 - varied)
    assert logged["train/reward"] == pytest.approx(groups.mean().item())


@pytest.mark.parametrize("fp32_head", [False, True])
def test_the_fp32_head_computes_logits_in_fp32_where_autocast_would_not(
    fp32_head: bool, models_dir: Path, tmp_path: Path
) -> None:
    trainer = observe(models_dir, tmp_path, precision=Precision("bf16", fp32_head))
    seen = []
    head = trainer.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer.evaluate()  # generation
    assert set(seen) == {torch.float32 if fp32_head else torch.bfloat16}


def test_sampling_is_the_task_s_not_the_model_s(
    models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = observe(models_dir, tmp_path)
    load = models.load

    def greedy(config: RunConfig, folder: Path) -> tuple[Any, Any]:
        model, tokenizer = load(config, folder)
        model.generation_config.update(do_sample=True, top_k=1)  # chat models have such settings
        return model, tokenizer

    monkeypatch.setattr(models, "load", greedy)
    other = observe(models_dir, tmp_path)
    assert torch.equal(other.rollouts["completion_ids"], plain.rollouts["completion_ids"])
    assert other.progress.evaluation == plain.progress.evaluation


@pytest.mark.parametrize(
    ("processes", "line"),
    [
        ("2", "execution.micro_batch: got 16, allowed: a divisor of 16 / 2 processes"),
        ("3", "batch.prompts x batch.generations: got 16, allowed: a multiple of 3 processes"),
        ("32", "batch.prompts x batch.generations: got 16, allowed: a multiple of 32 processes"),
    ],
)
def test_processes_and_micro_batches_must_divide_the_batch(
    processes: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(ConfigError, match=line):
        arguments(tiny(execution=Execution(micro_batch=16)), tmp_path)


def test_nothing_is_asked_of_the_network(
    models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)
    observe(models_dir, tmp_path)
