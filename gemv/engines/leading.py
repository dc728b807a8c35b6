"""BLAS's gemv with a leading dimension: a view with gaps between its columns, read where it lies.

SciPy's wrappers take no leading dimension and copy such a view. Their BLAS does take one, and
`scipy.linalg.cython_blas` tells where its functions are in memory.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gemv.driver.host_words import HEAD, MAX_SIDE
from gemv.driver.native import in_capsule

#: Which of BLAS's arguments are integers: m, n, leading dimension, increments of x and y.
_INTEGERS = {1, 2, 5, 7, 10}
_COUNT = 11
_integer = struct.Struct("i").pack
_ONE = _integer(1)
_TRANS = b"N", b"T", b"C"
#: By NumPy's letter of a dtype, BLAS's, and how a factor is packed: real and imaginary part.
_KINDS = {"f": ("s", "f"), "d": ("d", "d"), "F": ("c", "2f"), "D": ("z", "2d")}
_PACKS = {letter: struct.Struct(form).pack for letter, (_, form) in _KINDS.items()}
_pointer = ctypes.c_void_p.from_address


def _address_in_head(array: np.ndarray) -> ctypes.c_void_p:
    """Address of the first element, from where NumPy's C headers have it: ten times as fast."""
    return _pointer(id(array) + HEAD)


def _address_by_attribute(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _fastest_address() -> Callable[[np.ndarray], ctypes.c_void_p]:
    """That of the head, where this Python's objects begin as most do."""
    probe = np.ones(2)
    found = _address_in_head(probe).value == _address_by_attribute(probe).value
    return _address_in_head if found else _address_by_attribute


_address = _fastest_address()


def address_of(letter: str) -> int | None:
    """Where BLAS's function for NumPy's letter of a dtype is; None if it has other integers."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[f"{_KINDS[letter][0]}gemv"]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.argtypes, name_of.restype = [ctypes.py_object], ctypes.c_char_p
    name = name_of(capsule)  # C's type of the function
    arguments = name.decode().partition("(")[2].rstrip(")").split(", ")
    integers = {place for place, argument in enumerate(arguments) if argument == "int *"}
    if len(arguments) != _COUNT or integers != _INTEGERS:
        return None
    return in_capsule(capsule, name)


@cache
def function_of(letter: str) -> Callable[..., None] | None:
    """That function as ctypes calls it."""
    address = address_of(letter)
    # Its arguments are bytes and pointers, which need no conversion: types would take 0.6 us.
    return None if address is None else ctypes.CFUNCTYPE(None)(address)


def has_lines(a: np.ndarray) -> bool:
    """Whether A's columns or rows are what BLAS takes as columns.

    Their elements follow each other, and they are apart by multiples of an element's size, without
    overlaps.
    """
    (m, n), size, (down, along) = a.shape, a.itemsize, a.strides
    if down == size and (n == 1 or (along >= m * size and along % size == 0)):
        return True
    return along == size and (m == 1 or (down >= n * size and down % size == 0))


def takes(a: np.ndarray) -> bool:
    """Whether :func:`gemv` takes A or its transpose."""
    return (
        has_lines(a)
        and a.flags.aligned
        and max(a.strides) <= MAX_SIDE * a.itemsize
        and function_of(a.dtype.char) is not None
    )


def _factor(dtype: np.dtype, factor: Any) -> bytes:
    """alpha or beta as BLAS reads it."""
    try:
        if dtype.kind == "c":
            return _PACKS[dtype.char](factor.real, factor.imag)
        return _PACKS[dtype.char](factor)
    except OverflowError:  # it is infinite in this dtype
        with np.errstate(all="ignore"):
            return dtype.type(factor).tobytes()


def gemv(
    alpha: Any,
    a: np.ndarray,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
    offx: int,
    incx: int,
    offy: int,
    incy: int,
    trans: int,
    overwrite_y: int,
) -> np.ndarray:
    """``alpha*op(A)*x + beta*y``, written over y if there is one, with the arguments of SciPy's.

    Parameters
    ----------
    a : ndarray, shape (m, n)
        The elements of a column follow each other; :func:`takes` said yes.
    x : ndarray
        Of A's dtype; copied if its elements do not follow each other.
    y : ndarray or None
        Of A's dtype, aligned and without gaps; zeros if None.
    offx, incx, offy, incy, overwrite_y : int
        Always 0, 1, 0, 1 and 1 here.
    trans : int
        0 for A, 1 for its transpose, 2 for its conjugate transpose.
    """
    m, n = a.shape
    dtype = a.dtype
    function = function_of(dtype.char)
    assert function is not None  # `takes` said so
    flags = x.flags
    if not flags.c_contiguous or not flags.aligned:
        x = np.array(x)
    if y is None:
        y = np.zeros(n if trans else m, dtype)
    apart = a.strides[1] // dtype.itemsize if n > 1 else m
    function(
        _TRANS[trans], _integer(m), _integer(n), _factor(dtype, alpha), _address(a),
        _integer(apart), _address(x), _ONE, _factor(dtype, beta), _address(y), _ONE,
    )  # fmt: skip
    return y
