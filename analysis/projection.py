"""The least-squares search behind `analysis.sigmoid`: variable projection for many curves at once.

R = R0 (1 - s) + A s is linear in A and R0, so only u = log C_mid and v = log B are searched (Golub
and Pereyra, SIAM J. Numer. Anal. 10, 1973), with the linear pair held to 0 <= R0 <= A <= 1. K is
the number of curves, n of points, x log compute (-inf before training), w inverse variances.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.curves import Array

LOG_B = (np.log(0.02), np.log(50.0))
"""Bounds of log B: from nearly flat to a step."""
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


def log(compute: Array | float) -> Array:
    """Natural logarithm, -inf at 0 without a warning."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(compute))


def rise_at(x: Array, u: Array | float, B: Array | float) -> Array:
    """`rise` at log compute x and log C_mid u."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(B * (u - x))))


def starts(
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


def polish(
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
