"""What the processes of one run agree on."""

from __future__ import annotations

import os

import torch.distributed


def is_main() -> bool:
    """Whether this process is the run's first: the one that reports and publishes checkpoints."""
    return os.environ.get("RANK", "0") == "0"


def several() -> bool:
    """Whether this is one of several processes that train one run."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def agreed(value: float) -> float:
    """The first process's `value`, in each of them: clocks and signals differ between processes."""
    if not several():
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]
