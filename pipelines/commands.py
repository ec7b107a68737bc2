"""What each command does. Heavy modules are imported where they are used, not before."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipelines import display
from pipelines.errors import UserError
from pipelines.ledger import Ledger
from pipelines.manifest import rows_of
from pipelines.status import RunStatus, errors, statuses, summary, table
from recipes.config import Budget

if TYPE_CHECKING:
    from analysis.ranking import Analysis, Options
    from pipelines.files import Record
    from pipelines.launch import LaunchReport
    from pipelines.plan import Plan
    from pipelines.promote import Draft


def plan(arguments: Namespace) -> int:
    """Prints the runs a sweep would make."""
    from pipelines.costs import costs as price
    from pipelines.costs import over_ceiling, spending

    made, ledger = _made(arguments, arguments.sweep)
    made = _known(made, ledger)
    rows = statuses(ledger, made.rows())
    costs = price(made, rows)
    stopped = {row.run_id for row in rows if row.state == "stopped"}
    spent = [
        spending(made, rows, stopped, axis) for axis in dict.fromkeys([made.compute, "gpu_hours"])
    ]
    status = int(over_ceiling(made, rows) is not None)
    if arguments.json:
        runs = [{**row.document(), "cost": cost} for row, cost in zip(rows, costs, strict=True)]
        found = {"spending": [asdict(item) for item in spent], "max_gpu_hours": made.max_gpu_hours}
        display.emit({"sweep": made.sweep, "strategy": made.strategy, "runs": runs, **found})
        return status
    _print_plan(made, rows, costs)
    for item in spent:
        display.say(item.line())
    if status:
        display.say(f"This is over the ceiling, sweep.max_gpu_hours={made.max_gpu_hours:g}.")
    return status


def _made(arguments: Namespace, name: str, *overrides: str) -> tuple[Plan, Ledger]:
    """The plan of sweep `name` under what was typed and `overrides`, and where its runs are."""
    from pipelines.plan import plan as make

    made = make(name, [*arguments.overrides, *overrides], arguments.config_dir)
    return made, Ledger(made.settings.root)


def _known(made: Plan, ledger: Ledger) -> Plan:
    """The plan, with what an adaptive sweep has asked for so far."""
    if made.space is None:
        return made
    from pipelines.search import known

    return known(made, ledger)


def launch(arguments: Namespace) -> int:
    """Submits what is missing of a sweep."""
    made, ledger = _made(arguments, arguments.sweep)
    if made.space:
        return _search(arguments, made, ledger)
    _check_ceiling(made, ledger)
    return _submit(arguments, ledger, [(made, None)])


def _check_ceiling(made: Plan, ledger: Ledger) -> None:
    """Refuses to submit what would spend more GPU-hours than the sweep may, as far as known."""
    from pipelines.costs import over_ceiling

    hours = over_ceiling(made, statuses(ledger, made.rows())) if made.max_gpu_hours else None
    if hours is not None:
        allowed = f"at least {hours:.3g}, or `race` in place of `launch`"
        raise UserError(f"sweep.max_gpu_hours: got {made.max_gpu_hours:g}, allowed: {allowed}")


def _search(arguments: Namespace, made: Plan, ledger: Ledger) -> int:
    from pipelines.search import advance, follow

    if arguments.follow:
        made, done = follow(made, ledger)
        _show_status(ledger, made.sweep, made.rows(), as_json=arguments.json)
        return 0 if done else 1
    _, report = advance(made, ledger)
    display.note(report.line())
    if arguments.json:
        display.emit(report.document())
    return 0


def retry(arguments: Namespace) -> int:
    """Submits what is missing, failed or was stopped: as launched, or with other overrides."""
    if arguments.overrides or arguments.config_dir:
        made, ledger = _made(arguments, arguments.name)
        return _submit(arguments, ledger, [(_known(made, ledger), None)], retry=True)
    from pipelines.retry import launched

    ledger = Ledger(arguments.root)
    return _submit(arguments, ledger, list(launched(ledger, _name(arguments))), retry=True)


def _submit(
    arguments: Namespace,
    ledger: Ledger,
    plans: Sequence[tuple[Plan, set[str] | None]],
    *,
    retry: bool = False,
) -> int:
    from pipelines.launch import launch as submit

    reports = [submit(made, ledger, retry=retry, only=only) for made, only in plans]
    for report in reports:
        display.note(report.line())
    if not arguments.follow:
        if arguments.json:
            documents = [report.document() for report in reports]
            display.emit(documents[0] if len(documents) == 1 else {"sweeps": documents})
        return 0
    from pipelines.follow import follow

    done = [follow(made, ledger) for made, _ in plans]
    rows = [row for made, _ in plans for row in made.rows()]
    _show_status(ledger, " ".join(made.sweep for made, _ in plans), rows, as_json=arguments.json)
    return 0 if all(done) else 1


def _train(made: Plan, ledger: Ledger, *, wait: bool) -> tuple[LaunchReport, bool]:
    """Submits what is missing; with `wait`, follows it, and says whether all completed."""
    from pipelines.follow import follow
    from pipelines.launch import launch as submit

    report = submit(made, ledger)
    display.note(report.line())
    return report, wait and follow(made, ledger)


def race(arguments: Namespace) -> int:
    """Advances the runs of a sweep that may still win, and stops the others."""
    from pipelines import race as racing

    metric = [f"sweep.metric={arguments.metric}"] if arguments.metric else []
    made, ledger = _made(arguments, arguments.sweep, *metric)
    step = racing.follow if arguments.follow else racing.advance
    report = step(made, ledger)
    status = int(report.over and not report.winners)
    if arguments.json:
        display.emit(report.document())
        return status
    display.table(*racing.table(report))
    for line in racing.summary(report):
        display.say(line)
    return status


def status(arguments: Namespace) -> int:
    """Shows the state of runs."""
    ledger = Ledger(arguments.root)
    rows = rows_of(ledger, arguments.name)
    shown = _show_status(ledger, arguments.name, rows, as_json=arguments.json)
    return 1 if any(row.state == "failed" for row in shown) else 0


def logs(arguments: Namespace) -> int:
    """Shows what runs printed."""
    from pipelines.logs import follow, log_of, text_of

    ledger = Ledger(arguments.root)
    rows = rows_of(ledger, _name(arguments))
    lines = arguments.lines or (None if len(rows) == 1 else 20)
    if arguments.follow:
        if arguments.json:
            raise UserError("--json: got --follow too, allowed: one of them")
        follow(ledger, rows, lines)
        return 0
    paths = [log_of(ledger, ledger.run(row["run_id"])) for row in rows]
    texts = [text_of(path, lines) for path in paths]
    ids = [row["run_id"] for row in rows]
    if arguments.json:
        items = [
            {"run_id": run_id, "path": str(path), "text": text}
            for run_id, path, text in zip(ids, paths, texts, strict=True)
        ]
        display.emit({"runs": items})
        return 0
    for run_id, path, text in zip(ids, paths, texts, strict=True):
        display.note(f"==> {run_id} {path}{'' if text else ' (nothing printed)'} <==")
        sys.stdout.write(text)
    return 0


def cancel(arguments: Namespace) -> int:
    """Stops runs."""
    from pipelines.cancel import stop

    ledger = Ledger(arguments.root)
    rows = rows_of(ledger, _name(arguments))
    budgets = {row["run_id"]: Budget(**row["budget"]) for row in rows}
    ids = stop(ledger, budgets, arguments.why, budgets=budgets)
    if arguments.json:
        display.emit({"stopped": ids})
    else:
        display.say(f"{len(ids)} of {len(rows)} runs stopped; `retry` takes them up again")
    return 0


def _name(arguments: Namespace) -> str | None:
    """What a command is about, where it is about everything only when told so."""
    if bool(arguments.name) == bool(arguments.all):
        given = f"{arguments.name!r} and --all" if arguments.all else "nothing"
        raise UserError(f"SWEEP|RUN: got {given}, allowed: a sweep, a run, or --all")
    name: str | None = arguments.name
    return name


def rank(arguments: Namespace) -> int:
    """Judges a sweep and writes its report."""
    from pipelines.rank import conclusion, rank_sweep

    ranked = rank_sweep(
        Ledger(arguments.root),
        arguments.sweep,
        _options(arguments),
        arguments.compute,
        arguments.source,
        arguments.metric,
    )
    if arguments.json:
        display.emit(ranked.analysis.document())
        return 0
    _print_ranking(ranked.analysis)
    display.say()
    for line in conclusion(ranked):
        display.say(line)
    return 0


def promote(arguments: Namespace) -> int:
    """Writes a sweep's winner as a recipe with its forecast, and launches it large."""
    from pipelines import promote as promotions
    from pipelines.request import ask, root_of

    ledger = Ledger(root_of(arguments.overrides))
    typed = (arguments.sweep, arguments.overrides, arguments.config_dir, _options(arguments))
    asked = ask(ledger, *typed, arguments.name, force=arguments.force, metric=arguments.metric)
    found = promotions.made_before(asked)
    if found is None and arguments.confirm_loo:
        asked, confirming = promotions.leave_one_out(asked)
        if not _confirmed(confirming, ledger, arguments):
            return 0
    found = found or promotions.promote(asked)
    if not arguments.json:
        for line in found.lines():
            display.say(line)
        if arguments.dry_run:
            display.say(f"\n{found.draft.recipe}")
    document, done = found.document(), True
    if not arguments.dry_run:
        found.save()
        report, done = _train(found.draft.plan, ledger, wait=arguments.follow)
        document |= {"planned": report.planned}
        display.note(f"Next: {asked.next_command}")
    if arguments.json:
        display.emit(document)
    return 0 if done or not arguments.follow else 1


def _confirmed(draft: Draft, ledger: Ledger, arguments: Namespace) -> bool:
    """Whether the leave-one-out of a promotion is complete; launches what is missing of it."""
    made, done = draft.plan, False
    if not arguments.dry_run:
        draft.save()
        _, done = _train(made, ledger, wait=arguments.follow)
    rows = statuses(ledger, made.rows())
    done = done or all(row.state == "completed" for row in rows)
    if done and not arguments.dry_run:
        return True
    display.note(f"{made.sweep}: promotion goes on once this leave-one-out is complete")
    if arguments.json:
        display.emit({"confirming": made.sweep, "runs": [row.document() for row in rows]})
    else:
        _print_status(rows)
    return False


def verify(arguments: Namespace) -> int:
    """Holds a promoted run against its forecast."""
    from pipelines.verify import verify as hold

    found = hold(Ledger(arguments.root), arguments.promotion)
    if arguments.json:
        display.emit(found.document())
    else:
        for line in found.lines():
            display.say(line)
        display.say(f"Report: {found.page}")
    return 0 if found.inside else 1


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
    from pipelines.tracking import sync as replay

    ledger = Ledger(arguments.root)
    done = replay(ledger, [row["run_id"] for row in rows_of(ledger, arguments.name)])
    if arguments.json:
        display.emit({"sweep": arguments.name, "points": done})
    else:
        display.say(f"{done} points logged that were missing")
    return 0


def doctor(arguments: Namespace) -> int:
    """Checks what runs depend on, with the settings that overrides give."""
    from pipelines.doctor import examine
    from pipelines.plan import single

    _, settings = single(arguments.overrides, arguments.config_dir)
    findings = []
    for finding in examine(Ledger(settings.root), settings):
        findings.append(finding)
        if not arguments.json:
            display.say(f"{finding.level:<4}  {finding.check:<10}  {finding.text}")
    if arguments.json:
        display.emit({"checks": [vars(finding) for finding in findings]})
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def server(arguments: Namespace) -> int:
    """Becomes an MLflow server."""
    from pipelines.server import serve

    address = f"http://{arguments.host}:{arguments.port}"
    display.note(f"MLflow at {address}; launch with tracking.uri={address}")
    if arguments.json:
        display.emit({"uri": address})
        sys.stdout.flush()
    serve(
        Ledger(arguments.root), arguments.host, arguments.port, arguments.store, arguments.workers
    )


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
    from pipelines.plan import single

    run, settings = single(arguments.overrides, arguments.config_dir)
    row = train_here(run, settings, Ledger(settings.root), display.note, arguments.config_dir)
    if arguments.json:
        display.emit(row.document())
    else:
        _print_status([row])
    return 0 if row.state == "completed" else 1


def _show_status(
    ledger: Ledger, name: str | None, rows: Iterable[Record], *, as_json: bool
) -> list[RunStatus]:
    found = statuses(ledger, rows)
    if as_json:
        display.emit({"sweep": name, "runs": [row.document() for row in found]})
    else:
        _print_status(found)
    return found


def _print_status(rows: Sequence[RunStatus]) -> None:
    display.table(*table(rows))
    for line in (*errors(rows), summary(rows)):
        display.say(line)


def _options(arguments: Namespace) -> Options:
    from analysis.ranking import Options

    return Options(
        at=getattr(arguments, "at", None),
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
