"""What a race saves and what it loses, on simulated sweeps and on real curves replayed as if live.

Sweeps of 12 choices: A uniform in .45-.65, B in .8-2.5, C_mid log-uniform in 1k-6k, R0 .2, 40
evaluations to 8k GPU-hours, noise of sd .008 that is independent, AR(1), or with a tenth of the
runs collapsing. A way of choosing is right where its choice is within 0.01 of the best at 100k.
Set beside each other: the full grid with the best last value and with our forecast; Optuna's
pruners, each over a range of its strictness; and the race, over a range of thresholds.
"""

import numpy as np
from common import noise
from numpy.typing import NDArray

from analysis import curves, racing, sigmoid

Array = NDArray[np.float64]
TARGET = 1e5
CHOICES, EVALUATIONS, LAST = 12, 40, 8000.0
SD, RHO, START = 0.008, 0.5, 0.2
CLOSE = 0.01
COLLAPSING = 0.1
KINDS = ("independent", "ar1", "collapsing")
COMPUTE = np.linspace(0, LAST, EVALUATIONS + 1)
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
            reward[i, first:] -= (truth[i, first:] - START) * np.linspace(
                0.5, 1, EVALUATIONS + 1 - first
            )
            value[i] = 0.0  # a run that collapses is worth nothing
    return np.clip(reward, 0, 1), value


def curve_of(i: int, rewards: Array, count: int) -> list[curves.Curve]:
    """The first evaluations of one choice."""
    return [curves.curve(str(i), COMPUTE[: count + 1], rewards[i, : count + 1])]


def choose(standings: list[racing.Standing], rewards: Array) -> int:
    """The best forecast among the stable."""
    known = [float(np.median(s.values)) if s.values is not None else -1.0 for s in standings]
    return int(np.argmax(known))


def race(rewards: Array, rungs: list[int], rule: racing.Rule) -> Played:
    """A race over complete curves, as if they were being trained."""
    reached = np.full(len(rewards), rungs[0])
    while True:
        standings = racing.judge([curve_of(i, rewards, n) for i, n in enumerate(reached)], rule)
        on = np.array([s.goes_on for s in standings]) & (reached < rungs[-1])
        if not on.any():
            return choose(standings, rewards), reached.sum() / (len(rewards) * rungs[-1])
        following = np.array([next((r for r in rungs if r > n), n) for n in reached])
        reached = np.where(on, following, reached)
