"""Problems with poison around them: what every kernel test runs on."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from gemv import trace
from gemv.core.dtypes import DTYPES, Precision
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import get
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import select

#: Whether what most likely shows nothing that other tests do not show is run all the same: on a
#: machine with a GPU, and where it is asked for.
ALL_ROWS = backend.backend() == "cuda" or os.environ.get("GEMV_ALL_ROWS") == "1"

# Elements on both sides of every vector and behind A; 16 bytes or more, to keep alignment.
GUARD = 8
SENTINEL = 1234.5


@contextmanager
def largest_file(size):
    """No file may grow over `size` bytes, so that writing fails half-way as on a full disk."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def random_array(rng, shape, dtype):
    """Normal numbers of any dtype of ours."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return cast(values, np.dtype(dtype))


def filled(length, value, dtype):
    """An array of one number, of any dtype of ours."""
    return cast(np.full(length, value), np.dtype(dtype))


@dataclass
class Case:
    """One gemv on a strided A inside a poisoned buffer, with x and y inside theirs.

    NaN fills what must not be read (padding of A, gaps of x, y when beta is 0); a sentinel fills
    what must not be written (gaps of y and the guard zones around it).
    """

    m: int
    n: int
    dtype: str = "s"
    order: str = "C"
    op: str = "N"
    pad: int = 0
    incx: int = 1
    incy: int = 1
    alpha: complex = 1.0
    beta: complex = 0.0
    seed: int = 0
    reversed_a: bool = False  # negative strides in both directions
    shift: int = 0  # elements by which A and x are moved away from 16-byte alignment
    y_dtype: str = ""  # if it is not that of A and x
    accumulate: str = "plain"

    def __post_init__(self):
        self.element = DTYPES[self.dtype]
        self.y_element = DTYPES[self.y_dtype or self.dtype]
        rng = np.random.default_rng(self.seed + 1000 * self.m + self.n)
        trans = "NTC".index(self.op)
        rows, cols = (self.n, self.m) if trans else (self.m, self.n)
        self.rows, self.cols = rows, cols
        outer, inner = (self.m, self.n) if self.order == "C" else (self.n, self.m)
        lda = inner + self.pad
        self.a_buffer = filled(self.shift + outer * lda + GUARD, np.nan, self.element)
        lines = self.a_buffer[self.shift : self.shift + outer * lda]
        matrix = lines.reshape(outer, lda)[:, :inner]
        matrix[...] = random_array(rng, (outer, inner), self.element)
        self.a = matrix if self.order == "C" else matrix.T
        if self.reversed_a:
            self.a = self.a[::-1, ::-1]
        self.x_buffer, self.x_offset = self._vector(rng, cols, self.incx, np.nan, self.element)
        self.y_buffer, self.y_offset = self._vector(rng, rows, self.incy, SENTINEL, self.y_element)
        factor = Precision.of(self.element).factors.type
        self.alpha = factor(self.alpha)
        self.beta = factor(self.beta)
        if self.beta == 0:
            self.y_of(self.y_buffer)[...] = filled((), np.nan, self.y_element)
        if self.alpha == 0:
            self.a[...] = filled((), np.nan, self.element)
            self.x[...] = filled((), np.nan, self.element)

    def _vector(self, rng, length, inc, fill, dtype):
        reach = 1 + (length - 1) * abs(inc)
        buffer = filled(2 * GUARD + self.shift + reach, fill, dtype)
        offset = GUARD + self.shift + (0 if inc > 0 else reach - 1)
        strides = (inc * dtype.itemsize,)
        places = np.lib.stride_tricks.as_strided(buffer[offset:], (length,), strides)
        places[...] = random_array(rng, length, dtype)
        return buffer, offset

    @property
    def x(self):
        return np.lib.stride_tricks.as_strided(
            self.x_buffer[self.x_offset :],
            (self.cols,),
            (self.incx * self.element.itemsize,),
        )

    def y_of(self, buffer):
        return np.lib.stride_tricks.as_strided(
            buffer[self.y_offset :], (self.rows,), (self.incy * self.y_element.itemsize,)
        )

    @property
    def problem(self):
        row, col = (stride // self.element.itemsize for stride in self.a.strides)
        trans = "NTC".index(self.op)
        if trans:
            row, col = col, row
        return Problem(
            self.element, self.m, self.n, trans, self.rows, self.cols,
            trans == 2 and self.element.kind == "c", row, col, self.incx, self.incy,
            result=None if self.y_element == self.element else self.y_element,
            accumulate=self.accumulate,
        )  # fmt: skip

    def with_rows(self, rows):
        """The same case with another number of rows of op(A)."""
        return replace(self, **{"m" if self.op == "N" else "n": rows})

    @property
    def op_a(self):
        op_a = self.a if self.op == "N" else self.a.T
        return op_a.conj() if self.problem.conj else op_a

    def run(self, kernel, knobs=None, stream=None):
        """Run `kernel` by name; returns the whole y buffer afterwards."""
        engine = backend.engine()
        lacks = engine.device().lacks(get(kernel).capability)
        if lacks:
            pytest.skip(f"{kernel}: {lacks}")
        operands, buffers = [], []
        for buffer, view in (
            (self.a_buffer, self.a),
            (self.x_buffer, self.x),
            (self.y_buffer, self.y_of(self.y_buffer)),
        ):
            device = engine.to_device(buffer)
            buffers.append(device)
            byte = view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
            operands.append(operand_at(engine, device, byte, view))
        a, x, y = operands
        problem = self.problem.at(a.pointer, x.pointer)
        choice = select(problem, engine.device(), kernel, knobs)
        with trace() as calls:
            engine.run(choice, problem, self.alpha, a, x, self.beta, y, stream)
        assert [(call.backend, call.kernel) for call in calls] == [(engine.name, kernel)]
        assert engine.name in ("cuda", "simulator")
        after_a, after_x, after_y = (engine.to_host(buffer) for buffer in buffers)
        assert after_a.tobytes() == self.a_buffer.tobytes(), "A was changed"
        assert after_x.tobytes() == self.x_buffer.tobytes(), "x was changed"
        return after_y

    def check(self, kernel, knobs=None, stream=None):
        """Run `kernel` and compare: values within the bound, everything around them untouched."""
        after = self.run(kernel, knobs, stream)
        y = self.y_of(self.y_buffer).copy()
        exact, magnitude = reference(self.alpha, self.op_a, self.x, self.beta, y)
        got = self.y_of(after).copy()
        error = error_in_bounds(got, exact, magnitude, self.cols, self.alpha)
        assert error <= 1, f"{kernel}: error is {error} bounds: {self}"
        untouched = after.copy()
        self.y_of(untouched)[...] = y
        assert untouched.tobytes() == self.y_buffer.tobytes(), f"{kernel} wrote beside y: {self}"
        return after


def operand_at(engine, device, byte, view):
    if engine.name == "simulator":
        behind = device.view(np.uint8)[byte:]  # may begin at half of a complex number
        whole = behind[: behind.size // view.itemsize * view.itemsize].view(view.dtype)
        inside = np.lib.stride_tricks.as_strided(whole, view.shape, view.strides)
        pointer = inside.__array_interface__["data"][0]
        return SimpleNamespace(owner=inside, pointer=pointer)
    pointer = device.__cuda_array_interface__["data"][0] + byte
    return SimpleNamespace(owner=device, pointer=pointer)


def transposed(device):
    """The transpose of a Numba device array as a view; Numba's own ``.T`` is a copy on a GPU."""
    if backend.backend() == "simulator":
        return device.T
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    return DeviceNDArray(
        device.shape[::-1], device.strides[::-1], device.dtype, gpu_data=device.gpu_data
    )


def knobs_for_tests(kernel):
    """Small blocks on the simulator, where a thread costs microseconds; the real ones on a GPU."""
    return dict(kernel.small_knobs) if backend.backend() == "simulator" else None


def tile_of(kernel):
    """Rows and columns of a block's step with the knobs that tests use."""
    return kernel.tile({**kernel.knobs, **(knobs_for_tests(kernel) or {})})
