"""Modules of a user's own tasks (``task.name=module:function``): found, and kept for jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pipelines.errors import UserError
from recipes.config import RunConfig


def find(configs: Iterable[RunConfig], folders: Sequence[Path | str]) -> dict[Path, Path]:
    """The files of the modules that runs name; what is installed stays where it is.

    Args:
        configs: The runs.
        folders: Looked through in this order; after them the current one.

    Returns:
        Path in a snapshot to path now: one file for a module, all of its files for a package.

    Raises:
        UserError: A module is in none of the folders, nor installed.
    """
    found: dict[Path, Path] = {}
    for name in sorted({name for config in configs for name in _names(config)}):
        top = name.partition(":")[0].partition(".")[0]
        places = [*map(Path, folders), Path.cwd()]
        files = next((files for place in places if (files := dict(_files(place, top)))), {})
        if not files and find_spec(top) is None:
            looked = ", ".join(map(str, places))
            raise UserError(f"task.name: got {name!r}, allowed: module:function, of {looked}")
        found |= files
    return found


def importable(own: Mapping[Path, Path]) -> None:
    """Lets this process import what `find` found, after everything else."""
    for name, path in own.items():
        folder = str(path.parents[len(name.parts) - 1])
        if folder not in sys.path:
            sys.path.append(folder)


def _names(config: RunConfig) -> Iterator[str]:
    tasks = (config.task, *config.task.parts.values())
    yield from (task.name for task in tasks if ":" in task.name)


def _files(folder: Path, top: str) -> Iterator[tuple[Path, Path]]:
    module = folder / f"{top}.py"
    paths = [module] if module.is_file() else sorted((folder / top).rglob("*.py"))
    for path in paths:
        yield path.relative_to(folder), path.resolve()
