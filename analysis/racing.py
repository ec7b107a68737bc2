"""Who goes on in a race: recipes judged by how likely each is to be the best at a target compute.

At each rung every recipe's curve is forecast, as posterior draws under a prior that all of them
share (`analysis.pooling`). A recipe's chance is the share of draws in which it is the best at the
target, or within the margin of the best. Successive halving (Jamieson and Talwalkar,
arXiv 1502.07943) goes by the last values instead, and so stops the slow starters with the highest
ceilings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import pooling, posterior
from analysis.curves import Array, Curve, Points, points
from analysis.fits import FEWEST
from analysis.forecast import Estimate, estimate
from analysis.health import check
from analysis.posterior import Draws

ENOUGH = 0.3
"""Effective share of draws that do for a chance: 300 tell one of 0.05 to 0.013."""


@dataclass(frozen=True)
class Rule:
    """When a recipe is stopped."""

    at: float | None = None
    """Compute to forecast at; None goes by the ceilings."""
    threshold: float = 0.045
    """Stopped is what has a smaller chance than this."""
    margin: float = 0.0
    """What is this close to the best counts as the best."""


@dataclass(frozen=True)
class Standing:
    """What a race knows of a recipe, all its seeds together."""

    run: str
    """Name of its first run."""
    problems: list[str] = field(default_factory=list)
    """Why it is unstable, in sentences (`analysis.health`)."""
    draws: Draws | None = None
    """Its curve; None before there are enough points to fit one."""
    values: Array | None = None
    """(S,) its forecast, draw by draw."""
    chance: float | None = None
    """Probability of being the best, or within the margin of it; None where it is not judged."""
    goes_on: bool = True
    """Whether more compute is worth spending on it."""

    @property
    def forecast(self) -> Estimate | None:
        """Its value at the target, with a 95% interval."""
        return None if self.values is None else estimate(self.values)


def judge(recipes: Sequence[Sequence[Curve]], rule: Rule, seed: int = 0) -> list[Standing]:
    """Where each recipe (a list of its seeds' curves) stands, in the order given.

    The likeliest always goes on, and so does what has too few points to be judged.
    """
    rng = np.random.default_rng(seed)
    standings = [Standing(seeds[0].run, check(seeds).problems) for seeds in recipes]
    fitted = {}
    for i, seeds in enumerate(recipes):
        found = points(seeds)
        if not standings[i].problems and np.count_nonzero(np.unique(found.compute)) >= FEWEST:
            fitted[i] = found
    for i, draws in zip(fitted, shared_draws(list(fitted.values()), rng), strict=True):
        standings[i] = replace(standings[i], draws=draws, values=_at(draws, rule.at))
    return decide(standings, rule)


def shared_draws(
    recipes: Sequence[Points], rng: np.random.Generator, alone: Sequence[Draws] | None = None
) -> list[Draws]:
    """Each recipe's curve under a prior learned from all, where they are enough to learn from.

    Unlike a ranking, a race does not try first whether that forecasts better: at its first rungs
    there is too little to try it on, and it is then that a prior matters most.

    Args:
        recipes: Their points.
        rng: Source of randomness.
        alone: Draws of each by itself, where they are known already.
    """
    alone = [posterior.draw(p, rng) for p in recipes] if alone is None else alone
    if len(recipes) < pooling.FEWEST:
        return list(alone)
    return pooling.redraw(list(zip(recipes, alone, strict=True)), rng, ENOUGH)


def decide(standings: Sequence[Standing], rule: Rule) -> list[Standing]:
    """The standings with their chances, and who goes on."""
    known = [s.values for s in standings if s.values is not None]
    best = np.max(known, axis=0) if known else np.zeros(0)
    chances = [None if s.values is None else _chance(s.values, best, rule) for s in standings]
    top = max((c for c in chances if c is not None), default=0.0)
    least = min(rule.threshold, top)
    return [
        replace(s, chance=c, goes_on=not s.problems and (c is None or c >= least))
        for s, c in zip(standings, chances, strict=True)
    ]


def leaders(standings: Sequence[Standing], together: int | None) -> list[Standing]:
    """Whom the next compute goes to, of those that go on: what cannot be judged, and the likeliest.

    The rest waits. Once the leaders are known better most of it is out, or turns out likelier than
    they are, and so less is spent than when all of them go on side by side (docs/racing.md).
    """
    going = [s for s in standings if s.goes_on]
    judged = sorted((s for s in going if s.chance is not None), key=lambda s: -(s.chance or 0))
    return [s for s in going if s.chance is None] + judged[:together]


def _chance(values: Array, best: Array, rule: Rule) -> float:
    return float(np.mean(values >= best - rule.margin))


def _at(draws: Draws, compute: float | None) -> Array:
    return draws.A if compute is None else draws.at(np.array([compute]))[:, 0]
