"""A call on NumPy's arrays in machine code: what is plainly right goes to BLAS at once.

Python's part of such a call, types, lengths and strides read one by one, takes 2 us, as long as
SciPy's whole call for 64 x 64 float64. Machine code reads the same from the arrays as NumPy's C
headers lay them out, and calls BLAS with a leading dimension, which SciPy's wrappers cannot pass: a
view with gaps between its columns or rows is read where it lies. Everything else it hands on, with
all arguments, to the function that knows the rules.

The code is written in :mod:`gemv.driver.host_call_ir`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gemv.driver import native
from gemv.driver.host_words import (
    ALIGNED,
    BASE,
    CONTIGUOUS,
    DATA,
    DTYPE,
    FLAGS,
    HEAD,
    LENGTHS,
    LETTERS,
    NUMPY,
    OBJECTS,
    PYTHON,
    RANK,
    STRIDES,
    TRANS,
    WORDS,
    WRITEABLE,
)


class Call(NamedTuple):
    """What a call needs of the other rooms.

    Attributes
    ----------
    further : callable
        Gets all arguments of a call that is not made here.
    routines : mapping of str to int
        Addresses of BLAS's routines, by name.
    dtypes : mapping of str to numpy.dtype
        By letter of BLAS's routine.
    traces : numpy.ndarray
        A word that is not 0 while calls are recorded: then none is made here.
    most : int
        Bytes of the largest A.
    """

    further: Callable[..., Any]
    routines: Mapping[str, int]
    dtypes: Mapping[str, np.dtype]
    traces: np.ndarray
    most: int


@functools.cache
def lies_as_expected() -> bool:
    """Whether this NumPy keeps of its arrays what is read here where it is read."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    probe = np.zeros((5, 7), np.float32, order="F")[1:4, 2:4]
    word = (ctypes.c_int64 * 7).from_address(id(probe) + HEAD)
    if word[DATA] != probe.ctypes.data or word[RANK] & 0xFFFFFFFF != 2:
        return False
    lengths = (ctypes.c_int64 * 2).from_address(word[LENGTHS])
    strides = (ctypes.c_int64 * 2).from_address(word[STRIDES])
    return (
        tuple(lengths) == probe.shape
        and tuple(strides) == probe.strides
        and word[BASE] == id(probe.base)
        and word[DTYPE] == id(probe.dtype)
        and word[FLAGS] & 0xFFFFFFFF == probe.flags.num
        and probe.flags.num & (CONTIGUOUS | ALIGNED | WRITEABLE) == ALIGNED | WRITEABLE
        and ctypes.c_int64.from_address(id(probe) + HEAD - 8).value == id(np.ndarray)
    )


def make(call: Call, kept: native.Kept = native.compiled_now) -> Callable[..., Any] | None:
    """A function with the arguments of a short way; None where arrays lie otherwise in memory."""
    if not lies_as_expected():
        return None
    words = np.zeros(len(WORDS), np.int64)
    found = {name: native.python(name) for name in PYTHON} | _numpy() | dict(call.routines)
    found |= {"traces": call.traces.ctypes.data, "most": call.most}
    words[:] = [found[name] for name in WORDS]
    named: dict[str, Any] = {
        "words": words, "further": call.further, "None": None, "ndarray": np.ndarray,
        "float": float, "int": int, "float64": np.float64, "complex": complex,
        "complex128": np.complex128, "gemv": "gemv", "False": False, "True": True,
    }  # fmt: skip
    named |= {f"trans {value}": value for value in TRANS}
    named |= {f"dtype {letter}": call.dtypes[letter] for letter in LETTERS}
    # By identity: the names of the public routines are interned as well.
    named |= {f"name {letter}": sys.intern(f"{letter}gemv") for letter in LETTERS}
    objects = np.empty(len(OBJECTS), object)
    objects[:] = [named[name] for name in OBJECTS]
    return native.builtin("gemv", _address(kept), objects)


@functools.cache
def _address(kept: native.Kept) -> int:
    def write() -> Any:
        from gemv.driver import host_call_ir

        return host_call_ir.module()

    return native.load(write, kept)("host_call")


def _numpy() -> dict[str, int]:
    """Addresses of NumPy's C functions, from where its header ``__multiarray_api.h`` has them.

    Raises
    ------
    ImportError
        If a later NumPy has them elsewhere.
    """
    module = importlib.import_module("numpy._core._multiarray_umath")
    capsule = vars(module).get("_ARRAY_API")
    if capsule is None:
        raise ImportError("NumPy's table of C functions is not where its header looks for it")
    table = native.in_capsule(capsule, None)
    places = (ctypes.c_int64 * (max(NUMPY.values()) + 1)).from_address(table)
    return {name: places[place] for name, place in NUMPY.items()}
