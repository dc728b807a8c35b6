"""y := alpha*op(A)*x + beta*y in wider precision, and the error of a result in units of its bound.

Tests, benchmarks and the command line all judge a result, element by element, by the bound that
every order of summation satisfies: ``c * ((cols + 3)*eps*T + (|alpha|*cols + 3)*s)`` with ``T =
|alpha||op(A)||x| + |beta||y|`` and s the smallest positive number of the dtype added up in. The
first part is what roundings lose, the second what products lose that underflow. The bound does not
cover sums that overflow on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.dtypes import BFLOAT16, NARROW
from gemv.core.narrow import cast

#: c in the bound: one rounding for each product and sum, two more for alpha and beta*y, and four
#: real operations in each complex one.
_C = {"f": 1.0, "c": 4.0}

#: Elements of A widened at a time.
_CHUNK = 1 << 22


def wider(dtype: np.dtype) -> np.dtype:
    """float64 for single precision, the platform's long double for double precision."""
    single = dtype in NARROW or dtype in (np.float32, np.complex64)
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
        wide_x = cast(x, wide)
        absolute_x = abs(wide_x)
        step = max(1, _CHUNK // cols)
        for start in range(0, rows, step):
            block = cast(op_a[start : start + step], wide)
            exact[start : start + step] = wide.type(alpha) * (block @ wide_x)
            magnitude[start : start + step] = abs(wide.type(alpha)) * (abs(block) @ absolute_x)
    if beta != 0 and y is not None:
        scaled = wide.type(beta) * cast(y, wide)
        exact += scaled
        magnitude += abs(scaled)
    return exact, magnitude


def error_in_bounds(
    result: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, cols: int, alpha: Any
) -> float:
    """Largest ``|result - exact|`` in units of the bound; NaN in `result` gives inf.

    A value up to 1 satisfies the bound. A narrow result comes from sums in float32, whose eps and
    smallest number it is, and is rounded once more: half a unit in its last place is added.
    """
    if result.size == 0:
        return 0.0
    narrow = result.dtype in NARROW
    finite = np.finfo(np.float32 if narrow else result.dtype)
    error = abs(cast(result, exact.dtype) - exact)
    # Each product loses up to half the smallest number where it underflows, and alpha multiplies
    # what they lose together; then so do the products with alpha and beta.
    underflow = (abs(exact.dtype.type(alpha)) * cols + 3) * finite.smallest_subnormal
    bound = (cols + 3) * finite.eps * magnitude + underflow
    bound = _C["c" if result.dtype.kind == "c" else "f"] * bound
    if narrow:
        bound += _half_ulp(abs(exact) + bound, result.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0, error / bound)
    worst = float(np.max(ratio)) if not np.isnan(ratio).any() else float("inf")
    return worst


def _half_ulp(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Half a unit in the last place of a narrow dtype, for each of some positive values."""
    digits, least = (8, -126) if dtype == BFLOAT16 else (11, -14)
    exponent = np.maximum(np.frexp(values)[1] - 1, least)
    return np.ldexp(1.0, exponent - digits)
