"""Recipes of one sweep lend each other their noise: how large it is, and how it wanders.

They are evaluated alike, so that their points have much the same standard deviation and the same
correlation from one to the next. A dozen points tell little of either; a dozen recipes' points do.
Noise that is shared has one rho, and one sigma up to `ALIKE`; a recipe is unlike the others with
probability `UNLIKE`, and then has the default prior (as in `analysis.pooling`, for the curves).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.curves import Array, Points
from analysis.model import LOG_RHO_PRIOR, RHO, log_sigma_prior
from analysis.posterior import Draws

UNLIKE = 0.1
ALIKE = 0.15
"""Standard deviation of log sigma between recipes whose noise is alike."""
LOG_SIGMA = np.linspace(np.log(1e-4), np.log(0.3), 100)
"""The grid on which the shared sigma is looked for."""
STEP = float(LOG_SIGMA[1] - LOG_SIGMA[0])
KERNEL = np.exp(-0.5 * ((LOG_SIGMA[:, None] - LOG_SIGMA) / ALIKE) ** 2) / ALIKE / np.sqrt(2 * np.pi)
RHO_PRIOR = np.exp(LOG_RHO_PRIOR) / np.exp(LOG_RHO_PRIOR).sum()
COUNTED = 300
"""Draws of each recipe that are counted."""


class Noise:
    """The noise that recipes share, learned from their draws under the default prior."""

    def __init__(self, recipes: Sequence[tuple[Points, Draws]]) -> None:
        """Learn it: the posterior of a common rho and log sigma on their grid."""
        log_posterior = np.repeat(np.log(RHO_PRIOR)[:, None], len(LOG_SIGMA), axis=1)
        for points, draws in recipes:
            few = draws.take(np.arange(min(COUNTED, len(draws.A))))
            like = np.zeros_like(log_posterior)
            row, place = _row(few.rho), np.rint(_place(few.sigma)).astype(int)
            weight = np.exp(-log_sigma_prior(points, few.sigma)) / RHO_PRIOR[row] / len(row)
            np.add.at(like, (row, place), weight)
            log_posterior += np.log((1 - UNLIKE) * like @ KERNEL + UNLIKE)
        mass = np.exp(log_posterior - log_posterior.max())
        self.mass = mass / mass.sum()
        """(rhos, log sigmas) probability of each."""
        self._ratio = self.mass @ KERNEL / RHO_PRIOR[:, None]

    def log_ratio(self, points: Points, rho: Array, sigma: Array) -> Array:
        """(S,) log of a recipe's prior of its noise over the default one."""
        row, place = _row(rho), _place(sigma)
        left = np.minimum(place.astype(int), len(LOG_SIGMA) - 2)
        part = place - left
        shared = self._ratio[row, left] * (1 - part) + self._ratio[row, left + 1] * part
        like = shared * np.exp(-log_sigma_prior(points, sigma))
        return np.asarray(np.log((1 - UNLIKE) * like + UNLIKE))


def _row(rho: Array) -> NDArray[np.int64]:
    return np.asarray(np.abs(rho[:, None] - RHO).argmin(axis=1))


def _place(sigma: Array) -> Array:
    """Where on the grid of log sigma, counted in steps; at its end what is beyond."""
    return np.asarray(np.clip((np.log(sigma) - LOG_SIGMA[0]) / STEP, 0, len(LOG_SIGMA) - 1))
