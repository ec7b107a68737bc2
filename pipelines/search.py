"""Optuna: an adaptive sweep's recipes by ask and tell, and the race's rule as a pruner.

The study of an adaptive sweep is made anew at every pass, from the runs themselves: nothing of it
can be lost, locked or out of step with them, every recipe is told at what is known of it by now,
and a choice added to an axis is one more category from then on. What was made is left in the
sweep's folder as an Optuna journal, for dashboards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from analysis.curves import Curve, curve
from analysis.racing import Rule, Standing, judge
from pipelines import files
from pipelines.costs import over_ceiling
from pipelines.follow import INTERVAL_S, PATIENCE, WAITED_FOR, Passes, view
from pipelines.launch import LaunchReport, launch
from pipelines.ledger import Ledger, RunFiles
from pipelines.plan import Combination, Plan, PlannedRun, Space
from pipelines.rank import planned_curves
from pipelines.status import RunStatus, statuses

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

PROPOSALS = 30
"""Proposals Optuna may repeat before an untried recipe is drawn at random."""
ENUMERATED = 10_000
"""Combinations looked through for an untried one."""
Parts = dict[str, Combination]
"""Axis to the choice on it, where it is varied."""


@dataclass(frozen=True)
class Known:
    """A recipe that was asked for, or that exists."""

    parts: Parts
    rows: list[RunStatus]
    standing: Standing | None

    @property
    def busy(self) -> bool:
        """Whether some of its runs are still to be waited for."""
        return any(_waited_for(row) for row in self.rows)


def known(plan: Plan, ledger: Ledger) -> Plan:
    """`plan` with the runs that its sweep has asked for, and those that were complete before.

    A recipe is planned again from its choices, so one whose choice was taken off its axis is gone.
    """
    space = _space(plan)
    manifest = ledger.sweep(plan.sweep).manifest() or {}
    asked = manifest.get("runs", []) if manifest.get("strategy") == "adaptive" else []
    recipes = [parts for row in asked if (parts := space.parts(row["choices"])) is not None]
    done = (run for run in ledger.known_runs() if run.result())
    recipes += [parts for run in done if (parts := _parts_of(space, run)) is not None]
    once = {_key(item): item for item in recipes}.values()
    return _with(plan, [run for parts in once for run in _runs(space, parts)])


def extend(plan: Plan, ledger: Ledger) -> Plan:
    """`known`, and as many recipes more as there are free places and trials left.

    What this returns is asked for once it is launched; until then nothing is written down.
    """
    space, plan = _space(plan), known(plan, ledger)
    found = statuses(ledger, plan.rows())
    rows: dict[str, list[RunStatus]] = {}
    for row in found:
        rows.setdefault(row.label, []).append(row)
    under_way = _under_way(ledger, found)
    free = -(-(plan.settings.cluster.parallel - under_way) // len(space.seeds))
    count = min(plan.search.trials - len(rows), free)
    if over_ceiling(plan, found) is not None:
        count = 0
    if count <= 0 and under_way:
        return plan
    recipes = _recipes(plan, ledger, rows)
    new = list(_ask(plan, recipes, count))
    _keep(plan, ledger, [*recipes, *(Known(parts, [], None) for parts in new)])
    return _with(plan, [run for parts in new for run in _runs(space, parts)])


def advance(plan: Plan, ledger: Ledger) -> tuple[Plan, LaunchReport]:
    """One pass of an adaptive sweep: asks for recipes where there is room, and launches.

    Raises:
        ServiceError: As `pipelines.launch.launch`.
    """
    sweep = ledger.sweep(plan.sweep)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with files.locked(sweep.pass_lock):
        plan = extend(plan, ledger)
        return plan, launch(plan, ledger)


def follow(plan: Plan, ledger: Ledger) -> tuple[Plan, bool]:
    """Repeats the pass until all trials are done; returns their plan, and whether all completed."""
    with view() as shown:
        passes = Passes(shown)
        while True:
            with passes:
                plan, _ = advance(plan, ledger)
                rows = statuses(ledger, plan.rows())
                shown.show(rows)
                if not any(_waited_for(row) for row in rows):
                    return plan, all(row.state == "completed" for row in rows)
            sleep(INTERVAL_S[plan.settings.cluster.kind])


def _waited_for(row: RunStatus) -> bool:
    return row.state in WAITED_FOR or (row.state == "planned" and row.fruitless < PATIENCE)


def _with(plan: Plan, runs: Sequence[PlannedRun]) -> Plan:
    return replace(plan, runs=list({run.run_id: run for run in [*plan.runs, *runs]}.values()))


def _under_way(ledger: Ledger, rows: Sequence[RunStatus]) -> int:
    """Runs that take a place: those waited for, but for what a race left at its rung."""
    waiting = [row for row in rows if _waited_for(row)]
    return sum(row.state != "planned" or _short(ledger.run(row.run_id), row) for row in waiting)


def _short(run: RunFiles, row: RunStatus) -> bool:
    """Whether a run that is not under way has not come to what was asked of it so far."""
    budget = run.history().budget
    return budget is None or row.compute.get(budget.axis, 0.0) < budget.amount


def _space(plan: Plan) -> Space:
    assert plan.space is not None
    return plan.space


def _runs(space: Space, parts: Parts) -> list[PlannedRun]:
    return [space.run(space.combine(parts), seed) for seed in space.seeds]


def _key(parts: Parts) -> str:
    return str(sorted((axis, _text(part)) for axis, part in parts.items()))


def _text(part: Combination) -> str:
    return ",".join(str(value) for value in part.values())


def _parts_of(space: Space, run: RunFiles) -> Parts | None:
    """What a run of any sweep is in this one's space; None where it is not in it."""
    request = run.history().request
    if request is None:
        return None
    config, choices = OmegaConf.create(run.config()), dict(request["choices"])
    for key in (key for axis in space.options for key in axis.split(",") if "." in key):
        choices.setdefault(key, str(OmegaConf.select(config, key)))
    parts = space.parts(choices)
    if parts is None or request["seed"] not in space.seeds or not space.kept(space.combine(parts)):
        return None
    return parts if space.run(space.combine(parts), request["seed"]).run_id == run.run_id else None


def _recipes(plan: Plan, ledger: Ledger, rows: Mapping[str, list[RunStatus]]) -> list[Known]:
    """Every recipe of the sweep, with where its runs are and what its curves say."""
    curves: dict[str, list[Curve]] = {}
    for item in planned_curves(ledger, plan):
        curves.setdefault(item.run, []).append(item)
    judged = {s.run: s for s in judge(list(curves.values()), Rule(plan.target))}
    space, found = _space(plan), []
    for label, of in rows.items():
        parts = space.parts(of[0].choices)
        assert parts is not None
        found.append(Known(parts, of, judged.get(label)))
    return found


def _ask(plan: Plan, recipes: Sequence[Known], count: int) -> Iterator[Parts]:
    """Recipes that Optuna proposes, none of them known."""
    study = _study(plan, recipes)
    tried = {_key(recipe.parts) for recipe in recipes}
    for _ in range(count):
        parts = _proposed(study, _space(plan), tried) or _untried(plan, tried)
        if parts is None:
            return
        tried.add(_key(parts))
        yield parts


def _proposed(study: Study, space: Space, tried: set[str]) -> Parts | None:
    for _ in range(PROPOSALS):
        trial = study.ask()
        parts = _suggested(trial, space)
        if _key(parts) not in tried and space.kept(space.combine(parts)):
            return parts  # and the trial stays open, so that the next proposal keeps away from it
        study.tell(trial, state=TrialState.FAIL)
    return None


def _suggested(trial: Trial, space: Space) -> Parts:
    """A choice on each axis, those that others depend on first."""
    parts: Parts = {}
    for axis in sorted(space.options, key=lambda axis: axis in space.conditional):
        if space.varies(axis, parts):
            options = {_text(part): part for part in space.options[axis]}
            parts[axis] = options[trial.suggest_categorical(axis, list(options))]
    return parts


def _untried(plan: Plan, tried: set[str]) -> Parts | None:
    """One of the recipes left, drawn at random; None where there is none."""
    space, rng = _space(plan), np.random.default_rng(len(tried))
    options = [list(rng.permutation(np.array(o, dtype=object))) for o in space.options.values()]
    for _, choice in zip(range(ENUMERATED), product(*options), strict=False):
        parts = dict(zip(space.options, choice, strict=True))
        parts = {axis: part for axis, part in parts.items() if space.varies(axis, parts)}
        if _key(parts) not in tried and space.kept(space.combine(parts)):
            return parts
    return None


def _keep(plan: Plan, ledger: Ledger, recipes: Sequence[Known]) -> None:
    """The study as a journal file, replaced in one step."""
    path = ledger.sweep(plan.sweep).study
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    _study(plan, recipes, JournalStorage(JournalFileBackend(str(aside))))
    aside.replace(path)


def _study(plan: Plan, recipes: Sequence[Known], storage: JournalStorage | None = None) -> Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    both = plan.search.objective == "A_and_B"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # `group`: for axes under a condition
        sampler = optuna.samplers.TPESampler(multivariate=True, group=True, seed=len(recipes))
    directions = ["maximize"] * (1 + both)
    study = optuna.create_study(
        study_name=plan.sweep, storage=storage, directions=directions, sampler=sampler
    )
    for recipe in recipes:
        study.add_trial(_told(_space(plan), recipe, both=both))
    return study


def _told(space: Space, recipe: Known, *, both: bool) -> FrozenTrial:
    """A recipe as Optuna keeps it: running, or at what it is worth, unstable, or failed."""
    options = {axis: [_text(part) for part in space.options[axis]] for axis in recipe.parts}
    state, values, constraints = TrialState.FAIL, None, None
    if recipe.standing is not None and recipe.standing.problems:
        state, constraints = TrialState.PRUNED, {"unstable": 1.0}
    elif (values := _worth(recipe.standing, both=both)) is not None:
        state, constraints = TrialState.COMPLETE, {"unstable": 0.0}
    elif not recipe.rows or recipe.busy:
        state = TrialState.RUNNING
    return create_trial(
        state=state,
        values=values,
        params={axis: _text(part) for axis, part in recipe.parts.items()},
        distributions={axis: CategoricalDistribution(o) for axis, o in options.items()},
        constraints=constraints,
        user_attrs={"runs": [row.run_id for row in recipe.rows]},
    )


def _worth(standing: Standing | None, *, both: bool) -> list[float] | None:
    """The forecast, or A and B; None where they are not known."""
    if standing is None or standing.draws is None or standing.forecast is None:
        return None
    A, B = float(np.median(standing.draws.A)), float(np.median(standing.draws.B))
    values = [A, B] if both else [standing.forecast.middle]
    return values if np.isfinite(values).all() else None


class ForecastPruner(optuna.pruners.BasePruner):
    """Prunes a trial that is unlikely to be the best at `target`, by the curves of all trials.

    The steps reported are the compute; the values, which should be pass rates or other rewards that
    rise and level off, are the points of the curve. Values outside [0, 1], or to be minimized, are
    mapped into it first, with the best seen at two thirds.

    Args:
        target: Step at which the trials are compared; None compares the ceilings of their curves.
        threshold: Trials with a smaller chance of being the best are pruned.
        margin: What is this close to the best, in values, counts as the best.
        warmup: Steps before which nothing is pruned.
    """

    def __init__(
        self,
        target: float | None = None,
        threshold: float = 0.045,
        margin: float = 0.0,
        warmup: int = 0,
    ) -> None:
        self._rule, self._warmup = Rule(target, threshold, margin), warmup

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to prune the trial, as Optuna asks through `trial.should_prune()`."""
        if trial.last_step is None or trial.last_step < self._warmup:
            return False
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        reported = [t.intermediate_values for t in (*others, trial) if t.intermediate_values]
        values, scale = _rates(reported, str(study.direction.name))
        rule = replace(self._rule, margin=self._rule.margin * scale)
        runs = [[_curve(i, v)] for i, v in enumerate(values)]
        standing = judge(runs, rule)[-1]
        return not standing.goes_on


def _curve(number: int, values: Mapping[int, float]) -> Curve:
    return curve(str(number), list(values), list(values.values()), percent=False)


def _rates(reported: Sequence[Mapping[int, float]], direction: str) -> tuple[list[Any], float]:
    """Values as fractions that rise, and how much one unit of them is."""
    seen = np.array([v for values in reported for v in values.values()])
    seen = seen[np.isfinite(seen)]
    sign = -1.0 if direction == "MINIMIZE" else 1.0
    if sign > 0 and (not len(seen) or (seen.min() >= 0 and seen.max() <= 1)):
        return list(reported), 1.0
    low, high = (sign * seen).min(), (sign * seen).max()
    scale = float(2 / 3 / max(high - low, 1e-12))
    return [{s: (sign * v - low) * scale for s, v in r.items()} for r in reported], scale
