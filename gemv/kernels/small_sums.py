"""The order of the sums of small matrices, which all kernels for them share.

A row has `unit` * `shares` partial sums. Each takes its columns in order, and then they are added
in pairs: those of a unit first, then those of the shares. With two of both, column j belongs to
partial sum ``j % 4``::

    columns   0, 4, 8, ...   1, 5, 9, ...   2, 6, 10, ...   3, 7, 11, ...
                         \\   /                          \\   /
    a unit              sum                            sum
                              \\                       /
    the shares                          sum

The order is given by the numbers of rows and of columns, the dtype of the sums and the storage
order. No address, leading dimension or number of products enters it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gemv.core.dtypes import Precision
from gemv.core.geometry import LOAD_BYTES
from gemv.core.problem import Problem
from gemv.kernels.depths import in_halves, joined, shared_out

#: The largest number of rows and of columns of a small matrix.
MOST = 32
#: Steps of a partial sum from twice as many of which on shares divide them up, and the most shares.
STEPS, SHARES = 8, 4
#: The same for sums of two numbers: a step of these takes as long as a dozen others.
STEPS_OF_TWO, SHARES_OF_TWO = 2, 16


class Order(NamedTuple):
    """The order of sums.

    Attributes
    ----------
    down : bool
        Whether memory runs down the columns, so that neighbouring threads take neighbouring rows.
    unit : int
        Partial sums that take neighbouring columns: as many as fill 16 bytes, if memory runs along
        the rows and rows are whole numbers of them, else 1.
    shares : int
        So many times as many, a power of two: each share takes every `shares`-th of the units.
    """

    down: bool
    unit: int
    shares: int


def unit_of(precision: Precision) -> int:
    """Sums in 16 bytes."""
    return max(LOAD_BYTES // precision.sums.itemsize, 1)


def runs_down(problem: Problem) -> bool:
    """Whether memory runs down the columns: along the dimension with a unit stride.

    If neither has one, memory runs along that with the smaller stride. A single row is read along.
    """
    access = problem.access
    if problem.rows == 1 or access == "dot":
        return False
    return access == "axpy" or abs(problem.row_stride) < abs(problem.col_stride)


def limits_of(precision: Precision) -> tuple[int, int]:
    """STEPS and SHARES for such sums."""
    of_two = precision.sums.fields is not None
    return (STEPS_OF_TWO, SHARES_OF_TWO) if of_two else (STEPS, SHARES)


def order_of(problem: Problem) -> Order:
    """The order of the sums of a small matrix."""
    precision = problem.precision
    down, unit = runs_down(problem), unit_of(precision)
    if down or problem.cols % unit:
        unit = 1
    least, most = limits_of(precision)
    steps, shares = problem.cols // unit, 1
    while shares < most and steps >= 2 * shares * least:
        shares *= 2
    return Order(down, unit, shares)


def depth_of(cols: int, unit: int, shares: int) -> int:
    """Additions on the longest way from a product to the sum of its row."""
    depths = shared_out(cols // unit, shares) - 1
    for _ in range(unit.bit_length() - 1):
        depths = joined(depths, depths)
    return int(in_halves(np.asarray(depths)))
