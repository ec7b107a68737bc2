"""From a sweep's evidence to one large run: the winner, what is forecast of it, and the launch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import yaml

from analysis.notation import amount, unit
from pipelines import files
from pipelines.compose import Composer
from pipelines.config import PASS_RATE
from pipelines.errors import EvidenceError, UserError
from pipelines.evidence import differing, evidence_of
from pipelines.files import Record
from pipelines.ledger import PromotionFiles
from pipelines.plan import Plan
from pipelines.request import Request, key_of
from pipelines.winner import Winner, plain, target
from recipes.config import AXES


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
        **request.judged_by,
    }
    draft = _drafted(request, recipe, sweep)
    return Promotion(draft, evidence_of(request, winner, draft.plan.runs[0]))


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
    differ = {axis: differing(options[axis], winner.config[axis]) for axis in AXES}
    document = {
        "defaults": [{f"override /{axis}": winner.choices[axis]} for axis in AXES],
        **{axis: values for axis, values in differ.items() if values},
    }
    told = f"# {winner.name}: promoted from sweep {request.sweep}, {datetime.now(UTC):%Y-%m-%d}."
    return f"# @package _global_\n{told}\n{yaml.safe_dump(document, sort_keys=False)}"


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
        **request.judged_by,
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
    there = target(request.ledger, winner.run_id, large, request.judged_by["compute"])
    middle = large.budget.amount * min(1.0, sqrt(winner.last_compute / there))
    rest = [item for item in request.settings if key_of(item) != "budget.amount"]
    return [*rest, f"budget.amount={ceil(middle) if large.budget.axis == 'steps' else middle}"]
