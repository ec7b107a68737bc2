"""Forecasts of real curves from their first half and first quarter against other methods.

Takes a CSV with columns run, compute, reward (a study column, if any, tells runs of one name
apart). The error is that of the mean of the last five points. Rivals: a plain least-squares fit of
the same curve from many starts, the paper's lattice (its 71 x 100 steps laid over these curves'
compute and rewards, which the published one does not reach), and a power law.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, plain

from analysis import curves, forms, posterior, sigmoid

END = 5
PAPER_LAST = 16000.0
"""GPU-hours of the runs the paper's lattice was made for."""


def read(path: Path) -> list[curves.Curve]:
    """Every curve of a file."""
    rows: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with path.open() as lines:
        for row in csv.DictReader(lines):
            key = (row.get("study", ""), row["run"])
            rows[key].append((float(row["compute"]), float(row["reward"])))
    return [curves.curve(run, *zip(*pairs, strict=True)) for (_, run), pairs in rows.items()]


def lattice(p: curves.Points, compute: np.ndarray) -> np.ndarray:
    """The paper's procedure, A from the best point up in steps of 0.005."""
    A = p.reward.max() + 0.005 * np.arange(71)
    C_mid = sigmoid.PAPER_C_MID * p.compute.max() / PAPER_LAST
    f = sigmoid.fit(p, method="paper", lattice=(A, C_mid))
    return sigmoid.value(compute, f.A[0], f.B[0], f.C_mid[0], f.R0[0])


def forecast_end(
    c: curves.Curve, fraction: float, rng: np.random.Generator
) -> tuple[dict[str, float], bool]:
    """Errors at the end by method, and whether our interval covers."""
    p = curves.points([c], until=fraction * c.compute[-1])
    ahead, end = c.compute[-END:], float(c.reward[-END:].mean())
    d = posterior.draw(p, rng)
    values = d.at(ahead).mean(axis=1)
    noise = d.sigma * np.sqrt(np.clip((1 + d.rho) / (1 - d.rho) / END, 1 / END, 1))
    low, high = np.quantile(values + rng.normal(size=len(noise)) * noise, (0.025, 0.975))
    errors = {
        "ours": float(np.median(values)) - end,
        "least squares": float(plain(p, ahead).mean()) - end,
        "paper's lattice": float(lattice(p, ahead).mean()) - end,
        "power law": float(forms.fit_form("power law", p).at(ahead).mean()) - end,
    }
    return errors, bool(low <= end <= high)


def summary(rows: list[tuple[dict[str, float], bool]]) -> dict[str, Any]:
    """Median and mean absolute error and bias of each method, and our coverage."""
    result: dict[str, Any] = {"covered": f"{sum(inside for _, inside in rows)} of {len(rows)}"}
    for method in rows[0][0]:
        e = np.array([errors[method] for errors, _ in rows])
        result[method] = {
            "median": float(np.median(np.abs(e))),
            "mean": float(np.mean(np.abs(e))),
            "bias": float(np.mean(e)),
        }
    return result


if __name__ == "__main__":
    here = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "curves", type=Path, nargs="?", default=here / "../shared/data/rl_curves.csv"
    )
    path = parser.parse_args().curves
    if not path.exists():
        parser.error(f"curves: no file {path}")
    generator, found = np.random.default_rng(0), read(path)
    keep(
        "real_curves",
        {
            "file": path.name,
            "curves": len(found),
            "from the first half": summary([forecast_end(c, 0.5, generator) for c in found]),
            "from the first quarter": summary([forecast_end(c, 0.25, generator) for c in found]),
        },
    )
