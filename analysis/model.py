"""The noise and the priors under which a recipe's curve is judged, and their marginal density.

The points are the curve of `analysis.sigmoid` plus noise with standard deviation
sigma * sd_i, correlated from one evaluation to the next as rho^gap (AR(1)); with several seeds,
each seed's rise is off by its own normal amount with standard deviation kappa * sigma. sigma is
integrated over a prior worth `NOISE_COUNT` points, and all else over these: R0 uniform, kappa
uniform on its grid, rho ~ N(0.3, 0.35) on its own, and

* A - R0 log-uniform above `SMALL_GAIN`: the size of the gain is a scale, unknown beforehand. A
  uniform A instead pulled forecasts of early, noisy curves up (docs/notes.md);
* log B ~ N(log 1.5, 0.6): 95% of it within 0.46..4.9; published values lie within 1.09..2.44
  (arXiv 2510.13786, table 1, on GPU-hours after the first epoch), and are lower over whole runs;
* log C_mid ~ N(log of a third of the last compute, log 4): budgets are chosen so that a curve
  shows; in the paper C_mid lies within 0.15..0.7 of the compute fitted;
* where no pass rate was measured before training, R0 is normal around the first one, with the
  deviation of a run that gained `HEAD_START` times its average pace until then.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from analysis.curves import Array, Points
from analysis.projection import Normal, log, rise_at
from analysis.truncated import inside

RHO = np.array([-0.3, 0.0, 0.25, 0.45, 0.6, 0.75, 0.9])
LOG_RHO_PRIOR = np.log(np.gradient(RHO)) - 0.5 * ((RHO - 0.3) / 0.35) ** 2
"""Evaluations of real runs are correlated by -0.1 to 0.4 (docs/notes.md). Without this, noise that
wanders as slowly as the curve itself explains away any plateau."""
KAPPA = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
LOG_B_PRIOR = (np.log(1.5), 0.6)
LOG_C_MID_PRIOR = (np.log(1 / 3), np.log(4.0))
"""Mean, relative to the last compute, and standard deviation."""
SMALL_GAIN = 0.02
"""Gains smaller than what tells two runs apart (the paper's margin) are all alike."""
HEAD_START = 6.0
"""A run learns fastest at first: six times its average pace, one standard deviation of it."""
NOISE_COUNT = 2.0
"""Points that the noise seen from point to point counts as. Four parameters can pass through six
points by luck, and would then seem certain."""
WHITE = 1.652
"""Median absolute second difference of white noise with deviation 1: 0.6745 sqrt(6)."""
NOISE_FLOOR = 1e-5
"""Rewards are not told apart more finely than this, so that a perfect curve stays proper."""


def log_prior(points: Points, A: Array, v: Array, u: Array, R0: Array) -> Array:
    """Log density of the default prior over (A, log B, log C_mid) given R0, each (S,)."""
    (b, b_sd), (c, c_sd) = LOG_B_PRIOR, LOG_C_MID_PRIOR
    center = float(log(points.compute.max())) + c
    scale = np.log((1 - R0 + SMALL_GAIN) / SMALL_GAIN) * 2 * np.pi * b_sd * c_sd
    shape = ((v - b) / b_sd) ** 2 + ((u - center) / c_sd) ** 2
    return np.asarray(log_gain_prior(A, R0) - 0.5 * shape - np.log(scale))


def with_start(points: Points) -> Points:
    """The prior of an unmeasured R0 as one more point, at compute 0 and as unsure as it is."""
    C, R = points.compute, points.reward
    first = int(np.argmin(C))
    if C[first] == 0:
        return points
    noise = max(float(np.median(np.abs(np.diff(R)))) / 0.954, NOISE_FLOOR)  # of white noise
    gained = (
        HEAD_START * C[first] / C.max() * float(np.ptp(np.convolve(R, np.ones(3) / 3, "valid")))
    )
    start = (0.0, R[first], float(np.hypot(noise, gained)) / noise, np.inf, 0)
    fields = zip(start, (C, R, points.sd, points.gap, points.series), strict=True)
    return Points(*(np.concatenate([[one], rest]) for one, rest in fields))


@dataclass(frozen=True)
class Linear:
    """Normal posterior of (A, R0) given the rest, and the scale of its noise; all one shape."""

    A: Array
    R0: Array
    v_aa: Array
    v_ar: Array
    v_rr: Array
    sse: Array
    dof: float


class Model:
    """Log posterior of (log C_mid, log B, rho, kappa) with the rest integrated out."""

    def __init__(self, points: Points, A: float | None) -> None:
        self.x, self.fixed = log(points.compute), A
        self.n, self.dof = len(points), len(points) + NOISE_COUNT - (2 if A is None else 1)
        reached = self.x[np.isfinite(self.x)]
        self.center = float(reached.max()) + LOG_C_MID_PRIOR[0]
        self.series = [points.series == j for j in np.unique(points.series)]
        self.kappa = KAPPA if len(self.series) > 1 else KAPPA[:1]
        rho = RHO[:, None]
        phi = np.sign(rho) ** points.gap * np.abs(rho) ** points.gap
        self.noise = _precision(phi, points.sd)
        y = points.reward
        self.py, self.p1 = (_times(self.noise, z) for z in (y, np.ones(self.n)))
        self.y = y
        self.floor = _floor(points)
        self.log_det = np.log1p(-(phi**2)).sum(axis=1) - 2 * LOG_RHO_PRIOR

    def density(
        self, u: Array, v: Array, pick: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    ) -> tuple[Array, Linear]:
        """Log density at P points, (P, rhos, kappas), or (P,) at the picked rho and kappa.

        The bounds of A and R0 are not counted: see `bounds`.
        """
        s = rise_at(self.x, u[:, None], np.exp(v)[:, None])
        sums: list[tuple[Array, ...]] = [self._sums(s, mask) for mask in self.series]
        if pick is not None:
            at = (np.arange(len(u)), pick[0])
            sums = [tuple(np.broadcast_to(a, (len(u), len(RHO)))[at] for a in z) for z in sums]
            kappa2, log_det = self.kappa[pick[1]] ** 2, self.log_det[pick[0]]
        else:
            sums = [tuple(np.asarray(a)[..., None] for a in z) for z in sums]
            kappa2, log_det = self.kappa**2, self.log_det[:, None]
        aa, ar, rr, ba, br, yy = (sum(z) for z in zip(*sums, strict=True))
        for m_aa, m_ar, _, b_a, *_ in sums if len(sums) > 1 else ():
            f = kappa2 / (1 + kappa2 * m_aa)
            aa, ar, rr = aa - f * m_aa**2, ar - f * m_aa * m_ar, rr - f * m_ar**2
            ba, br, yy = ba - f * m_aa * b_a, br - f * m_ar * b_a, yy - f * b_a**2
            log_det = log_det + np.log1p(kappa2 * m_aa)
        det, linear = self._solve(Normal(aa, ar, rr, ba, br, yy))
        shape = (-1,) + (1,) * (linear.sse.ndim - 1)
        prior = -0.5 * ((v - LOG_B_PRIOR[0]) / LOG_B_PRIOR[1]) ** 2
        prior = prior - 0.5 * ((u - self.center) / LOG_C_MID_PRIOR[1]) ** 2
        log_density = -0.5 * (log_det + np.log(det) + linear.dof * np.log(linear.sse))
        return log_density + prior.reshape(shape), linear

    def bounds(self, linear: Linear) -> Array:
        """Log of roughly how much of (A, R0) given the rest is inside 0 <= R0 <= A <= 1."""
        variance = linear.sse / linear.dof
        if self.fixed is None:
            log_p, middle = inside(linear.A, np.sqrt(variance * linear.v_aa), 0.0, 1.0)
        else:
            log_p, middle = np.zeros_like(variance), linear.A
        R0, sd = given_a(linear, middle, variance)
        log_r, start = inside(R0, sd, 0.0, middle)
        return log_p + log_r + log_gain_prior(middle, start)

    def _sums(self, s: Array, mask: NDArray[np.bool_]) -> Normal:
        """One seed's normal equations, (P, rhos), or (rhos,) where they do not depend on s."""
        diagonal, off = self.noise
        s = s[:, mask]
        inner = off[:, mask[1:] & mask[:-1]]
        ss = (s * s) @ diagonal[:, mask].T + 2 * (s[:, 1:] * s[:, :-1]) @ inner.T
        s1, sy = s @ self.p1[:, mask].T, s @ self.py[:, mask].T
        one, y = self.p1[:, mask].sum(1), self.py[:, mask].sum(1)
        yy = self.py[:, mask] @ self.y[mask]
        return Normal(ss, s1 - ss, one - 2 * s1 + ss, sy, y - sy, yy)

    def _solve(self, n: Normal) -> tuple[Array, Linear]:
        """Determinant of the normal matrix, and the solution."""
        aa, ar, rr, ba, br, yy = n
        if self.fixed is not None:
            rr = np.maximum(rr, 1e-10 * (aa + 2 * ar + rr))
            r0 = (br - ar * self.fixed) / rr
            sse = yy - 2 * self.fixed * ba + self.fixed**2 * aa - r0**2 * rr
            zero = np.zeros_like(r0)
            sse = np.maximum(sse, 0) + self.floor
            return rr, Linear(zero + self.fixed, r0, zero, zero, 1 / rr, sse, self.dof)
        floor = 1e-10 * (aa + 2 * ar + rr)  # points all on one side leave A or R0 free
        aa, rr = np.maximum(aa, floor), np.maximum(rr, floor)
        det = np.maximum(aa * rr - ar * ar, 1e-10 * aa * rr)
        A, R0 = (ba * rr - br * ar) / det, (br * aa - ba * ar) / det
        sse = np.maximum(yy - A * ba - R0 * br, 0) + self.floor
        return det, Linear(A, R0, rr / det, -ar / det, aa / det, sse, self.dof)


def log_sigma_prior(points: Points, sigma: Array) -> Array:
    """Log density over log sigma of the default prior: scaled inverse chi square of sigma^2."""
    half = 0.5 * _floor(with_start(points)) / sigma**2
    shape = NOISE_COUNT / 2
    return np.asarray(np.log(2) + shape * np.log(half) - half - gammaln(shape))


def _floor(points: Points) -> float:
    """Sum of squares that the noise is expected to have before a curve is fitted."""
    return NOISE_COUNT * _roughness(points) ** 2 + len(points) * NOISE_FLOOR**2


def _roughness(points: Points) -> float:
    """Noise of one point from second differences, in which a smooth curve leaves little."""
    one_seed = (points.gap[2:] < np.inf) & (points.gap[1:-1] < np.inf)
    second = np.abs(np.diff(points.reward, 2))[one_seed]
    return float(np.median(second)) / WHITE if len(second) else 0.0


def _precision(phi: Array, sd: Array) -> tuple[Array, Array]:
    """Tridiagonal inverse of the AR(1) covariance: diagonal (rhos, n) and off it (rhos, n - 1)."""
    fresh = 1 / (1 - phi**2)
    diagonal = fresh.copy()
    diagonal[:, :-1] += phi[:, 1:] ** 2 * fresh[:, 1:]
    off = -phi[:, 1:] * fresh[:, 1:]
    return diagonal / sd**2, off / (sd[1:] * sd[:-1])


def _times(noise: tuple[Array, Array], z: Array) -> Array:
    diagonal, off = noise
    product = diagonal * z
    product[:, 1:] += off * z[:-1]
    product[:, :-1] += off * z[1:]
    return product


def log_gain_prior(A: Array, R0: Array) -> Array:
    """Log density of the gain, up to a constant."""
    return np.asarray(-np.log(A - R0 + SMALL_GAIN))


def given_a(linear: Linear, A: Array, variance: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of R0 given A."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(linear.v_aa > 0, linear.v_ar / linear.v_aa, 0.0)
    left = np.maximum(linear.v_rr - slope * linear.v_ar, 1e-12 * linear.v_rr)
    return linear.R0 + slope * (A - linear.A), np.sqrt(variance * left)
