"""The state and progress of runs, from the ends of their files. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from pipelines.display import duration
from pipelines.files import Record
from pipelines.jobs import Jobs
from pipelines.ledger import History, Ledger, RunFiles
from recipes.config import Budget


@dataclass(frozen=True)
class RunStatus:
    """Where one run stands."""

    run_id: str
    label: str
    choices: dict[str, str]
    seed: int
    state: str
    """planned, pending, running, completed, stopped, failed or unknown."""
    compute: dict[str, float]
    """Spent so far, by compute axis."""
    budget: Budget
    step: int | None
    pass_rate: float | None
    """Of the last evaluation, as is `truncation`, the share of completions cut off."""
    truncation: float | None
    attempts: int
    fruitless: int
    """Attempts since the last checkpoint."""
    error: str | None
    eta_s: float | None
    """Seconds left at the pace of the last points, where it is running."""

    @property
    def progress(self) -> float:
        """Share of the budget spent, 0 to 1."""
        spent = self.compute.get(self.budget.axis, 0.0)
        return min(1.0, max(0.0, spent / self.budget.amount))  # 0 where it is no number

    def document(self) -> dict[str, Any]:
        """The status as JSON; ``compute`` and ``budget`` are numbers on the axis ``axis``."""
        axis = self.budget.axis
        return {
            "run_id": self.run_id,
            "label": self.label,
            "choices": self.choices,
            "seed": self.seed,
            "state": self.state,
            "axis": axis,
            "compute": self.compute.get(axis, 0.0),
            "budget": self.budget.amount,
            "spent": self.compute,
            "step": self.step,
            "pass_rate": self.pass_rate,
            "truncation": self.truncation,
            "attempts": self.attempts,
            "error": self.error,
            "eta_s": self.eta_s,
        }


def statuses(ledger: Ledger, rows: Iterable[Record]) -> list[RunStatus]:
    """The status of each row of a manifest; asks a scheduler once, and only if a run needs it."""
    jobs = Jobs(ledger)
    return [_status(jobs, ledger.run(row["run_id"]), row) for row in rows]


def _status(jobs: Jobs, run: RunFiles, row: Record) -> RunStatus:
    history = run.history()
    budget = Budget(**row["budget"])
    state = jobs.state(run, history, budget)
    points = run.last_points()
    last = points[-1] if points else {}
    evaluation = _evaluation(run, points)
    return RunStatus(
        run_id=run.run_id,
        label=row["label"],
        choices=row["choices"],
        seed=row["seed"],
        state=state,
        compute={axis: float(value) for axis, value in last.get("compute", {}).items()},
        budget=budget,
        step=last.get("step"),
        pass_rate=_finite(evaluation.get("pass_rate")),
        truncation=_finite(evaluation.get("truncation")),
        attempts=history.attempts,
        fruitless=history.fruitless,
        error=_error(state, history),
        eta_s=_eta(points, budget) if state == "running" else None,
    )


def _error(state: str, history: History) -> str | None:
    if state in ("completed", "running"):
        return None
    return history.error


def _finite(value: float | str | None) -> float | None:
    """`value`, which a file may have as a word (see `files.dumps`), if it is a finite number."""
    return None if value is None or not isfinite(float(value)) else float(value)


def _evaluation(run: RunFiles, points: Sequence[Record]) -> Record:
    for point in reversed(points):
        metrics = point["metrics"]
        if "eval/pass_rate" in metrics:
            names = {"pass_rate": "eval/pass_rate", "truncation": "eval/truncation_rate"}
            return {ours: metrics.get(name) for ours, name in names.items()}
    return run.result() or {}


def _eta(points: Sequence[Record], budget: Budget) -> float | None:
    if not points:
        return None
    last = points[-1]
    first = next(point for point in points if point["attempt"] == last["attempt"])
    seconds = last["time"] - first["time"]
    begin, now = (float(point["compute"].get(budget.axis, 0.0)) for point in (first, last))
    if seconds <= 0 or not begin < now < inf:
        return None
    return max(0.0, float((budget.amount - now) * seconds / (now - begin)))


def table(rows: Sequence[RunStatus]) -> tuple[list[str], list[list[str]]]:
    """Headers and lines of a table of `rows`."""
    headers = ["run", "recipe", "seed", "state", "done", "pass rate", "truncated", "left", "tries"]
    failed = any(row.error for row in rows)
    lines = []
    for row in rows:
        line = [row.run_id, row.label, str(row.seed), row.state, f"{row.progress:.0%}"]
        line += [
            _share(row.pass_rate),
            _share(row.truncation),
            duration(row.eta_s),
            str(row.attempts),
        ]
        lines.append([*line, (row.error or "").split("\n")[-1]] if failed else line)
    return [*headers, "error"] if failed else headers, lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
