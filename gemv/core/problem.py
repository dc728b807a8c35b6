"""The Problem record: one gemv as kernels and selection see it.

It is a named tuple, because every call makes one and looks one up: a named tuple is made, compared
and hashed several times faster than a frozen dataclass. Nothing here imports CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gemv.core.dtypes import Precision
from gemv.core.geometry import LOAD_BYTES, Geometry

#: Where A is *sparse*: bytes of its longest line, least bytes between two lines, and least bytes of
#: A. Memory is read by 64 bytes. On an H200 complex128 T by rows took 0.64 of the time with loads
#: that bring nothing else where A was 8232710 x 4 out of 8 columns, and 0.95 where it was
#: 4000000 x 9 out of 13.
SHORT_LINE, LEAST_GAP, LARGE_SPARSE = 256, 64, 1 << 20


class Problem(NamedTuple):
    """One gemv with storage order and ``trans`` folded away.

    A kernel sees ``op(A)[i, j] = a[i * row_stride + j * col_stride]``, conjugated if `conj`,
    for ``0 <= i < rows`` and ``0 <= j < cols``: a transposition only exchanges the two strides.

    Attributes
    ----------
    dtype : numpy.dtype
        Of A and x.
    m, n : int
        Shape of ``a`` as it was passed.
    trans : int
        0, 1 or 2 for A, its transpose, its conjugate transpose.
    rows, cols : int
        Lengths of y and x: ``(m, n)``, or ``(n, m)`` when `trans` is not 0.
    conj : bool
        Whether elements of A are conjugated (never for a real dtype).
    row_stride, col_stride : int
        Distance in elements from ``op(A)[i, j]`` to ``op(A)[i + 1, j]`` and ``op(A)[i, j + 1]``.
    incx, incy : int
        Distance in elements from ``x[j]`` to ``x[j + 1]`` and from ``y[i]`` to ``y[i + 1]``.
    x_offset, y_offset : int
        Distance in elements from the first element of the arrays passed to ``x[0]`` and ``y[0]``.
    a_alignment, x_alignment : int
        Bytes, a power of two up to 16, that divide the address of every line of A along its
        unit stride, and of ``x[0]``; 0 while the addresses are not known.
    result : numpy.dtype or None
        Dtype of y; None for that of A and x.
    accumulate : {"plain", "wide", "pairs"}
        The precision of products and sums: see :meth:`Precision.of`.
    """

    dtype: np.dtype
    m: int
    n: int
    trans: int
    rows: int
    cols: int
    conj: bool
    row_stride: int
    col_stride: int
    incx: int = 1
    incy: int = 1
    x_offset: int = 0
    y_offset: int = 0
    a_alignment: int = 0
    x_alignment: int = 0
    result: np.dtype | None = None
    accumulate: str = "plain"

    @property
    def y_dtype(self) -> np.dtype:
        """Dtype of y."""
        return self.dtype if self.result is None else self.result

    @property
    def precision(self) -> Precision:
        """The dtypes of all its numbers."""
        return Precision.of(self.dtype, self.result, self.accumulate)

    def at(self, a_pointer: int, x_pointer: int) -> Problem:
        """This problem with the alignments that follow from the addresses of A and x.

        `a_pointer` is the address of the first element of A, `x_pointer` that of the array of x.
        """
        return all_at((self,), (a_pointer,), (x_pointer,))[0]

    def aligned(self, a_alignment: int, x_alignment: int) -> Problem:
        """This problem with other alignments."""
        both = (a_alignment, x_alignment)
        return Problem._make((*self[:_ALIGNMENTS], *both, *self[_ALIGNMENTS + 2 :]))

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of A, and of x along the sum, that one load of a thread can move.

        For A that is 1, or more along a unit stride whose alignment is known to allow it. For x it
        is the same number, or 0 if x has to be read element by element.
        """
        size = self.dtype.itemsize
        a_width = self.a_alignment // size or 1
        if a_width > 1 and self.row_stride != 1 and self.col_stride != 1:
            a_width = 1
        whole = self.incx == 1 and self.x_alignment >= a_width * size
        return a_width, a_width if whole else 0

    @property
    def whole(self) -> bool:
        """Whether every line of A is a whole number of vectors of two or more elements."""
        width = self.widths[0]
        return width > 1 and (self.rows if self.access == "axpy" else self.cols) % width == 0

    @property
    def splits_elements(self) -> bool:
        """Whether the address of an element of A may be no multiple of the element's size.

        That of a complex element is, in general, a multiple of the size of its real part only. Wide
        loads need elements at multiples of their size.
        """
        return 0 < self.a_alignment < self.dtype.itemsize

    @property
    def access(self) -> str:
        """How memory runs: ``"dot"`` along the sum, ``"axpy"`` along y, else ``"strided"``."""
        if self.col_stride == 1 and not (self.cols == 1 and self.row_stride == 1):
            return "dot"
        if self.row_stride == 1:
            return "axpy"
        return "strided"

    @property
    def lines(self) -> int:
        """Number of lines, the pieces of A along its unit stride: its rows or its columns."""
        return self.cols if self.access == "axpy" else self.rows

    @property
    def line_bytes(self) -> int:
        """Length of a line in bytes."""
        return (self.rows if self.access == "axpy" else self.cols) * self.dtype.itemsize

    @property
    def sparse(self) -> bool:
        """Whether a large A has short lines that lie far apart.

        Then loads should bring nothing but their own bytes to the L2 cache. Elsewhere they bring
        the whole 128 bytes around them, which other loads want.
        """
        size, row_step, col_step = self.dtype.itemsize, self.row_stride, self.col_stride
        if row_step == 1:
            line, apart = self.rows, col_step
        elif col_step == 1:
            line, apart = self.cols, row_step
        else:
            line, apart = 1, min(abs(row_step), abs(col_step))
            if 1 in (self.rows, self.cols):
                apart = row_step if self.cols == 1 else col_step
        gap = (abs(apart) - line) * size
        return (
            gap >= LEAST_GAP
            and line * size <= SHORT_LINE
            and self.rows * self.cols * size >= LARGE_SPARSE
        )

    @property
    def phases(self) -> int:
        """How many lines follow each other before one begins at the same address modulo 16 bytes.

        1, 2, 4 or 8, and no more than there are lines, rounded up to a power of two. Example: rows
        of 5 float32 begin 20 bytes apart, so rows 0, 4, 8, ... have the same phase, and there are 4
        phases.
        """
        down = self.access == "axpy"
        lines, step = (self.cols, self.col_stride) if down else (self.rows, self.row_stride)
        return phases_of(lines, step * self.dtype.itemsize)

    def arguments(self, geometry: Geometry) -> dict[str, int]:
        """The integer arguments of a kernel function, by the names of its parameters."""
        return {
            "rows": self.rows,
            "cols": self.cols,
            "row_stride": self.row_stride,
            "col_stride": self.col_stride,
            "incx": self.incx,
            "incy": self.incy,
            **geometry.sizes,
        }

    @property
    def heads(self) -> range:
        """Elements that lines of A may have before the first multiple of the bytes of a load.

        Those that are possible for what is known of addresses: the alignment and the distance
        between lines.
        """
        size, width = self.dtype.itemsize, LOAD_BYTES // self.dtype.itemsize
        apart = (self.col_stride if self.access == "axpy" else self.row_stride) * size
        distance = math.gcd(LOAD_BYTES, apart if self.lines > 1 else 0)
        aligned = max(self.a_alignment // size, 1)
        if size <= self.a_alignment < distance:
            return range(aligned, width, 2 * aligned)  # the addresses are odd multiples of it
        return range(0, width, aligned)

    def bytes_moved(self, beta_is_zero: bool) -> int:
        """Bytes that a perfect gemv moves: A, x and y once each, and y again unless beta is 0."""
        y_bytes = self.rows * self.y_dtype.itemsize * (1 if beta_is_zero else 2)
        return (self.rows * self.cols + self.cols) * self.dtype.itemsize + y_bytes


def phases_of(lines: int, bytes_apart: int) -> int:
    """:attr:`Problem.phases` of so many lines that begin so many bytes apart."""
    different = LOAD_BYTES // math.gcd(LOAD_BYTES, bytes_apart)
    return min(different, 1 << (lines - 1).bit_length())


#: Where the two alignments stand in a Problem.
_ALIGNMENTS = Problem._fields.index("a_alignment")


def all_at(
    problems: Iterable[Problem], a_pointers: Iterable[int], x_pointers: Iterable[int]
) -> list[Problem]:
    """Each problem with its alignments, as :meth:`Problem.at`, without a call for each."""
    gcd, new, found = math.gcd, tuple.__new__, []
    for problem, a_pointer, x_pointer in zip(problems, a_pointers, x_pointers, strict=True):
        (
            dtype, _, _, _, rows, cols, _, row_stride, col_stride, _, _, x_offset, _, *_
        ) = problem  # fmt: skip
        size = dtype.itemsize
        # As `access` has it: whether memory runs along the sum.
        dot = col_stride == 1 and not (cols == 1 and row_stride == 1)
        lines, apart = (rows, row_stride) if dot else (cols, col_stride)
        if lines == 1:
            apart = 0  # a single line: the distance to the next one does not matter
        both = (
            gcd(LOAD_BYTES, a_pointer, apart * size),
            gcd(LOAD_BYTES, x_pointer + x_offset * size),
        )
        found.append(new(Problem, (*problem[:_ALIGNMENTS], *both, *problem[_ALIGNMENTS + 2 :])))
    return found
