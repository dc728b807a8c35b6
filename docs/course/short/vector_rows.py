"""Wide loads, several of them before the first is used; a warp takes one row.

The rung has more threads for longer rows, and several rows for a thread, which share the loaded
elements of x. Where rows are few it splits the columns over blocks, and the block that began last
adds up their sums. Code that a launch never runs is not compiled.
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import (
    butterfly,
    cuda,
    fold,
    gather,
    multiply_add,
    row_starts,
    stream_tile,
    update,
    zeros,
)

VECTORS = 2


def build(spec):
    zero, CONJUGATE = spec.zero, int(spec.conj)
    WIDTH = spec.widths[0]  # numbers in 16 bytes
    STEP = 32 * WIDTH

    def wide_loads(rows, cols, alpha, a, row_stride, x, incx, beta, y, incy):
        i, lane = cuda.blockIdx.x, cuda.threadIdx.x
        row = row_starts(i, 0, i, row_stride, 1)
        total = zeros(zero, WIDTH)  # a sum for each element of a load
        if alpha == 0:
            cols = 0
        j = lane * WIDTH
        while j + (VECTORS - 1) * STEP + WIDTH <= cols:
            values = stream_tile(a, row, j, STEP, VECTORS, WIDTH)  # all of them are on their way
            factors = gather(x, j, STEP, VECTORS, incx, WIDTH)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += VECTORS * STEP
        while j < cols:  # what is left, one vector or one element at a time
            if j + WIDTH <= cols:
                values = stream_tile(a, row, j, STEP, 1, WIDTH)
                total = multiply_add(total, values, gather(x, j, 0, 1, incx, WIDTH), CONJUGATE)
                j += STEP
            else:
                values = stream_tile(a, row, j, 1, 1, 1)
                total = multiply_add(total, values, gather(x, j, 0, 1, incx, 1), CONJUGATE)
                j += 1
        (row_sum,) = butterfly(fold(total, 1), 32, 1)
        if lane == 0:
            update(alpha, row_sum, beta, y, i * incy)

    return (wide_loads,)


def geometry(problem, device, knobs):
    return Geometry((Launch((problem.rows, 1, 1), (32, 1, 1)),))


def accepts(problem):
    return None if problem.access == "dot" else "this is for memory along the sum"


KERNEL = Kernel(
    "wide_loads", 8, build, geometry, tile=lambda knobs: (1, 32 * 4 * VECTORS), wide=True,
    accepts=accepts, doc=__doc__,
)  # fmt: skip
