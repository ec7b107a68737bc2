"""What a race saves and what it loses, on simulated sweeps and on real curves replayed as if live.

Sweeps of 12 choices: A uniform in .45-.65, B in .8-2.5, C_mid log-uniform in 1k-6k, R0 .2, 40
evaluations to 8k GPU-hours, noise of sd .008 that is independent, AR(1) with rho .5, or independent
with a tenth of the runs collapsing. A choice is right where it is within 0.01 of the best at 100k.
Beside the race: the full grid, by its last values and by our forecast; and Optuna's pruners, most
of them loose and strict, choosing by the last values of what they let complete.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from common import keep, noise
from numpy.typing import NDArray

from analysis import curves, posterior, racing, sigmoid
from analysis.health import check
from analysis.racing import Rule, Standing
from pipelines.config import Race

Array = NDArray[np.float64]
TARGET = 1e5
CHOICES, EVALUATIONS, LAST = 12, 40, 8000.0
SD, RHO, START = 0.008, 0.5, 0.2
CLOSE = 0.01
COLLAPSING = 0.1
KINDS = ("independent", "ar1", "collapsing")
COMPUTE = np.linspace(0, LAST, EVALUATIONS + 1)
THRESHOLDS = (Race().threshold,)
RUNGS = Race().rungs
TOGETHER = Race().together
PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "SuccessiveHalving, loose": partial(
        optuna.pruners.SuccessiveHalvingPruner, min_resource=12, reduction_factor=2
    ),
    "SuccessiveHalving, strict": partial(
        optuna.pruners.SuccessiveHalvingPruner, min_resource=4, reduction_factor=3
    ),
    "Hyperband, loose": partial(
        optuna.pruners.HyperbandPruner, min_resource=12, max_resource=40, reduction_factor=2
    ),
    "Hyperband, strict": partial(
        optuna.pruners.HyperbandPruner, min_resource=4, max_resource=40, reduction_factor=3
    ),
    "Median, loose": partial(optuna.pruners.MedianPruner, n_startup_trials=3, n_warmup_steps=16),
    "Median, strict": partial(optuna.pruners.MedianPruner, n_startup_trials=1, n_warmup_steps=4),
    "Wilcoxon, loose": partial(
        optuna.pruners.WilcoxonPruner, p_threshold=0.001, n_startup_steps=12
    ),
    "Wilcoxon, strict": partial(optuna.pruners.WilcoxonPruner, p_threshold=0.1, n_startup_steps=4),
}
Played = tuple[int, float]
"""The choice made, and the share of the full grid's compute spent."""


def sweep(kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """(choices, evaluations + 1) rewards, and their true values at the target."""
    A, B = rng.uniform(0.45, 0.65, CHOICES), rng.uniform(0.8, 2.5, CHOICES)
    C_mid = np.exp(rng.uniform(np.log(1e3), np.log(6e3), CHOICES))
    truth = np.stack([sigmoid.value(COMPUTE, *p, START) for p in zip(A, B, C_mid, strict=True)])
    reward = truth + noise(rng, truth.shape, SD, RHO if kind == "ar1" else 0.0)
    value = sigmoid.value(TARGET, A, B, C_mid, START)
    if kind == "collapsing":
        for i in np.flatnonzero(rng.random(CHOICES) < COLLAPSING):
            first = rng.integers(4, EVALUATIONS - 4)
            fall = np.linspace(0.5, 1, EVALUATIONS + 1 - first)
            reward[i, first:] -= (truth[i, first:] - START) * fall
            value[i] = 0.0  # what collapses is worth nothing
    return np.clip(reward, 0, 1), value


class Sweep:
    """Complete curves of which a race is shown more and more; each is fitted once at a length."""

    def __init__(self, runs: Sequence[curves.Curve], at: float, seed: int) -> None:
        self.runs, self.at, self.rng = runs, at, np.random.default_rng(seed)
        self.seen: dict[tuple[int, float], tuple[curves.Points, posterior.Draws, list[str]]] = {}

    def standings(self, shares: Array, rule: Rule) -> list[Standing]:
        """What `racing.judge` says with each run at its share of its compute."""
        looked = [self._look(i, float(share)) for i, share in enumerate(shares)]
        stable = [i for i, (_, _, problems) in enumerate(looked) if not problems]
        alone = [looked[i][1] for i in stable]
        draws = racing.shared_draws([looked[i][0] for i in stable], self.rng, alone)
        standings = [Standing(str(i), problems) for i, (_, _, problems) in enumerate(looked)]
        for i, d in zip(stable, draws, strict=True):
            standings[i] = Standing(str(i), [], d, d.at(np.array([self.at]))[:, 0])
        return racing.decide(standings, rule)

    def _look(self, i: int, share: float) -> tuple[curves.Points, posterior.Draws, list[str]]:
        if (i, share) not in self.seen:
            c = self.runs[i]
            kept = c.compute <= share * c.compute[-1] * (1 + 1e-9)
            zero = [0.0] if c.r0 is not None else []
            head = curves.curve(
                c.run, [*zero, *c.compute[kept]], [*([c.r0] * len(zero)), *c.reward[kept]]
            )
            p = curves.points([head])
            self.seen[i, share] = p, posterior.draw(p, self.rng), check([head]).problems
        return self.seen[i, share]

    def choice(self, standings: Sequence[Standing]) -> int:
        """The best forecast among the stable."""
        known = [-1.0 if s.values is None else float(np.median(s.values)) for s in standings]
        return int(np.argmax(known))

    def race(self, rule: Rule, rungs: Sequence[float] = RUNGS) -> Played:
        """A race over the curves, as if they were being trained."""
        shares = np.full(len(self.runs), rungs[0])
        whole = np.array([c.compute[-1] for c in self.runs])
        while True:
            standings = self.standings(shares, rule)
            unfinished = [s for s, share in zip(standings, shares, strict=True) if share < 1]
            up = {s.run for s in racing.leaders(unfinished, TOGETHER)}
            if not up:
                return self.choice(standings), float(shares @ whole / whole.sum())
            on = np.array([s.run in up for s in standings])
            above = [next((r for r in rungs if r > share), 1.0) for share in shares]
            shares = np.where(on, above, shares)


def pruned(rewards: Array, pruner: Callable[[], optuna.pruners.BasePruner]) -> Array:
    """Share of its evaluations that each choice had under a pruner, one trial after another."""
    study = optuna.create_study(
        direction="maximize", pruner=pruner(), sampler=optuna.samplers.RandomSampler(seed=0)
    )
    reached = np.zeros(len(rewards))
    for i, values in enumerate(rewards):
        trial = study.ask()
        for n, value in enumerate(values[1:], start=1):
            trial.report(float(value), n)
            reached[i] = n
            if n < EVALUATIONS and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, float(values[-1]))
    return reached / EVALUATIONS


def by_last(rewards: Array, shares: Array) -> int:
    """The best mean of the last three values among what was completed."""
    return int(np.argmax(np.where(shares == 1, rewards[:, -3:].mean(axis=1), -1.0)))


def ways(kind: str, seed: int) -> dict[str, tuple[float, float]]:
    """Shortfall of each way's choice at the target, and the share of compute it took."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rewards, value = sweep(kind, np.random.default_rng([KINDS.index(kind), seed]))
    runs = [curves.curve(str(i), COMPUTE, row) for i, row in enumerate(rewards)]
    played, whole = Sweep(runs, TARGET, seed), np.ones(CHOICES)
    full = played.choice(played.standings(whole, Rule(TARGET)))
    found: dict[str, Played] = {
        "full grid, last value": (by_last(rewards, whole), 1.0),
        "full grid, fit": (full, 1.0),
    }
    for threshold in THRESHOLDS:
        found[f"race, threshold {threshold}"] = played.race(Rule(TARGET, threshold))
    for name, pruner in PRUNERS.items():
        shares = pruned(rewards, pruner)
        found[name] = by_last(rewards, shares), float(shares.mean())
    return {way: (float(value.max() - value[i]), cost) for way, (i, cost) in found.items()}


def summary(rows: Sequence[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Share of sweeps in which each way is right, its mean shortfall, and its compute."""
    ways = {}
    for way in rows[0]:
        lost, cost = np.array([row[way] for row in rows]).T
        right = float(np.mean(lost <= CLOSE))
        ways[way] = {
            "right": right,
            "standard_error": float(np.sqrt(right * (1 - right) / len(lost))),
            "shortfall": float(lost.mean()),
            "compute": float(cost.mean()),
        }
    return {"sweeps": len(rows), "ways": ways}


def studies(path: Path) -> dict[str, list[curves.Curve]]:
    """The curves of each study in a CSV of study, run, compute, reward."""
    rows: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as lines:
        for row in csv.DictReader(lines):
            point = float(row["compute"]), float(row["reward"])
            rows[row["study"]][row["run"]].append(point)
    return {
        study: [curves.curve(run, *zip(*points, strict=True)) for run, points in runs.items()]
        for study, runs in rows.items()
    }


def replays(path: Path) -> Iterator[dict[str, Any]]:
    """Real curves raced as if live: what was chosen, by how much it is behind, at what compute."""
    for study, runs in studies(path).items():
        ends = np.array([c.reward[-5:].mean() for c in runs])
        at = max(float(c.compute[-1]) for c in runs)
        for threshold in THRESHOLDS:
            chosen, cost = Sweep(runs, at, 0).race(Rule(at, threshold))
            yield {
                "study": study,
                "runs": len(runs),
                "threshold": threshold,
                "chosen": runs[chosen].run,
                "best": runs[int(ends.argmax())].run,
                "behind": float(ends.max() - ends[chosen]),
                "compute": cost,
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, help="a file of real curves, to replay them too")
    parser.add_argument("--sweeps", type=int, default=500)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    real = list(replays(arguments.curves)) if arguments.curves else []
    rows: dict[str, list[dict[str, tuple[float, float]]]] = {kind: [] for kind in arguments.kinds}
    with ProcessPoolExecutor(arguments.workers) as pool:
        for first in range(0, arguments.sweeps, 20):
            seeds = range(first, min(first + 20, arguments.sweeps))
            for kind in arguments.kinds:
                rows[kind] += pool.map(partial(ways, kind), seeds)
            result = {
                "rungs": RUNGS,
                "together": TOGETHER,
                "simulated": {k: summary(r) for k, r in rows.items()},
            }
            keep("racing", {**result, "replayed": real})
