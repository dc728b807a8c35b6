"""SciPy's BLAS on the host, for machines without a usable GPU; announced once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gemv.core import trace

_INT32_MAX = 2**31 - 1
_announced = False


class HostFallbackWarning(RuntimeWarning):
    """No GPU can be used, so SciPy computes on the CPU. Issued once in a process."""


def announce(why: str | None, stacklevel: int) -> None:
    """Warn once in a process that the host computes although nobody chose that backend."""
    global _announced
    if _announced:
        return
    warnings.warn(
        f"gemv computes with SciPy's BLAS on the CPU: {why or 'no usable GPU'}."
        ' To choose that, and to silence this warning, call gemv.use_backend("host") or set'
        " GEMV_BACKEND=host in the environment.",
        HostFallbackWarning,
        stacklevel=stacklevel + 1,
    )
    # Not reached where the warning is turned into an error: then every call fails.
    _announced = True


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

    if max(a.shape) > _INT32_MAX:
        raise ValueError(
            f"{routine}: SciPy's BLAS takes at most {_INT32_MAX} rows and columns, got {a.shape}"
        )
    result = getattr(blas, routine)(alpha, a, x, beta, np.array(y), trans=trans, overwrite_y=1)
    trace.record(backend="host", kernel=routine, knobs={}, geometry=None, coefficients="arguments")
    return result
