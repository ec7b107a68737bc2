"""Kills this process, for real, at a step of its work: before it, in the middle of it, or after."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import files, slurm
from pipelines.files import dumps
from pipelines.store import Store

STEPS = {
    "launcher": ("planned", "intent", "sbatch", "submitted", "manifest"),
    "job": ("started", "checkpoint", "point", "mlflow", "cursor", "result", "finished"),
}
"""What a process of each kind does, by the names of its files and events."""
WHEN = ("before", "amid", "after")


@dataclass(frozen=True)
class Plan:
    """To be killed at the `count`-th time that a step is taken."""

    step: str
    when: str
    count: int
    log: Path
    """Where a kill is written down."""

    @classmethod
    def drawn(cls, draw: random.Random, kind: str, log: Path) -> Plan:
        """A random one."""
        return cls(draw.choice(STEPS[kind]), draw.choice(WHEN), draw.choice((1, 1, 2, 3)), log)


class Killer:
    """Follows a plan, in this process and in those forked off it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._left = plan.count
        self._append, self._write = files.append, files.write
        self._log, self._sbatch = Store.log, slurm._sbatch

    def arm(self) -> None:
        """Wraps what the steps are made of; for good, so only in a process made for it."""
        files.append, files.write = self.append, self.write
        Store.log = lambda *args: self._around("mlflow", lambda: self._log(*args))  # type: ignore[method-assign]
        slurm._sbatch = lambda script: self._around("sbatch", lambda: self._sbatch(script))

    def append(self, path: Path, record: dict[str, Any], *, sync: bool = False) -> None:
        """`files.append`; amid it, half a line is on disk."""
        step = "point" if path.name == "metrics.jsonl" else str(record.get("event"))
        half = dumps(record)[: len(dumps(record)) // 2]

        def cut() -> None:
            with path.open("a") as file:
                file.write(half)

        self._around(step, lambda: self._append(path, record, sync=sync), cut)

    def write(self, path: Path, text: str) -> None:
        """`files.write`; amid it, half of it is in the file aside."""
        names = {"result.json": "result", "tracking.json": "cursor", "manifest.json": "manifest"}
        intent = path.parent.name == "submissions" and path.suffix == ".json"
        step = "intent" if intent else names.get(path.name, "")
        aside = path.with_name(f".{path.name}.{os.getpid()}-0")
        self._around(
            step, lambda: self._write(path, text), lambda: aside.write_text(text[: len(text) // 2])
        )

    def _around(
        self, step: str, action: Callable[[], Any], amid: Callable[[], object] = lambda: None
    ) -> Any:  # noqa: ANN401
        when = None
        if step == self._plan.step:
            self._left -= 1
            when = self._plan.when if self._left == 0 else None
        if when in ("before", "amid"):
            if when == "amid":
                amid()
            self._kill()
        result = action()
        if when == "after":
            self._kill()
        return result

    def _kill(self) -> None:
        with self._plan.log.open("a") as log:
            log.write(f"{self._plan.step} {self._plan.when}\n")
        os.kill(os.getpid(), signal.SIGKILL)
