"""The reward that TRL asks for: the verifier's, less the penalty on long completions."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.config import RunConfig
from recipes.losses import overlong_penalty
from recipes.tasks import Row, TaskData

RIGHT = 1.0
"""A verifier's full marks: only right completions are penalised for their length."""


class Rewards:
    """A reward function as TRL calls it; remembers what the verifier itself said."""

    def __init__(self, config: RunConfig, data: TaskData) -> None:
        self.__name__ = "reward"  # TRL asks a reward function for it
        self._data = data
        self._limit = config.task.max_completion_tokens
        self._cache = max(1, round(config.length.cache * self._limit))
        self._penalised = config.length.kind == "penalty"
        self.passed: list[float] = []
        """The verifier's rewards of the last call; NaN where it failed."""
        self.rewards: list[float] = []
        """The same, less the penalty: what TRL was given."""
        self.last_error: str | None = None

    def __call__(
        self,
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        row: Sequence[Row],
        **_: object,
    ) -> list[float]:
        """Rewards of `completions`, in TRL's words: texts, their tokens, and each one's row."""
        scores = self._data.score(completions, row)
        self.passed = scores.rewards
        self.last_error = scores.last_error or self.last_error
        self.rewards = [
            reward + self._penalty(reward, len(ids))
            for reward, ids in zip(self.passed, completion_ids, strict=True)
        ]
        return self.rewards

    def _penalty(self, reward: float, length: int) -> float:
        if not self._penalised or not reward >= RIGHT:
            return 0.0
        return overlong_penalty(length, self._limit, self._cache)
