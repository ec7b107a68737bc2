"""Forecasts of real curves from their first half and first quarter against other methods.

Takes a CSV with columns run, compute, reward (a study column, if any, tells runs of one name
apart). The error is that of the mean of the last five points. Ours is the default: pooled where a
trial on the points given says that it forecasts better; each curve alone is beside it. Rivals: a
plain least-squares fit of the same curve from many starts, a power law, and the paper's lattice.
As published that reaches neither these rewards nor this compute: here its 71 steps of 0.005 in A
start at the first point, which is its R0, and its C_mid are the same multiples of the last compute.
A second lattice, whose A starts at the best point seen, is not the paper's.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, plain

from analysis import curves, forms, pooling, posterior, sigmoid

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


def lattice(p: curves.Points, compute: np.ndarray, lowest: float) -> np.ndarray:
    """The paper's procedure, with A from `lowest` up."""
    A = lowest + 0.005 * np.arange(71)
    C_mid = sigmoid.PAPER_C_MID * p.compute.max() / PAPER_LAST
    f = sigmoid.fit(p, method="paper", lattice=(A, C_mid))
    return sigmoid.value(compute, f.A[0], f.B[0], f.C_mid[0], f.R0[0])


def covers(d: posterior.Draws, ahead: np.ndarray, end: float, rng: np.random.Generator) -> bool:
    """Whether the 95% interval of the mean of the last points, noise included, holds it."""
    noise = d.sigma * np.sqrt(np.clip((1 + d.rho) / (1 - d.rho) / END, 1 / END, 1))
    values = d.at(ahead).mean(axis=1) + rng.normal(size=len(noise)) * noise
    low, high = np.quantile(values, (0.025, 0.975))
    return bool(low <= end <= high)


def forecast(
    found: list[curves.Curve], fraction: float, rng: np.random.Generator
) -> list[tuple[dict[str, float], bool]]:
    """Errors at the end by method, and whether our interval covers, for every curve."""
    heads = [curves.points([c], until=fraction * c.compute[-1]) for c in found]
    alone = [posterior.draw(p, rng) for p in heads]
    pooled, said = pooling.lend(list(zip(heads, alone, strict=True)), rng)
    print(said)
    rows = []
    for c, p, d, one in zip(found, heads, pooled or alone, alone, strict=True):
        ahead, end = c.compute[-END:], float(c.reward[-END:].mean())
        values = {
            "ours": np.median(d.at(ahead).mean(axis=1)),
            "ours, each alone": np.median(one.at(ahead).mean(axis=1)),
            "least squares": plain(p, ahead).mean(),
            "paper's lattice": lattice(p, ahead, float(p.reward[0])).mean(),
            "lattice above the best point": lattice(p, ahead, float(p.reward.max())).mean(),
            "power law": forms.fit_form("power law", p).at(ahead).mean(),
        }
        errors = {method: float(value) - end for method, value in values.items()}
        rows.append((errors, covers(d, ahead, end, rng)))
    return rows


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
            "from the first half": summary(forecast(found, 0.5, generator)),
            "from the first quarter": summary(forecast(found, 0.25, generator)),
        },
    )
