"""Frozen records that every other module agrees on: the problem, the device, the geometry.

They are named tuples because every call makes some and looks some up: a tuple is made, compared
and hashed several times faster than a frozen dataclass.

Nothing here imports CUDA or another module of the package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

#: bfloat16, the upper half of a float32, which NumPy lacks: its bits, under its name.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)], align=True)

#: A letter for every dtype computed in: the four prefixes of BLAS and two for the narrow ones.
DTYPES: dict[str, np.dtype] = {
    "s": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "c": np.dtype(np.complex64),
    "z": np.dtype(np.complex128),
    "h": np.dtype(np.float16),
    "b": BFLOAT16,
}
PREFIXES: dict[np.dtype, str] = {dtype: prefix for prefix, dtype in DTYPES.items()}

#: Dtypes that only lie in memory: they are computed with in float32.
NARROW: tuple[np.dtype, ...] = (DTYPES["h"], DTYPES["b"])

#: How products are added up: in the precision of their factors, in one twice as wide, or in sums of
#: two numbers of that precision.
ACCUMULATE = ("plain", "wide", "pairs")

#: A sum of two float64, the second one what the first has lost; and two such for a complex one.
TWOFOLD = np.dtype([("high", np.float64), ("low", np.float64)])
COMPLEX_TWOFOLD = np.dtype([("real", TWOFOLD), ("imag", TWOFOLD)])
#: The same of float32.
PAIR = np.dtype([("high", np.float32), ("low", np.float32)])
COMPLEX_PAIR = np.dtype([("real", PAIR), ("imag", PAIR)])
_PAIRS = {
    DTYPES["s"]: PAIR,
    DTYPES["c"]: COMPLEX_PAIR,
    DTYPES["d"]: TWOFOLD,
    DTYPES["z"]: COMPLEX_TWOFOLD,
}
_WIDER = {**_PAIRS, DTYPES["s"]: DTYPES["d"], DTYPES["c"]: DTYPES["z"]}


def dtype_name(dtype: np.dtype) -> str:
    """The name of a dtype in words for people."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


class Precision(NamedTuple):
    """The dtypes of one product: what lies in memory, and what is computed in.

    Attributes
    ----------
    data : numpy.dtype
        Of A and x.
    y : numpy.dtype
        Of y.
    factors : numpy.dtype
        Of alpha and beta.
    sums : numpy.dtype
        Of an element once it is loaded, and of every product and sum.
    """

    data: np.dtype
    y: np.dtype
    factors: np.dtype
    sums: np.dtype

    @staticmethod
    def of(
        dtype: np.dtype, y_dtype: np.dtype | None = None, accumulate: str = "plain"
    ) -> Precision:
        """Narrow numbers are multiplied and added in float32, others as what they are."""
        factors = DTYPES["s"] if dtype in NARROW else dtype
        sums = factors
        if accumulate != "plain":
            sums = (_WIDER if accumulate == "wide" else _PAIRS)[factors]
        return Precision(dtype, dtype if y_dtype is None else y_dtype, factors, sums)


#: Bytes that one load instruction of a thread can move.
LOAD_BYTES = 16

#: Bytes in which memory answers: what a load leaves of them has been fetched in vain.
SECTOR_BYTES = 32

#: Shared memory that the sums of a block may take; every GPU has a kilobyte more, for what else is
#: there.
SHARED_SUM_BYTES = 47 * 1024

#: Constant memory of a module on a device: all its ``__constant__`` symbols together.
CONSTANT_BYTES = 64 * 1024

#: The largest gridDim.y and gridDim.z of every CUDA device; gridDim.x goes to 2**31 - 1.
MAX_GRID_Y = 65535
MAX_GRID_X = 2**31 - 1


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
        """Of y."""
        return self.dtype if self.result is None else self.result

    @property
    def precision(self) -> Precision:
        """The dtypes of all its numbers."""
        return Precision.of(self.dtype, self.result, self.accumulate)

    def at(self, a_pointer: int, x_pointer: int) -> Problem:
        """This problem with the alignment of its operands, from the addresses of their firsts."""
        size = self.dtype.itemsize
        dot = self.access == "dot"
        lines = self.row_stride if dot else self.col_stride
        if (self.rows if dot else self.cols) == 1:
            lines = 0  # a single line: the distance to the next one does not matter
        return self.aligned(
            math.gcd(LOAD_BYTES, a_pointer, lines * size),
            math.gcd(LOAD_BYTES, x_pointer + self.x_offset * size),
        )

    def aligned(self, a_alignment: int, x_alignment: int) -> Problem:
        """This problem with other alignments."""
        both = (a_alignment, x_alignment)
        return Problem._make((*self[:_ALIGNMENTS], *both, *self[_ALIGNMENTS + 2 :]))

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of A, and of x along the sum, that one load of a thread can move.

        For A 1 at least, and more only along a unit stride and where the alignment is known to
        allow it. For x the same number, or 0 where x has to be read element by element.
        """
        size = self.dtype.itemsize
        a_width = self.a_alignment // size or 1
        if a_width > 1 and self.row_stride != 1 and self.col_stride != 1:
            a_width = 1
        whole = self.incx == 1 and self.x_alignment >= a_width * size
        return a_width, a_width if whole else 0

    @property
    def whole(self) -> bool:
        """Whether every line of A is a whole number of vectors, of two elements or more, long."""
        width = self.widths[0]
        return width > 1 and (self.rows if self.access == "axpy" else self.cols) % width == 0

    @property
    def splits_elements(self) -> bool:
        """Whether an element of A may lie across a boundary of its own size.

        A complex number is aligned like its real part, which the loads of pairs do not take.
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
        """Pieces of A that run along the unit stride: rows for *dot*, columns for *axpy*."""
        return self.cols if self.access == "axpy" else self.rows

    @property
    def line_bytes(self) -> int:
        """Length of one of them."""
        return (self.rows if self.access == "axpy" else self.cols) * self.dtype.itemsize

    @property
    def phases(self) -> int:
        """Lines that far apart begin at the same address modulo the bytes of a load: 1, 2, 4 or 8.

        No more than there are lines, rounded up to a power of two.
        """
        step = self.col_stride if self.access == "axpy" else self.row_stride
        different = LOAD_BYTES // math.gcd(LOAD_BYTES, step * self.dtype.itemsize)
        return min(different, 1 << (self.lines - 1).bit_length())

    def arguments(self, geometry: Geometry) -> dict[str, int]:
        """The integers that a kernel is given, by the names of its parameters."""
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
        """Bytes a perfect gemv moves: A and x once, y written once and, if beta, read once."""
        y_bytes = self.rows * self.y_dtype.itemsize * (1 if beta_is_zero else 2)
        return (self.rows * self.cols + self.cols) * self.dtype.itemsize + y_bytes


#: Bytes of a panel of a matrix in host memory, where neither tiles nor the device's memory want
#: another size: long enough to hide what a launch costs the host, and two of them fit anywhere.
PANEL_BYTES = 64 * 2**20

#: Where the two alignments stand in a Problem.
_ALIGNMENTS = Problem._fields.index("a_alignment")


class Device(NamedTuple):
    """What geometry and selection may know of a device.

    The simulator's stand-in has few multiprocessors, so that grids stay small there.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    index: int = 0  # type: ignore[assignment]  # a tuple's search, which nobody needs here
    #: Operations in float32 in the time of one in float64, as the driver tells.
    float64_ratio: int = 2

    @property
    def has_few_doubles(self) -> bool:
        """Whether float64 is an order of magnitude slower than float32, and not half as fast."""
        return self.float64_ratio >= 16


class MemoryRange(NamedTuple):
    """A piece of memory as the driver lists it.

    Attributes
    ----------
    first, end : int
        Addresses of its first byte and of the one behind its last.
    device : int or None
        Ordinal of the GPU that it belongs to; None for memory that every GPU reaches.
    """

    first: int
    end: int
    device: int | None


_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Launch(NamedTuple):
    """Grid and block of one kernel function, each ``(x, y, z)``."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def threads_per_block(self) -> int:
        return math.prod(self.block)


class Geometry(NamedTuple):
    """How one call of a kernel is laid out.

    Attributes
    ----------
    launches : tuple of Launch
        One for each function that the kernel builds, in order on the stream.
    sizes : dict of str to int
        Further 64-bit integer arguments by name, ``splits`` for instance.
    scratch : int
        Elements of the dtype of sums that the launches share as ``scratch``.
    counters : int
        Unsigned 32-bit counters, zero before the first launch and after the last, as ``counters``.
    posts : bool
        Whether all bits of ``scratch`` are ones before the first launch and after the last: see
        :mod:`gemv._arrivals`.
    """

    launches: tuple[Launch, ...]
    sizes: Mapping[str, int] = _NO_SIZES
    scratch: int = 0
    counters: int = 0
    posts: bool = False


def one_launch(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    sizes: Mapping[str, int] = _NO_SIZES,
    scratch: int = 0,
    counters: int = 0,
    posts: bool = False,
) -> Geometry:
    """The Geometry of a single launch, in half the time that the two constructors take."""
    new = tuple.__new__
    return new(Geometry, ((new(Launch, (grid, block)),), sizes, scratch, counters, posts))


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``, for ``b > 0``."""
    return -(-a // b)
