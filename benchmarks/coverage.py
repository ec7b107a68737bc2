"""How often 95% intervals hold the truth, on the paper's ScaleRL curve.

Of A, and of the curve at ten times the fitted compute, over simulated curves with points to 4k, 8k
and 16k GPU-hours and noise independent or AR(1). Where the data do not bound the ceiling the fit
should say so: the share of fits flagged unresolved is beside it.
"""

import argparse

import numpy as np
from common import NOISE, SCALERL, evaluations, keep, noise, points

from analysis import forecast, posterior, sigmoid
from analysis.fits import Fit, settle
from analysis.health import Health

MARGIN = 0.02


def cover(last: float, rho: float, count: int, rng: np.random.Generator) -> dict[str, float]:
    """Coverage and width at one design."""
    C = evaluations(last)
    truth, ahead = sigmoid.value(C, *SCALERL), float(sigmoid.value(10 * last, *SCALERL))
    rows = []
    for e in noise(rng, (count, len(C)), NOISE, rho):
        p = points(C, truth + e)
        f = Fit("", [], p, Health(), draws=posterior.draw(p, rng))
        settle(f, MARGIN)
        ceiling, value = forecast.interval(f.draws.A), forecast.value(f.draws, 10 * last).interval
        rows.append(
            (
                ceiling[0] <= SCALERL[0] <= ceiling[1],
                value[0] <= ahead <= value[1],
                f.resolved,
                (ceiling[1] - ceiling[0]) / 2,
            )
        )
    a, v, resolved, half = np.array(rows, dtype=float).T
    return {
        "last": last,
        "rho": rho,
        "curves": count,
        "covered_A": a.mean(),
        "covered_forecast_at_10x": v.mean(),
        "unresolved": 1 - resolved.mean(),
        "median_half_width_A": float(np.median(half)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=int, default=2000)
    count = parser.parse_args().curves
    generator = np.random.default_rng(0)
    designs = [(last, rho) for last in (4000.0, 8000.0, 16000.0) for rho in (0.0, 0.5)]
    keep("coverage", {"designs": [cover(*d, count, generator) for d in designs]})
