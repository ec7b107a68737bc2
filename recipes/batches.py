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
from recipes.losses import advantage_scale, batch_scaled, varied_groups
from recipes.progress import Progress, TrainingError
from recipes.rewards import Rewards
from recipes.sampling import Key, Prompts
from recipes.staleness import LEFT_PADDED, Batch, RolloutQueue, Rows, joined, select
from recipes.tasks import TaskData

OF_A_CALL = ("num_items_in_batch",)
"""What TRL counts over all that is generated at once; here it is counted in each batch."""
SCORES = ("rewards", "passed")
"""What TRL was given for each sequence, and what the verifier said; not trained on themselves."""


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
        config = self._config
        groups = batches * config.batch.prompts
        rows = self._round(groups)
        if rows["rewards"].isnan().all():
            raise TrainingError(
                f"the reward failed for every completion: {self._rewards.last_error}"
            )
        if config.filtering.zero_variance == "resample":
            rows = self._refilled(rows, groups)
        varied = self._varied(rows)
        self._report(rows, varied)
        kept = torch.ones_like(varied) if config.filtering.zero_variance == "keep" else varied
        if config.filtering.zero_variance == "resample":  # varied groups in front
            order = kept.logical_not().long().argsort(stable=True)
            rows, kept = select(rows, order), kept[order]
        size = config.batch.size
        return [
            self._batch(select(rows, part), kept[part])
            for start in range(0, batches * size, size)
            for part in [slice(start, start + size)]
        ]

    def _refilled(self, rows: Rows, groups: int) -> Rows:
        """Generates until `groups` are varied, or the rounds are up; the rows of all rounds."""
        generations = self._config.batch.generations
        rounds = 1
        while rounds < self._config.filtering.rounds:
            varied = self._varied(rows)
            missing = groups - int(varied.sum()) // generations
            if missing <= 0:
                break
            found = max(varied.float().mean().item(), 1 / groups)
            new = self._round(min(groups, math.ceil(missing / found)))
            rows = joined([rows, new], self._pad_token)
            rounds += 1
        self._progress.measured("train/generation_rounds", rounds)
        return rows

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
        for name in SCORES:
            of_each = getattr(self._rewards, name)
            rows[name] = torch.tensor(of_each, device=self._accelerator.device)
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
        """Counts the compute, and what each prompt passed."""
        prompts, completions = int(rows["prompt_mask"].sum()), int(rows["completion_mask"].sum())
        self._progress.generated(prompts, completions, scored="old_per_token_logps" in rows)
        passed = rows["passed"].view(len(keys), -1)
        totals = passed.double().nansum(1).tolist()
        samples = (~passed.isnan()).sum(1).tolist()
        for key, total, count in zip(keys, totals, samples, strict=True):
            self._prompts.record(key, total, count)

    def _report(self, rows: Rows, varied: Tensor) -> None:
        """Measures all that was generated for the batches that come next."""
        measured = self._progress.measured
        measured("train/zero_variance_groups", 1 - varied.float().mean().item())
        if failures := int(rows["passed"].isnan().sum()):
            measured("train/reward_failures", failures)
        if self._config.length.kind == "penalty":
            penalties = (rows["rewards"] - rows["passed"]).nan_to_num(0)
            measured("train/length_penalty", penalties.mean().item())
        if self._config.filtering.max_pass_rate is not None:
            measured("train/prompts_left_out", self._prompts.left_out)

    def _varied(self, rows: Rows) -> Tensor:
        return varied_groups(rows["rewards"], self._config.batch.generations)

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
        advantages = rows["advantages"] * scale
        if config.advantage.scale == "batch":
            advantages = batch_scaled(advantages, rows["rewards"])
        rows = {name: value for name, value in rows.items() if name not in SCORES}
        tokens = int(rows["prompt_mask"].sum() + rows["completion_mask"].sum())
        share = config.batch.size // accelerator.num_processes
        part = slice(accelerator.process_index * share, (accelerator.process_index + 1) * share)
        local = select({**rows, "advantages": advantages}, part)
        # Copies: a slice would keep the rows of every batch generated with it in memory.
        local = {name: value.clone() for name, value in local.items()}
        local["own_tokens"] = lengths.sum()
        return Batch(local, tokens, self._progress.meter.steps)
