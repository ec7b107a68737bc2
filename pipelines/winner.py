"""Which recipe a sweep speaks for, and what speaks against taking it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from omegaconf import DictConfig, OmegaConf

from analysis.curves import Array
from analysis.effects import against_base
from analysis.fits import Fit
from analysis.forecast import FURTHEST, compute_to_tell
from analysis.notation import amount, chance
from analysis.ranking import Analysis, Options
from analysis.words import SURE
from pipelines.config import COMPARED
from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.job import config_of
from pipelines.ledger import Ledger
from pipelines.rank import BETTER, joined, judge_sweep
from recipes.config import RunConfig
from recipes.meter import estimate


@dataclass(frozen=True)
class Winner:
    """The recipe that a sweep speaks for."""

    run: str
    """The run it is, or the base it was composed from."""
    changes: list[str]
    """The choices composed onto that base; empty where the recipe itself was run."""
    config: Record
    """Its resolved configuration, as trained."""
    choices: dict[str, str]
    fits: list[Fit]
    """What is known of it: its own fit, or the base's and those of the changes."""
    run_id: str
    """Of the run whose compute a step is taken for its own."""
    doubts: list[str]
    """Why the evidence does not carry it, and what would."""
    analysis: Analysis

    @property
    def last_compute(self) -> float:
        """The furthest point that it is known from."""
        return max(fit.last_compute for fit in self.fits)

    @property
    def name(self) -> str:
        """The run, and what is composed onto it."""
        return ", ".join([self.run, *self.changes])


def winner_of(
    ledger: Ledger,
    manifest: Record,
    large: RunConfig,
    options: Options,
    metric: str | None = None,
) -> Winner:
    """The best recipe of a sweep at the target compute, or the best choice of every axis composed.

    A choice takes the place of the base's only where its verdict says that it is better.

    Args:
        ledger: Where the sweep was launched.
        manifest: Of the sweep.
        large: The run whose budget is the target.
        options: What to judge by; the compute to order at is replaced by the target.
        metric: The pass rate to judge by; None: the sweep's.

    Raises:
        As `judge_sweep`.
    """
    run_ids = [row["run_id"] for row in manifest["runs"]]
    first = next((item for item in run_ids if ledger.run(item).last_points()), run_ids[0])
    at = target(ledger, first, large, manifest["compute"])
    analysis = judge_sweep(ledger, manifest, replace(options, at=at), metric=metric)
    home, picks, contests = _picked(manifest, analysis)
    doubts = [doubt for pick, group in contests for doubt in _doubts(pick, group, analysis, at)]
    return _winner(ledger, manifest, home, picks, list(dict.fromkeys(doubts)), analysis)


def _picked(
    manifest: Record, analysis: Analysis
) -> tuple[Fit, dict[str, Fit], list[tuple[Fit, list[Fit]]]]:
    """The recipe to start from, the better choices by axis, and each pick with its rivals."""
    found = against_base(analysis.fits, joined(manifest["base"], manifest["varied"]))
    if manifest["strategy"] not in COMPARED or not found:
        best = analysis.fits[0]
        return best, {}, [(best, analysis.fits)]
    home = found[0][3][0][1]
    better = {(v.axis, v.choice) for v in analysis.verdicts if v.verdict in BETTER}
    picks: dict[str, Fit] = {}
    contests = []
    for axis in dict.fromkeys(axis for axis, *_ in found):
        group = {choice: pair[0][0] for name, choice, _, pair in found if name == axis}
        able = [fit for choice, fit in group.items() if (axis, choice) in better]
        pick = min([home, *able], key=lambda fit: analysis.order.index(fit.run))
        contests.append((pick, [home, *group.values()]))
        if pick is not home:
            picks[axis] = pick
    return home, picks, contests


def _winner(
    ledger: Ledger,
    manifest: Record,
    home: Fit,
    picks: Mapping[str, Fit],
    doubts: list[str],
    analysis: Analysis,
) -> Winner:
    """`home`, with the choice of each pick on its axis; one pick alone is a run of its own."""
    if len(picks) == 1:
        home, picks = next(iter(picks.values())), {}
    rows = {row["label"]: row for row in reversed(manifest["runs"])}
    row = rows[home.run]
    config = OmegaConf.create(asdict(config_of(ledger.run(row["run_id"]))))
    choices = dict(row["choices"])
    # Whole groups first, so that a key of one is not lost under it.
    for axis, pick in sorted(picks.items(), key=lambda item: "." in item[0]):
        other = rows[pick.run]
        theirs = OmegaConf.create(asdict(config_of(ledger.run(other["run_id"]))))
        for key in axis.split(","):
            OmegaConf.update(config, key, OmegaConf.select(theirs, key), merge=False)
            choices[key] = other["choices"][key]
    return Winner(
        run=home.run,
        changes=[pick.run for pick in picks.values()],
        config=plain(config),
        choices=choices,
        fits=[home, *picks.values()],
        run_id=row["run_id"],
        doubts=doubts,
        analysis=analysis,
    )


def _doubts(pick: Fit, group: Sequence[Fit], analysis: Analysis, at: float) -> Iterator[str]:
    """Why `pick` may not be taken for the best of its group at a compute, and what would tell."""
    if not pick.stable:
        yield f"{pick.run} is unstable: {pick.health.problems[0]}"
    elif pick.draws is None or not pick.resolved:
        yield f"{pick.run}: {pick.notes[-1]}"
    else:
        yield from _rivals(pick, group, analysis, at)


def _rivals(pick: Fit, group: Sequence[Fit], analysis: Analysis, at: float) -> Iterator[str]:
    others = [fit for fit in group if fit is not pick and fit.stable and fit.draws is not None]
    if pick.draws is None or not others:
        return
    ahead = np.stack([_at(fit, at) - _at(pick, at) for fit in others])
    near = float(np.mean(ahead.max(axis=0) <= analysis.margin))
    if near >= SURE:
        return
    rival = others[int(np.argmax(np.mean(ahead > analysis.margin, axis=1)))]
    pair = [(fit.points, fit.draws) for fit in (pick, rival) if fit.draws is not None]
    needed = compute_to_tell(pair, analysis.margin)
    more = f"more than {FURTHEST:.0f} times the compute"
    if needed is not None:
        times = needed / min(pick.last_compute, rival.last_compute)
        more = f"compute {amount(needed)}, {times:.1f} times what they have,"
    yield (
        f"{pick.run} is {chance(near)} likely to be within {analysis.margin:g} of the best at "
        f"{amount(at)}, allowed: {SURE:.0%}; {rival.run} may be better: {more} should tell"
    )


def _at(fit: Fit, at: float) -> Array:
    assert fit.draws is not None
    return fit.draws.at(np.array([at]))[:, 0]


def target(ledger: Ledger, run_id: str, large: RunConfig, axis: str) -> float:
    """Compute on `axis` when `large` has spent its budget, at the pace a small run was measured at.

    What a step of the large run costs more, with another batch, model or context, is scaled by the
    estimates of both, where they know; hours as FLOPs.

    Raises:
        UserError: The small run has no point on the budget's axis.
    """
    points = ledger.run(run_id).last_points()
    spent = points[-1]["compute"] if points else {}
    budget = large.budget
    if not float(spent.get(budget.axis, 0)) > 0:
        raise UserError(f"budget.axis: got {budget.axis!r}, of which run {run_id} has spent none")
    pace = float(spent[axis]) / float(spent[budget.axis])
    small = replace(config_of(ledger.run(run_id)), budget=budget)
    now, then = estimate(small), estimate(large)
    key = axis if axis in now and axis in then else "flops"
    scale = then[key] / now[key] if now.get(key) and then.get(key) else 1.0
    return budget.amount * pace * scale


def plain(config: DictConfig) -> Record:
    """A configuration as plain data."""
    found = OmegaConf.to_container(config, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
