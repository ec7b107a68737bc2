"""Time per step and peak memory: our trainer against TRL's plain GRPOTrainer at the same settings.

Both train the embedded model in one process, in turn, so that a slow moment of the machine falls on
both; on one thread, where CPU time is what an idle machine would take. Memory is that of a process
forked for each training, in turn too: the most that was resident, and how much of it was more than
before the trainer was built. Prints each pair and the medians of their ratios, and keeps them as
JSON.

    python benchmarks/trainer_overhead.py [--pairs 7] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from recipes import models, tasks
from recipes.arguments import arguments
from recipes.checkpoints import Checkpoints
from recipes.config import Budget, Execution, RunConfig
from recipes.progress import Progress
from recipes.trainer import AblationTrainer

RESULTS = Path(__file__).parent / "results" / "trainer_overhead.json"


Build = Callable[[RunConfig, Path], trl.GRPOTrainer]


class Clock(TrainerCallback):
    """Notes the CPU time at which each step begins, and ends the training after `steps`."""

    def __init__(self, steps: int) -> None:
        self.began: list[float] = []
        self.steps = steps

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Called by transformers."""
        self.began.append(time.process_time())

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Called by transformers, last."""
        control.should_training_stop = state.global_step >= self.steps

    def per_step_s(self) -> float:
        """Seconds from one step's beginning to the next's: the first quartile, least disturbed."""
        pairs = zip(self.began, self.began[1:], strict=False)
        return statistics.quantiles(after - before for before, after in pairs)[0]


class Nowhere:
    """A sink that keeps nothing."""

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Not kept."""

    def event(self, name: str, **fields: object) -> None:
        """Not kept."""

    def should_stop(self) -> bool:
        """Never."""
        return False


def ours(config: RunConfig, models_dir: Path) -> trl.GRPOTrainer:
    """Our trainer, with its counting and reporting."""
    model, tokenizer = models.load(config, models_dir)
    checkpoints = Checkpoints(Path(tempfile.mkdtemp()), keep=1)
    progress = Progress(config, Nowhere())
    return AblationTrainer(config, model, tokenizer, tasks.load(config.task), checkpoints, progress)


def plain(config: RunConfig, models_dir: Path) -> trl.GRPOTrainer:
    """TRL's own, with the same model, data, reward and settings."""
    model, tokenizer = models.load(config, models_dir)
    data = tasks.load(config.task)

    def reward(completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [float(given == right) for given, right in zip(completions, answer, strict=True)]

    settings = arguments(config, Path(tempfile.mkdtemp()))
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(list(data.train)),
        processing_class=tokenizer,
    )


def seconds(build: Build, config: RunConfig, models_dir: Path, steps: int) -> float:
    """Seconds a step of one training, without the evaluations that plain TRL does not do."""
    trainer, clock = build(config, models_dir), Clock(steps)
    trainer.args.eval_on_start = False
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock)
    trainer.train()
    return clock.per_step_s()


def peak_bytes(build: Build, config: RunConfig, models_dir: Path, steps: int) -> dict[str, int]:
    """Bytes resident at most in a process that does one training, and by how many they grew."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before = _peak()
        seconds(build, config, models_dir, steps)
        os.write(writing, json.dumps({"peak": _peak(), "growth": _peak() - before}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        measured: dict[str, int] = json.loads(pipe.read())
    return measured


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def pairs_of(measure: Callable[[Build], Any], pairs: int) -> list[Any]:
    """Measurements of both trainers in turn, beginning with each as often."""
    found = []
    for index in range(pairs):
        order = (ours, plain) if index % 2 else (plain, ours)
        found.append({build.__name__: measure(build) for build in order})
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Measures the pairs and keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    budget = Budget(amount=10**6, eval_every=10**6)
    config = RunConfig(budget=budget, execution=Execution(threads=1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models.ensure_embedded(config, folder)
        rest = {"config": config, "models_dir": folder, "steps": options.steps}
        memory = pairs_of(partial(peak_bytes, **rest), options.pairs)
        times = pairs_of(partial(seconds, **rest), options.pairs)
    ratios = {
        "time": [pair["ours"] / pair["plain"] for pair in times],
        "peak": [pair["ours"]["peak"] / pair["plain"]["peak"] for pair in memory],
        "growth": [pair["ours"]["growth"] / pair["plain"]["growth"] for pair in memory],
    }
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    print(f"median ratios of {options.pairs} pairs: {medians}")
    RESULTS.parent.mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "trl": trl.__version__}
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), **versions}
    measured = {"seconds_per_step": times, "bytes": memory}
    record = {"ratios": medians, "steps": options.steps, **measured, **machine}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
