"""What each command does. Heavy modules are imported where they are used, not before."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from pipelines import display

if TYPE_CHECKING:
    from analysis.ranking import Analysis, Options
    from pipelines.ledger import Ledger
    from pipelines.plan import Plan
    from pipelines.status import RunStatus


def plan(arguments: Namespace) -> int:
    """Prints the runs a sweep would make."""
    from pipelines.ledger import Ledger
    from pipelines.plan import plan as make
    from pipelines.status import statuses

    made = make(arguments.sweep, arguments.overrides, arguments.config_dir)
    ledger = Ledger(made.settings.root)
    rows = statuses(ledger, made.rows())
    costs = _costs(made, rows)
    if arguments.json:
        runs = [{**row.document(), "cost": cost} for row, cost in zip(rows, costs, strict=True)]
        display.emit({"sweep": made.sweep, "strategy": made.strategy, "runs": runs})
        return 0
    _print_plan(made, rows, costs)
    return 0


def launch(arguments: Namespace) -> int:
    """Submits what is missing of a sweep."""
    return _submit(arguments, retry=False)


def retry(arguments: Namespace) -> int:
    """Submits what is missing of a sweep, and what failed or was stopped."""
    return _submit(arguments, retry=True)


def _submit(arguments: Namespace, *, retry: bool) -> int:
    from pipelines.launch import launch as submit
    from pipelines.ledger import Ledger
    from pipelines.plan import plan as make

    made = make(arguments.sweep, arguments.overrides, arguments.config_dir)
    ledger = Ledger(made.settings.root)
    report = submit(made, ledger, retry=retry)
    display.note(report.line())
    if not arguments.follow:
        if arguments.json:
            display.emit(report.document())
        return 0
    from pipelines.follow import follow

    done = follow(made, ledger)
    _show_status(ledger, made.sweep, as_json=arguments.json)
    return 0 if done else 1


def status(arguments: Namespace) -> int:
    """Shows the state of a sweep's runs."""
    from pipelines.ledger import Ledger

    rows = _show_status(Ledger(arguments.root), arguments.sweep, as_json=arguments.json)
    return 1 if any(row.state == "failed" for row in rows) else 0


def rank(arguments: Namespace) -> int:
    """Judges a sweep and writes its report."""
    from pipelines.ledger import Ledger
    from pipelines.rank import conclusion, rank_sweep

    ranked = rank_sweep(
        Ledger(arguments.root),
        arguments.sweep,
        _options(arguments),
        arguments.compute,
        arguments.source,
    )
    if arguments.json:
        display.emit(ranked.analysis.document())
        return 0
    _print_ranking(ranked.analysis)
    display.say()
    for line in conclusion(ranked):
        display.say(line)
    return 0


def fit(arguments: Namespace) -> int:
    """Judges the curves of a file."""
    from analysis.report import write
    from pipelines.tables import Columns, fit_file

    names = ("group", "x", "y", "stderr", "seed")
    columns = Columns(**{name: getattr(arguments, name) for name in names})
    analysis = fit_file(arguments.curves, columns, _options(arguments))
    if arguments.out:
        write(analysis, arguments.out, {"source": arguments.curves.name})
        display.note(f"report: {arguments.out / 'report.html'}")
    if arguments.json:
        display.emit(analysis.document())
    else:
        from analysis.words import answer

        _print_ranking(analysis)
        headline, sentences = answer(analysis)
        display.say(f"\n{headline}. {' '.join(sentences)}")
    return 0


def sync(arguments: Namespace) -> int:
    """Replays into the tracking store what it has not got."""
    from pipelines.ledger import Ledger
    from pipelines.manifest import manifest_of
    from pipelines.tracking import sync as replay

    ledger = Ledger(arguments.root)
    runs = manifest_of(ledger, arguments.sweep)["runs"]
    done = replay(ledger, [row["run_id"] for row in runs])
    if arguments.json:
        display.emit({"sweep": arguments.sweep, "points": done})
    else:
        display.say(f"{done} points logged that were missing")
    return 0


def config(arguments: Namespace) -> int:
    """Prints the resolved configuration of one run."""
    import yaml

    from pipelines.plan import single

    run, settings = single(arguments.overrides, arguments.config_dir)
    document = asdict(settings)
    if arguments.json:
        display.emit({"run_id": run.run_id, "config": document})
    else:
        display.say(
            f"# run_id: {run.run_id}\n" + yaml.safe_dump(document, sort_keys=False).rstrip()
        )
    return 0


def train(arguments: Namespace) -> int:
    """Trains one run here, in the foreground."""
    from pipelines.launch import train_here
    from pipelines.ledger import Ledger
    from pipelines.plan import single

    run, settings = single(arguments.overrides, arguments.config_dir)
    row = train_here(run, settings, Ledger(settings.root), display.note)
    if arguments.json:
        display.emit(row.document())
    else:
        _print_status([row])
    return 0 if row.state == "completed" else 1


def _show_status(ledger: Ledger, sweep: str, *, as_json: bool) -> list[RunStatus]:
    from pipelines.manifest import manifest_of
    from pipelines.status import statuses

    rows = statuses(ledger, manifest_of(ledger, sweep)["runs"])
    if as_json:
        display.emit({"sweep": sweep, "runs": [row.document() for row in rows]})
    else:
        _print_status(rows)
    return rows


def _print_status(rows: Sequence[RunStatus]) -> None:
    from pipelines.status import table

    display.table(*table(rows))


def _options(arguments: Namespace) -> Options:
    from analysis.ranking import Options

    return Options(
        at=arguments.at,
        until=arguments.until,
        margin=arguments.margin,
        skip_below=arguments.skip_below,
        pool=arguments.pool,
        margin_from_seeds=arguments.margin_from_seeds,
    )


def _print_ranking(analysis: Analysis) -> None:
    from analysis.report import rows

    display.table(*rows(analysis))
    for verdict in analysis.verdicts:
        told = f"{verdict.axis}={verdict.choice}: {verdict.verdict}"
        display.say(f"{told}. {verdict.evidence}".rstrip())


def _costs(made: Plan, rows: Sequence[RunStatus]) -> list[dict[str, float | None]]:
    """What each run would cost to its budget; hours as far as throughput was measured here."""
    from recipes.meter import estimate

    rates = [
        row.compute["gpu_hours"] / row.compute["flops"]
        for row in rows
        if row.compute.get("flops") and row.compute.get("gpu_hours")
    ]
    costs: list[dict[str, float | None]] = []
    for run in made.runs:
        cost: dict[str, float | None] = dict(estimate(run.config))
        flops = cost.get("flops")
        cost["gpu_hours"] = median(rates) * flops if rates and flops else None
        costs.append(cost)
    return costs


def _print_plan(made: Plan, rows: Sequence[RunStatus], costs: Sequence[dict[str, Any]]) -> None:
    varied = [key for axis in made.varied for key in axis.split(",")]
    headers = ["run", "seed", *varied, "steps", "tokens", "FLOPs", "time", "state"]
    lines = []
    for run, row, cost in zip(made.runs, rows, costs, strict=True):
        hours = cost["gpu_hours"]
        time = display.duration(None if hours is None else 3600 * hours)
        spent = [display.quantity(cost.get(axis)) for axis in ("steps", "tokens", "flops")]
        choices = [run.choices[key] for key in varied]
        lines.append([run.run_id, run.seed, *choices, *spent, time, row.state])
    display.table(headers, lines, title=f"{made.sweep}: {made.strategy.replace('_', ' ')}")
    left = sum(row.state != "completed" for row in rows)
    display.say(f"{len(rows)} runs: {len(rows) - left} exist, {left} to train")
