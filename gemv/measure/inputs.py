"""Inputs of measurements: problems, random numbers, and buffers that an engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemv.core.dtypes import NARROW
from gemv.core.narrow import cast
from gemv.core.problem import Problem

#: |beta| < 1 keeps y from growing over thousands of calls.
ALPHA, BETA = 1.25, -0.75


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array and the address of its first element: all that an engine asks of an operand."""

    owner: Any
    pointer: int


def as_buffer(array: Any) -> Buffer:
    """The buffer of a device array, or of a NumPy array under the simulator."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = array.__array_interface__
    return Buffer(array, int(interface["data"][0]))


def make_problem(
    m: int,
    n: int,
    dtype: np.dtype,
    order: str,
    op: str,
    strides: tuple[int, int] | None = None,
) -> Problem:
    """The problem of an (m, n) matrix in `order` "C" or "F" and `op` "N", "T" or "C".

    Where no `strides` are given, in elements, the matrix is contiguous.
    """
    if strides is None:
        strides = (n, 1) if order == "C" else (1, m)
    trans = "NTC".index(op)
    rows, cols = (n, m) if trans else (m, n)
    row_stride, col_stride = strides[::-1] if trans else strides
    conj = trans == 2 and dtype.kind == "c"
    return Problem(dtype, m, n, trans, rows, cols, conj, row_stride, col_stride)


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Uniform numbers in (-1, 1), real and imaginary part alike."""
    if dtype in NARROW:
        return cast(random_array(rng, shape, np.dtype(np.float32)), dtype)
    real = np.dtype(dtype.type(0).real.dtype)
    last = shape[-1] * (2 if dtype.kind == "c" else 1)
    values = rng.random((*shape[:-1], last), dtype=real)
    values *= 2
    values -= 1
    return values.view(dtype)
