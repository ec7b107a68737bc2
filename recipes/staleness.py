"""Rollouts between generation and training: how old the policy is that made them.

On-policy is one batch generated and trained on at once; PPO-off-policy-k generates k batches and
trains on them one after the other, 0 to k - 1 updates old; PipelineRL-k keeps k batches in a queue,
so that in the steady state each is trained on exactly k updates after it was generated, as where
generators run k steps ahead of the trainer (arXiv 2510.13786, section 3.1). A batch is a dict of
tensors with one row a sequence, the behaviour log-probabilities among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recipes.config import Staleness

LEFT_PADDED = ("prompt_ids", "prompt_mask")
Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """One optimizer batch, or this process's share of it."""

    rows: Rows
    tokens: int
    """Prompt and completion tokens of the whole batch, over all processes."""
    step: int
    """Optimizer steps that its policy had been trained for."""


class RolloutQueue:
    """Hands out optimizer batches, generating as many as the staleness asks for."""

    def __init__(self, staleness: Staleness, generate: Callable[[int], list[Batch]]) -> None:
        self._staleness, self._generate = staleness, generate
        self._waiting: list[Batch] = []

    def next(self) -> Batch:
        """The batch to train on now."""
        updates = self._staleness.updates
        if self._staleness.kind == "pipeline":
            while len(self._waiting) <= updates:  # one at a time, also at first: it fits in memory
                self._waiting += self._generate(1)
        elif not self._waiting:
            self._waiting = self._generate(updates)
        return self._waiting.pop(0)

    def state(self) -> list[dict[str, Any]]:
        """The batches that wait, as tensors and numbers."""
        return [vars(batch) for batch in self._waiting]

    def restore(self, state: list[dict[str, Any]], device: torch.device) -> None:
        """Takes up the batches of an earlier attempt."""
        self._waiting = [
            Batch(
                {k: v.to(device) for k, v in saved["rows"].items()}, saved["tokens"], saved["step"]
            )
            for saved in state
        ]


def select(rows: Rows, chosen: Tensor | slice) -> Rows:
    """Some rows of all tensors."""
    return {name: value[chosen] for name, value in rows.items()}


def joined(parts: list[Rows], pad_token: int) -> Rows:
    """The rows of several generations under each other, padded to the longest."""
    return {name: _stacked([part[name] for part in parts], name, pad_token) for name in parts[0]}


def _stacked(tensors: list[Tensor], name: str, pad_token: int) -> Tensor:
    if tensors[0].ndim < 2:
        return torch.cat(tensors)
    width = max(tensor.shape[1] for tensor in tensors)
    value = pad_token if name.endswith("_ids") else 0
    left = name in LEFT_PADDED
    padded = [
        torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=value)
        for tensor in tensors
        for missing in [width - tensor.shape[1]]
    ]
    return torch.cat(padded)
