"""Stands in for ``recipes/train.py``: the same points, checkpoints and resumes, without training.

What it does is told by words in a file ``behave`` in the folder of all runs: ``fail``,
``fail_rank_1`` (the second process of a run does), ``slow`` (0.1 s a step), ``hold STEP`` (from
there on it waits while the word is there, unless it is told to stop), ``kill STEP`` (it kills
itself there, unless it was resumed), ``spread`` (the curve levels off at 1000 times the learning
rate), ``collapse LR`` (the run with it does from step 12 on).
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import RunConfig

if TYPE_CHECKING:
    from recipes.sink import Sink

VERSION = "one"


@dataclass(frozen=True)
class RunResult:
    status: str
    step: int
    compute: dict[str, float]
    pass_rate: float
    stderr: float
    truncation: float


def train(config: RunConfig, run_dir: Path, models_dir: Path, sink: Sink) -> RunResult:
    script = run_dir.parent / "behave"
    words = script.read_text().split() if script.exists() else []
    saved = run_dir / "fake-checkpoint.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    resumed = step > 0

    rate = partial(_rate, words, config.optimizer.lr)
    if step == 0:
        _evaluate(sink, 0, rate(0))
    if "fail" in words or ("fail_rank_1" in words and os.environ.get("RANK") == "1"):
        raise ValueError("the loss became a pumpkin")
    while step < config.budget.amount:
        step += 1
        if "slow" in words:
            time.sleep(0.1)
        held = "hold" in words and step >= _number(words, "hold")
        while held and "hold" in script.read_text() and not sink.should_stop():
            time.sleep(0.02)
        if "kill" in words and not resumed and step == _number(words, "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        stop = sink.should_stop()
        if step % config.budget.eval_every == 0 or step == config.budget.amount:
            _evaluate(sink, step, rate(step))
        if step % config.budget.eval_every == 0 or stop:
            aside = saved.with_suffix(".new")
            aside.write_text(json.dumps({"step": step, "code": VERSION}))
            aside.replace(saved)
            sink.event("checkpoint", step=step, code=VERSION)
        if stop:
            return _result("interrupted", step, rate(step))
    return _result("completed", step, rate(step))


def _number(words: list[str], word: str) -> float:
    return float(words[words.index(word) + 1])


def _rate(words: list[str], lr: float, step: int) -> float:
    if "collapse" in words and lr == _number(words, "collapse") and step >= 12:
        return 0.1
    return 0.2 + (1000 * lr - 0.2 if "spread" in words else 0.6) * step / (step + 20)


def _evaluate(sink: Sink, step: int, rate: float) -> None:
    metrics = {"eval/pass_rate": rate, "eval/pass_rate_stderr": 0.01}
    sink.point(step, _compute(step), {**metrics, "eval/truncation_rate": 0.0})


def _compute(step: int) -> dict[str, float]:
    return {"steps": step, "tokens": 10.0 * step, "flops": 1e6 * step, "gpu_hours": step / 3600}


def _result(status: str, step: int, rate: float) -> RunResult:
    return RunResult(status, step, _compute(step), rate, 0.01, 0.0)
