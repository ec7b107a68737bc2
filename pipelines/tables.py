"""Reads anyone's curves from a CSV, JSON-lines or Parquet export: what `shortlist fit` works on.

Expected are a run, a compute and a pass rate in each row, in any order. What cannot be used is
either put right, with a note in the curve that says so, or refused in one line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short

from analysis.curves import Curve, curve, in_percent
from analysis.ranking import Analysis, Options, analyse
from pipelines.errors import UserError

MISSING = frozenset({"", "na", "n/a", "none", "null"})
"""Cells that hold no number; ``nan`` is one to `float` already."""
DELIMITERS = (",", "\t", ";")
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that break a terminal or XML, or are in no encoding."""

Table = Mapping[str, Sequence[object]]
"""Columns by name, all of the same length (n_rows,)."""


@dataclass(frozen=True)
class Columns:
    """What the columns are called."""

    group: str = "run"
    """Whose curve the row belongs to."""
    x: str = "compute"
    """Compute spent, in any unit, but one for all runs."""
    y: str = "reward"
    """Held-out pass rate, from 0 to 1, or in percent."""
    stderr: str | None = None
    """Standard error of the pass rate; null: the column ``stderr``, if there is one."""
    seed: str | None = None
    """Which repetition of the run; null: the column ``seed``, if there is one."""


def _read_csv(path: Path) -> Table:
    text = path.read_text(encoding="utf-8-sig").lstrip("\n")
    delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            rows += [row] if row else []
    except csv.Error as error:
        where = f"row {len(rows)}" if rows else "the header"
        text = f"{path}: {where}: {error}, allowed: cells whose quotes are closed"
        raise UserError(text) from None
    if not rows:
        return {}
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 1):
        if len(row) > len(header):
            raise UserError(f"{path}: row {number} has {len(row)} cells, allowed: {len(header)}")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise UserError(f"{path}: column {twice[0]!r} appears twice, allowed: once")
    filled = [row + [""] * (len(header) - len(row)) for row in rows[1:]]
    return {name: [row[i] for row in filled] for i, name in enumerate(header)}


def _read_jsonl(path: Path) -> Table:
    records: list[dict[str, object]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number} is not JSON: {error.msg}") from None
        except (ValueError, RecursionError):
            text = "a number too long, or nested too deep, allowed: text and numbers"
            raise UserError(f"{path}: line {number}: {text}") from None
        if not isinstance(record, dict):
            raise UserError(
                f"{path}: line {number} is {short(record)}, allowed: a JSON object a line"
            )
        records.append(record)
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _read_parquet(path: Path) -> Table:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        columns: dict[str, list[object]] = pq.read_table(path).to_pydict()
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
    return columns


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}


def _read(path: Path) -> Table:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        kind = path.suffix or "no suffix"
        raise UserError(f"{path}: got {kind}, allowed: {' '.join(READERS)}")
    try:
        table = reader(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    if not table or not len(next(iter(table.values()))):
        raise UserError(f"{path}: is empty, allowed: a header and at least one row")
    return table


def _column(path: Path, table: Table, flag: str, name: str) -> Sequence[object]:
    if name not in table:
        raise UserError(f"{path}: --{flag}: got {name!r}, allowed: {', '.join(map(repr, table))}")
    return table[name]


def _optional(path: Path, table: Table, flag: str, name: str | None) -> Sequence[object] | None:
    if name is None:
        return table.get(flag)
    return _column(path, table, flag, name)


def _numbers(path: Path, name: str, cells: Sequence[object]) -> list[float]:
    """The column as numbers (n_rows,); NaN where a cell is missing."""
    values = []
    for row, cell in enumerate(cells, 1):
        if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
            values.append(math.nan)
            continue
        try:
            values.append(float(cell))  # type: ignore[arg-type]  # TypeError is caught
        except (TypeError, ValueError, OverflowError):
            text = f"{path}: row {row}, column {name!r}: got {short(cell)}, allowed: a number"
            raise UserError(text) from None
    return values


def _seeds(path: Path, name: str, cells: Sequence[object]) -> list[int | None]:
    numbers = _numbers(path, name, cells)
    for row, value in enumerate(numbers, 1):
        if not math.isnan(value) and not value.is_integer():
            text = f"{path}: row {row}, column {name!r}: got {value:g}, allowed: a whole number"
            raise UserError(text)
    return [None if math.isnan(value) else int(value) for value in numbers]


def _names(path: Path, name: str, cells: Sequence[object]) -> list[str]:
    names = ["" if cell is None else str(cell).strip() for cell in cells]
    if "" in names:
        row = names.index("") + 1
        raise UserError(f"{path}: row {row}, column {name!r}: got nothing, allowed: a run's name")
    for row, text in enumerate(names, 1):
        if UNSAFE.search(text):
            told = f"{path}: row {row}, column {name!r}: got {short(text)}"
            raise UserError(f"{told}, allowed: a name without control characters")
    return names


def read_curves(path: Path, columns: Columns = Columns()) -> list[Curve]:
    """The curves of a file, one for each run and seed, in the order they first appear.

    Args:
        path: a ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson`` or ``.parquet`` file.
        columns: what its columns are called.

    Raises:
        UserError: the file, a column or a cell cannot be used; names it and what is allowed.
        CurveError: a pass rate or a compute is out of range; names the run.
    """
    table = _read(path)
    runs = _names(path, columns.group, _column(path, table, "group", columns.group))
    compute = _numbers(path, columns.x, _column(path, table, "x", columns.x))
    rewards = _numbers(path, columns.y, _column(path, table, "y", columns.y))
    errors = _optional(path, table, "stderr", columns.stderr)
    stderr = None if errors is None else _numbers(path, columns.stderr or "stderr", errors)
    repeats = _optional(path, table, "seed", columns.seed)
    seeds = [None] * len(runs) if repeats is None else _seeds(path, columns.seed or "seed", repeats)
    percent = in_percent(rewards)

    rows: dict[tuple[str, int | None], list[int]] = {}
    for row, key in enumerate(zip(runs, seeds, strict=True)):
        rows.setdefault(key, []).append(row)
    return [
        curve(
            run,
            [compute[i] for i in held],
            [rewards[i] for i in held],
            None if stderr is None else [stderr[i] for i in held],
            seed=seed,
            percent=percent,
        )
        for (run, seed), held in rows.items()
    ]


def fit_file(path: Path, columns: Columns, options: Options) -> Analysis:
    """Fits, verdicts and order of the curves in a file.

    Raises:
        UserError, CurveError: as `read_curves`.
    """
    return analyse(read_curves(path, columns), options)
