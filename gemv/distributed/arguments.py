"""What :mod:`gemv.dask` asks of arrays and of options, before a task is made of them."""

from __future__ import annotations

import math
import numbers
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from gemv.arrays import adopt, host, libraries
from gemv.core.dtypes import dtype_name
from gemv.core.values import typed
from gemv.engines import backend

#: Options of SciPy's solvers that are numbers, and those that count iterations.
_NUMBERS = ("atol", "btol", "conlim", "damp", "rtol")
_COUNTS = ("maxiter", "restart")


def operand(routine: str, name: str, value: Any) -> da.Array:
    """A, x or alpha as a Dask array; an error for what is no array of numbers, masks included."""
    if dask.is_dask_collection(value):
        if isinstance(value, Delayed):
            raise TypeError(
                f"{routine}: {name} must be an array, got Delayed; dask.array.from_delayed"
                " makes one of it"
            )
        array = da.asanyarray(value)
        if array.dtype == object:
            raise TypeError(
                f"{routine}: {name} must hold numbers, got chunks of dtype object, which are not"
                " looked at now: call its astype() first"
            )
        return array
    adopted = adopt.adopt(routine, name, value, None, backend.HOME, batch=True)
    kind = getattr(getattr(value, "dtype", None), "kind", "O")
    converted = adopted.on_host and kind == "O"  # a list, or an array of objects
    return da.asanyarray(adopted.owner if converted else value)


def vector(routine: str, name: str, value: Any, shape: tuple[int, int], side: int) -> np.ndarray:
    """b or x0 in host memory, of the length that a matrix of this shape has on a side."""
    if dask.is_dask_collection(value):
        value = np.asanyarray(value)
    found = host.host_numbers(routine, name, value, libraries.exporter_of(value)[0])
    if found.shape != (shape[side],):
        raise ValueError(
            f"{routine}: {name} must have shape {(shape[side],)} for a matrix of shape {shape},"
            f" got {found.shape}"
        )
    if found.dtype.kind not in "biufc":
        raise TypeError(f"{routine}: {name} must hold numbers, got {dtype_name(found.dtype)}")
    return found


def check_options(
    routine: str, method: str, known: list[str], checkpoint: Any, patience: Any, options: dict
) -> None:
    """Refuse options of a solve that a solver would refuse on the workers, or not understand."""
    for option in options:
        if option not in known:
            raise TypeError(
                f"{routine}: {method} takes no option {option!r}; it takes {', '.join(known)}"
            )
    for option in _NUMBERS:
        value = options.get(option, 0)
        if not isinstance(value, numbers.Real) or not float(value) >= 0:
            raise ValueError(
                f"{routine}: {option} must be a number that is not negative, got {typed(value)}"
            )
    for option in _COUNTS:
        value = options.get(option)
        if value is not None and (not _is_count(value) or value < 0):
            raise ValueError(
                f"{routine}: {option} must be a number of iterations, got {typed(value)}"
            )
    if not isinstance(patience, numbers.Real) or not 0 < float(patience) < math.inf:
        raise ValueError(
            f"{routine}: patience must be a number of seconds above 0, got {typed(patience)}"
        )
    if checkpoint is None:
        return
    if not _is_count(checkpoint) or checkpoint < 1:
        raise ValueError(
            f"{routine}: checkpoint must be a number of iterations, got {typed(checkpoint)}"
        )
    if options.get("damp"):
        raise ValueError(
            f"{routine}: checkpoint does not go with damp = {options['damp']!r}: LSMR keeps x"
            " near the vector that it begins from, so beginning again would change the result"
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
