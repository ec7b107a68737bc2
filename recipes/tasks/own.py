"""A user's own task: a function of their module, ``module:function`` in ``task.name``."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from types import ModuleType

from recipes.config import ConfigError, Task
from recipes.tasks.source import Source


def build(task: Task) -> Source:
    """What the user's function returns for `task`: training rows, held-out rows and a reward.

    Raises:
        ConfigError: The module cannot be imported, or has no such function.
    """
    function = task.name.partition(":")[2]
    module = _module(task)
    if not callable(getattr(module, function, None)):
        raise ConfigError("task.name", task.name, f"a function of {module.__file__}")
    return Source(*getattr(module, function)(task))


def fingerprint(task: Task) -> str:
    """A hash of the module's source."""
    return hashlib.sha256(Path(_module(task).__file__ or "").read_bytes()).hexdigest()


def _module(task: Task) -> ModuleType:
    name = task.name.partition(":")[0]
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a user's module raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError("task.name", task.name, f"a module that imports ({reason})") from error
