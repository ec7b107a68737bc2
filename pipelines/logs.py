"""What runs printed: their last attempts, or what Slurm has where a job never got so far."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from pipelines.follow import INTERVAL_S, WAITED_FOR
from pipelines.ledger import Ledger, RunFiles
from pipelines.status import statuses

POLL_S = 0.5


def log_of(ledger: Ledger, run: RunFiles) -> Path:
    """The file with what the last attempt printed; it may not exist."""
    history = run.history()
    path = run.log(history.attempts)
    if not path.exists():
        for item in reversed(history.events):
            if "job" in item:
                printed = sorted(ledger.submissions.glob(f"{item['job']}_*_log.err"))
                return printed[-1] if printed else path
    return path


def text_of(path: Path, lines: int | None = None) -> str:
    """The text of a log, or its last `lines`."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return _last(text, lines)


def _last(text: str, lines: int | None) -> str:
    return text if lines is None else "".join(text.splitlines(keepends=True)[-lines:])


def follow(ledger: Ledger, rows: Sequence[dict[str, object]], lines: int | None) -> None:
    """Writes logs to standard output as they grow, until no run is waited for."""
    view = _View()
    runs = [ledger.run(str(row["run_id"])) for row in rows]
    looked, on = -INTERVAL_S["slurm"], True
    while True:
        for run in runs:
            view.show(run.run_id, log_of(ledger, run), lines)
        if not on:
            return
        sleep(POLL_S)
        if any(run.running() for run in runs):
            continue
        if monotonic() - looked >= INTERVAL_S["slurm"] or ledger.any_lane():
            looked = monotonic()
            on = any(row.state in WAITED_FOR for row in statuses(ledger, rows))


class _View:
    """Writes what is new of several files, under a heading whenever another one speaks."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}
        self._speaker = ""

    def show(self, run_id: str, path: Path, lines: int | None) -> None:
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        text = data.decode(errors="replace")
        if path not in self._offsets:
            text = _last(text, lines)
        self._offsets[path] = self._offsets.get(path, 0) + len(data)
        if text:
            heading = f"==> {run_id} {path.name} <==\n"
            sys.stdout.write((heading if heading != self._speaker else "") + text)
            sys.stdout.flush()
            self._speaker = heading
