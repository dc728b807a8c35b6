"""Lists of products of different sizes to measure: how they are drawn, and where they lie."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import SECTOR_BYTES, ceil_div
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.measure.cells import check_names
from gemv.measure.checks import wide
from gemv.measure.frames import aligned
from gemv.measure.inputs import make_problem

#: The smallest and the largest side that is drawn, and the bytes that all matrices have at least.
LEAST, MOST, BYTES = 4, 512, 64 << 20
#: For the simulator: the largest side, and how many matrices. Few threads, several kernels.
SIMULATED_MOST, SIMULATED_COUNT = 40, 5


@dataclass(frozen=True, slots=True)
class RaggedCell:
    """One list of products to measure.

    Attributes
    ----------
    count : int
        How many matrices there are.
    dtype, op, order : str
        As of :class:`~gemv.measure.cells.Cell`, for all of them.
    least, most : int
        m and n are independent and log-uniform between these, both included.
    seed : int
        Of the sizes. The same seed gives the same sizes, and a longer list begins with them.
    """

    count: int
    dtype: str
    op: str = "N"
    order: str = "C"
    least: int = LEAST
    most: int = MOST
    seed: int = 0

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """m and n of each matrix."""
        return list(itertools.islice(drawn(self.least, self.most, self.seed), self.count))


def drawn(least: int, most: int, seed: int) -> Iterator[tuple[int, int]]:
    """Sizes without end."""
    number = random.Random(seed).random  # the one method whose sequence never changes
    while True:
        m, n = (int(least * ((most + 1) / least) ** number()) for _ in "mn")
        yield m, n


def count_of(nbytes: int, dtype: str, least: int = LEAST, most: int = MOST, seed: int = 0) -> int:
    """How many matrices have so many bytes."""
    left, size = nbytes, DTYPES[dtype].itemsize
    for number, (m, n) in enumerate(drawn(least, most, seed), 1):
        left -= m * n * size
        if left <= 0:
            return number
    raise AssertionError


def cells(
    count: int | None,
    dtypes: Iterable[str] = "sdchb",
    ops: Sequence[str] = "NT",
    orders: Sequence[str] = "CF",
    seed: int = 0,
    most: int = MOST,
) -> list[RaggedCell]:
    """All combinations; without a `count`, so many matrices that they have 64 MiB.

    Raises
    ------
    ValueError
        For a count below 1, a negative seed, or an unknown dtype, op or order.
    """
    if (count is not None and count < 1) or seed < 0:
        raise ValueError(
            "bench: the number of matrices must be at least 1 and their seed at least 0, got"
            f" {count} and {seed}"
        )
    found = []
    for dtype, op, order in itertools.product(dtypes, ops, orders):
        check_names(dtype, op, order)
        number = count_of(BYTES, dtype, LEAST, most, seed) if count is None else count
        found.append(RaggedCell(number, dtype, op, order, LEAST, most, seed))
    return found


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """Where the operands of a list lie in a frame: all A, then all x, then all y.

    Each begins at a multiple of 256 bytes, as memory of its own would.

    Attributes
    ----------
    cell : RaggedCell
    problems : list of Problem
        Without the alignment of A and x.
    a_at, x_at, y_at : list of int
        Bytes from the start of the frame to each A, x and y.
    y_start, nbytes : int
        Bytes from the start of the frame to the first y, and to the end.
    """

    cell: RaggedCell
    problems: list[Problem]
    a_at: list[int]
    x_at: list[int]
    y_at: list[int]
    y_start: int
    nbytes: int

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.cell.dtype]

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that the products have to read and to write, in whole sectors of 32 bytes."""
        size = self.dtype.itemsize

        def bytes_of(counts: Iterable[int]) -> int:
            return sum(ceil_div(count * size, SECTOR_BYTES) * SECTOR_BYTES for count in counts)

        return (
            bytes_of(p.m * p.n for p in self.problems) + bytes_of(p.cols for p in self.problems),
            bytes_of(p.rows for p in self.problems),
        )

    @property
    def padding(self) -> float:
        """How many times as many elements the matrices have, padded to the largest m and n."""
        sizes = [(p.m, p.n) for p in self.problems]
        most_m, most_n = (max(each) for each in zip(*sizes, strict=True))
        return len(sizes) * most_m * most_n / sum(m * n for m, n in sizes)

    def expected(self, pattern: np.ndarray) -> list[np.ndarray]:
        """Each y by NumPy, in wide precision and rounded once, in a frame full of `pattern`."""
        size = self.dtype.itemsize
        frame = np.resize(pattern, self.nbytes // size)
        results = []
        for problem, a_at, x_at in zip(self.problems, self.a_at, self.x_at, strict=True):
            a = wide(frame[a_at // size :][: problem.m * problem.n])
            by_rows = self.cell.order == "C"
            a = a.reshape(problem.m, problem.n) if by_rows else a.reshape(problem.n, problem.m).T
            a = a.T if problem.trans else a
            x = wide(frame[x_at // size :][: problem.cols])
            results.append(cast((a.conj() if problem.conj else a) @ x, self.dtype))
        return results


def lay_out(cell: RaggedCell) -> RaggedLayout:
    """The frame of a list."""
    dtype = DTYPES[cell.dtype]
    problems = [make_problem(m, n, dtype, cell.order, cell.op) for m, n in cell.sizes]
    size, end = dtype.itemsize, 0

    def placed(counts: Iterable[int]) -> list[int]:
        """Where vectors of so many elements begin, from `end` on."""
        nonlocal end
        found = []
        for count in counts:
            found.append(end)
            end = aligned(end + count * size)
        return found

    a_at = placed(p.m * p.n for p in problems)
    x_at = placed(p.cols for p in problems)
    y_start = end
    y_at = placed(p.rows for p in problems)
    return RaggedLayout(cell, problems, a_at, x_at, y_at, y_start, end)
