"""Repeats the pass of `launch` and shows what becomes of it, until nothing is left to wait for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import sleep

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from pipelines import submit
from pipelines.display import duration, note
from pipelines.errors import ServiceError
from pipelines.job import PATIENCE as PATIENCE  # for who follows in other ways
from pipelines.launch import launch
from pipelines.ledger import Ledger
from pipelines.plan import Plan
from pipelines.status import RunStatus, statuses

INTERVAL_S = {"local": 1.0, "slurm": 15.0}
"""Time between two looks; a scheduler is not asked more often."""
WAITED_FOR = ("pending", "running", "unknown")
STEPS = 4
"""On a pipe a run is reported so often between its start and its end."""


def follow(plan: Plan, ledger: Ledger) -> bool:
    """Waits for the runs of `plan`, and has those go on whose process died.

    Progress goes to standard error: bars on a terminal, lines on a pipe.

    Returns:
        Whether all runs completed.
    """
    cluster = plan.settings.cluster
    with view() as shown:
        passes = Passes(shown)
        while True:
            with passes:
                rows = statuses(ledger, plan.rows())
                shown.show(rows)
                again = any(row.state == "planned" and row.fruitless < PATIENCE for row in rows)
                held = any(row.state == "pending" and row.error for row in rows)
                if not again and not any(row.state in WAITED_FOR for row in rows):
                    _tell_given_up(ledger, rows)
                    return all(row.state == "completed" for row in rows)
                if again or held:
                    launch(plan, ledger)
                elif cluster.kind == "local":
                    submit.top_up(ledger, cluster)
            sleep(INTERVAL_S[cluster.kind])


class Passes:
    """Outlives a service (scheduler, store, filesystem) that is out of reach for a while.

    That is told once, and the pass made again later; but the first pass, which may find what no
    waiting mends, ends with it.
    """

    def __init__(self, shown: Bars | Lines) -> None:
        self._shown = shown
        self._first = True
        self._told: set[str] = set()

    def __enter__(self) -> None:
        """Begins a pass."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        outlived = isinstance(error, ServiceError | OSError) and not self._first
        if outlived and str(error) not in self._told:
            self._told.add(str(error))
            self._shown.say(f"{error}; tried again")
        self._first = self._first and error is not None
        return outlived


def view() -> AbstractContextManager[Bars | Lines]:
    """What progress is shown with: bars on a terminal, lines on a pipe."""
    return Bars() if sys.stderr.isatty() else nullcontext(Lines())


def _tell_given_up(ledger: Ledger, rows: Sequence[RunStatus]) -> None:
    left = [row for row in rows if row.state == "planned"]
    if left:
        said = left[0].error or ledger.last_said() or "nothing was said"
        tries = f"did not come to a checkpoint in {PATIENCE} tries"
        note(f"{len(left)} runs {tries}, and are left: {said.splitlines()[-1]}")


class Lines:
    """A line whenever a run changes state or has come a good part further."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}

    def show(self, rows: Sequence[RunStatus]) -> None:
        """Writes what is new."""
        for row in rows:
            now = row.state, int(STEPS * row.progress)
            if self._seen.get(row.run_id) != now:
                self._seen[row.run_id] = now
                text = f"{row.run_id}  {row.label}  {row.state}  {row.progress:.0%}{_outcome(row)}"
                sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def say(self, line: str) -> None:
        """Writes a line."""
        sys.stderr.write(line + "\n")


class Bars:
    """A progress bar for each run, with its pass rate."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[outcome]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Writes a line above the bars."""
        self._progress.console.print(line, markup=False, highlight=False)

    def show(self, rows: Sequence[RunStatus]) -> None:
        """Moves the bars."""
        for row in rows:
            if row.run_id not in self._tasks:
                label = row.label + (f" seed={row.seed}" if row.seed else "")
                self._tasks[row.run_id] = self._progress.add_task(
                    Text(label).plain.replace("[", r"\["), total=1.0, start=False, outcome=""
                )
            task = self._tasks[row.run_id]
            if row.state == "running":
                self._progress.start_task(task)
            elif row.state in ("completed", "failed", "stopped"):
                self._progress.stop_task(task)
            shown = len(rows) < self._progress.console.height or row.state in ("running", "failed")
            outcome = f"{row.state}{_outcome(row)}"
            self._progress.update(task, completed=row.progress, outcome=outcome, visible=shown)


def _outcome(row: RunStatus) -> str:
    rate = "" if row.pass_rate is None else f"  pass rate {row.pass_rate:.3f}"
    left = "" if row.eta_s is None else f"  {duration(row.eta_s)} left"
    error = "" if row.error is None else "  " + row.error.split("\n")[-1]
    return rate + left + error
