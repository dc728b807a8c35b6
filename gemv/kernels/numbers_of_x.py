"""Numbers of x for several vectors, which the threads of a block bring to shared memory.

The numbers that all vectors have for a column are neighbours there, so that ``outer_add`` loads 16
bytes of them at a time. A thread brings those of one vector, and neighbouring threads those of
neighbouring vectors: they store side by side, and each of them converts and conjugates its numbers
once for the whole block.

To load a number and to store it are two steps, so that a kernel can have something else to do while
numbers are on their way: a thread keeps what it has loaded in registers until their place is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.core.dtypes import DTYPES, Precision
from gemv.core.geometry import ceil_div
from gemv.kernels.spec import Spec


def x_dtype_of(precision: Precision) -> np.dtype:
    """The dtype of a number of x in shared memory: that in which a thread has it in a register."""
    if precision.data == DTYPES["h"]:  # whose products float32 holds exactly
        return DTYPES["s"]
    # A sum of two numbers is made of products of single ones.
    return precision.sums if precision.sums.fields is None else precision.factors


def x_bytes(columns: int, count: int, precision: Precision) -> int:
    """Bytes of the numbers that `count` vectors have for so many columns."""
    return columns * count * x_dtype_of(precision).itemsize


def x_element_of(spec: Spec) -> Any:
    """The type of a shared array of numbers of x."""
    from gemv.language import exact_of_arrays

    sums = spec.precision.sums
    return x_dtype_of(spec.precision).type if sums.fields is None else exact_of_arrays(sums)


def x_movers(count: int, columns: int, threads: int, spec: Spec) -> tuple[Callable, ...]:
    """Three functions that bring the numbers of `count` vectors for `columns` columns.

    ``own_numbers(x, x_step, incx, vector, vectors, tid)`` says where a thread finds what it brings,
    if the block has the vectors from `vector` on. What it gives is the `own` of the others.
    ``numbers_of(own, first, incx, end, tid)`` loads the numbers of this thread, from column `first`
    on; they are zeros from column `end` on.
    ``put_numbers(xs, at, numbers, tid, own)`` stores them; ``xs[at]`` is the place of the first
    column.
    """
    from gemv import language
    from gemv.language import device, gather_some, moved, quotient

    of_x = language.conjugated if spec.conjugate_x else language.same
    PLACES, APART = columns * count, threads // count
    TURNS = ceil_div(PLACES, threads)

    @device
    def own_numbers(x, x_step, incx, vector, vectors, tid):
        return of_x(moved(x, min(vector + tid % count, vectors - 1) * x_step))

    @device
    def numbers_of(x, first, incx, end, tid):
        c = first + tid // count
        # Threads behind the last place have nothing to bring.
        mine = end if threads <= PLACES or tid < PLACES else first
        valid = quotient(mine - 1 - c, APART) + 1 if c < mine else 0
        return gather_some(x, c, APART, TURNS, incx, 1, valid)

    lines = ["def put_numbers(xs, at, numbers, tid, own):"]
    for turn in range(TURNS):
        first = turn * threads
        if first + threads > PLACES:
            lines.append(f"    if tid < {PLACES - first}:")
        indent = "        " if first + threads > PLACES else "    "
        lines.append(f"{indent}xs[at + {first} + tid] = numbers[{turn}]")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return own_numbers, numbers_of, device(scope["put_numbers"])
