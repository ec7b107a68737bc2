"""Starts lanes on this machine, through submitit."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines import lane
from pipelines.config import Cluster
from pipelines.ledger import Ledger

FOREVER_MIN = 60 * 24 * 365
"""A local job has no time limit; submitit wants one (and takes 2 minutes if told none)."""
IGNORED = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all that were started from it. Children inherit that it is ignored, so
neither Ctrl-C in ``--follow`` nor a closed terminal ends a training."""
_lanes: list[Any] = []
"""submitit's handles of lanes started here; asked now and then, or they become zombies."""
atexit.register(_lanes.clear)  # while the modules that their destructors need are still there


def top_up(ledger: Ledger, cluster: Cluster) -> int:
    """Starts as many local lanes as there are runs waiting and lanes free.

    Returns:
        Number of lanes started.
    """
    _lanes[:] = [started for started in _lanes if not started.done()]
    ledger.lanes.mkdir(exist_ok=True)
    waiting = lane.pending(ledger)
    free = [slot for slot in range(cluster.parallel) if not ledger.at_work(ledger.lane(slot))]
    for slot, run in zip(free, waiting, strict=False):
        request = run.history().request
        assert request is not None
        ledger.lane(slot).touch()
        _start_lane(ledger, cluster, slot, ledger.snapshots / request["snapshot"])
    return min(len(free), len(waiting))


def _start_lane(ledger: Ledger, cluster: Cluster, slot: int, code: Path) -> None:
    import submitit

    executor = submitit.LocalExecutor(ledger.submissions)
    first = slot * cluster.gpus_per_node
    executor.update_parameters(
        timeout_min=FOREVER_MIN,
        gpus_per_node=cluster.gpus_per_node,
        visible_gpus=list(range(first, first + cluster.gpus_per_node)),
    )
    with _environment(variables(code)), _detached():
        _lanes.append(executor.submit(lane.work, str(ledger.root), slot))


def variables(code: Path) -> dict[str, str]:
    """The environment of a job: its code comes from `code`, before any installed or local copy."""
    return {
        "PYTHONPATH": lane.python_path(code),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads would outlive no fork (see `lane`)
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _detached() -> Iterator[None]:
    """Lets children started meanwhile outlive this process, its terminal and its pipes."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    null = os.open(os.devnull, os.O_RDWR)
    saved = {number: os.dup(number) for number in range(3)}
    try:
        for number in saved:
            os.dup2(null, number)
        yield
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)
        for number, handler in handlers.items():
            signal.signal(number, handler)
