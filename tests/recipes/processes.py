"""Two processes that train together: ``python -m tests.recipes.processes FOLDER MODELS``.

What is heavy is imported once, and both are forked off that.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

from recipes.arguments import SCALE_REWARDS
from recipes.config import (
    Advantage,
    Aggregation,
    Budget,
    Execution,
    Filtering,
    Length,
    RunConfig,
    Staleness,
)
from recipes.sampling import Prompts
from recipes.staleness import RolloutQueue
from recipes.train import train
from recipes.trainer import AblationTrainer
from tests.recipes.by_hand import (
    backward,
    gradient,
    one_step,
    rows,
    scripted,
    set_up,
    trainer_of,
)
from tests.recipes.conftest import Recorder, tiny
from tests.recipes.test_batches import LOSSES, STALE

SCALES, FILTERS = ("prompt", "batch", "none"), ("keep", "drop", "resample")
CASES = [(loss, "native", "drop") for loss in LOSSES]
CASES += [("cispo", over, keep) for over in ("sample", "prompt") for keep in ("keep", "drop")]


def case(loss: str, over: str, filtering: str) -> RunConfig:
    """One of the cases whose gradient is known."""
    return one_step(
        loss=LOSSES[loss],
        aggregation=Aggregation(over),
        filtering=Filtering(filtering),
        staleness=STALE,
    )


def gradients(folder: Path, models_dir: Path) -> None:
    """Writes the gradient of every case, reduced over the processes."""
    trainer = trainer_of(one_step(staleness=STALE), models_dir, folder)
    torch.set_num_threads(1)  # accelerate has set more
    model = trainer.accelerator.prepare(trainer.model)
    assert type(model).__name__ == "DistributedDataParallel"
    found = []
    for names in CASES:
        config = case(*names)
        config.execution = Execution(4, threads=1)  # two micro-batches in each process
        set_up(trainer, config)
        found.append(gradient(trainer, rows(), model)[0])
    found += advantages_and_filters(trainer, model)
    if trainer.accelerator.is_main_process:
        torch.save(torch.stack(found), folder / "gradients.pt")


def advantages_and_filters(trainer: AblationTrainer, model: torch.nn.Module) -> list[Tensor]:
    """The gradient of a batch of scripted completions, from drawing its prompts on."""
    trainer._generate_single_turn = scripted
    found = []
    for scale in SCALES:
        for zero_variance in FILTERS:
            config = one_step(advantage=Advantage(scale), filtering=Filtering(zero_variance))
            set_up(trainer, config)
            trainer.scale_rewards = SCALE_REWARDS[scale]
            trainer.batches._prompts = Prompts([80], [1.0], seed=0)
            trainer.batches._queue = RolloutQueue(config.staleness, trainer.batches._generate)
            found.append(backward(trainer, model)[0])
    return found


RUN = tiny(
    staleness=Staleness("pipeline", 2),
    filtering=Filtering("resample", max_pass_rate=0.5),
    length=Length("penalty", cache=0.5),
    budget=Budget(amount=8, eval_every=4, log_every=1),
)


def training(folder: Path, models_dir: Path) -> None:
    """Trains a run straight, and once stopped in the middle; writes what rank 0's sink was told."""
    straight, stopped = Recorder(), Recorder(stop_at=6)
    train(RUN, folder / "straight", models_dir, straight)
    interrupted = train(RUN, folder / "stopped", models_dir, stopped)
    train(RUN, folder / "stopped", models_dir, stopped)
    told = [
        [[list(key), values] for key, values in recorder.points.items()]
        for recorder in (straight, stopped)
    ]
    document = {
        "told": told,
        "status": interrupted.status,
        "compute": straight.compute,
        "threads": torch.get_num_threads(),
    }
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(document))


def work(rank: int, folder: Path, models_dir: Path) -> None:
    """What process `rank` does."""
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # accelerate asks for it; nobody uses it
    where = f"file://{folder}/rendezvous"  # no port that another process could take first
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    training(folder, models_dir)
    gradients(folder, models_dir)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.multiprocessing.start_processes(
        work, tuple(map(Path, sys.argv[1:])), nprocs=2, start_method="fork"
    )
