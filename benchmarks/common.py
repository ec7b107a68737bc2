"""What the analysis benchmarks share: simulated curves, and results kept as JSON."""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis import curves, sigmoid

RESULTS = Path(__file__).parent / "results"
SCALERL = (0.610, 1.92, 2542.0, 0.2)
"""A, B, C_mid of arXiv 2510.13786's ScaleRL run (ICLR version, table 1), and R0 about 0.2."""
NOISE = 0.003
SPACING = 150.0
"""GPU-hours between evaluations."""


def noise(
    rng: np.random.Generator, shape: tuple[int, int], sd: float, rho: float
) -> NDArray[np.float64]:
    """(K, n) AR(1) noise with stationary standard deviation sd."""
    e = rng.normal(0, sd, shape)
    for i in range(1, shape[1]):
        e[:, i] = rho * e[:, i - 1] + np.sqrt(1 - rho**2) * e[:, i]
    return e


def evaluations(last: float) -> NDArray[np.float64]:
    """Compute of the evaluations of a run, the one before training included."""
    return np.concatenate([[0.0], np.arange(SPACING, last + 1, SPACING)])


def points(compute: NDArray[np.float64], reward: NDArray[np.float64]) -> curves.Points:
    """Points of one simulated run."""
    return curves.points([curves.curve("simulated", compute, reward)])


def plain(p: curves.Points, compute: NDArray[np.float64]) -> NDArray[np.float64]:
    """A plain least-squares fit's values at a compute."""
    f = sigmoid.fit(p)
    return sigmoid.value(compute, f.A[0], f.B[0], f.C_mid[0], f.R0[0])


def keep(name: str, result: dict[str, Any]) -> None:
    """Print a result and keep it in `RESULTS`."""
    result = {
        "benchmark": name,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **result,
    }
    text = json.dumps(result, indent=2)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)
