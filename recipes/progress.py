"""A run's progress: what each step counts and reports, and when to evaluate, save and stop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes.config import RunConfig
from recipes.distributed import agreed, is_main
from recipes.evaluate import Evaluation
from recipes.meter import Meter
from recipes.sink import Silent, Sink
from recipes.staleness import Batch

REPORTED = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/lr",
    "reward": "train/reward",
    "reward_std": "train/reward_std",
    "entropy": "train/entropy",
    "completions/mean_length": "train/length",
    "completions/clipped_ratio": "train/truncation_rate",
    "clip_ratio/region_mean": "train/clip_ratio",
    "cispo_clip_ratio": "train/clip_ratio",
    "step_time": "train/step_time_s",
}
"""TRL's names of what it measures in a step, and ours."""
COUNTED = ("train/reward_failures",)
"""Reported as the sum since the last report; of all others it is the mean."""


class TrainingError(RuntimeError):
    """Training cannot go on: a loss or a gradient that is not a number."""


class Progress(TrainerCallback):
    """Follows one run for its sink; its state is in each checkpoint, so a resume is exact."""

    def __init__(self, config: RunConfig, sink: Sink) -> None:
        self.config = config
        self.sink = sink if is_main() else Silent()
        self.meter = Meter()
        self.evaluation: tuple[int, Evaluation] | None = None
        self.interrupted = False
        self._window: dict[str, list[float]] = {}
        self._batch_tokens = 0
        self._step_began = 0.0

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON."""
        evaluation = self.evaluation and [self.evaluation[0], asdict(self.evaluation[1])]
        return {"meter": self.meter.state(), "window": self._window, "evaluation": evaluation}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state` returned in an earlier attempt."""
        self.meter = Meter(**state["meter"])
        self._window = state["window"]
        if state["evaluation"]:
            step, fields = state["evaluation"]
            self.evaluation = step, Evaluation(**fields)

    @property
    def finished(self) -> bool:
        """Whether the budget, or a schedule that ends by itself, is spent."""
        total = self.config.optimizer.total_steps
        spent = total is not None and self.meter.steps >= total
        return spent or self.meter.reached(self.config.budget)

    def generated(self, prompt_tokens: int, generated_tokens: int, *, scored: bool) -> None:
        """Counts what was generated, and the forward pass that scored it, if there was one."""
        self.meter.rollout(prompt_tokens, generated_tokens)
        if scored:
            self.meter.score(prompt_tokens + generated_tokens)

    def began(self, batch: Batch) -> None:
        """Notes what the step that begins trains on."""
        self._batch_tokens = batch.tokens
        if self.config.staleness.kind != "on_policy":
            self.measured("train/staleness", self.meter.steps - batch.step)

    def measured(self, name: str, value: float) -> None:
        """Takes a metric of the step that TRL does not know."""
        self._window.setdefault(name, []).append(value)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Reports an evaluation, if there is anything in it."""
        if math.isnan(evaluation.pass_rate):
            raise TrainingError(f"step {step}: the reward failed for every held-out completion")
        self.evaluation = step, evaluation
        self.sink.point(step, self.meter.compute(), evaluation.metrics())

    def saving(self) -> None:
        """Called before a checkpoint is published: the sink of a run taken over raises here."""
        self.sink.should_stop()

    def saved(self, step: int) -> None:
        """Reports a complete checkpoint."""
        self.sink.event("checkpoint", step=step)

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Starts the clock."""
        self._step_began = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Counts the step, and decides what follows it."""
        seconds = time.perf_counter() - self._step_began
        threads = torch.get_num_threads() if args.device.type == "cpu" else 1
        device_seconds = agreed(seconds * args.world_size * threads)
        self.meter.step(self._batch_tokens, device_seconds)
        due = state.global_step % self.config.budget.eval_every == 0
        self.interrupted = not self.finished and bool(agreed(self.sink.should_stop()))
        control.should_evaluate = due or self.finished
        control.should_save = control.should_evaluate or self.interrupted
        control.should_training_stop = self.finished or self.interrupted

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Takes each step's metrics and reports them every `budget.log_every` steps."""
        state.log_history.clear()  # else it grows with the run, in memory and in each checkpoint
        if not logs or "loss" not in logs:
            return
        self._check_finite(state.global_step, logs)
        for name, ours in REPORTED.items():
            if logs.get(name) is not None:
                self.measured(ours, logs[name])
        if state.global_step % self.config.budget.log_every == 0:
            metrics = {
                name: sum(values) / (1 if name in COUNTED else len(values))
                for name, values in self._window.items()
            }
            self.sink.point(state.global_step, self.meter.compute(), metrics)
            self._window = {}

    def _check_finite(self, step: int, logs: Mapping[str, float]) -> None:
        """Stops before an evaluation or a checkpoint; bad FP16 gradients are the scaler's."""
        checked = ["loss"] if self.config.precision.dtype == "fp16" else ["loss", "grad_norm"]
        for name in checked:
            if not math.isfinite(logs[name]):
                raise TrainingError(f"step {step}: {name} is {logs[name]}; training stopped")
