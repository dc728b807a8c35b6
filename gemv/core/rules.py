"""Every rule of BLAS's gemv and every error text, for plain numbers and dtypes.

Nothing here reads an array or knows about CUDA. Each text names the routine, the argument, the rule
and the value, and ends with the words by which SciPy's wrapper refers to the argument.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gemv.core.dtypes import ACCUMULATE, dtype_name
from gemv.core.problem import Problem
from gemv.core.values import digits, is_word, shown, typed

#: How SciPy counts the parameters: three arguments, then the keywords.
PLACES = {
    "alpha": "1st argument alpha",
    "a": "2nd argument a",
    "x": "3rd argument x",
    "beta": "1st keyword beta",
    "y": "2nd keyword y",
    "offx": "3rd keyword offx",
    "incx": "4th keyword incx",
    "offy": "5th keyword offy",
    "incy": "6th keyword incy",
    "trans": "7th keyword trans",
    "overwrite_y": "8th keyword overwrite_y",
    "stream": "keyword stream",
    "coefficients": "keyword coefficients",
    "peer": "keyword peer",
}

#: The same for the routines that are called as NumPy's.
_PLACES_OF = {
    routine: {
        first: f"1st argument {first}",
        second: f"2nd argument {second}",
        "y": "3rd argument out",
        "out": "3rd argument out",
        "alpha": "keyword alpha",
        "beta": "keyword beta",
    }
    for name, first, second in (("matvec", "a", "x"), ("vecmat", "x", "a"))
    for routine in (name, f"gemv.dask.{name}")
}
_PLACES_OF |= {
    "Matrix": {"a": "1st argument a", "x": "1st argument x"},
    "Matrix.gemv": {
        name: f"{place} argument {name}"
        for name, place in (
            ("alpha", "1st"), ("x", "2nd"), ("beta", "3rd"), ("y", "4th"), ("trans", "5th"),
        )
    },
    "Matrix.plan": {
        "x": "1st argument x", "y": "2nd argument y", "trans": "3rd argument trans",
    },
    "plan": {"a": "1st argument a", "x": "2nd argument x", "y": "3rd argument y"},
    "sharded": {"a": "1st argument parts"},
    "gemv_batched": {
        "alpha": "1st argument alpha", "a": "2nd argument As", "x": "3rd argument xs",
        "beta": "4th argument beta", "y": "5th argument ys", "trans": "6th argument trans",
    },
    "Batch": {"a": "1st argument arrays", "trans": "2nd argument trans"},
    "Batch.gemv": {
        name: f"{place} argument {word}"
        for name, word, place in (
            ("alpha", "alpha", "1st"), ("x", "xs", "2nd"), ("beta", "beta", "3rd"),
            ("y", "ys", "4th"),
        )
    },
    "Batch.plan": {"x": "1st argument xs", "y": "2nd argument ys"},
    "gemv.dask.Matrix.solve": {"b": "2nd argument b"},
}  # fmt: skip

#: The largest number that an address, or a number of bytes, can be.
MAX_BYTES = int(np.iinfo(np.intp).max)

_TRANS_LETTERS = {"N": 0, "T": 1, "C": 2}


def value_error(routine: str, name: str, text: str) -> ValueError:
    """The ValueError for a value or a size that breaks a rule."""
    return ValueError(f"{routine}: {text} (failed for {_place(routine, name)})")


def type_error(routine: str, name: str, text: str) -> TypeError:
    """The TypeError for an object or a dtype of a kind that is not accepted."""
    return TypeError(f"{routine}: {text} (failed for {_place(routine, name)})")


def _place(routine: str, name: str) -> str:
    # A routine may be followed by a part of its argument, as in "sharded: shard 1". Those with a
    # dot are called in other ways than SciPy's.
    routine = routine.partition(":")[0]
    places = _PLACES_OF.get(routine, {} if "." in routine else PLACES)
    return places.get(name, f"keyword {name}")


def of_item(routine: str, number: int) -> str:
    """The name of a routine in error texts that are about one item."""
    return f"{routine}: item {number}"


def result_name(routine: str) -> str:
    """What the caller of a routine calls y."""
    return "out" if "out" in _PLACES_OF.get(routine, PLACES) else "y"


def integer(routine: str, name: str, value: Any) -> int:
    """`value` as an int. A float is refused, even a whole one."""
    if isinstance(value, np.bool_):
        return int(value)
    try:
        return operator.index(value)
    except Exception:  # whatever an object's own method raises
        raise type_error(routine, name, f"{name} must be an integer, got {typed(value)}") from None


def flag(routine: str, name: str, value: Any) -> bool:
    """`value` as a bool: any integer is taken, and zero is False."""
    return integer(routine, name, value) != 0


def transposition(routine: str, value: Any) -> int:
    """``trans`` as 0, 1 or 2, from one of these or from BLAS's letters N, T and C."""
    if isinstance(value, str):
        code = _TRANS_LETTERS.get(value.upper())
    else:
        code = integer(routine, "trans", value)
    if code not in (0, 1, 2):
        raise value_error(
            routine,
            "trans",
            "trans must be 0 or 'N' (A), 1 or 'T' (transpose), 2 or 'C' (conjugate transpose),"
            f" got {digits(value) if type(value) is int else shown(value)}",
        )
    return code


def accumulation(routine: str, value: Any) -> str:
    """`value`, if it is one of the words for how products are added up."""
    if not is_word(value, ACCUMULATE):
        raise (ValueError if isinstance(value, str) else TypeError)(
            f"{routine}: accumulate must be one of {', '.join(map(repr, ACCUMULATE))}, got"
            f" {shown(value)}"
        )
    return str(value)


def number(routine: str, name: str, value: Any) -> Any:
    """`value` as a number of Python or NumPy; an array of one element stands for that element."""
    try:
        on_device = hasattr(value, "__cuda_array_interface__") or hasattr(value, "__cuda_ndarray__")
    except Exception:  # an object's own, which is no number either
        on_device = False
    if on_device:
        raise type_error(routine, name, f"{name} must be a number on the host, got {typed(value)}")
    if isinstance(value, np.ndarray) and value.dtype == object and value.size == 1:
        value = value.item()
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc":
            raise type_error(
                routine, name, f"{name} must be a number, got one of dtype {value.dtype}"
            )
        if value.size != 1:
            raise type_error(
                routine, name, f"{name} must be one number, got an array of shape {value.shape}"
            )
        if np.ma.is_masked(value):
            raise type_error(routine, name, f"{name} must be a number, got a masked one")
        return np.asarray(value).reshape(-1)[0] if isinstance(value, np.ndarray) else value
    if isinstance(value, (bool, int, float, complex)):
        return value
    if not isinstance(value, (str, bytes, bytearray)):
        for method, convert in (
            ("__float__", float),
            ("__complex__", complex),
            ("__index__", operator.index),
        ):
            if hasattr(type(value), method):
                try:
                    return convert(value)
                except OverflowError:
                    raise _too_large(routine, name) from None
                # A complex number that says so only when it is asked, a tensor of several, or any
                # other object that promises what it cannot do.
                except Exception:
                    continue
    raise type_error(routine, name, f"{name} must be a number, got {typed(value)}")


def _too_large(routine: str, name: str, dtype: Any = "float64") -> ValueError:
    return value_error(routine, name, f"{name} does not fit {dtype}: too large")


def numbers(routine: str, name: str, array: np.ndarray) -> np.ndarray:
    """An array of objects as one of float64, or of complex128 if one of them is complex.

    :func:`number` decides what is a number. NumPy's own conversion would read text, make a NaN of
    None, and drop units and imaginary parts. Numbers with more digits than float64 keep them.
    """
    found: list[Any] = []
    dtypes: set[np.dtype] = {np.dtype(np.float64)}
    for element in array.flat:
        value = element
        if type(element) not in (int, float):
            try:
                value = number(routine, name, element)
            except TypeError:
                raise type_error(
                    routine,
                    name,
                    f"{name} must hold numbers, got an array of dtype object that holds"
                    f" {typed(element)}",
                ) from None
        if isinstance(value, np.generic):
            dtypes.add(value.dtype)
        elif isinstance(value, complex):
            dtypes.add(np.dtype(np.complex128))
        found.append(value)
    result = np.empty_like(array, np.result_type(*dtypes))
    try:
        result[...] = np.array(found, result.dtype).reshape(array.shape)
    except OverflowError:
        raise _too_large(routine, name) from None
    return result


def is_complex(value: Any) -> bool:
    """Whether a number from :func:`number` is of a complex type, whatever its value."""
    return isinstance(value, (complex, np.complexfloating))


def coefficient(routine: str, name: str, value: Any, dtype: np.dtype) -> Any:
    """alpha or beta as a NumPy scalar of `dtype`; a number too large for it becomes infinite."""
    value = number(routine, name, value)
    if dtype.kind != "c" and is_complex(value):
        raise type_error(
            routine,
            name,
            f"{name} = {value!r} is complex and would lose its imaginary part:"
            f" {routine.partition(':')[0]} computes in {dtype}",
        )
    with np.errstate(all="ignore"):
        try:
            return dtype.type(value)
        except OverflowError:
            raise _too_large(routine, name, dtype) from None


def y_length(rows: int, offy: int, incy: int) -> int:
    """Length of the y that is returned when none was passed."""
    return 1 + offy + (rows - 1) * abs(incy)


def check_arguments(
    routine: str,
    dtype: np.dtype,
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    x_len: int,
    x_stride: int,
    y_len: int | None,
    y_stride: int,
    offx: int = 0,
    incx: int = 1,
    offy: int = 0,
    incy: int = 1,
    trans: int = 0,
    y_dtype: np.dtype | None = None,
) -> Problem:
    """The Problem that these arguments describe, or an error for the first rule they break.

    Parameters
    ----------
    routine : str
        Name for the error texts.
    dtype : numpy.dtype
        Of A and x, once they are where they are computed with.
    a_shape, a_strides : tuple of int
        Shape of A and its strides, in elements.
    x_len, x_stride : int
        Length and element stride of the array that x lies in.
    y_len, y_stride : int
        The same for y; a `y_len` of None stands for the y that is made when none is passed.
    offx, incx, offy, incy, trans : int
        As BLAS has them.
    y_dtype : numpy.dtype, optional
        Of y, if it is another one.
    """
    m, n = a_shape
    y_dtype = dtype if y_dtype is None else y_dtype
    rows, cols = (m, n) if trans == 0 else (n, m)
    for name, inc in (("incx", incx), ("incy", incy)):
        if inc == 0:
            raise value_error(routine, name, f"{name} must not be zero, got {name} = 0")
    _check_vector(routine, "x", x_len, "cols", cols, "offx", offx, "incx", incx)
    if y_len is None and rows == 0 and offy >= 0:
        raise value_error(
            routine,
            "y",
            f"y must be passed when rows = 0: the y made by default would have"
            f" 1 + offy + (rows - 1)*|incy| = {digits(y_length(rows, offy, incy))} elements,"
            f" none of them at offy = {digits(offy)}",
        )
    if y_len is None:
        y_len = y_length(rows, offy, incy)
        if y_len * y_dtype.itemsize > MAX_BYTES:
            raise value_error(
                routine,
                "y",
                "the y made by default would be too large: 1 + offy + (rows - 1)*|incy| ="
                f" {digits(y_len)} elements of {dtype_name(y_dtype)}",
            )
    _check_vector(routine, "y", y_len, "rows", rows, "offy", offy, "incy", incy)

    row_stride, col_stride = a_strides if trans == 0 else a_strides[::-1]
    incx, x_offset = _walk(cols, offx, incx, x_stride)
    incy, y_offset = _walk(rows, offy, incy, y_stride)
    return Problem(
        dtype=dtype,
        m=m,
        n=n,
        trans=trans,
        rows=rows,
        cols=cols,
        conj=trans == 2 and dtype.kind == "c",
        row_stride=row_stride,
        col_stride=col_stride,
        incx=incx,
        incy=incy,
        x_offset=x_offset,
        y_offset=y_offset,
        result=None if y_dtype == dtype else y_dtype,
    )


def _check_vector(
    routine: str,
    name: str,
    length: int,
    count_name: str,
    count: int,
    off_name: str,
    off: int,
    inc_name: str,
    inc: int,
) -> None:
    """Check a vector's offset, and that its increments stay within its length."""
    if off < 0:
        raise value_error(
            routine,
            name,
            f"{off_name} must not be negative, got {off_name} = {digits(off)}",
        )
    needed = off + 1 + (count - 1) * abs(inc)
    if length < needed:
        raise value_error(
            routine,
            name,
            f"{name} is too short: {off_name} + 1 + ({count_name} - 1)*|{inc_name}| ="
            f" {digits(needed)} elements are needed, len({name}) = {length}",
        )
    if off >= length:
        # Only reached when count is 0: the offset must point into the vector even then.
        raise value_error(
            routine,
            name,
            f"{off_name} must be smaller than len({name}), got {off_name} = {digits(off)},"
            f" len({name}) = {length}",
        )


def _walk(count: int, off: int, inc: int, stride: int) -> tuple[int, int]:
    """A vector's step and its first element, in elements of memory.

    A negative increment starts at the far end.
    """
    if count <= 1:
        # No step is taken. The increment that was passed may be too large for 64 bits: drop it.
        return 1, off * stride
    start = off if inc > 0 else off - (count - 1) * inc
    return inc * stride, start * stride
