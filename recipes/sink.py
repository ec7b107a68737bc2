"""What a training reports to, and is told to stop by; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Sink(Protocol):
    """Where a run's points and events go, and where it is told to stop."""

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a step, with the compute spent until then by axis."""

    def event(self, name: str, **fields: object) -> None:
        """Takes what happened, such as a checkpoint."""

    def should_stop(self) -> bool:
        """Asked at every optimizer step: whether to save and return now."""


class Silent:
    """The sink of every process of a run but the first, which reports and says when to stop."""

    def point(self, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Passes a point over."""

    def event(self, name: str, **fields: object) -> None:
        """Passes an event over."""

    def should_stop(self) -> bool:
        """Leaves it to the first process."""
        return False
