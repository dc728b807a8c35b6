"""What is refused in calls with JAX's arrays: wrong kinds, shapes, dtypes, options and numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemv.arrays.base import dtype_called, element_type
from gemv.core.dtypes import DTYPES, NARROW, dtype_name
from gemv.core.values import shown, typed
from gemv.engines.host import known_kernel


def array_of(routine: str, name: str, value: Any, rank: int) -> Any:
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"{routine}: {name} must be an array of JAX's, got {typed(value)}")
    if isinstance(value, jax.Array):
        if not isinstance(value, jax.core.Tracer) and value.is_deleted():
            raise TypeError(f"{routine}: {name} cannot be read: the array has been deleted")
    else:
        value = _from_numpy(routine, name, value)
    if value.ndim != rank:
        dimensions = "two dimensions" if rank == 2 else "one dimension"
        raise ValueError(f"{routine}: {name} must have {dimensions}, got shape {value.shape}")
    return value


def _from_numpy(routine: str, name: str, value: np.ndarray) -> Any:
    """An array of NumPy's as one of JAX's."""
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):  # objects, text, dates, records, what is masked
        masked = "a mask and " if isinstance(value, np.ma.MaskedArray) else ""
        raise TypeError(
            f"{routine}: {name} must be an array of JAX's, got one of NumPy with {masked}dtype"
            f" {value.dtype}, which JAX does not take"
        ) from None


def check_options(routine: str, kernel: Any, out_dtype: Any) -> None:
    """Refuse what would be the key of a compiled call and cannot be one."""
    if kernel is not None:
        known_kernel(routine, kernel)
    try:
        hash(out_dtype)
    except TypeError:
        raise TypeError(f"{routine}: out_dtype must be a dtype, got {typed(out_dtype)}") from None


def dtype_of(routine: str, name: str, array: Any) -> np.dtype:
    try:
        dtype = element_type(np.dtype(array.dtype))
    except TypeError:  # a random key of JAX's
        dtype = None
    if dtype is None or dtype not in tuple(DTYPES.values()):
        raise TypeError(f"{routine}: {name} has dtype {array.dtype}, in which nothing is computed")
    return dtype


def result_dtype(routine: str, dtype: np.dtype, y: Any, out_dtype: Any) -> np.dtype:
    """The dtype of the result."""
    possible = (dtype, DTYPES["s"]) if dtype in NARROW else (dtype,)
    wanted = dtype if y is None else dtype_of(routine, "y", y)
    if out_dtype is not None:
        named = dtype_called(out_dtype)
        # NumPy says that None == dtype(float64).
        if named is None or named not in possible or (y is not None and named != wanted):
            raise TypeError(
                f"{routine}: out_dtype must be one of {', '.join(map(dtype_name, possible))}, and"
                f" that of y, got {shown(out_dtype)}"
            )
        return named
    if wanted not in possible:
        raise TypeError(
            f"{routine}: y must have one of the dtypes {', '.join(map(dtype_name, possible))}, got"
            f" {dtype_name(wanted)}"
        )
    return wanted


def check_factor(routine: str, name: str, value: Any, a: Any) -> Any:
    """alpha or beta: a number of Python's, or an array without a dimension, perhaps traced."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    is_complex = isinstance(value, complex)
    if type(value) is int:
        try:
            value = float(value) if abs(value) >= 2**31 else value
        except OverflowError:
            raise ValueError(f"{routine}: {name} does not fit {a.dtype}: too large") from None
    if not isinstance(value, (int, float, complex)):
        if not isinstance(value, jax.Array) or value.ndim:
            raise TypeError(
                f"{routine}: {name} must be a number or an array without a dimension, got"
                f" {typed(value)}"
            )
        is_complex = jnp.iscomplexobj(value)
    if is_complex and not jnp.iscomplexobj(a):
        raise TypeError(
            f"{routine}: {name} must be real for a of dtype {a.dtype}, got {typed(value)}"
        )
    return value


def check_lengths(routine: str, a: Any, x: Any, y: Any, rows: int, cols: int) -> None:
    """Refuse vectors that BLAS would take a part of."""
    for name, vector, length in (("x", x, cols), ("y", y, rows)):
        if vector is not None and vector.shape[0] != length:
            raise ValueError(
                f"{routine}: {name} must have {length} elements for a of shape {a.shape}, got"
                f" {vector.shape[0]}"
            )
