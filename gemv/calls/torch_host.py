"""Products of tensors in host memory, by SciPy's BLAS, for :mod:`gemv.torch`."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gemv.arrays.libraries import BY_NAME
from gemv.calls.remembered import COMPLEX_NUMBERS, REAL_NUMBERS
from gemv.calls.short_host import is_number
from gemv.core.dtypes import BFLOAT16, DTYPES
from gemv.core.trace import open_traces
from gemv.engines import host

#: The dtypes of host memory, as NumPy has them.
_NUMPY = {getattr(torch, str(dtype)): dtype for dtype in DTYPES.values() if dtype != BFLOAT16}
_NUMPY[torch.bfloat16] = BFLOAT16
#: Values of `trans` that need no check; True and 1.0 are equal to 1, and welcome.
_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
_MOST = 2**31 - 1
_grad_enabled, _from_numpy = torch.is_grad_enabled, torch.from_numpy


def short_way(alpha: Any, a: Any, x: Any, beta: Any, y: Any, trans: Any, out: Any) -> Any:
    """A product of plain tensors in host memory; None where anything has to be looked at."""
    known = _blas().get(a.dtype)
    if (
        known is None
        or type(x) is not torch.Tensor
        or x.dtype is not a.dtype
        or trans not in _TRANS
        or (_grad_enabled() and (a.requires_grad or x.requires_grad))
    ):
        return None
    gemv, name, numbers = known
    trans = _TRANS[trans]
    try:
        rows, cols = a.shape
        if trans:
            rows, cols = cols, rows
        if (
            x.shape != (cols,) or not rows or not cols or rows > _MOST or cols > _MOST
            or not (is_number(alpha, numbers) and is_number(beta, numbers))
        ):  # fmt: skip
            return None
        if out is not None and (
            type(out) is not torch.Tensor or out.dtype is not a.dtype or out.shape != (rows,)
            or not out.is_cpu or (_grad_enabled() and out.requires_grad) or not out.stride(0)
        ):  # fmt: skip
            return None
        start = None
        if y is not None:  # looked at where it is not read as well: it may be wrong, or watched
            plain = type(y) is torch.Tensor or type(y) is torch.nn.Parameter
            if not plain or y.dtype is not a.dtype or y.shape != (rows,):
                return None
            start = y.numpy()
            start = start.copy() if beta != 0 else None
        matrix, vector = a.numpy(), x.numpy()
    # a conjugate, a gradient, memory elsewhere
    except (RuntimeError, TypeError, ValueError):
        return None
    try:
        result = host.product(gemv, trans, alpha, matrix, vector, beta, start)
    except OverflowError:  # a factor beyond every float
        return None
    if open_traces():
        host.record(name)
    return _from_numpy(result) if out is None else out.copy_(_from_numpy(result))


@functools.cache
def _blas() -> dict[Any, tuple[Any, str, frozenset[type]]]:
    """SciPy's routine, its name and the types of its numbers, by dtype."""
    from scipy.linalg import blas

    found = {}
    for letter in "sdcz":
        numbers = COMPLEX_NUMBERS if letter in "cz" else REAL_NUMBERS
        name = f"{letter}gemv"
        found[getattr(torch, str(DTYPES[letter]))] = getattr(blas, name), name, numbers
    return found


def long_way(
    routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any, overwrite: int, trans: int,
    accumulate: str, out_dtype: Any,
) -> Any:  # fmt: skip
    """A product of tensors in host memory, by SciPy's BLAS."""
    library = BY_NAME["torch"]
    with torch.no_grad():
        start = None if y is None or beta == 0 else library.as_numpy(y)
        dtype = (y.dtype if y is not None else out_dtype) or a.dtype
        result = host.compute(
            routine, trans, alpha, library.as_numpy(a), library.as_numpy(x), beta, start,
            accumulate, _NUMPY[dtype],
        )  # fmt: skip
        made = library.from_numpy(a, result)
        return y.copy_(made) if overwrite else made
