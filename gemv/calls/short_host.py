"""The short way of NumPy's arrays where SciPy's BLAS computes.

That is so without a GPU, if the host was asked for, and where it is faster than copying A to a GPU.
SciPy's own call on small arrays takes 1 us, so nothing is remembered here: what is plainly right,
arrays of the routine's dtype that are vectors and a matrix of fitting lengths with the default
increments, goes to BLAS at once. Everything else goes the long way, which has the rules.

The first calls of a process are made in Python. Once there were :data:`MANY`, what is usual is done
by machine code (:mod:`gemv.driver.host_call`), which has to be loaded, or compiled on a machine
that never did; it hands the rest on to Python's function.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.calls.faster import Reach
from gemv.calls.remembered import (
    COMPLEX_NUMBERS,
    ONE,
    REAL_NUMBERS,
    UNUSUAL,
    ZERO,
    ShortWay,
)
from gemv.core import trace
from gemv.core.dtypes import DTYPES
from gemv.driver import host_call
from gemv.driver.host_words import EXACT, LETTERS, MAX_SIDE, TRANS
from gemv.engines import binaries
from gemv.engines.cache_folder import CacheWarning
from gemv.engines.host import product, record
from gemv.engines.leading import address_of, has_lines

#: Values of `trans` by what they mean to BLAS.
_TRANS = {value: place % 3 for place, value in enumerate(TRANS)}
#: Calls of a process that Python makes. The code saves 2 us of a call; it is loaded in about 10 ms,
#: or compiled in 0.2 s.
MANY = 1000


def is_number(factor: Any, numbers: frozenset[type]) -> bool:
    """Whether alpha or beta needs no check: of such a type, and no integer that is rounded."""
    return type(factor) in numbers and (type(factor) is not int or -EXACT < factor < EXACT)


def in_machine_code(further: ShortWay, reach: Reach) -> ShortWay | None:
    """The short way that makes usual calls itself; None where that is not possible."""
    routines = {f"{letter}gemv": address_of(DTYPES[letter].char) for letter in LETTERS}
    known = {name: address for name, address in routines.items() if address is not None}
    if len(known) < len(routines):
        return None
    dtypes = {letter: DTYPES[letter] for letter in LETTERS}
    call = host_call.Call(further, known, dtypes, trace.OPEN, reach.most)
    try:
        return host_call.make(call, binaries.host_call)
    except (CacheWarning, ImportError):  # a warning that is an error, no LLVM, another NumPy
        return None


def short_ways(
    by_environment: bool, reach: Reach, install: Callable[[dict[type, ShortWay]], None]
) -> dict[type, ShortWay]:
    """The function by the type of A.

    Parameters
    ----------
    by_environment : bool
        Whether ``GEMV_BACKEND=host`` alone chose the backend, so that each call looks there again.
    reach : Reach
        Which arrays the host computes with; for larger ones the long way compares host and GPU.
    install : callable
        Puts other functions in the place of these.
    """
    from scipy.linalg import blas

    of_letter = {}
    for letter in LETTERS:
        dtype, name = DTYPES[letter], f"{letter}gemv"
        numbers = COMPLEX_NUMBERS if dtype.kind == "c" else REAL_NUMBERS
        of_letter[letter] = dtype, getattr(blas, name), name, numbers, dtype.itemsize
    #: By name of the routine, then by NumPy's letter for a dtype: the dtype, SciPy's routine, its
    #: name, types of alpha and beta, bytes of an element.
    kinds = {f"{letter}gemv": {kind[0].char: kind} for letter, kind in of_letter.items()}
    kinds["gemv"] = {kind[0].char: kind for kind in of_letter.values()}
    tracing, ndarray, environment = trace.open_traces, np.ndarray, os.environ
    most, most_gathered = reach.most, reach.most_gathered
    # The environment can choose another backend with each call, which only Python asks.
    made = itertools.count(1 if not by_environment else MANY + 1)

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        if (
            type(x) is not ndarray
            or offx is not ZERO or incx is not ONE or offy is not ZERO or incy is not ONE
            or kernel is not None or stream is not None or coefficients is not None
        ):  # fmt: skip
            return UNUSUAL
        try:
            rows, cols = a.shape
            (length,) = x.shape
            dtype, gemv, name, numbers, size = kinds[routine][a.dtype.char]
        except (ValueError, KeyError):
            return UNUSUAL
        if trans is not ZERO:
            if type(trans) not in (int, str) or trans not in _TRANS:
                return UNUSUAL
            trans = _TRANS[trans]
            if trans:
                rows, cols = cols, rows
        a_base, x_base = a.base, x.base
        if (
            length != cols or not rows or not cols or rows > MAX_SIDE or cols > MAX_SIDE
            or a.nbytes > most
            or (a.dtype is not dtype and a.dtype != dtype)
            or (x.dtype is not dtype and x.dtype != dtype)
            # A view reaches beyond memory only if that is not NumPy's own.
            or (a_base is not None and (type(a_base) is not ndarray or a_base.base is not None))
            or (x_base is not None and (type(x_base) is not ndarray or x_base.base is not None))
            or (type(alpha) is not float and not is_number(alpha, numbers))
            or (beta is not ZERO and type(beta) is not float and not is_number(beta, numbers))
            or (by_environment and environment.get("GEMV_BACKEND", "").strip().lower() != "host")
        ):  # fmt: skip
            return UNUSUAL
        if y is None:
            if (beta is not ZERO and beta != 0) or (
                overwrite_y is not ZERO and type(overwrite_y) not in (bool, int)
            ):
                return UNUSUAL
            start = None
        else:
            if (
                type(y) is not ndarray or y.dtype != dtype or y.shape != (rows,)
                or (alpha == 0 and beta == 1)
            ):  # fmt: skip
                return UNUSUAL
            y_base = y.base
            if y_base is not None and (type(y_base) is not ndarray or y_base.base is not None):
                return UNUSUAL
            if overwrite_y is ZERO or overwrite_y is False:
                start = y.copy()
            elif overwrite_y is ONE or overwrite_y is True:
                if not y.flags.carray:  # writeable, aligned and contiguous
                    return UNUSUAL
                # Three arrays with memory of their own do not overlap.
                apart = y_base is None and a_base is None and x_base is None and y is not x
                if not apart and (np.may_share_memory(y, x) or np.may_share_memory(y, a)):
                    return UNUSUAL
                start = y
            else:
                return UNUSUAL
        down, along = a.strides
        # The two usual cases of `product`, without a call.
        if down == size and along == size * (cols if trans else rows):
            result = gemv(alpha, a, x, beta, start, 0, 1, 0, 1, trans, 1)
        elif along == size and trans != 2 and down == size * (rows if trans else cols):
            result = gemv(alpha, a.T, x, beta, start, 0, 1, 0, 1, 0 if trans else 1, 1)
        else:
            if a.nbytes > most_gathered and not has_lines(a):
                return UNUSUAL
            result = product(gemv, trans, alpha, a, x, beta, start)
        if tracing():
            with trace.compared(reach.comparison(a)):
                record(name)
        if next(made) == MANY:
            quick = in_machine_code(call, reach)
            if quick is not None:
                install({np.ndarray: quick})
        return result

    return {np.ndarray: call}
