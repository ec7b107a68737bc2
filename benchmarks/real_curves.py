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
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, plain

from analysis import curves, forms, pooling, posterior, sigmoid

END = 5
SEEDS = 5
"""Seeds of our sampler, whose errors are averaged."""
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


def ours(
    found: list[curves.Curve], heads: list[curves.Points], seed: int
) -> dict[str, list[tuple[float, bool]]]:
    """Error and coverage of our forecast of every curve, as by default and each alone."""
    rng = np.random.default_rng(seed)
    alone = [posterior.draw(p, rng) for p in heads]
    pooled, said = pooling.lend(list(zip(heads, alone, strict=True)), rng)
    print(said)
    rows: dict[str, list[tuple[float, bool]]] = {"ours": [], "ours, each alone": []}
    for c, d, one in zip(found, pooled or alone, alone, strict=True):
        ahead, end = c.compute[-END:], float(c.reward[-END:].mean())
        for name, draws in (("ours", d), ("ours, each alone", one)):
            error = float(np.median(draws.at(ahead).mean(axis=1))) - end
            rows[name].append((error, covers(draws, ahead, end, rng)))
    return rows


def summary(errors: np.ndarray) -> dict[str, float]:
    """Median and mean absolute error, and bias, over the curves and, for ours, over seeds."""
    size = np.abs(errors)
    return {
        "median": float(np.median(size, axis=-1).mean()),
        "mean": float(size.mean()),
        "bias": float(errors.mean()),
    }


def forecast(found: list[curves.Curve], fraction: float) -> dict[str, Any]:
    """Every method's errors from a fraction of the compute, and our coverage."""
    heads = [curves.points([c], until=fraction * c.compute[-1]) for c in found]
    result: dict[str, Any] = {}
    seeds = [ours(found, heads, seed) for seed in range(SEEDS)]
    for name in seeds[0]:
        rows = np.array([one[name] for one in seeds])
        result[name] = {**summary(rows[..., 0]), "covered": float(rows[..., 1].mean())}
    for name, method in RIVALS.items():
        pairs = [(method(p, c.compute[-END:]), c) for p, c in zip(heads, found, strict=True)]
        result[name] = summary(np.array([v.mean() - c.reward[-END:].mean() for v, c in pairs]))
    return result


RIVALS = {
    "least squares": plain,
    "paper's lattice": lambda p, ahead: lattice(p, ahead, float(p.reward[0])),
    "lattice above the best point": lambda p, ahead: lattice(p, ahead, float(p.reward.max())),
    "power law": lambda p, ahead: forms.fit_form("power law", p).at(ahead),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", type=Path, nargs="?", help="CSV of study, run, compute, reward")
    path = parser.parse_args().curves
    if path is None:
        sys.exit(print("skipped: it needs a CSV of real curves, named on the command line"))
    if not path.exists():
        parser.error(f"curves: no file {path}")
    found = read(path)
    keep(
        "real_curves",
        {
            "file": path.name,
            "curves": len(found),
            "from the first half": forecast(found, 0.5),
            "from the first quarter": forecast(found, 0.25),
        },
    )
