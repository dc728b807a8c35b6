"""Runs every kernel on exactly sized allocations, for test_sanitizer under compute-sanitizer.

With an argument it runs a kernel with a planted fault instead, which the tool must find: ``read``
goes one element past x, ``race`` leaves a barrier out.
"""

import sys

import numpy as np
from helpers import Case
from numba import cuda

from gemv import _launch
from gemv._backend import engine
from gemv.kernels import REGISTRY
from gemv.kernels._base import Kernel


class ExactWorkspace(_launch._Workspace):
    """Scratch memory and counters without a byte to spare, new for each call."""

    def reserve(self, scratch_bytes, counters, stream):
        self.scratch = cuda.device_array(max(scratch_bytes, 1), np.uint8)
        self.counters = cuda.to_device(np.zeros(max(counters, 1), np.uint32))
        return _launch._address(self.scratch), _launch._address(self.counters)


def shapes(kernel):
    tile_rows, tile_cols = kernel.tile(kernel.knobs)
    around = [
        (1, 1), (tile_rows + 1, tile_cols + 1), (2 * tile_rows + 3, 3), (tile_cols + 1, 5),
        (3, 9 * tile_cols + 5), (9 * tile_rows + 5, tile_cols - 1),
    ]  # fmt: skip
    return [(max(m, 1), max(n, 1)) for m, n in around]


def every_kernel():
    for kernel in REGISTRY.values():
        for dtype in "sz":
            for op, order in (("N", "C"), ("N", "F"), ("C", "C")):
                for m, n in shapes(kernel):
                    case = Case(m, n, dtype, order, op, alpha=1.5, beta=0.5)
                    if kernel.accepts(case.problem) is None:
                        exact(case).check(kernel.name)
    print("checked", len(REGISTRY), "kernels")


def exact(case):
    """The case without guard zones: buffers end where the operands end."""
    case.a_buffer = np.ascontiguousarray(case.a_buffer[: case.m * case.n])
    outer, inner = (case.m, case.n) if case.order == "C" else (case.n, case.m)
    matrix = case.a_buffer.reshape(outer, inner)
    case.a = matrix if case.order == "C" else matrix.T
    for name, length in (("x", case.cols), ("y", case.rows)):
        offset = getattr(case, f"{name}_offset")
        buffer = getattr(case, f"{name}_buffer")[offset : offset + length]
        setattr(case, f"{name}_buffer", np.ascontiguousarray(buffer))
        setattr(case, f"{name}_offset", 0)
    return case


def planted(kind):
    """A block-per-row kernel with a fault in it."""
    good = REGISTRY["block_per_row"]

    def build(spec):
        number, zero = spec.number, spec.zero

        def read(rows, cols, a, row_stride, col_stride, x, incx, y, incy):
            total = zero
            for j in range(cuda.threadIdx.x, cols + 1, 256):
                total += a[cuda.blockIdx.x * row_stride] * x[j * incx]
            if total == 0.123:
                y[0] = total

        def race(rows, cols, a, row_stride, col_stride, x, incx, y, incy):
            sums = cuda.shared.array(256, number)
            tid = cuda.threadIdx.x
            sums[tid] = x[tid % cols]
            # the barrier that belongs here is left out
            y[cuda.blockIdx.x * incy] = sums[255 - tid]

        return ({"read": read, "race": race}[kind],)

    REGISTRY["planted"] = Kernel(
        name="planted", rung=99, build=build, geometry=good.geometry, tile=good.tile, doc="planted",
        knobs=good.knobs,
    )  # fmt: skip
    exact(Case(3, 300)).run("planted")
    engine().to_host(cuda.to_device(np.zeros(1)))
    print("ran the planted fault")


if __name__ == "__main__":
    _launch._Workspace = ExactWorkspace
    if len(sys.argv) > 1:
        planted(sys.argv[1])
    else:
        every_kernel()
