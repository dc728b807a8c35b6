"""SciPy's BLAS on the host: where there is no usable GPU, and where it is faster than one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from gemv.core import trace
from gemv.core.dtypes import PREFIXES, Precision, dtype_name
from gemv.core.narrow import cast
from gemv.engines import backend, leading
from gemv.engines.leading import MAX_SIDE

#: Bytes of a view with gaps up to which SciPy, which copies it, is faster than our call of BLAS.
_COPIED_BYTES = 64 * 1024
_announced = False


class HostFallbackWarning(RuntimeWarning):
    """No GPU can be used, so SciPy computes on the CPU. Issued once in a process."""


def announce() -> None:
    """Warn once in a process that the host computes, if nobody chose that backend."""
    global _announced
    if _announced or backend.chosen() is not None:
        return
    why = backend.probe()[1] or "no usable GPU"
    warnings.warn(
        f"gemv computes with SciPy's BLAS on the CPU: {why}."
        ' To choose that, and to silence this warning, call gemv.use_backend("host") or set'
        " GEMV_BACKEND=host in the environment.",
        HostFallbackWarning,
        stacklevel=_level_of_the_program() + 1,
    )
    # Not reached where the warning is turned into an error: then every call fails.
    _announced = True


def _level_of_the_program() -> int:
    """How many frames above the caller the program is that called this package first of all.

    Calls come by ways of different lengths, and those of SciPy's operators through SciPy.
    """
    level = depth = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "gemv":
            level = depth
        frame = frame.f_back
    return level


def refuse_kernel(routine: str, kernel: str | None) -> None:
    """Refuse a kernel where SciPy computes, or the name of one that does not exist."""
    if kernel is None:
        return
    known_kernel(routine, kernel)
    raise ValueError(
        f"{routine}: kernel={kernel!r} needs a GPU or the simulator, but the backend is"
        " host, where SciPy's BLAS computes"
    )


def known_kernel(routine: str, kernel: str) -> None:
    """Refuse the name of a kernel that does not exist, with those that do."""
    from gemv.kernels import get

    try:
        get(kernel)
    except ValueError as error:
        raise ValueError(f"{routine}: {error}") from None


def run(
    routine: str, trans: int, alpha: Any, a: np.ndarray, x: np.ndarray, beta: Any, y: np.ndarray
) -> np.ndarray:
    """``alpha*op(A)*x + beta*y`` for unit increments, which is all that SciPy is trusted with.

    Its wrapper computes lengths in 32 bits and crashes where they overflow.
    """
    from scipy.linalg import blas

    if max(a.shape) > MAX_SIDE:
        raise ValueError(
            f"{routine}: SciPy's BLAS takes at most {MAX_SIDE} rows and columns, got {a.shape}"
        )
    result = product(getattr(blas, routine), trans, alpha, a, x, beta, np.array(y))
    record(routine)
    return result


def record(routine: str) -> None:
    """Add a call to the open traces."""
    trace.record(backend="host", kernel=routine, knobs={}, geometry=None, coefficients="arguments")


def product(
    gemv: Callable[..., np.ndarray],
    trans: int,
    alpha: Any,
    a: np.ndarray,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
) -> np.ndarray:
    """``alpha*op(A)*x + beta*y`` of one dtype; `gemv` is SciPy's routine for it.

    It is written over y, if there is one; otherwise beta is 0.

    SciPy copies a matrix that is not contiguous by columns. One that is contiguous by rows is the
    transpose of such a matrix, and goes to BLAS as that. A view whose rows or columns have gaps
    between them goes to BLAS with its leading dimension. So A is copied only where that takes less
    time, where its lines overlap or follow each other backwards, or where there are gaps between
    its elements.
    """
    m, n = a.shape
    size, (down, along) = a.itemsize, a.strides
    by_columns = down == size and (along == m * size or n == 1)
    by_rows = along == size and (down == n * size or m == 1)
    gaps_pay = m * n * size > _COPIED_BYTES
    if gaps_pay and not by_columns and not by_rows and leading.takes(a):
        gemv, by_columns, by_rows = leading.gemv, down == size, along == size
    if by_columns:
        return call(gemv, alpha, a, x, beta, y, trans)
    if by_rows:
        if trans != 2 or a.dtype.kind != "c":
            return call(gemv, alpha, a.T, x, beta, y, 0 if trans else 1)
        # BLAS conjugates no matrix that it does not transpose; conjugated vectors are as good.
        if y is not None:
            np.conj(y, out=y)
        y = call(gemv, np.conj(alpha), a.T, np.conj(x), np.conj(beta), y, 0)
        np.conj(y, out=y)
        return np.add(y, 0, out=y)  # a zero of BLAS has no sign
    if gaps_pay and along != size and abs(along) < abs(down):
        # SciPy copies column by column, against the order of memory. This copies by rows.
        return product(gemv, trans, alpha, np.ascontiguousarray(a), x, beta, y)
    if along == size and (trans != 2 or a.dtype.kind != "c"):  # whole lines are copied faster
        return call(gemv, alpha, a.T, x, beta, y, 0 if trans else 1)
    return call(gemv, alpha, a, x, beta, y, trans)


def call(
    gemv: Callable[..., np.ndarray],
    alpha: Any,
    a: np.ndarray,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
    trans: int,
) -> np.ndarray:
    """SciPy's routine, which writes over y if there is one; arguments by name would take 0.6 us."""
    return gemv(alpha, a, x, beta, y, 0, 1, 0, 1, trans, 1)


def compute(
    routine: str,
    trans: int,
    alpha: Any,
    a: np.ndarray,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
    accumulate: str,
    y_dtype: np.dtype,
) -> np.ndarray:
    """``alpha*op(A)*x + beta*y`` as a new vector, for checked arrays of one dtype, wide ones too.

    `routine` is the name in error texts. The backend that was chosen is not asked: this is for
    libraries in whose host memory the host computes.
    """
    from scipy.linalg import blas

    sums = Precision.of(a.dtype, y_dtype, accumulate).sums
    if sums not in PREFIXES:
        raise ValueError(
            f"{routine}: accumulate={accumulate!r} in {dtype_name(a.dtype)} needs a GPU, but a is"
            " in host memory, where SciPy's BLAS has nothing like it"
        )
    if max(a.shape) > MAX_SIDE:
        raise ValueError(
            f"{routine}: SciPy's BLAS takes at most {MAX_SIDE} rows and columns, got {a.shape}"
        )
    name = PREFIXES[sums] + "gemv"
    start = None if y is None else np.array(cast(y, sums))
    total = product(getattr(blas, name), trans, alpha, cast(a, sums), cast(x, sums), beta, start)
    record(name)
    return cast(total, y_dtype)
