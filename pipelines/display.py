"""What a person sees: Rich on a terminal, plain text on a pipe, one JSON document when asked."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import files

Row = Sequence[object]


def emit(document: Any) -> None:  # noqa: ANN401  (any JSON document)
    """One JSON document on standard output, strict: what is not finite becomes null."""
    strict = files.strict(document, lambda number: None)
    sys.stdout.write(json.dumps(strict, indent=2, allow_nan=False) + "\n")


def say(text: str = "") -> None:
    """A line for a person, on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line beside the answer, on standard error."""
    sys.stderr.write(text + "\n")


def table(headers: Sequence[str], rows: Sequence[Row], title: str = "") -> None:
    """A table on standard output; columns that hold only numbers are aligned right."""
    texts = [[str(cell) for cell in row] for row in rows]
    right = [_numeric([row[i] for row in texts]) for i in range(len(headers))]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    # Rich would cut cells to fit; a line that the terminal wraps loses nothing.
    if sys.stdout.isatty() and sum(widths) + 3 * len(widths) <= shutil.get_terminal_size().columns:
        _rich(headers, texts, right, title)
        return
    if title:
        say(title)
    for line in ([*headers], *texts):
        cells = zip(line, widths, right, strict=True)
        padded = [cell.rjust(width) if end else cell.ljust(width) for cell, width, end in cells]
        say("  ".join(padded).rstrip())


def quantity(value: float | None) -> str:
    """A count with four significant digits and a suffix: ``1.25 M``."""
    if value is None:
        return "-"
    scales = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    for scale, suffix in scales:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {suffix}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: ``42 s``, ``3 min``, ``2 h 05 min``."""
    if seconds is None:
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def program() -> str:
    """What to type to run this program again: its name where the shell finds it, or its path."""
    used = Path(sys.argv[0])
    if used.name != "shortlist" or shutil.which("shortlist") == str(used.absolute()):
        return "shortlist"
    return os.path.relpath(used)


def _numeric(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in {"", "-"}]
    return bool(known) and all(cell.lstrip("+-.")[:1].isdigit() for cell in known)


def _rich(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], title: str
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for header, end in zip(headers, right, strict=True):
        drawn.add_column(header, justify="right" if end else "left")
    for row in rows:
        # Text, not markup: a name in square brackets is a name.
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)
