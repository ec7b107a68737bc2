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
        ConfigError: The module cannot be imported, has no such function, or the function fails or
            returns something else.
    """
    function = task.name.partition(":")[2]
    module = _module(task)
    if not callable(getattr(module, function, None)):
        raise ConfigError("task.name", task.name, f"a function of {module.__file__}")
    try:
        return Source(*getattr(module, function)(task))
    except Exception as error:  # whatever a user's function raises
        allowed = "a function of training rows, held-out rows and a reward"
        raise ConfigError("task.name", task.name, f"{allowed} ({_line(error)})") from error


def fingerprint(task: Task) -> str:
    """A hash of the module's source."""
    return hashlib.sha256(Path(_module(task).__file__ or "").read_bytes()).hexdigest()


def _module(task: Task) -> ModuleType:
    name = task.name.partition(":")[0]
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a user's module raises
        allowed = f"a module that imports ({_line(error)})"
        raise ConfigError("task.name", task.name, allowed) from error


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
