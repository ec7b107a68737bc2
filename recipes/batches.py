"""Optimizer batches: prompts drawn, rolled out, filtered, and weighted for their aggregation.

All of it looks at the whole batch, over all processes, so that nothing depends on how the batch is
split into micro-batches or among processes; each process then keeps its share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from recipes.arguments import micro_batch
from recipes.config import RunConfig
from recipes.losses import advantage_scale, varied_groups
from recipes.progress import Progress, TrainingError
from recipes.rewards import Rewards
from recipes.sampling import Key, Prompts
from recipes.staleness import LEFT_PADDED, Batch, RolloutQueue, Rows, joined, select
from recipes.tasks import TaskData

OF_A_CALL = ("num_items_in_batch",)
"""What TRL counts over all that is generated at once; here it is counted in each batch."""


class OptimizerBatches:
    """Makes the optimizer batches of one run; its `state` is all that a resumed run needs."""

    def __init__(
        self,
        config: RunConfig,
        data: TaskData,
        progress: Progress,
        accelerator: Accelerator,
        rewards: Rewards,
        roll_out: Callable[[list[dict[str, Any]]], Rows],
        pad_token: int,
    ) -> None:
        """`roll_out` generates this process's sequences, and has `rewards` score them."""
        self._config, self._data, self._progress = config, data, progress
        self._accelerator, self._rewards = accelerator, rewards
        self._roll_out, self._pad_token = roll_out, pad_token
        parts = data.parts
        self._prompts = Prompts(
            [len(part.train) for part in parts],
            [part.weight for part in parts],
            config.seed,
            config.filtering.max_pass_rate,
            least=config.batch.prompts,
        )
        self._queue = RolloutQueue(config.staleness, self._generate)

    def next(self) -> Batch:
        """This process's share of the batch to train on now."""
        return self._queue.next()

    def state(self) -> dict[str, Any]:
        """Where the prompts stand, and the batches that wait: for ``torch.save``."""
        return {
            "processes": self._accelerator.num_processes,
            "prompts": self._prompts.state(),
            "waiting": self._queue.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where a run with this `state` stood.

        Raises:
            TrainingError: Another number of processes trained it, whose random states and shares
                of the batches that wait cannot be split anew.
        """
        given, now = state["processes"], self._accelerator.num_processes
        if given != now:
            raise TrainingError(f"processes: got {now}, allowed: {given}, which the run began with")
        self._prompts.restore(state["prompts"])
        self._queue.restore(state["waiting"], self._accelerator.device)

    def _generate(self, batches: int) -> list[Batch]:
        """So many optimizer batches, all of the policy as it is."""
        groups = batches * self._config.batch.prompts
        rows = self._round(groups)
        kept = torch.ones(
            len(rows["advantages"]), dtype=torch.bool, device=rows["advantages"].device
        )
        if self._config.filtering.zero_variance != "keep":
            kept = self._varied(rows)
        if self._config.filtering.zero_variance == "resample":
            rows, kept = self._refilled(rows, kept, groups)
        if self._config.filtering.max_pass_rate is not None:
            self._progress.measured("train/prompts_left_out", self._prompts.left_out)
        size = self._config.batch.size
        return [
            self._batch(select(rows, part), kept[part])
            for start in range(0, groups * self._config.batch.generations, size)
            for part in [slice(start, start + size)]
        ]

    def _refilled(self, rows: Rows, kept: Tensor, groups: int) -> tuple[Rows, Tensor]:
        """Varied groups in front: generates until there are `groups`, or the rounds are up."""
        generations = self._config.batch.generations
        wanted = groups * generations
        rounds = 1
        while int(kept.sum()) < wanted and rounds < self._config.filtering.rounds:
            missing = groups - int(kept.sum()) // generations
            found = max(kept.float().mean().item(), 1 / groups)
            new = self._round(min(groups, math.ceil(missing / found)))
            rows = joined([rows, new], self._pad_token)
            kept = torch.cat([kept, self._varied(new)])
            rounds += 1
        self._progress.measured("train/generation_rounds", rounds)
        order = kept.logical_not().long().argsort(stable=True)[:wanted]
        return select(rows, order), kept[order]

    def _round(self, groups: int) -> Rows:
        """Rolls out `groups` prompts over all processes: the rows of all, in their order."""
        generations = self._config.batch.generations
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        step = world // math.gcd(world, generations)
        keys = self._prompts.take(-(-groups // step) * step)
        inputs = [{"prompt": row["prompt"], "row": row} for row in map(self._row, keys)]
        inputs = [dict(item) for item in inputs for _ in range(generations)]
        share = len(inputs) // world
        rows = self._roll_out(inputs[rank * share : (rank + 1) * share])
        rows["passed"] = torch.tensor(self._rewards.passed, device=self._accelerator.device)
        rows = self._whole(rows)
        self._account(rows, keys)
        return rows

    def _row(self, key: Key) -> Any:  # noqa: ANN401
        return self._data.parts[key[0]].train[key[1]]

    def _whole(self, rows: Rows) -> Rows:
        """The rows of all processes, the first one's first."""
        rows = {name: value for name, value in rows.items() if name not in OF_A_CALL}
        if self._accelerator.num_processes == 1:
            return rows
        return {name: self._gathered(name, value) for name, value in rows.items()}

    def _gathered(self, name: str, value: Tensor) -> Tensor:
        if value.ndim > 1:
            pad = self._pad_token if name.endswith("_ids") else 0
            left = name in LEFT_PADDED
            value = self._accelerator.pad_across_processes(value, 1, pad, pad_first=left)
        gathered: Tensor = self._accelerator.gather(value)
        return gathered

    def _account(self, rows: Rows, keys: Sequence[Key]) -> None:
        """Counts the compute, the failures of the verifier, and what each prompt passed."""
        prompts, completions = int(rows["prompt_mask"].sum()), int(rows["completion_mask"].sum())
        self._progress.generated(prompts, completions, scored="old_per_token_logps" in rows)
        passed = rows.pop("passed")
        failed = passed.isnan()
        if failed.any():
            self._progress.measured("train/reward_failures", int(failed.sum()))
        if self._config.length.kind == "penalty":
            self._progress.measured("train/length_penalty", self._rewards.penalty)
        if failed.all():
            raise TrainingError(
                f"the reward failed for every completion: {self._rewards.last_error}"
            )
        groups = passed.nan_to_num(0).view(len(keys), -1).double().sum(1).tolist()
        samples = (~failed).view(len(keys), -1).sum(1).tolist()
        for key, total, count in zip(keys, groups, samples, strict=True):
            self._prompts.record(key, total, count)
        varied = self._varied(rows).float().mean().item()
        self._progress.measured("train/zero_variance_groups", 1 - varied)

    def _varied(self, rows: Rows) -> Tensor:
        return varied_groups(rows["advantages"], self._config.batch.generations)

    def _batch(self, rows: Rows, kept: Tensor) -> Batch:
        """One optimizer batch, its advantages weighted, cut down to this process's share."""
        config, accelerator = self._config, self._accelerator
        own = rows["completion_mask"] * rows.get("tool_mask", 1)
        lengths = own.sum(1)
        micro = micro_batch(config)
        scale = advantage_scale(
            config.loss.name,
            config.aggregation.over,
            lengths,
            config.batch.generations,
            kept,
            micro,
        )
        tokens = int(rows["prompt_mask"].sum() + rows["completion_mask"].sum())
        share = config.batch.size // accelerator.num_processes
        part = slice(accelerator.process_index * share, (accelerator.process_index + 1) * share)
        local = select({**rows, "advantages": rows["advantages"] * scale}, part)
        # Copies: a slice would keep the rows of every batch generated with it in memory.
        local = {name: value.clone() for name, value in local.items()}
        local["own_tokens"] = lengths.sum()
        return Batch(local, tokens, self._progress.meter.steps)
