"""CPU time per optimizer step: our trainer against TRL's plain GRPOTrainer at the same settings.

Both train the embedded model in one process, in turn, so that a slow moment of the machine falls on
both; on one thread, where CPU time is what an idle machine would take. Prints each pair and the
median of their ratios, and keeps them as JSON.

    python benchmarks/trainer_overhead.py [--pairs 7] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from recipes import models, tasks
from recipes.arguments import arguments
from recipes.checkpoints import Checkpoints
from recipes.config import Budget, Execution, RunConfig
from recipes.progress import Progress
from recipes.trainer import AblationTrainer

RESULTS = Path(__file__).parent / "results" / "trainer_overhead.json"


class Clock(TrainerCallback):
    """Notes the CPU time at which each step begins."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Called by transformers."""
        self.began.append(time.process_time())

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
    settings.max_steps = int(config.budget.amount)
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(list(data.train)),
        processing_class=tokenizer,
    )


def seconds(
    build: Callable[[RunConfig, Path], trl.GRPOTrainer], config: RunConfig, models_dir: Path
) -> float:
    """Seconds a step of one training."""
    trainer, clock = build(config, models_dir), Clock()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock)
    trainer.train()
    return clock.per_step_s()


def main() -> None:
    """Times the pairs and keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    budget = Budget(amount=options.steps, eval_every=10**6)
    config = RunConfig(budget=budget, execution=Execution(threads=1))
    with tempfile.TemporaryDirectory() as folder:
        pairs = []
        for index in range(options.pairs):
            order = (ours, plain) if index % 2 else (plain, ours)
            timed = {build.__name__: seconds(build, config, Path(folder)) for build in order}
            pairs.append(timed)
            print({name: f"{value * 1e3:.1f} ms" for name, value in timed.items()})
    ratio = statistics.median(pair["ours"] / pair["plain"] for pair in pairs)
    print(f"median ratio of {len(pairs)} pairs: {ratio:.3f}")
    RESULTS.parent.mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "trl": trl.__version__}
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), **versions}
    record = {"ratio": ratio, "steps": options.steps, "seconds_per_step": pairs, **machine}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
