"""Cells: problems that are similar enough to get the same constants.

A choice by the formula takes 5 to 8 ms of a desk machine. So it is made once for a cell. Cells
differ in the *kind* of a problem, and in the length and the number of its lines. Both count exactly
up to 16. From there on a power of two has eight steps for the length of lines, and four for their
number: the length decides how full the last pass of a thread is, which is the finer thing.

The largest size of a cell is a power of two, or a multiple of an eighth or a quarter of it.
Threads, lanes and loads are powers of two, so a launch needs one pass more just above such a size.
No such jump is inside of a cell. When these sizes were in the middle of cells, problems above the
middle got what is best below it: on an NVIDIA H100, 2226 x 52 float16, transposed, took 2.51 us,
and 1.87 us by another launch.
"""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.dtypes import DTYPES, PREFIXES
from gemv.core.geometry import LOAD_BYTES, SECTOR_BYTES
from gemv.core.problem import Problem

#: Sizes up to this have an index of their own.
_EXACT = 16
#: Elements of a line, and lines, of the last cells.
_LARGEST = 1 << 27
#: Lines up to this length can be one stretch of memory together: see :attr:`Kind.close`.
CLOSE_BYTES = 128 * 16


def index_of_line(size: int) -> int:
    """The index of the cells that have lines of `size` elements."""
    if size <= _EXACT:
        return size
    below = (size if size < _LARGEST else _LARGEST) - 1
    bits = below.bit_length()
    return 8 * bits + (below >> bits - 4) - 31


def index_of_lines(count: int) -> int:
    """The index of the cells that have `count` lines."""
    if count <= _EXACT:
        return count
    below = (count if count < _LARGEST else _LARGEST) - 1
    bits = below.bit_length()
    return 4 * bits + (below >> bits - 3) - 7


def line_of(index: int) -> int:
    """The length of the longest lines of the cells with this index."""
    if index <= _EXACT:
        return index
    bits, eighth = divmod(index + 31, 8)
    return (8 + eighth + 1) << bits - 5


def lines_of(index: int) -> int:
    """The largest number of lines of the cells with this index."""
    if index <= _EXACT:
        return index
    bits, quarter = divmod(index + 7, 4)
    return (4 + quarter + 1) << bits - 4


#: The number of indices of each: a function above gives less than this.
LINE_INDICES, LINES_INDICES = index_of_line(_LARGEST) + 1, index_of_lines(_LARGEST) + 1


class Kind(NamedTuple):
    """What cells have in common besides the sizes of their problems.

    Attributes
    ----------
    letter : str
        BLAS letter of the dtype. "b" has the kind of "h".
    access : {"dot", "axpy"}
    width : int
        Elements that one load of A moves.
    whole : bool
        Whether every line is a whole number of vectors.
    close : bool
        Whether less than 32 bytes lie between short lines, so that all are one stretch of memory.
    free : bool
        Whether kernels may be chosen by how operands are aligned in memory.
    """

    letter: str
    access: str
    width: int
    whole: bool
    close: bool
    free: bool

    def __str__(self) -> str:
        flags = ("whole", "close", "free")
        said = [name for name in flags if getattr(self, name)]
        return " ".join([self.letter, self.access, str(self.width), *said])


def kind_of(problem: Problem, by_alignment: bool = True) -> Kind | None:
    """The kind of a problem; None if memory runs neither along the sum nor along y."""
    access = problem.access
    if access == "strided":
        return None
    letter, size = PREFIXES[problem.dtype], problem.dtype.itemsize
    width = problem.widths[0]
    if access == "axpy":
        step, line, lines = problem.col_stride, problem.rows, problem.cols
    else:
        step, line, lines = problem.row_stride, problem.cols, problem.rows
    one = lines == 1
    gap = 0 if one else (step - line) * size
    close = access == "axpy" and 0 <= gap < SECTOR_BYTES and line * size <= CLOSE_BYTES
    return Kind("h" if letter == "b" else letter, access, width, problem.whole, close, by_alignment)


def kinds() -> list[Kind]:
    """All kinds that problems can have."""
    found = []
    for letter in "hsdcz":
        size = DTYPES[letter].itemsize
        widths = [1 << k for k in range(LOAD_BYTES.bit_length()) if size << k <= LOAD_BYTES]
        for width in widths:
            for access in ("dot", "axpy"):
                for whole in (True, False) if width > 1 else (False,):
                    for close in (False, True) if access == "axpy" else (False,):
                        for free in (True, False) if width == 1 else (True,):
                            found.append(Kind(letter, access, width, whole, close, free))
    return found


def problem_with(kind: Kind, line: int, lines: int) -> Problem | None:
    """A problem with lines of this length and number; None if the kind has none."""
    if line < 1 or lines < 1:
        return None
    dtype = DTYPES[kind.letter]
    size, width = dtype.itemsize, kind.width
    if width > 1 and (line % width == 0) != kind.whole:
        return None
    bytes_between = width * size  # lines begin at multiples of this, and of no more
    step = -(-line * size // bytes_between) * bytes_between
    if kind.access == "axpy" and not kind.close and line * size <= CLOSE_BYTES:
        step += SECTOR_BYTES
    if step == size:  # else memory would run both ways
        step += bytes_between
    if bytes_between < LOAD_BYTES and step % (2 * bytes_between) == 0:
        step += bytes_between
    if lines == 1:
        step = line * size
    if kind.close != (kind.access == "axpy" and line * size <= CLOSE_BYTES
                      and step - line * size < SECTOR_BYTES):  # fmt: skip
        return None
    step //= size
    rows, cols, row_stride, col_stride = (
        (line, lines, 1, step) if kind.access == "axpy" else (lines, line, step, 1)
    )
    problem = Problem(dtype, rows, cols, 0, rows, cols, False, row_stride, col_stride)
    if problem.access != kind.access:
        return None  # a single row without gaps, or a single column
    return problem.aligned(width * size, LOAD_BYTES)


def representative(kind: Kind, line_index: int, lines_index: int) -> Problem | None:
    """The largest problem of a cell; None if the cell has none."""
    line = line_of(line_index)
    if kind.width > 1 and not kind.whole and line % kind.width == 0:
        line -= 1
        if index_of_line(line) != line_index:
            return None
    return problem_with(kind, line, lines_of(lines_index))


def indices_of(problem: Problem) -> tuple[int, int]:
    """The indices of the length and of the number of lines."""
    line, lines = (
        (problem.rows, problem.cols) if problem.access == "axpy" else (problem.cols, problem.rows)
    )
    return index_of_line(line), index_of_lines(lines)
