"""What runs cost: estimated beforehand, told by what is measured as soon as there is any."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from pipelines.display import quantity
from pipelines.plan import Plan
from pipelines.status import RunStatus

Cost = dict[str, float | None]
"""Compute by axis; None where it cannot be told."""


def costs(plan: Plan, rows: Sequence[RunStatus]) -> list[Cost]:
    """What each run would cost to its whole budget; hours as far as throughput was measured here.

    GPU-hours go by those measured for a FLOP, or, where FLOPs are not known beforehand, for a unit
    of the budget.
    """
    from recipes.meter import estimate

    by_flop, by_unit = _rates(rows, "flops"), _rates(rows, plan.settings.budget.axis)
    found = []
    for run in plan.runs:
        cost: Cost = dict(estimate(run.config))
        flops = cost.get("flops")
        if cost.get("gpu_hours") is None:
            units = cost.get(run.config.budget.axis)
            by_budget = median(by_unit) * units if by_unit and units else None
            cost["gpu_hours"] = median(by_flop) * flops if by_flop and flops else by_budget
        found.append(cost)
    return found


def _rates(rows: Sequence[RunStatus], axis: str) -> list[float]:
    """GPU-hours spent for a unit of `axis`, of each run that has spent any."""
    return [
        row.compute["gpu_hours"] / row.compute[axis]
        for row in rows
        if row.compute.get(axis) and row.compute.get("gpu_hours")
    ]


def whole(row: RunStatus, cost: Cost, axis: str) -> float | None:
    """What a run takes on `axis` to its whole budget: at its own pace, or else as estimated."""
    spent = row.compute.get(axis)
    return spent / row.progress if spent and row.progress > 0 else cost.get(axis)


@dataclass(frozen=True)
class Spending:
    """Compute of a sweep on one axis; None where throughput is not known yet."""

    axis: str
    spent: float
    saved: float | None
    """What the runs that were stopped would still have taken."""
    remaining: float | None
    """What the others still take, were none of them stopped."""

    def line(self) -> str:
        """It all, for a person."""
        known = {"saved": self.saved, "left to spend, at most": self.remaining}
        told = [f"{word} {'?' if x is None else quantity(x)}" for word, x in known.items()]
        return f"{self.axis}: spent {quantity(self.spent)}, {', '.join(told)}"


def spending(
    plan: Plan, rows: Sequence[RunStatus], stopped: Collection[str], axis: str
) -> Spending:
    """What was spent, what stopping the runs `stopped` saved, and what is left to spend."""
    left: dict[bool, float | None] = {True: 0.0, False: 0.0}
    for row, cost in zip(rows, costs(plan, rows), strict=True):
        full, out = whole(row, cost, axis), row.run_id in stopped
        so_far = left[out]
        rest = None if full is None else max(0.0, full - row.compute.get(axis, 0.0))
        left[out] = None if so_far is None or rest is None else so_far + rest
    spent = sum(row.compute.get(axis, 0.0) for row in rows)
    return Spending(axis, spent, saved=left[True], remaining=left[False])


def over_ceiling(plan: Plan, rows: Sequence[RunStatus]) -> float | None:
    """GPU-hours the sweep takes in all, where that is known to be more than it may spend."""
    stopped = {row.run_id for row in rows if row.state == "stopped"}
    hours = spending(plan, rows, stopped, "gpu_hours")
    total = hours.spent + (hours.remaining or 0.0)
    return total if plan.max_gpu_hours is not None and total > plan.max_gpu_hours else None
