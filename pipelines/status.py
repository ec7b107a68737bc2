"""The state and progress of runs, from the ends of their files. Imports nothing heavy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from pipelines.display import duration
from pipelines.files import Record
from pipelines.jobs import Jobs
from pipelines.ledger import LAST, History, Ledger, RunFiles
from recipes.config import Budget

PROBLEMS = ("truncated", "collapsed", "NaN")
"""What a run's health is called, and part of what `analysis.health` says of it."""


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
    problems: list[str] = field(default_factory=list)
    """What is wrong with the last points (`analysis.health`), in sentences."""
    ends: dict[str, int] = field(default_factory=dict)
    """How often training ended early, by why (`History.ends`)."""

    @property
    def health(self) -> str | None:
        """``ok``, or what is wrong in a word; None before the first evaluation."""
        if self.pass_rate is None and not self.problems:
            return None
        words = (word for item in self.problems for word in PROBLEMS if word in item)
        return next(words, "ok")

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
            "ends": self.ends,
            "error": self.error,
            "eta_s": self.eta_s,
            "health": self.health,
            "problems": self.problems,
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
        error=_error(jobs, run.run_id, state, history),
        eta_s=_eta(points, budget) if state == "running" else None,
        problems=_problems(points),
        ends=_ends(state, history),
    )


def _ends(state: str, history: History) -> dict[str, int]:
    ends = history.ends
    if state == "planned" and history.turn == "started":  # and nobody is at it
        ends["lost"] += 1
    return dict(ends)


def _error(jobs: Jobs, run_id: str, state: str, history: History) -> str | None:
    """Why a run does not go on, or will not start by itself."""
    if state in ("completed", "running"):
        return None
    waits = state in ("pending", "planned")
    return history.error or (jobs.trouble(run_id, history) if waits else None)


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


def _problems(points: Sequence[Record]) -> list[str]:
    """What is wrong with a run, as the analysis will see it, as far as its last points tell."""
    if not points:
        return []
    import numpy as np

    from analysis.curves import Curve
    from analysis.health import check

    def column(name: str, of: Sequence[Record]) -> np.typing.NDArray[np.float64]:
        values = (point["metrics"].get(name, "nan") for point in of)
        return np.array([float(value) for value in values])

    signals = {
        name: column(name, [point])
        for point in points[-LAST:]
        for name, value in point["metrics"].items()
        if name.startswith("train/") and not isfinite(float(value))
    }
    evaluations = [point for point in points if "eval/pass_rate" in point["metrics"]]
    rates = column("eval/pass_rate", evaluations)
    rates = rates[np.isfinite(rates)]
    truncation = column("eval/truncation_rate", evaluations)
    return check([Curve("", rates, rates, truncation=truncation, signals=signals)]).problems


def table(rows: Sequence[RunStatus]) -> tuple[list[str], list[list[str]]]:
    """Headers and lines of a table of `rows`."""
    headers = ["run", "recipe", "seed", "state", "done", "pass rate", "truncated", "health"]
    headers += ["left", "tries"]
    further = {
        "ended early": any(row.ends for row in rows),
        "error": any(row.error for row in rows),
    }
    lines = []
    for row in rows:
        line = [row.run_id, row.label, str(row.seed), row.state, f"{row.progress:.0%}"]
        line += [
            _share(row.pass_rate),
            _share(row.truncation),
            row.health or "-",
            duration(row.eta_s),
            str(row.attempts),
        ]
        ends = ", ".join(f"{count} {why}" for why, count in row.ends.items())
        cells = {"ended early": ends, "error": (row.error or "").split("\n")[-1]}
        lines.append([*line, *(cells[name] for name, given in further.items() if given)])
    return [*headers, *(name for name, given in further.items() if given)], lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def errors(rows: Sequence[RunStatus]) -> Iterator[str]:
    """The last lines of each error, once, and which runs ended with it."""
    runs: dict[str, list[RunStatus]] = {}
    for row in rows:
        if row.error:
            runs.setdefault(row.error, []).append(row)
    for error, ended in runs.items():
        others = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
        yield ""
        yield f"{ended[0].run_id} ({ended[0].label}){others}: {ended[0].state}"
        yield from (f"    {line}" for line in error.splitlines())


def summary(rows: Sequence[RunStatus]) -> str:
    """How many runs there are, by state."""
    states = Counter(row.state for row in rows)
    return f"{len(rows)} runs: " + (
        ", ".join(f"{n} {name}" for name, n in states.items()) or "none"
    )
