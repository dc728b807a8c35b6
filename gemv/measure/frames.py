"""The memory that a cell of the grid is measured in.

A *frame* holds A, x and y of one call, each where memory of its own could begin. Calls that are to
find A in memory go round several frames of one large buffer; calls that are to find it in the L2
cache use the first frame alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import ceil_div
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.measure.cells import Cell, cut
from gemv.measure.inputs import Buffer, make_problem, random_array
from gemv.selection import parts

#: A, x and y of a frame start at multiples of this many bytes, as allocated memory does.
ALIGNED = 256
#: Elements of the pattern that memory is filled with: no multiple of a usual length of a row.
_PATTERN = (1 << 22) - 192


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the operands of a cell lie in a frame.

    Attributes
    ----------
    problem : Problem
        Without the alignment of A and x, which :meth:`FramedCell.at` adds.
    elements : int
        Of the matrices that A is a view of, one behind the other; the first begins where the frame
        does.
    first : int
        The element where the view begins.
    x_at, y_at, nbytes : int
        Bytes from the start of the frame to x, to y and to the end.
    items : int
        The number of products; their vectors lie one behind the other.
    a_step : int
        Elements from one item's A to the next one's; 0 for several vectors and one matrix.
    """

    problem: Problem
    elements: int
    first: int
    x_at: int
    y_at: int
    nbytes: int
    items: int = 1
    a_step: int = 0

    @property
    def batch(self) -> Batch:
        """The items, as selection sees them."""
        problem, one = self.problem, self.items == 1
        steps = (0, 0, 0) if one else (self.a_step, problem.cols, problem.rows)
        return Batch((self.items,), tuple((step,) for step in (*steps, 0, 0)))


def lay_out(cell: Cell) -> Layout:
    """The frame of a cell."""
    dtype = DTYPES[cell.dtype]
    (r0, r_left, r_step), (c0, c_left, c_step) = cut(cell.view)
    base_rows, base_cols = r0 + cell.m * r_step + r_left, c0 + cell.n * c_step + c_left
    down, along = (base_cols, 1) if cell.order == "C" else (1, base_rows)
    strides = (down * r_step, along * c_step)
    problem = make_problem(cell.m, cell.n, dtype, cell.order, cell.op, strides)
    each = base_rows * base_cols
    elements = each * cell.batch
    x_at = aligned(elements * dtype.itemsize)
    y_at = aligned(x_at + cell.items * problem.cols * dtype.itemsize)
    end = aligned(y_at + cell.items * problem.rows * dtype.itemsize)
    return Layout(
        problem, elements, r0 * down + c0 * along, x_at, y_at, end, cell.items,
        each if cell.batch > 1 else 0,
    )  # fmt: skip


def aligned(nbytes: int) -> int:
    """The next multiple of 256."""
    return ceil_div(nbytes, ALIGNED) * ALIGNED


@dataclass(frozen=True, slots=True)
class Place:
    """Where the operands of one call lie: the addresses of their first elements."""

    a: int
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class FramedCell:
    """A cell in memory: one place for each of its frames, all of them aligned alike.

    `problem` is that of an item, with the alignment that all items share.
    """

    cell: Cell
    layout: Layout
    problem: Problem
    places: list[Place]

    @classmethod
    def at(cls, cell: Cell, base: int, frames: int) -> FramedCell:
        """`frames` frames behind each other, the first of them at the address `base`."""
        layout = lay_out(cell)
        starts = range(base, base + frames * layout.nbytes, layout.nbytes)
        first = layout.first * layout.problem.dtype.itemsize
        places = [Place(at + first, at + layout.x_at, at + layout.y_at) for at in starts]
        problem = layout.problem.at(places[0].a, places[0].x)
        return cls(cell, layout, parts.aligned(problem, layout.batch), places)

    def start(self, place: Place) -> int:
        """The address where the frame of a place begins."""
        return place.a - self.layout.first * self.problem.dtype.itemsize


class Frames:
    """One large buffer for the frames, and patterns of numbers to fill it with.

    This one is memory of the host, for the simulator.
    """

    def __init__(self, engine: Any, nbytes: int) -> None:
        self._engine = engine
        self._patterns: dict[tuple[str, np.dtype], np.ndarray] = {}
        self.array = self._allocated(nbytes)
        self.base = self._address(self.array)

    def pattern(self, kind: str, dtype: np.dtype) -> np.ndarray:
        """Whole numbers in -2..2 ("whole") or uniform ones in (-1, 1) ("random")."""
        key = (kind, dtype)
        if key not in self._patterns:
            rng = np.random.default_rng(20240501)
            wide = np.dtype(np.complex64 if dtype.kind == "c" else np.float32)
            if kind == "random":
                values = random_array(rng, (_PATTERN,), dtype)
            else:
                parts = rng.integers(-2, 3, _PATTERN * (wide.itemsize // 4)).astype(np.float32)
                values = parts.view(wide)
            self._patterns[key] = cast(values, dtype)
        return self._patterns[key]

    def _allocated(self, nbytes: int) -> Any:
        return np.zeros(nbytes + ALIGNED, np.uint8)

    def _address(self, array: Any) -> int:
        return aligned(array.ctypes.data)

    def _part(self, address: int, nbytes: int) -> np.ndarray:
        start = address - self.array.ctypes.data
        return self.array[start : start + nbytes]

    def fill(self, kind: str, dtype: np.dtype, address: int, count: int) -> None:
        """Put `count` elements of a pattern, over and over, at an address."""
        values = np.resize(self.pattern(kind, dtype), count)
        self._part(address, values.nbytes)[:] = values.view(np.uint8)

    def spoil(self, address: int, nbytes: int) -> None:
        """Set every bit, which is NaN for all floating-point types."""
        self._part(address, nbytes)[:] = 0xFF

    def read(self, address: int, dtype: np.dtype, count: int) -> np.ndarray:
        """`count` elements at an address, copied to the host."""
        return self._part(address, count * dtype.itemsize).view(dtype).copy()

    def buffer(self, address: int, dtype: np.dtype, count: int) -> Buffer:
        """`count` elements at an address, as an engine takes them."""
        return Buffer(self._part(address, count * dtype.itemsize).view(dtype), address)

    def vector(self, address: int, dtype: np.dtype, count: int) -> Any:
        """The same as a device array of Numba's, for calls that take arrays."""
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(self._part(address, count * dtype.itemsize).view(dtype))


class DeviceFrames(Frames):
    """The same on the GPU: the host makes a pattern once, and copies on the device repeat it."""

    def __init__(self, engine: Any, nbytes: int) -> None:
        from cuda.bindings import driver

        from gemv.driver.libcuda import check

        self._driver, self._check = driver, check
        self._uploaded: dict[tuple[str, np.dtype], Any] = {}
        super().__init__(engine, nbytes)

    def _allocated(self, nbytes: int) -> Any:
        return self._engine.empty(nbytes, np.dtype(np.uint8))

    def _address(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])  # aligned to 256 bytes and more

    def fill(self, kind: str, dtype: np.dtype, address: int, count: int) -> None:
        key = (kind, dtype)
        if key not in self._uploaded:
            self._uploaded[key] = self._engine.to_device(self.pattern(kind, dtype).view(np.uint8))
        pattern = self._uploaded[key]
        nbytes = count * dtype.itemsize
        done = min(nbytes, pattern.nbytes)
        self._copy(address, self._address(pattern), done)
        while done < nbytes:
            more = min(done, nbytes - done)
            self._copy(address + done, address, more)
            done += more
        self._check(self._driver.cuCtxSynchronize())

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        self._check(self._driver.cuMemcpyDtoD(to, source, nbytes))

    def spoil(self, address: int, nbytes: int) -> None:
        self._check(self._driver.cuMemsetD8(address, 0xFF, nbytes))
        self._check(self._driver.cuCtxSynchronize())

    def read(self, address: int, dtype: np.dtype, count: int) -> np.ndarray:
        host = np.empty(count, dtype)
        self._check(self._driver.cuCtxSynchronize())
        self._check(self._driver.cuMemcpyDtoH(host.ctypes.data, address, host.nbytes))
        return host

    def buffer(self, address: int, dtype: np.dtype, count: int) -> Buffer:
        return Buffer(self.array, address)

    def vector(self, address: int, dtype: np.dtype, count: int) -> Any:
        start = address - self.base
        return self.array[start : start + count * dtype.itemsize].view(dtype)
