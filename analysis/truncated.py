"""Normal variables held between two bounds."""

import numpy as np
from scipy.special import ndtr, ndtri

from analysis.curves import Array


def inside(mean: Array, sd: Array, low: float, high: float | Array) -> tuple[Array, Array]:
    """Log probability of a normal between two bounds, and its mean there."""
    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > 0
    near, far = np.where(flip, -b, a), np.where(flip, -a, b)
    p = np.maximum(ndtr(far) - ndtr(near), 1e-300)
    shift = (np.exp(-0.5 * a * a) - np.exp(-0.5 * b * b)) / (np.sqrt(2 * np.pi) * p)
    return np.log(p), np.clip(mean + sd * shift, low, high)


def truncated(
    mean: Array, sd: Array, low: float, high: float | Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draws of a normal within bounds by its inverse distribution, and its log mass there."""
    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > 0
    pa, pb = ndtr(np.where(flip, -b, a)), ndtr(np.where(flip, -a, b))
    z = ndtri(pa + rng.random(len(mean)) * (pb - pa))
    drawn = mean + sd * np.where(flip, -z, z)
    return np.clip(drawn, low, high), np.log(np.maximum(pb - pa, 1e-300))
