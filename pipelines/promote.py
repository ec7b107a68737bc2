"""From a sweep's evidence to one large run: the winner, what is forecast of it, and the launch."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, sqrt
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import yaml

from analysis.forecast import interval
from analysis.notation import amount, unit
from analysis.promise import Promise
from analysis.ranking import Options
from pipelines import files
from pipelines.compose import Composer, parse, quoted
from pipelines.config import PASS_RATE, metric_name
from pipelines.display import program
from pipelines.errors import EvidenceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger, PromotionFiles
from pipelines.manifest import manifest_of
from pipelines.plan import Plan, plan, single
from pipelines.rank import DEFAULT_ROOT, metric_of
from pipelines.winner import Winner, plain, target, winner_of
from recipes.config import AXES, Budget, RunConfig

INHERITED = ("cluster", "tracking", "execution")
"""Overrides of a sweep that hold for its promotion too, unless given anew."""


@dataclass(frozen=True)
class Request:
    """What is to be promoted, and to what."""

    ledger: Ledger
    sweep: str
    name: str
    settings: list[str]
    """Hydra overrides that the large run is given beside its recipe."""
    seed: int | None
    """None: that of the winner, whose run then goes on."""
    config_dirs: list[Path]
    options: Options
    force: bool = False
    metric: str | None = None
    """Pass rate to judge by; None: the sweep's."""

    @property
    def files(self) -> PromotionFiles:
        """Where it is written."""
        return self.ledger.promotion(self.name)

    @property
    def next_command(self) -> str:
        """How its run is held against the forecast."""
        default = self.ledger.root == Path(DEFAULT_ROOT).absolute()
        root = [] if default else ["--root", str(self.ledger.root)]
        return shlex.join([program(), "verify", self.name, *root])

    def planned(self, folder: Path) -> Plan:
        """The sweep of its name in `folder`, as a plan."""
        dirs = [item for item in self.config_dirs if item.absolute() != self.files.folder]
        return plan(self.name, [f"root={quoted(str(self.ledger.root))}"], [*dirs, folder])

    @property
    def large(self) -> RunConfig:
        """A run with the target's budget, whatever its recipe."""
        return single(self.settings, self.config_dirs)[1]

    @property
    def manifest(self) -> Record:
        """Of its sweep."""
        return manifest_of(self.ledger, self.sweep)

    @property
    def judged_by(self) -> str:
        """The full name of the pass rate."""
        return metric_of(self.manifest, self.metric)

    def winner(self) -> Winner:
        """Of its sweep, see `winner_of`."""
        return winner_of(self.ledger, self.manifest, self.large, self.options, self.metric)


def ask(
    ledger: Ledger,
    sweep: str,
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    options: Options,
    name: str | None = None,
    *,
    force: bool = False,
    metric: str | None = None,
) -> Request:
    """The request that a command line stands for.

    Where runs go and how they are tracked is the sweep's, and the budget ``large``, unless
    `overrides` say otherwise.

    Raises:
        UserError: No such sweep, overrides outside the grammar, or a name that is taken.
    """
    manifest = manifest_of(ledger, sweep)
    name = name or f"{sweep.replace('/', '-')}-promoted"
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name: got {name!r}, allowed: letters, digits, '.', '_' and '-'")
    files_of = ledger.promotion(name)
    if ledger.sweep(name).manifest() is not None and not files_of.evidence.exists():
        raise UserError(f"--name: got {name!r}, allowed: another than that of a sweep")
    given = {_group(item) for item in overrides}
    kept = [
        item
        for item in manifest["overrides"]
        if _group(item) in INHERITED and _group(item) not in given
    ]
    budget = [] if any(_key(item) == "budget" for item in overrides) else ["budget=large"]
    rest = [item for item in overrides if _key(item) not in ("seed", "root")]
    seeds = [int(str(parse([item])[0].value())) for item in overrides if _key(item) == "seed"]
    dirs = [Path(item) for item in manifest.get("config_dirs", [])]
    return Request(
        ledger,
        sweep,
        name,
        [*budget, *kept, *rest],
        seeds[-1] if seeds else None,
        list(dict.fromkeys([*dirs, *config_dirs])),
        options,
        force,
        metric and metric_name(metric),
    )


def root_of(overrides: Sequence[str]) -> str:
    """The root that `overrides` name, or the default one."""
    given = [item.value() for item in parse(overrides) if item.key_or_group == "root"]
    return str(given[-1]) if given else DEFAULT_ROOT


def _key(override: str) -> str:
    return str(parse([override])[0].key_or_group)


def _group(override: str) -> str:
    return _key(override).partition(".")[0]


@dataclass(frozen=True)
class Draft:
    """A recipe and a sweep of it, not written yet."""

    files: PromotionFiles
    recipe: str
    sweep: Record
    plan: Plan

    def save(self) -> None:
        """Writes both."""
        _write(self.files, self.recipe, self.sweep)


@dataclass(frozen=True)
class Promotion:
    """A winner, ready to be launched."""

    draft: Draft
    evidence: Record

    def save(self) -> None:
        """Writes the recipe, its sweep and its evidence."""
        self.draft.save()
        files.write_json(self.draft.files.evidence, self.evidence)

    def document(self) -> Record:
        """What `evidence` says, but for the curves it was drawn from."""
        forecast = {key: it for key, it in self.evidence["forecast"].items() if key != "parts"}
        return {**self.evidence, "forecast": forecast, "recipe": str(self.draft.files.recipe)}

    def lines(self) -> Iterator[str]:
        """What a person should know before it is launched."""
        document, forecast = self.evidence, self.evidence["forecast"]
        what = ", ".join([document["winner"]["run"], *document["winner"]["changes"]])
        yield f"{document['promotion']}: {what}, of sweep {document['sweep']}"
        low, high = forecast["interval"]
        metric = forecast.get("metric", PASS_RATE)
        rate = "a pass rate" if metric == PASS_RATE else metric
        yield (
            f"Forecast: {rate} of {forecast['reward']:.3f} at {amount(forecast['compute'])} "
            f"{unit(forecast['axis'])}; 95% of evaluations there from {low:.3f} to {high:.3f}."
        )
        yield from document["notes"]


def made_before(request: Request) -> Promotion | None:
    """The promotion of that name, with the forecast as it was then.

    Raises:
        UserError: It was to other settings.
        ServiceError: What was written down is damaged.
    """
    evidence = files.read_json(request.files.evidence)
    if evidence is None:
        return None
    seed = evidence["seed"] if request.seed is None else request.seed
    metric = evidence["forecast"].get("metric", PASS_RATE)
    was = [evidence["settings"], evidence["seed"], metric]
    if was != [request.settings, seed, request.metric or metric]:
        told = f"another, since it was promoted with {' '.join(evidence['settings'])}"
        by = "" if metric == PASS_RATE else f", judged by {metric}"
        raise UserError(f"--name: got {request.name!r}, allowed: {told}{by}")
    return Promotion(_draft_in(request), evidence)


def _draft_in(request: Request) -> Draft:
    """What was written."""
    recipe, sweep = (path.read_text() for path in (request.files.recipe, request.files.sweep))
    made = request.planned(request.files.folder)
    return Draft(request.files, recipe, yaml.safe_load(sweep), made)


def promote(request: Request) -> Promotion:
    """What promoting the winner of a sweep would do; nothing is written.

    Raises:
        EvidenceError: The evidence does not carry it, without `Request.force`.
        UserError: No such sweep or no curves yet, overrides that do not compose, or a target that
            the winner has reached already.
    """
    winner = request.winner()
    if winner.doubts and not (request.force and all(fit.draws for fit in winner.fits)):
        told = "; ".join(winner.doubts)
        raise EvidenceError(f"{request.sweep}: not promoted (or with --force): {told}")
    recipe = recipe_of(winner, request)
    sweep = {
        "strategy": "grid",
        "axes": {"recipe": [request.name]},
        "set": request.settings,
        "seeds": [winner.config["seed"] if request.seed is None else request.seed],
        "compute": winner.analysis.options.compute_axis,
        "metric": request.judged_by,
    }
    draft = _drafted(request, recipe, sweep)
    return Promotion(draft, _evidence(request, winner, draft.plan))


def _drafted(request: Request, recipe: str, sweep: Record) -> Draft:
    with tempfile.TemporaryDirectory() as aside:
        _write(PromotionFiles(Path(aside), request.name), recipe, sweep)
        made = request.planned(Path(aside))
    dirs = [*made.config_dirs[:-1], str(request.files.folder)]
    return Draft(request.files, recipe, sweep, replace(made, config_dirs=dirs))


def recipe_of(winner: Winner, request: Request) -> str:
    """The winner as a file of ``recipe/``: the option on every axis, and what differs from it."""
    named = Composer(request.config_dirs).base([f"{axis}={winner.choices[axis]}" for axis in AXES])
    options = plain(named.config)
    differ = {axis: _differ(options[axis], winner.config[axis]) for axis in AXES}
    document = {
        "defaults": [{f"override /{axis}": winner.choices[axis]} for axis in AXES],
        **{axis: values for axis, values in differ.items() if values},
    }
    told = f"# {winner.name}: promoted from sweep {request.sweep}, {datetime.now(UTC):%Y-%m-%d}."
    return f"# @package _global_\n{told}\n{yaml.safe_dump(document, sort_keys=False)}"


def _differ(named: Mapping[str, Any], wanted: Mapping[str, Any]) -> Record:
    return {key: value for key, value in wanted.items() if named.get(key) != value}


def _evidence(request: Request, winner: Winner, made: Plan) -> Record:
    """What is known of the winner, and what is forecast, as it is written beside the recipe."""
    (run,), manifest = made.runs, request.manifest
    ledger, axis = request.ledger, manifest["compute"]
    used = {row["run_id"] for row in manifest["runs"] if row["label"] == winner.run}
    goes_on = run.run_id in used and not winner.changes
    there = target(ledger, winner.run_id, run.config, axis)
    every = Budget("steps", run.config.budget.eval_every)
    last = winner.last_compute
    if goes_on and there <= last:
        allowed = "more than the winner was trained for, or another seed"
        raise UserError(f"budget.amount: got {run.config.budget.amount:g}, allowed: {allowed}")
    changed = [
        f"{axis}.{key}: {winner.config[axis].get(key)} -> {value}"
        for axis in AXES
        for key, value in _differ(winner.config[axis], run.resolved[axis]).items()
    ]
    document = winner.analysis.document()
    return {
        "promotion": request.name,
        "sweep": request.sweep,
        "strategy": manifest["strategy"],
        "time": time(),
        "command": sys.argv,
        "settings": request.settings,
        "seed": run.seed,
        "commit": manifest.get("commit"),
        "recipes": manifest.get("recipes"),
        "versions": manifest.get("versions"),
        "run_id": run.run_id,
        "winner": {
            "run": winner.run,
            "changes": winner.changes,
            "choices": winner.choices,
            "config": {axis: winner.config[axis] for axis in AXES},
        },
        "forced": winner.doubts,
        "changed": changed,
        "notes": list(_notes(winner, run.seed, goes_on, changed, there / last)),
        "forecast": {
            "metric": request.judged_by,
            **_forecast(winner, axis, there, last if goes_on else 0.0),
            "every": target(ledger, winner.run_id, replace(run.config, budget=every), axis),
        },
        "fits": document["fits"],
        "verdicts": document["verdicts"],
    }


def _forecast(winner: Winner, axis: str, compute: float, seen: float) -> Record:
    drawn = [fit.draws for fit in winner.fits if fit.draws is not None]
    promise = Promise(drawn, winner.analysis.margin, seen)
    there = promise.value(compute, np.random.default_rng(0))
    return {
        "axis": axis,
        "compute": compute,
        "reward": there.middle,
        "interval": there.interval,
        "curve_interval": interval(promise.at(np.array([compute]))[:, 0]),
        **promise.document(),
    }


def _notes(
    winner: Winner, seed: int, goes_on: bool, changed: list[str], times: float
) -> Iterator[str]:
    if winner.doubts:
        yield f"Forced, although the evidence does not carry it: {'; '.join(winner.doubts)}."
    if winner.changes:
        yield (
            "The combination itself was not run: its forecast adds up effects measured one at a "
            "time, and its interval knows nothing of how they act on each other; --confirm-loo "
            "trains it first."
        )
    yield (
        f"Seed {seed}: continues the run that the forecast was made from; only what comes after "
        "its points can test it (seed=N starts a fresh one)."
        if goes_on
        else f"Seed {seed}: a run that starts anew; all of its points test the forecast."
    )
    small = f"{times:.3g} times the compute it was made from"
    if changed:
        yield f"The forecast holds for what was run, not for {', '.join(changed)}; {small}."
    else:
        yield f"The forecast is for the recipe as it was run, at {small}."


def _write(where: PromotionFiles, recipe: str, sweep: Record) -> None:
    """Writes a recipe, and a sweep of it, into a folder laid out like ``conf/``."""
    where.sweep.parent.mkdir(parents=True, exist_ok=True)
    where.linked.parent.mkdir(exist_ok=True)
    files.write(where.recipe, recipe)
    files.write(where.sweep, yaml.safe_dump(sweep, sort_keys=False))
    if not where.linked.is_symlink():
        where.linked.symlink_to(Path("..") / where.recipe.name)


def leave_one_out(request: Request) -> tuple[Request, Draft]:
    """The sweep that confirms a composed recipe: it, and each of its changes put back.

    Its budget is the geometric mean of what the winner has and of the target.

    Returns:
        The request to promote from that sweep, and the sweep.

    Raises:
        EvidenceError: The winner is the base of its sweep, so that there is nothing to leave out.
        UserError: As `winner_of`.
    """
    asked = replace(request, name=f"{request.name}-loo")
    confirmed = replace(request, sweep=asked.name)
    if asked.files.sweep.exists():
        return confirmed, _draft_in(asked)
    winner = request.winner()
    axes = dict(_put_back(request.manifest, winner))
    if not axes:
        told = f"no choice of {request.sweep} is known to be better than its base's"
        raise EvidenceError(f"--confirm-loo: nothing to leave out: {told}")
    sweep = {
        "strategy": "leave_one_out",
        "axes": axes,
        "set": [f"recipe={asked.name}", *_midway(request, winner)],
        "seeds": sorted({curve.seed or 0 for fit in winner.fits for curve in fit.seeds}),
        "compute": winner.analysis.options.compute_axis,
        "metric": request.judged_by,
    }
    return confirmed, _drafted(asked, recipe_of(winner, request), sweep)


def _put_back(manifest: Record, winner: Winner) -> Iterator[tuple[str, list[Any]]]:
    """The varied axes on which the winner is not the base, with the base's choice."""
    base = manifest["base"]
    for axis in manifest["varied"]:
        keys = axis.split(",")
        values = [yaml.safe_load(base[key]) if "." in key else base[key] for key in keys]
        if any(winner.choices[key] != base[key] for key in keys):
            yield axis, [values if len(keys) > 1 else values[0]]


def _midway(request: Request, winner: Winner) -> list[str]:
    """The settings of the large run at a middle budget."""
    large = request.large
    there = target(request.ledger, winner.run_id, large, winner.analysis.options.compute_axis)
    middle = large.budget.amount * min(1.0, sqrt(winner.last_compute / there))
    rest = [item for item in request.settings if _key(item) != "budget.amount"]
    return [*rest, f"budget.amount={ceil(middle) if large.budget.axis == 'steps' else middle}"]
