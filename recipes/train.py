"""Trains one run: from the beginning, or from its last checkpoint, until its budget is spent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from recipes import models, tasks
from recipes.checkpoints import Checkpoints
from recipes.config import ConfigError, Execution, RunConfig
from recipes.progress import Progress, TrainingError
from recipes.sink import Sink
from recipes.trainer import AblationTrainer

__all__ = ["RunResult", "Sink", "TrainingError", "train"]


@dataclass(frozen=True)
class RunResult:
    """How a call of `train` ended; the rates are of the last evaluation."""

    status: str
    """``completed``: the budget is spent; ``interrupted``: the sink asked to stop before."""
    step: int
    compute: dict[str, float]
    pass_rate: float
    stderr: float
    truncation: float


def train(config: RunConfig, run_dir: Path, models_dir: Path, sink: Sink) -> RunResult:
    """Trains `config` until its budget is spent, going on from the last checkpoint.

    On a CPU, a run that was killed, or stopped, and resumed has the values of an uninterrupted one.

    Args:
        config: the run; `config.budget` says how far.
        run_dir: its folder; checkpoints go to ``checkpoints/`` there.
        models_dir: where embedded models are kept, shared by runs.
        sink: takes points and events.

    Raises:
        ConfigError: the run cannot be trained here; nothing has been written.
        TrainingError: the loss or gradient became NaN or infinite.
    """
    if config.precision.dtype == "fp16" and not torch.cuda.is_available():
        raise ConfigError("precision.dtype", "fp16", "fp32 | bf16, without a GPU")
    _check_layout(config.execution)
    checkpoints = Checkpoints(run_dir / "checkpoints", config.execution.keep_checkpoints)
    latest = checkpoints.latest()
    progress = Progress(config, sink)
    if latest:
        progress.restore(checkpoints.state(latest))
    if not progress.finished:
        _train(config, checkpoints, progress, models_dir)
    return _result(progress)


def _check_layout(execution: Execution) -> None:
    """Refuses what this machine, or this number of processes, cannot do."""
    rollouts, deepspeed = execution.rollouts, execution.deepspeed
    if rollouts != "transformers" and not find_spec("vllm"):
        allowed = "transformers, where vLLM is not installed"
        raise ConfigError("execution.rollouts", rollouts, allowed)
    if deepspeed is not None and not find_spec("deepspeed"):
        raise ConfigError("execution.deepspeed", deepspeed, "null, where it is not installed")
    if deepspeed is not None and not Path(deepspeed).is_file():
        raise ConfigError("execution.deepspeed", deepspeed, "a file")
    if execution.fsdp and os.environ.get("WORLD_SIZE", "1") == "1":
        raise ConfigError("execution.fsdp", True, "false, with one process")


def _train(
    config: RunConfig, checkpoints: Checkpoints, progress: Progress, models_dir: Path
) -> None:
    """Builds the trainer and lets it run."""
    models.quiet()
    model, tokenizer = models.load(config, models_dir)
    data = tasks.load(config.task, tokenizer)
    config.check_prompts(len(data.train))
    progress.meter.parameters = models.matmul_parameters(model)
    progress.meter.trained_parameters = models.matmul_parameters(model, trained=True)
    checkpoints.clear_aside()
    kind: Any = AblationTrainer
    if config.execution.rollouts == "async":
        from recipes.asynchronous import AsynchronousTrainer as kind  # noqa: N813
    trainer = kind(config, model, tokenizer, data, checkpoints, progress)
    trainer.remove_callback(PrinterCallback)
    if config.execution.threads:  # here, for accelerate sets its own where there are processes
        torch.set_num_threads(config.execution.threads)
    trainer.go_on(checkpoints.latest())


def _result(progress: Progress) -> RunResult:
    assert progress.evaluation is not None
    evaluation = progress.evaluation[1]
    return RunResult(
        status="interrupted" if progress.interrupted else "completed",
        step=progress.meter.steps,
        compute=progress.meter.compute(),
        pass_rate=evaluation.pass_rate,
        stderr=evaluation.stderr,
        truncation=evaluation.truncation_rate,
    )
