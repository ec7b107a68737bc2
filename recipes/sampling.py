"""Which prompts are trained on, in what order: mixtures, epochs, and leaving out easy prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Key = tuple[int, int]
"""A training prompt: number of its part, and of its row in that part."""


class Prompts:
    """An endless stream of prompts; where it stands is its `state`, so a resume goes on exactly.

    Parts of a mixture take turns so that their shares follow the weights as closely as whole
    numbers allow. Each part goes through epochs of its own, every prompt once in each, in an order
    that depends on the seed, the part and the epoch alone. Prompts whose historical pass rate has
    come to `max_pass_rate` are left out for good when the next epoch of their part begins
    (no-positive-resampling, arXiv 2510.13786); of those, the hardest stay where fewer than `least`
    prompts would be left.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        seed: int,
        max_pass_rate: float | None = None,
        least: int = 1,
    ) -> None:
        shares = np.array(weights, dtype=float)
        self._shares = shares / shares.sum()
        self._taken = np.zeros(len(sizes), dtype=np.int64)
        self._parts = [
            _Part(number, size, seed, max_pass_rate, least) for number, size in enumerate(sizes)
        ]

    def take(self, count: int) -> list[Key]:
        """The next `count` prompts."""
        return [self._next() for _ in range(count)]

    def record(self, key: Key, passed: float, samples: int) -> None:
        """Adds to a prompt's history: the sum of `samples` rewards from 0 to 1."""
        part = self._parts[key[0]]
        part.passed[key[1]] += passed
        part.samples[key[1]] += samples

    @property
    def left_out(self) -> int:
        """Prompts that were left out so far."""
        return sum(int((~part.kept).sum()) for part in self._parts)

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, for `restore`."""
        return {
            "taken": torch.from_numpy(self._taken.copy()),
            "parts": [part.state() for part in self._parts],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the stream with this `state` stood."""
        self._taken = state["taken"].numpy().copy()
        for part, kept in zip(self._parts, state["parts"], strict=True):
            part.restore(kept)

    def _next(self) -> Key:
        behind = self._shares * (self._taken.sum() + 1) - self._taken
        number = int(behind.argmax())
        self._taken[number] += 1
        return number, self._parts[number].next()


class _Part:
    """The epochs of one part, and the history of its prompts."""

    def __init__(
        self, number: int, size: int, seed: int, max_pass_rate: float | None, least: int
    ) -> None:
        self._entropy = [seed, number]
        self._max_pass_rate, self._least = max_pass_rate, min(least, size)
        self._epoch = self._position = 0
        self.passed = torch.zeros(size, dtype=torch.float64)
        self.samples = torch.zeros(size, dtype=torch.float64)
        self.kept = torch.ones(size, dtype=torch.bool)
        self._order = self._shuffled()

    def next(self) -> int:
        if self._position == len(self._order):
            self._epoch, self._position = self._epoch + 1, 0
            self._leave_out()
            self._order = self._shuffled()
        row = int(self._order[self._position])
        self._position += 1
        return row

    def state(self) -> dict[str, Any]:
        history = {"passed": self.passed, "samples": self.samples, "kept": self.kept}
        copies = {name: tensor.clone() for name, tensor in history.items()}
        return {"epoch": self._epoch, "position": self._position, **copies}

    def restore(self, state: dict[str, Any]) -> None:
        self._epoch, self._position = state["epoch"], state["position"]
        self.passed, self.samples = state["passed"].clone(), state["samples"].clone()
        self.kept = state["kept"].clone()
        self._order = self._shuffled()

    def _leave_out(self) -> None:
        if self._max_pass_rate is None:
            return
        rates = self.passed / self.samples.clamp(min=1)
        easy = self.kept & (self.samples > 0) & (rates >= self._max_pass_rate)
        rates[~self.kept] = torch.inf
        hardest = rates.argsort(stable=True)[: self._least]
        self.kept &= ~easy
        if int(self.kept.sum()) < self._least:
            self.kept[hardest] = True

    def _shuffled(self) -> Tensor:
        order = np.random.default_rng([*self._entropy, self._epoch]).permutation(len(self.kept))
        shuffled = torch.from_numpy(order)
        return shuffled[self.kept[shuffled]]
