"""gemv in wider precision, and the quantity that error bounds are stated in.

Tests, benchmarks and the command line all judge a result by ``|error| / (c * n * eps * T)`` with
``T = |alpha||op(A)||x| + |beta||y|``, element by element: the bound that any order of summation
satisfies, whatever the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: c in the bound: one rounding for each product and sum, two more for alpha and beta*y, and four
#: real operations in each complex one.
_C = {"f": 1.0, "c": 4.0}

#: Elements of A widened at a time.
_CHUNK = 1 << 22


def wider(dtype: np.dtype) -> np.dtype:
    """float64 for single precision, the platform's long double for double precision."""
    single = dtype in (np.float32, np.complex64, np.float16)
    if dtype.kind == "c":
        return np.dtype(np.complex128 if single else np.clongdouble)
    return np.dtype(np.float64 if single else np.longdouble)


def reference(
    alpha: Any, op_a: np.ndarray, x: np.ndarray, beta: Any, y: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """``alpha*op(A)@x + beta*y`` and T, both in wider precision.

    Parameters
    ----------
    alpha, beta : number
        As the kernel got them, in the problem's dtype. With ``beta == 0`` y is not looked at,
        with ``alpha == 0`` neither A nor x, as in BLAS.
    op_a : ndarray, (rows, cols)
        op(A): transposed and conjugated already; any order.
    x, y : ndarray, (cols,) and (rows,)

    Returns
    -------
    exact : ndarray, (rows,)
        Of the dtype :func:`wider` gives; its error is negligible beside the kernel's.
    magnitude : ndarray, (rows,)
        T, real.
    """
    rows, cols = op_a.shape
    wide = wider(op_a.dtype)
    exact = np.zeros(rows, wide)
    magnitude = np.zeros(rows, wide.type(0).real.dtype)
    if alpha != 0 and cols:
        wide_x = x.astype(wide)
        absolute_x = abs(wide_x)
        step = max(1, _CHUNK // cols)
        for start in range(0, rows, step):
            block = op_a[start : start + step].astype(wide)
            exact[start : start + step] = wide.type(alpha) * (block @ wide_x)
            magnitude[start : start + step] = abs(wide.type(alpha)) * (abs(block) @ absolute_x)
    if beta != 0 and y is not None:
        scaled = wide.type(beta) * y.astype(wide)
        exact += scaled
        magnitude += abs(scaled)
    return exact, magnitude


def error_in_bounds(
    result: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, cols: int
) -> float:
    """Largest ``|result - exact| / (c * (cols + 3) * eps * T)``; NaN in `result` gives inf.

    A value up to 1 satisfies the bound. Where T is 0 the result must be 0, but for denormals.
    """
    if result.size == 0:
        return 0.0
    finite = np.finfo(result.dtype)
    error = abs(result.astype(exact.dtype) - exact)
    # Half the smallest denormal is lost where a result underflows.
    unit = finite.eps * magnitude + finite.smallest_subnormal
    bound = _C[result.dtype.kind] * (cols + 3) * unit
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0, error / bound)
    worst = float(np.max(ratio)) if not np.isnan(ratio).any() else float("inf")
    return worst
