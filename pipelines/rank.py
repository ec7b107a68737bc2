"""From a sweep's curves to its ranking: read, judge, write the report, and put it into MLflow."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.curves import Curve, curve
from analysis.ranking import Analysis, Options, analyse
from analysis.report import write
from analysis.words import answer
from pipelines.config import PASS_RATE, Tracking, metric_name
from pipelines.display import note, program
from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger
from pipelines.manifest import manifest_of
from recipes.config import COMPUTE_AXES

if TYPE_CHECKING:
    from pipelines.plan import Plan

DEFAULT_ROOT = os.environ.get("SHORTLIST_ROOT", "outputs")
STDERR = "_stderr"
"""Follows the name of a rate in that of its standard error."""
TRUNCATION = "eval/truncation_rate"
SIGNALS = ("train/entropy", "train/reward", "train/truncation_rate")
"""Training metrics that tell of a collapse."""
BETTER = ("higher ceiling", "same ceiling, faster")
FITTED = ("A", "B", "C_mid", "R0", "rmse")


@dataclass(frozen=True)
class Ranked:
    """A judged sweep, and where its report is."""

    manifest: Record
    analysis: Analysis
    folder: Path


def rank_sweep(
    ledger: Ledger,
    sweep: str,
    options: Options,
    axis: str | None = None,
    source: str = "ledger",
    metric: str | None = None,
) -> Ranked:
    """Judges the curves of `sweep`; writes ``ranking.json``, ``report.html`` and ``curves.svg``.

    Args:
        ledger: Where the sweep was launched.
        sweep: Its name.
        options: What to judge by; its compute axis is replaced by `axis` or the sweep's own.
        axis: Compute axis of the curves, one of `COMPUTE_AXES`.
        source: ``ledger``, the files that everything is written to first, or ``mlflow``.
        metric: What is judged: a pass rate by its full name, or the part of a mixture it is of;
            None: the sweep's own.

    Raises:
        As `judge_sweep`.
    """
    manifest = manifest_of(ledger, sweep)
    analysis = judge_sweep(ledger, manifest, options, axis, source, metric)
    folder = ledger.sweep(sweep).folder
    write(analysis, folder, context(manifest, metric_of(manifest, metric)))
    _log(ledger, Tracking(**manifest["tracking"]), manifest, analysis)
    return Ranked(manifest, analysis, folder)


def judge_sweep(
    ledger: Ledger,
    manifest: Record,
    options: Options,
    axis: str | None = None,
    source: str = "ledger",
    metric: str | None = None,
) -> Analysis:
    """What `rank_sweep` says, without writing anything.

    Raises:
        UserError: No curve yet, or none of `metric`; or an unknown axis.
        CurveError: A curve that cannot be read.
        ServiceError: MLflow is out of reach, with `source` ``mlflow``.
    """
    axis, metric = axis or manifest["compute"], metric_of(manifest, metric)
    curves = curves_of(ledger, manifest, axis, source, metric)
    if not curves:
        sweep, known = manifest["sweep"], sorted(_metrics(ledger, manifest))
        if known:
            raise UserError(f"--metric: got {metric!r}, allowed of {sweep}: {' | '.join(known)}")
        raise UserError(f"sweep: {sweep!r} has no evaluations yet (shortlist status {sweep})")
    settings = {**vars(options), "compute_axis": axis}
    base = joined(manifest["base"], manifest["varied"])
    return analyse(curves, Options(**settings), manifest["strategy"], base)


def curves_of(
    ledger: Ledger,
    manifest: Record,
    axis: str,
    source: str = "ledger",
    metric: str | None = None,
) -> list[Curve]:
    """The curves of a sweep's runs that have any; raises as `judge_sweep`."""
    if axis not in COMPUTE_AXES:
        raise UserError(f"--compute: got {axis!r}, allowed: {' | '.join(COMPUTE_AXES)}")
    rows, varied, metric = manifest["runs"], manifest["varied"], metric_of(manifest, metric)
    read = _from_mlflow if source == "mlflow" else _from_ledger
    names = (metric, metric + STDERR, TRUNCATION, *SIGNALS)
    run_ids = [row["run_id"] for row in rows]
    points = read(ledger, Tracking(**manifest["tracking"]), run_ids, names, axis)
    curves = [_curve(row, points[row["run_id"]], metric, axis, varied) for row in rows]
    return [item for item in curves if len(item.compute)]


def planned_curves(ledger: Ledger, plan: Plan) -> list[Curve]:
    """The curves there are of a plan's runs, whatever was launched; raises as `judge_sweep`."""
    tracking = asdict(plan.settings.tracking)
    known = {"runs": plan.rows(), "varied": plan.varied, "tracking": tracking}
    return curves_of(ledger, known, plan.compute, metric=plan.metric)


def metric_of(manifest: Mapping[str, Any], given: str | None = None) -> str:
    """The full name of the pass rate to judge by: the one `given`, or the sweep's."""
    return metric_name(given or manifest.get("metric", PASS_RATE))


def _metrics(ledger: Ledger, manifest: Mapping[str, Any]) -> set[str]:
    """The pass rates that the runs of a sweep have."""
    points = (point for row in manifest["runs"] for point in ledger.run(row["run_id"]).points())
    names = {name for point in points for name in point["metrics"]}
    return {name for name in names if name.startswith("eval/") and name.endswith("pass_rate")}


def context(manifest: Mapping[str, Any], metric: str = PASS_RATE) -> dict[str, Any]:
    """How a sweep's report came about, for its last section."""
    command = shlex.join(["shortlist", "launch", manifest["sweep"], *_typed(manifest)])
    kept = ("sweep", "strategy", "commit", "versions", "time")
    judged = {} if metric == PASS_RATE else {"judged by": metric}
    return {**{key: manifest.get(key) for key in kept}, "command": command, **judged}


def conclusion(ranked: Ranked) -> Iterable[str]:
    """What won, why, and what to type next."""
    headline, sentences = answer(ranked.analysis)
    yield f"{headline}. {' '.join(sentences)}"
    if ranked.manifest["strategy"] == "one_at_a_time":
        better = [item for item in ranked.analysis.verdicts if item.verdict in BETTER]
        told = ", ".join(f"{item.axis}={item.choice} ({item.verdict})" for item in better)
        yield f"Better than the base: {told or 'nothing, as far as these curves can tell'}."
    yield f"Report: {ranked.folder / 'report.html'}"
    for command, why in _next(ranked):
        yield f"Next: {command}   # {why}"


def _next(ranked: Ranked) -> Iterable[tuple[str, str]]:
    manifest, fits = ranked.manifest, ranked.analysis.fits
    needed = [
        fit.needed_compute / fit.last_compute
        for fit in fits
        if fit.stable and not fit.resolved and fit.needed_compute and fit.last_compute
    ]
    if needed:
        budget = manifest["runs"][0]["budget"]
        # Beyond four times the compute a forecast of what is needed says little.
        amount = math.ceil(budget["amount"] * min(max(needed), 4.0))
        why = "continues the runs: settles more ceilings"
        yield _launch(ranked, f"budget.amount={amount}"), why
    if len({row["seed"] for row in manifest["runs"]}) == 1:
        yield _launch(ranked, "sweep.seeds=[0,1,2]"), "do the differences repeat?"


def _launch(ranked: Ranked, override: str) -> str:
    """The command that launched a sweep, with one override more, or another value of it."""
    key = override.partition("=")[0]
    root = ranked.folder.parents[1]
    typed = [item for item in _typed(ranked.manifest) if item.partition("=")[0] != key]
    if root != Path(DEFAULT_ROOT).absolute() and not any(i.startswith("root=") for i in typed):
        typed.append(f"root={root}")
    return shlex.join([program(), "launch", ranked.manifest["sweep"], *typed, override, "--follow"])


def _typed(manifest: Mapping[str, Any]) -> list[str]:
    """What was typed after the name of the sweep."""
    folders = [word for path in manifest.get("config_dirs", []) for word in ("--config-dir", path)]
    return [*folders, *manifest["overrides"]]


def _from_ledger(
    ledger: Ledger, _: Tracking, run_ids: list[str], *__: object
) -> dict[str, list[Record]]:
    return {run_id: ledger.run(run_id).points() for run_id in run_ids}


def _from_mlflow(
    ledger: Ledger, tracking: Tracking, run_ids: list[str], names: tuple[str, ...], axis: str
) -> dict[str, list[Record]]:
    from pipelines.tracking import open_store, read_curves

    store = open_store(ledger, tracking)
    found = read_curves(store, run_ids, names, axis)
    return {run_id: found.get(run_id, []) for run_id in run_ids}


def joined(choices: Mapping[str, str], varied: Iterable[str]) -> dict[str, str]:
    """`choices` with those that move together as one, so that they are judged as one axis."""
    found = dict(choices)
    for axis in varied:
        found[axis] = ",".join(found.pop(key) for key in axis.split(","))
    return found


def _curve(
    row: Mapping[str, Any], points: list[Record], metric: str, axis: str, varied: Iterable[str]
) -> Curve:
    evaluations = [point for point in points if metric in point["metrics"]]

    def column(name: str) -> list[float]:
        return [point["metrics"].get(name, float("nan")) for point in evaluations]

    signals = {
        name: [point["metrics"][name] for point in points if name in point["metrics"]]
        for name in SIGNALS
    }
    return curve(
        row["label"],
        [point["compute"][axis] for point in evaluations],
        column(metric),
        column(metric + STDERR),
        choices=joined(row["choices"], varied),
        seed=row["seed"],
        truncation=column(TRUNCATION),
        signals=signals,
    )


def _log(
    ledger: Ledger, tracking: Tracking, manifest: Mapping[str, Any], analysis: Analysis
) -> None:
    """The fits and the report into MLflow; without it they are still on disk."""
    from pipelines.tracking import log_ranking

    fits = {item["run"]: item for item in analysis.document()["fits"]}
    fitted: dict[str, dict[str, Any]] = {}
    for row in manifest["runs"]:
        fit = fits.get(row["label"])
        if fit is not None:
            values = {name: fit[name] for name in FITTED if fit[name] is not None}
            fitted[row["run_id"]] = {**values, "resolved": str(fit["resolved"]).lower()}
    try:
        log_ranking(ledger, tracking, manifest["sweep"], fitted)
    except ServiceError as error:
        note(f"the ranking is on disk but not in MLflow: {error}")
