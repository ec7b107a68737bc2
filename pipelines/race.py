"""A race, one pass at a time: the runs go up rung by rung, and those that cannot win are stopped.

A pass reads where the runs are, and acts once all of them have come to their rung: of what may
still win (`analysis.racing`) the likeliest have their budget raised to the next rung, and go on
from their checkpoints; what cannot is stopped, and stays so unless a later pass finds it likelier.
Nothing is kept between passes but the runs' own events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import sleep
from typing import Any

from analysis.racing import Rule, Standing, judge, leaders
from pipelines import cancel, files, submit
from pipelines.config import COMPARED
from pipelines.costs import Spending, costs, spending, whole
from pipelines.follow import INTERVAL_S, PATIENCE, WAITED_FOR, Passes, view
from pipelines.launch import launch, part
from pipelines.ledger import Ledger
from pipelines.plan import Plan
from pipelines.rank import planned_curves
from pipelines.status import RunStatus, statuses

BY = "race"
"""Who stopped a run, in its events."""
SPARED = "kept in: the others are compared with it"
WAITS = "waits for the likelier"


@dataclass(frozen=True)
class Runner:
    """One run of a race."""

    row: RunStatus
    asked: float
    """Share of its budget that it may spend so far; 0 before its first rung."""
    stopped_by: str | None = None
    """``race``, or ``person``."""
    why: str | None = None

    @property
    def out(self) -> bool:
        """Whether no race starts it again."""
        return self.stopped_by == "person" or self.row.state == "failed" or self._hopeless

    @property
    def busy(self) -> bool:
        """Whether it is on its way to a rung."""
        return self.row.state in WAITED_FOR

    @property
    def missing(self) -> bool:
        """Whether it was never started, or its process died before it came to its rung."""
        short = self.row.progress < self.asked or self.asked == 0
        return self.row.state == "planned" and short and not self._hopeless

    def problems(self, first: float) -> list[str]:
        """What is wrong with it; a young model is often truncated, so not before the first rung."""
        past = self.row.progress >= first
        return [item for item in self.row.problems if past or "truncated" not in item]

    @property
    def _hopeless(self) -> bool:
        return self.row.state == "planned" and self.row.fruitless >= PATIENCE


@dataclass
class Entry:
    """A recipe in a race, all its seeds together."""

    label: str
    runners: list[Runner]
    base: bool = False
    """Whether it is what the others are compared with."""
    standing: Standing | None = None
    waits: bool = False
    """Whether likelier ones go on before it."""

    @property
    def unfinished(self) -> list[Runner]:
        """Its runs that more compute could be spent on."""
        return [r for r in self.runners if not r.out and r.row.state != "completed"]

    @property
    def chance(self) -> float:
        """Of being the best; -1 where that is not known."""
        known = None if self.standing is None else self.standing.chance
        return -1.0 if known is None else known

    @property
    def spared(self) -> bool:
        """Whether it is a base that could not win any more: stable, but not likely enough."""
        standing = self.standing
        return self.base and standing is not None and not (standing.goes_on or standing.problems)

    @property
    def stopped(self) -> str:
        """Why it is stopped, or nothing."""
        return next((r.why for r in self.runners if r.stopped_by and r.why), "")

    @property
    def why(self) -> str:
        """Why it is stopped, or waits, or goes on although it cannot win, or nothing."""
        return self.stopped or (WAITS if self.waits else SPARED if self.spared else "")


@dataclass(frozen=True)
class Report:
    """What a pass found and did."""

    plan: Plan
    entries: list[Entry]
    over: bool
    """Whether nothing is left to do."""
    spending: list[Spending]
    """On the sweep's compute axis, and in GPU-hours."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Recipes this pass stopped, and why."""
    continued: list[str] = field(default_factory=list)
    """Recipes this pass started, revived or had go on."""
    notes: list[str] = field(default_factory=list)

    @property
    def winners(self) -> list[str]:
        """Recipes that went to their whole budget."""
        done = (r.row for r in _runners(self.entries) if r.row.state == "completed")
        return list(dict.fromkeys(row.label for row in done))

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "sweep": self.plan.sweep,
            "target": self.plan.target,
            "over": self.over,
            "recipes": [_document(entry) for entry in self.entries],
            "spending": [asdict(item) for item in self.spending],
            "stopped": self.stopped,
            "continued": self.continued,
            "notes": self.notes,
        }


def advance(plan: Plan, ledger: Ledger) -> Report:
    """One pass of the race of `plan`; safe to call at any time, also twice at once.

    Raises:
        ServiceError: The root, the tracking store or Slurm is out of reach.
        CurveError: A curve that cannot be read.
    """
    sweep = ledger.sweep(plan.sweep)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with files.locked(sweep.pass_lock):
        if plan.space:
            from pipelines.search import extend

            plan = extend(plan, ledger)
        entries = _entries(plan, ledger)
        shares, stopped, notes = _decide(plan, ledger, entries)
        # As it was when that was decided: what came to its rung since is judged by the next pass.
        over = not shares and not any(r.busy for r in _runners(entries))
        _stop(ledger, entries, stopped)
        if shares:
            launch(plan, ledger, shares=shares)
        elif plan.settings.cluster.kind == "local":
            submit.top_up(ledger, plan.settings.cluster)
    continued = [e.label for e in entries if _among(shares, e)]
    judged = {e.label: (e.standing, e.waits) for e in entries}
    entries = [
        replace(e, standing=judged[e.label][0], waits=judged[e.label][1])
        for e in _entries(plan, ledger)
    ]
    return Report(plan, entries, over, _spending(plan, entries), stopped, continued, notes)


def follow(plan: Plan, ledger: Ledger) -> Report:
    """Repeats the pass until the race is over, and shows what becomes of the runs."""
    with view() as shown:
        passes = Passes(shown)
        while True:
            with passes:
                report = advance(plan, ledger)
                shown.show([r.row for r in _runners(report.entries)])
                for line in news(report):
                    shown.say(line)
                if report.over:
                    return report
            sleep(INTERVAL_S[plan.settings.cluster.kind])


def news(report: Report) -> Iterator[str]:
    """What a pass did, a line each."""
    for label, why in report.stopped.items():
        yield f"stopped {label}: {why}"
    if report.continued:
        yield f"goes on: {', '.join(report.continued)}"
    yield from report.notes


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headers and lines of a table of the recipes, the likeliest first."""
    headers = ["recipe", "state", "done", "chance", "forecast", "95%", "why"]
    lines = []
    for entry in sorted(report.entries, key=lambda e: -e.chance):
        forecast = entry.standing.forecast if entry.standing else None
        done = " ".join(f"{r.row.progress:.0%}" for r in entry.runners)
        states = " ".join(dict.fromkeys(r.row.state for r in entry.runners))
        told = ["-", "-"]
        if forecast:
            told = [f"{forecast.middle:.3f}", "{:.3f} to {:.3f}".format(*forecast.interval)]
        chance = f"{entry.chance:.1%}" if entry.chance >= 0 else "-"
        lines.append([entry.label, states, done, chance, *told, entry.why])
    return headers, lines


def summary(report: Report) -> Iterator[str]:
    """What the pass did, what it cost, and whether the race is over."""
    yield from news(report)
    yield from (item.line() for item in report.spending)
    if report.over:
        name = report.plan.sweep
        yield f"The race is over: `shortlist rank {name}` judges it."


def _runners(entries: Sequence[Entry]) -> list[Runner]:
    return [runner for entry in entries for runner in entry.runners]


def _entries(plan: Plan, ledger: Ledger) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for row in statuses(ledger, plan.rows()):
        base = plan.strategy in COMPARED and row.choices.items() >= plan.base.items()
        entry = entries.setdefault(row.label, Entry(row.label, [], base))
        entry.runners.append(_runner(ledger, row))
    return list(entries.values())


def _runner(ledger: Ledger, row: RunStatus) -> Runner:
    history = ledger.run(row.run_id).history()
    budget, last = history.budget, history.last
    same = budget is not None and budget.axis == row.budget.axis
    asked = min(1.0, budget.amount / row.budget.amount) if budget and same else 0.0
    if row.state != "stopped" or last is None:
        return Runner(row, asked)
    return Runner(row, asked, last.get("by", "person"), last.get("why"))


def _decide(
    plan: Plan, ledger: Ledger, entries: Sequence[Entry]
) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """Run to the share of its budget it may now spend; recipe to why it is stopped; and notes."""
    first = plan.race.rungs[0]
    runners = _runners(entries)
    shares = {r.row.run_id: r.asked or first for r in runners if r.missing}
    stopped = {
        r.row.label: f"unstable: {problem}"
        for r in runners
        for problem in r.problems(first)[:1]
        if r.row.state == "running"
    }
    spared: list[str] = []
    if not shares and not any(r.busy for r in runners):
        shares, stopped = _judged(plan, ledger, entries)
        spared = [f"{e.label} {SPARED}" for e in entries if e.spared and _among(shares, e)]
    shares, stopped, notes = _within_ceiling(plan, entries, shares, stopped)
    return shares, stopped, [*spared, *notes]


def _judged(
    plan: Plan, ledger: Ledger, entries: Sequence[Entry]
) -> tuple[dict[str, float], dict[str, str]]:
    """Who goes on to which share, and who is stopped and why, with every run at its rung."""
    curves = planned_curves(ledger, plan)
    seeds = {e.label: [c for c in curves if c.run == e.label] for e in entries}
    rule = Rule(plan.target, plan.race.threshold, plan.race.margin)
    found = judge([c for c in seeds.values() if c], rule)
    standings = {s.run: s for s in found}
    shares: dict[str, float] = {}
    stopped: dict[str, str] = {}
    for entry in entries:
        entry.standing = standings.get(entry.label)
    unfinished = [e.standing for e in entries if e.standing and e.unfinished]
    first = {s.run for s in leaders(unfinished, plan.race.together)}
    for entry in entries:
        if entry.standing is None or not entry.unfinished:
            continue
        entry.waits = entry.standing.goes_on and not (entry.label in first or entry.base)
        if entry.waits:
            continue
        if entry.standing.goes_on or (entry.spared and _has_company(entries)):
            shares |= {r.row.run_id: _next(plan, r) for r in entry.unfinished}
        elif any(r.stopped_by is None for r in entry.unfinished):
            stopped[entry.label] = _reason(entry.standing, plan)
    return shares, stopped


def _among(shares: Mapping[str, float], entry: Entry) -> bool:
    return any(r.row.run_id in shares for r in entry.runners)


def _has_company(entries: Sequence[Entry]) -> bool:
    """Whether a recipe besides the base goes on, or went to its end."""
    going = [e for e in entries if not e.base and e.standing and e.standing.goes_on]
    return any(not runner.out for runner in _runners(going))


def _next(plan: Plan, runner: Runner) -> float:
    """The first rung beyond what the run has spent."""
    budget = runner.row.budget
    amounts = {share: part(budget, share).amount for share in plan.race.rungs}
    spent = runner.row.compute.get(budget.axis, 0.0)
    return next((share for share, amount in amounts.items() if amount > spent), 1.0)


def _reason(standing: Standing, plan: Plan) -> str:
    if standing.problems:
        return f"unstable: {standing.problems[0]}"
    close = f" or within {plan.race.margin:g} of it" if plan.race.margin else ""
    return (
        f"a chance of {standing.chance:.1%} of being the best{close}, below "
        f"{plan.race.threshold:.1%}"
    )


def _within_ceiling(
    plan: Plan, entries: Sequence[Entry], shares: dict[str, float], stopped: dict[str, str]
) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """Leaves out what the ceiling of GPU-hours cannot pay for.

    A base is served first, then the likelier recipes before the others.

    Before there is any throughput to go by, one run is started alone to measure it.
    """
    ceiling = plan.max_gpu_hours
    if ceiling is None:
        return shares, stopped, []
    rows = [r.row for r in _runners(entries)]
    busy = [r for r in _runners(entries) if r.busy]
    spent = sum(row.compute.get("gpu_hours", 0.0) for row in rows)
    if spent >= ceiling:
        said = f"the ceiling of {ceiling:g} GPU-hours is reached: {spent:.3g} spent"
        return {}, {**stopped, **{r.row.label: said for r in busy}}, [said]
    priced = zip(rows, costs(plan, rows), strict=True)
    full = {row.run_id: whole(row, cost, "gpu_hours") for row, cost in priced}

    def price(runner: Runner, share: float) -> float:
        return max(0.0, share - runner.row.progress) * (full[runner.row.run_id] or 0.0)

    left = ceiling - spent - sum(price(r, r.asked) for r in busy)
    kept: dict[str, float] = {}
    ordered = sorted(entries, key=lambda e: (not e.base, -e.chance))
    for runner in (r for r in _runners(ordered) if r.row.run_id in shares):
        run_id, share = runner.row.run_id, shares[runner.row.run_id]
        if full[run_id] is None:
            return kept or ({} if busy else {run_id: share}), stopped, []
        if price(runner, share) <= left:
            kept[run_id], left = share, left - price(runner, share)
    dropped = len(shares) - len(kept)
    said = f"the ceiling of {ceiling:g} GPU-hours leaves {dropped} runs where they are"
    return kept, stopped, [said] if dropped else []


def _stop(ledger: Ledger, entries: Sequence[Entry], stopped: dict[str, str]) -> None:
    for entry in entries:
        why = stopped.get(entry.label)
        if why is None:
            continue
        runners = [r for r in entry.unfinished if r.stopped_by is None]
        cancel.stop(ledger, [r.row.run_id for r in runners if r.busy], why)
        for runner in runners:
            ledger.run(runner.row.run_id).event("cancelled", by=BY, why=why)


def _spending(plan: Plan, entries: Sequence[Entry]) -> list[Spending]:
    rows = {r.row.run_id: r.row for r in _runners(entries)}
    ordered = [rows[run.run_id] for run in plan.runs]
    gone = {r.row.run_id for r in _runners(entries) if r.stopped_by or r.out}
    axes = dict.fromkeys([plan.compute, "gpu_hours"])
    return [spending(plan, ordered, gone, axis) for axis in axes]


def _document(entry: Entry) -> dict[str, Any]:
    standing = entry.standing
    forecast = standing.forecast if standing else None
    return {
        "label": entry.label,
        "runs": [r.row.run_id for r in entry.runners],
        "states": [r.row.state for r in entry.runners],
        "done": [r.row.progress for r in entry.runners],
        "chance": standing.chance if standing else None,
        "forecast": forecast and {"reward": forecast.middle, "interval": list(forecast.interval)},
        "stopped": entry.stopped or None,
        "why": entry.why or None,
    }
