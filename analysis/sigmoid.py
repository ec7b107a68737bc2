"""The saturating curve R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) and its least-squares fit.

Source: arXiv 2510.13786, section 3. A is the reward at infinite compute, R0 at none, C_mid the
compute at half of the gain and B the efficiency exponent. Writing s for the rise from 0 to 1,
R = R0 (1 - s) + A s is linear in A and R0, so only (C_mid, B) are searched: variable projection
(Golub and Pereyra, SIAM J. Numer. Anal. 10, 1973), here with the linear pair held to
0 <= R0 <= A <= 1.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit

from analysis.curves import Array, Points

Real = Array | float

LOG_B = (np.log(0.02), np.log(50.0))
"""Bounds of log B: from nearly flat to a step."""
C_MID_BELOW, C_MID_ABOVE = 30.0, 1e4
"""C_mid is searched from 1/30 of the first compute to 10^4 times the last."""
PAPER_A = np.linspace(0.450, 0.800, 71)
PAPER_C_MID = np.linspace(100.0, 40000.0, 100)
"""The paper's lattice (arXiv 2510.13786, appendix on fitting)."""
GRID_U, GRID_V = 24, 12
MAX_STEPS = 60
"""Levenberg-Marquardt steps; the median fit takes about 10."""


class Normal(NamedTuple):
    """Normal equations in (A, R0), of one shape: matrix, right-hand side, and y'y."""

    aa: Array
    ar: Array
    rr: Array
    ba: Array
    br: Array
    yy: Array


@dataclass(frozen=True)
class Sigmoids:
    """Parameters of K fitted curves, each (K,), and their weighted sums of squares."""

    A: Array
    B: Array
    C_mid: Array
    R0: Array
    sse: Array


def rise(compute: Real, C_mid: Real, B: Real) -> Array:
    """The fraction of the gain reached at a compute: 1 / (1 + (C_mid / C)^B), 0 at C = 0.

    Arguments broadcast against each other.
    """
    return rise_at(log(compute), np.log(C_mid), B)


def value(compute: Real, A: Real, B: Real, C_mid: Real, R0: Real) -> Array:
    """R(C) in [R0, A]; arguments broadcast.

    >>> round(float(value(2542.0, 0.61, 1.92, 2542.0, 0.2)), 3)
    0.405
    """
    s = rise(compute, C_mid, B)
    return np.asarray(R0 * (1 - s) + A * s)


def fit(
    points: Points,
    A: float | None = None,
    method: str = "projection",
    lattice: tuple[Array, Array] = (PAPER_A, PAPER_C_MID),
) -> Sigmoids:
    """Least-squares fit of one recipe's points (K = 1).

    Args:
        points: At least one at compute > 0.
        A: Fixes the ceiling.
        method: "projection", or "paper" for the paper's own procedure, for comparison: a lattice
            of A x C_mid, SciPy's curve_fit for B, points not weighted, and R0 not fitted: it is the
            reward before training, or else the first.
        lattice: The values of A and C_mid tried by "paper".
    """
    if method == "paper":
        return _fit_paper(points, lattice)
    held = (0.0, 1.0) if A is None else (A, A)
    return fit_many(points.compute[None], points.reward[None], points.sd[None] ** -2.0, held)


def fit_all(recipes: Sequence[Points]) -> Sigmoids:
    """Least-squares fits of K recipes of different lengths in one call."""
    longest = max(len(p) for p in recipes)

    def pad(rows: list[Array], fill: float) -> Array:
        padded = [np.pad(r, (0, longest - len(r)), constant_values=fill) for r in rows]
        return np.stack(padded)

    return fit_many(
        pad([p.compute for p in recipes], 0.0),
        pad([p.reward for p in recipes], 0.0),
        pad([p.sd**-2.0 for p in recipes], 0.0),
    )


def fit_many(
    compute: Array,
    reward: Array,
    weight: Array,
    A_range: tuple[float, float] = (0.0, 1.0),
    start: tuple[float, float] | None = None,
) -> Sigmoids:
    """Global least-squares fits of K curves at once.

    A grid over (log C_mid, log B) gives three starts, one in each third of B; each is polished by
    Levenberg-Marquardt on the projected problem and the best is kept.

    Args:
        compute: (K, n), or (1, n) where all curves share it (bootstrap replicates).
        reward: (K, n) pass rates.
        weight: (K, n) or (1, n) inverse variances; 0 leaves a point out.
        A_range: Bounds of A; equal ones fix it.
        start: (C_mid, B) to start from instead of the grid, as for replicates of a fitted curve.
    """
    x = log(compute)
    reached = np.where((weight > 0) & np.isfinite(x), x, np.nan)
    low = np.nanmin(reached, axis=1) - np.log(C_MID_BELOW)
    high = np.nanmax(reached, axis=1) + np.log(C_MID_ABOVE)
    k = len(reward)
    if start is None:
        u, v = _starts(x, reward, weight, low, high, A_range)
    else:
        u, v = (np.full(k, np.log(p)) for p in start)
    solved = _polish(x, reward, weight, u, v, (low, high), A_range)
    A, R0, u, v, sse = (a.reshape(-1, k) for a in solved)
    best = np.argmin(sse, axis=0), np.arange(k)
    return Sigmoids(A[best], np.exp(v[best]), np.exp(u[best]), R0[best], sse[best])


def _fit_paper(points: Points, lattice: tuple[Array, Array]) -> Sigmoids:
    R0 = float(points.reward[np.argmin(points.compute)])
    used = points.compute > 0
    C, R = points.compute[used], points.reward[used]
    best = (np.inf, np.nan, np.nan, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        for A in lattice[0]:
            for C_mid in lattice[1]:
                best = min(best, _fit_b(C, R, float(A), float(C_mid), R0))
    sse, a, b, c_mid = (np.array([x]) for x in best)
    return Sigmoids(a, b, c_mid, np.array([R0]), sse)


def _fit_b(
    C: Array, R: Array, A: float, C_mid: float, R0: float
) -> tuple[float, float, float, float]:
    def curve(c: Array, B: float) -> Array:
        return value(c, A, B, C_mid, R0)

    try:
        (B,), *_ = curve_fit(curve, C, R)
    except RuntimeError:
        return (np.inf, np.nan, np.nan, np.nan)
    return (float(np.sum((R - curve(C, B)) ** 2)), A, float(B), C_mid)


def log(compute: Real) -> Array:
    """Natural logarithm, -inf at 0 without a warning."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(compute))


def rise_at(x: Array, u: Real, B: Real) -> Array:
    """`rise` at log compute x and log C_mid u."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(B * (u - x))))


def _starts(
    x: Array, y: Array, w: Array, low: Array, high: Array, A_range: tuple[float, float]
) -> tuple[Array, Array]:
    """Best grid point in each third of log B: (3 K,) log C_mid and log B."""
    k = len(y)
    u = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, GRID_U)
    v = np.linspace(*LOG_B, GRID_V)
    s = rise_at(x[:, None, None, :], u[:, :, None, None], np.exp(v)[:, None])
    s = s.reshape(len(low), GRID_U * GRID_V, -1)
    if len(low) == 1:
        sums = normal(s[0] @ w[0], s[0] ** 2 @ w[0], (w * y) @ s[0].T, w, y)
    else:
        wy, one = (w * y)[:, :, None], np.broadcast_to(w, y.shape)[:, :, None]
        sums = normal((s @ one)[..., 0], (s**2 @ one)[..., 0], (s @ wy)[..., 0], w, y)
    sse = solve(sums, A_range)[2].reshape(k, GRID_U, 3, GRID_V // 3)
    best = sse.transpose(2, 0, 1, 3).reshape(3, k, -1).argmin(axis=2)
    rows, columns = np.divmod(best, GRID_V // 3)
    columns += np.arange(3)[:, None] * (GRID_V // 3)
    u = np.broadcast_to(u, (k, GRID_U))
    return u[np.arange(k), rows].reshape(-1), v[columns].reshape(-1)


def normal(sw: Array, ssw: Array, swy: Array, w: Array, y: Array) -> Normal:
    """Normal equations from sums over points of w s, w s^2 and w s y: shape of `sw`."""
    total, wy = w.sum(axis=1)[:, None], (w * y).sum(axis=1)[:, None]
    wyy = (w * y * y).sum(axis=1)[:, None]
    return Normal(ssw, sw - ssw, total - 2 * sw + ssw, swy, wy - swy, wyy)


def solve(n: Normal, A_range: tuple[float, float]) -> tuple[Array, Array, Array]:
    """Least squares in (A, R0) on 0 <= R0 <= A, A in A_range: A, R0 and the sum of squares.

    A convex quadratic on a polygon is least at its free optimum, or else on an edge.
    """
    lo, hi = A_range
    aa, ar, rr, ba, br, _ = n
    with np.errstate(divide="ignore", invalid="ignore"):
        det = aa * rr - ar * ar
        free = (ba * rr - br * ar) / det, (br * aa - ba * ar) / det
        inside = (det > 1e-14 * aa * rr) & (free[1] >= 0) & (free[1] <= free[0])
        inside &= (free[0] >= lo) & (free[0] <= hi)
        at_lo = np.clip((br - ar * lo) / rr, 0, lo)
        at_hi = np.clip((br - ar * hi) / rr, 0, hi)
        zero = np.clip(ba / aa, lo, hi)
        flat = np.clip((ba + br) / (aa + 2 * ar + rr), lo, hi)
    edges = [
        (np.full_like(at_lo, lo), at_lo),
        (np.full_like(at_hi, hi), at_hi),
        (zero, np.zeros_like(zero)),
        (flat, flat),
    ]
    A, R0 = (np.where(inside, f, np.nan) for f in free)
    sse = np.where(inside, _sse(n, A, R0), np.inf)
    for a, r in edges:
        e = _sse(n, a, r)
        better = ~inside & (e < sse)
        A, R0, sse = np.where(better, a, A), np.where(better, r, R0), np.where(better, e, sse)
    return A, R0, sse


def _sse(n: Normal, A: Array, R0: Array) -> Array:
    linear = n.yy - 2 * (A * n.ba + R0 * n.br)
    return linear + A * A * n.aa + 2 * A * R0 * n.ar + R0 * R0 * n.rr


def _polish(
    x: Array,
    y: Array,
    w: Array,
    u: Array,
    v: Array,
    u_range: tuple[Array, Array],
    A_range: tuple[float, float],
) -> tuple[Array, ...]:
    """Levenberg-Marquardt on (log C_mid, log B) from every start: A, R0, u, v, sse, each (S K,).

    Kaufman's Jacobian (BIT 15, 1975): the curve's derivative with the columns of the linear
    parameters that are not at a bound projected out.
    """
    copies = len(u) // len(y)
    x, y, w, low, high = (
        np.tile(a, (copies, *[1] * (a.ndim - 1))) if len(a) > 1 else a for a in (x, y, w, *u_range)
    )
    A, R0, s, sse = _project(x, y, w, u, v, A_range)
    u, v, damping, active = u.copy(), v.copy(), np.full(len(u), 1e-3), np.arange(len(u))
    for _ in range(MAX_STEPS):
        xs, ys, ws, lows, highs = (_rows(a, active) for a in (x, y, w, low, high))
        state = u[active], v[active], A[active], R0[active]
        step_u, step_v = _step(xs, ys, ws, s, *state, damping[active], A_range)
        new_u = np.clip(state[0] + np.clip(step_u, -2, 2), lows, highs)
        new_v = np.clip(state[1] + np.clip(step_v, -1, 1), *LOG_B)
        new_A, new_R0, new_s, new_sse = _project(xs, ys, ws, new_u, new_v, A_range)
        better = new_sse < sse[active]
        small = sse[active] - new_sse <= 1e-9 * sse[active]
        damping[active] *= np.where(better, 0.1, 8.0)
        won = active[better]
        for old, new in ((u, new_u), (v, new_v), (A, new_A), (R0, new_R0), (sse, new_sse)):
            old[won] = new[better]
        going = np.where(better, ~small, damping[active] < 1e4)
        s = np.where(better[:, None], new_s, s)[going]
        active = active[going]
        if not len(active):
            break
    return A, R0, u, v, sse


def _rows(a: Array, active: NDArray[np.int64]) -> Array:
    return a[active] if len(a) > 1 else a


def _project(
    x: Array, y: Array, w: Array, u: Array, v: Array, A_range: tuple[float, float]
) -> tuple[Array, Array, Array, Array]:
    """Best A and R0 at each (u, v), the rise (K, n) there, and the sum of squares."""
    s = rise_at(x, u[:, None], np.exp(v)[:, None])
    ws = w * s
    sums = normal(ws.sum(1)[:, None], (ws * s).sum(1)[:, None], (ws * y).sum(1)[:, None], w, y)
    A, R0, _ = (a[:, 0] for a in solve(sums, A_range))
    residual = y - R0[:, None] - (A - R0)[:, None] * s
    return A, R0, s, np.asarray((w * residual**2).sum(axis=1))


def _step(
    x: Array,
    y: Array,
    w: Array,
    s: Array,
    u: Array,
    v: Array,
    A: Array,
    R0: Array,
    damping: Array,
    A_range: tuple[float, float],
) -> tuple[Array, Array]:
    root, gain = np.sqrt(w), (A - R0)[:, None]
    slope = root * gain * s * (1 - s) * np.exp(v)[:, None]
    near = np.where(np.isfinite(x), x, 0.0)
    jacobian = [-slope, slope * (near - u[:, None])]
    residual = root * (y - R0[:, None] - gain * s)
    free_a = (A_range[0] < A) & (A_range[1] > A)
    free_a = free_a[:, None]
    free_r = ((R0 > 0) & (R0 < A))[:, None]
    for column, free in _orthonormal(root * s, root * (1 - s), free_a, free_r):
        jacobian = [j - free * column * (column * j).sum(1)[:, None] for j in jacobian]
    ju, jv = jacobian
    uu, vv, uv = (ju * ju).sum(1), (jv * jv).sum(1), (ju * jv).sum(1)
    gu, gv = (ju * residual).sum(1), (jv * residual).sum(1)
    uu, vv = uu * (1 + damping) + 1e-300, vv * (1 + damping) + 1e-300
    det = np.maximum(uu * vv - uv * uv, 1e-300)
    return (gu * vv - gv * uv) / det, (gv * uu - gu * uv) / det


def _orthonormal(
    a: Array, r: Array, free_a: NDArray[np.bool_], free_r: NDArray[np.bool_]
) -> list[tuple[Array, NDArray[np.bool_]]]:
    """Unit columns spanning the free ones among a and r, each with whether it counts."""
    a = a / np.sqrt((a * a).sum(1, keepdims=True) + 1e-300)
    r = r - free_a * a * (a * r).sum(1, keepdims=True)
    r = r / np.sqrt((r * r).sum(1, keepdims=True) + 1e-300)
    return [(a, free_a), (r, free_r)]
