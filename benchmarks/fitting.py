"""How fast fits, bootstrap replicates and whole analyses are, and that fits are never worse.

Compared with the paper's lattice procedure (a curve_fit at each of 7,100 points) and with
curve_fit from 8 starts. Run with OMP_NUM_THREADS=1.
"""

import time
from collections.abc import Callable

import numpy as np
from common import NOISE, SCALERL, keep, noise, points
from scipy.optimize import curve_fit

from analysis import curves, posterior, ranking, sigmoid

CURVES = 5
RUNS = 200
REPLICATES = 1000


def best_of(times: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def against_lattice(rng: np.random.Generator) -> dict[str, float | bool]:
    """One fit, and 1,000 replicates, against the lattice on 75-point curves."""
    C = np.concatenate([[0.0], np.linspace(1500, 12000, 75)])
    truth = sigmoid.value(C, *SCALERL)
    ours, lattice, never_worse = [], [], True
    for e in noise(rng, (CURVES, len(C)), NOISE, 0.5):
        p = points(C, truth + e)
        ours.append(best_of(5, lambda p=p: sigmoid.fit(p)))
        lattice.append(best_of(1, lambda p=p: sigmoid.fit(p, method="paper")))
        never_worse &= bool(sigmoid.fit(p).sse[0] <= sigmoid.fit(p, method="paper").sse[0])
    f = sigmoid.fit(p)
    Y = truth[1:] + noise(rng, (REPLICATES, 75), NOISE, 0.5)
    start = (float(f.C_mid[0]), float(f.B[0]))
    replicates = best_of(5, lambda: sigmoid.fit_many(C[None, 1:], Y, np.ones((1, 75)), start=start))
    one, paper = float(np.median(ours)), float(np.median(lattice))
    return {
        "fit_s": one,
        "lattice_s": paper,
        "lattice_over_fit": paper / one,
        "sum_of_squares_never_larger": never_worse,
        "replicates": REPLICATES,
        "replicates_s": replicates,
        "a_twentieth_of_lattice_over_replicates": paper / 20 / replicates,
        "posterior_s": best_of(5, lambda: posterior.draw(p, rng)),
    }


def whole_sweep(rng: np.random.Generator) -> dict[str, float]:
    """Fits, intervals, order and verdicts of 200 runs against 200 curve_fits of 8 starts."""
    C = np.concatenate([[0.0], np.linspace(0, 8000, 76)[1:]])
    runs = []
    for i, e in enumerate(noise(rng, (RUNS, len(C)), NOISE, 0.5)):
        A, B, C_mid = 0.58 + 0.04 * rng.normal(), 1.8 * np.exp(0.15 * rng.normal()), 2700.0
        runs.append(curves.curve(f"run-{i}", C, sigmoid.value(C, A, B, C_mid, 0.2) + e))
    fitted = best_of(1, lambda: ranking.analyse(runs))
    alone = best_of(1, lambda: ranking.analyse(runs, ranking.Options(pool=False)))
    scipy = best_of(1, lambda: [eight_starts(r, rng) for r in runs])
    return {
        "runs": RUNS,
        "analysis_s": fitted,
        "analysis_without_pooling_s": alone,
        "curve_fit_s": scipy,
        "curve_fit_over_analysis": scipy / fitted,
        "curve_fit_over_analysis_without_pooling": scipy / alone,
    }


def eight_starts(c: curves.Curve, rng: np.random.Generator) -> float:
    """Smallest sum of squares of curve_fit from 8 random starts."""
    best, last = np.inf, c.compute[-1]
    for _ in range(8):
        start = (rng.uniform(0.4, 0.9), rng.uniform(0.5, 3), last * rng.uniform(0.1, 1), 0.2)
        try:
            found, *_ = curve_fit(
                sigmoid.value, c.compute, c.reward, start, bounds=(0, [1, 20, 100 * last, 1])
            )
        except RuntimeError:
            continue
        best = min(best, float(np.sum((c.reward - sigmoid.value(c.compute, *found)) ** 2)))
    return best


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    keep("fitting", {**against_lattice(generator), "sweep": whole_sweep(generator)})
