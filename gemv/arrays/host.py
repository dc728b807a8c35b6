"""Arrays in host memory: what counts as one, how it becomes an operand, and copies of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays.base import Library, plain_bfloat16
from gemv.core.dtypes import BFLOAT16
from gemv.core.narrow import cast
from gemv.core.operand import RANK, Operand
from gemv.core.rules import numbers, type_error, value_error
from gemv.core.values import typed


def adopt_host(
    routine: str,
    name: str,
    obj: Any,
    dtype: np.dtype | None,
    library: Library,
    batch: bool = False,
) -> Operand:
    """The operand of an array of `library` in host memory; see :func:`gemv.arrays.adopt.adopt`."""
    array = host_numbers(routine, name, obj, library)
    if dtype is not None and dtype.kind != "c" and array.dtype.kind == "c":
        raise type_error(
            routine,
            name,
            f"{name} of dtype {array.dtype} would lose its imaginary part:"
            f" {routine} computes in {dtype}",
        )
    if batch:
        check_rank_of_batch(routine, name, array.shape)
        # Away from zero: elements that overlap in part are no single element that stands for all.
        size = array.itemsize
        strides = tuple(s // size if s < 0 else -(-s // size) for s in array.strides)
        shape = array.shape
    else:
        shape = _host_shape(routine, name, array)
        strides = _contiguous_strides(shape, _copy_order(array))
    return Operand(
        kind="numpy",
        dtype=array.dtype,
        shape=shape,
        strides=strides,
        pointer=array.__array_interface__["data"][0],
        readonly=not array.flags.writeable,
        owner=array,
        origin=obj,
        exporter=library,
    )


def host_numbers(routine: str, name: str, obj: Any, library: Library) -> np.ndarray:
    """An array of any rank in host memory as NumPy's; an error unless it holds unmasked numbers.

    An array of objects is converted; any other shares its memory with `obj` where that can be.
    """
    array = _as_ndarray(routine, name, obj, library)
    if _leaves_its_memory(array):
        raise value_error(
            routine,
            name,
            f"{name} of shape {array.shape} and byte strides {array.strides} reaches beyond the"
            " memory that it is a view of",
        )
    if array.dtype == object:
        return numbers(routine, name, array)
    if array.dtype.kind not in "biufc" and array.dtype != BFLOAT16:
        raise type_error(
            routine, name, f"{name} must hold numbers, got an array of dtype {array.dtype}"
        )
    return array


def _as_ndarray(routine: str, name: str, obj: Any, library: Library) -> np.ndarray:
    """What NumPy reads `obj` as, without masked elements."""
    _refuse_masked(routine, name, obj)
    if isinstance(obj, np.ndarray):
        return plain_bfloat16(obj)
    # Before NumPy is asked: it makes an array of one object of a sparse matrix.
    if callable(getattr(type(obj), "toarray", None)):
        raise type_error(
            routine,
            name,
            f"{name} is a sparse {typed(obj)}, and {routine} reads every element: pass"
            f" {name}.toarray(), or multiply by the sparse matrix itself",
        )
    if obj is None or isinstance(obj, (str, bytes, bytearray, set, frozenset, dict)):
        raise type_error(routine, name, f"{name} must be an array, got {typed(obj)}")
    try:
        array = np.asanyarray(library.as_numpy(obj))
    except Exception as error:
        raise type_error(
            routine, name, f"{name} cannot be read as an array of numbers: {error}"
        ) from error
    _refuse_masked(routine, name, array)
    return plain_bfloat16(np.asarray(array))


def _refuse_masked(routine: str, name: str, obj: Any, rank: int = RANK["a"]) -> None:
    """Refuse an array with masked elements, also inside of a list."""
    if isinstance(obj, (list, tuple)):
        parts = (list, tuple, np.ma.MaskedArray)
        # Types are compared first, each once: a list of numbers may be long.
        if rank > 0 and any(issubclass(kind, parts) for kind in set(map(type, obj))):
            for part in obj:
                _refuse_masked(routine, name, part, rank - 1)
    elif isinstance(obj, np.ma.MaskedArray) and np.ma.is_masked(obj):
        raise type_error(
            routine,
            name,
            f"{name} is a masked array with {np.ma.count_masked(obj)} masked elements, which"
            " a product cannot leave out; fill it first",
        )


def _leaves_its_memory(array: np.ndarray) -> bool:
    """Whether an array reaches beyond the memory that it was made from.

    NumPy's own slices never do; ``as_strided`` and array interfaces can be told to.
    """
    owner: Any = array
    numpys_own = True
    base = array.base
    while base is not None and (isinstance(owner, np.ndarray) or isinstance(base, np.ndarray)):
        owner, base = base, getattr(base, "base", None)
        # as_strided puts an object with a base between its view and the array.
        numpys_own = numpys_own and isinstance(owner, np.ndarray)
    if numpys_own:
        return False
    try:
        memory = owner if isinstance(owner, np.ndarray) else np.frombuffer(owner, np.uint8)
    except (TypeError, ValueError, BufferError):
        return False  # its size is unknown
    low, high = np.lib.array_utils.byte_bounds(array)
    first, last = np.lib.array_utils.byte_bounds(memory)
    return array.size > 0 and (low < first or high > last)


def check_rank_of_batch(routine: str, name: str, shape: tuple[int, ...]) -> None:
    """Refuse an array with fewer dimensions than one item has."""
    if len(shape) < RANK[name]:
        least = ("no dimension", "one dimension", "two dimensions")[RANK[name]]
        raise value_error(routine, name, f"{name} must have at least {least}, got shape {shape}")


def _host_shape(routine: str, name: str, array: np.ndarray) -> tuple[int, ...]:
    """The shape of the operand; an error for a wrong number of dimensions."""
    if array.ndim == RANK[name]:
        return array.shape
    if name == "a":
        hint = "; write a[:, None] for one column, a[None, :] for one row" * (array.ndim == 1)
        raise value_error(
            routine, name, f"a must have two dimensions, got shape {array.shape}{hint}"
        )
    if array.ndim == 2 and 1 in array.shape:
        # A single column or row, as SciPy takes it.
        return (array.size,)
    if array.ndim == 0:
        return (1,)  # a number alone, as SciPy takes it as well
    raise value_error(
        routine,
        name,
        f"{name} must have one dimension (or be a single row or column), got shape {array.shape}",
    )


def _copy_order(array: np.ndarray) -> str:
    """Of a contiguous copy: the order that is closest to the one the array has in memory."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return "C"
    if array.flags.f_contiguous or abs(array.strides[0]) < abs(array.strides[1]):
        return "F"
    return "C"


def _contiguous_strides(shape: tuple[int, ...], order: str) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    m, n = shape
    return (1, m) if order == "F" else (n, 1)


def host_copy(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """The array of a host operand, contiguous, aligned and of `dtype`; copied only if needed.

    Its strides are the operand's. It may be the caller's own memory, so it must not be written to.
    """
    array = _in_dtype(operand, dtype)
    return np.require(array, dtype, ["A", "F" if _copy_order(array) == "F" else "C"])


def host_view(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """The array of a host operand, aligned and of `dtype`, with gaps or without; see `host_copy`.

    It is copied for another dtype alone, or another alignment.
    """
    return np.require(_in_dtype(operand, dtype), dtype, ["A"])


def _in_dtype(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """The array of a host operand; bfloat16, which NumPy does not convert, in `dtype`."""
    array = np.asarray(operand.owner)
    if len(operand.shape) == 1:
        array = array.reshape(-1)
    return array if dtype == BFLOAT16 or array.dtype != BFLOAT16 else cast(array, dtype)


def writable_in_place(operand: Operand, dtype: np.dtype) -> bool:
    """Whether y can be overwritten in place, by SciPy's rule; whether it may is checked apart."""
    array = operand.owner
    return (
        array.dtype == dtype
        and array.flags.aligned
        and array.flags.c_contiguous
        and operand.exporter.written_through(operand.origin)
        # For an array of objects, the owner is a converted copy.
        and not (isinstance(operand.origin, np.ndarray) and operand.origin.dtype == object)
    )


def result_like(operand: Operand, dtype: np.dtype) -> np.ndarray:
    """A new array for the result: contiguous, of `dtype`, with the values and the class of y."""
    array = operand.owner
    if array.dtype == BFLOAT16 and dtype != BFLOAT16:
        return cast(array, dtype)
    return np.array(array, dtype=dtype, order="C", copy=True, subok=True)
