"""One answer to the exercise of `vector_rows`."""

from gemv.core.geometry import Geometry, Launch, ceil_div
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

ROWS = 2


def build(spec):
    zero, WIDTH, CONJUGATE = spec.zero, spec.widths[0], int(spec.conj)
    STEP = 32 * WIDTH
    SUMS = ROWS * WIDTH

    def shared_x(rows, cols, alpha, a, row_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x
        first = cuda.blockIdx.x * ROWS
        if alpha == 0:
            cols = 0
        starts = row_starts(first, 1, rows - 1, row_stride, ROWS)
        total = zeros(zero, SUMS)
        j = lane * WIDTH
        while j + WIDTH <= cols:
            values = stream_tile(a, starts, j, STEP, 1, WIDTH)
            factors = gather(x, j, STEP, 1, incx, WIDTH)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += STEP
        while j < cols:  # behind the last whole vector
            values = stream_tile(a, starts, j, 1, 1, 1)
            total = multiply_add(total, values, gather(x, j, 1, 1, incx, 1), CONJUGATE)
            j += 1
        sums = butterfly(fold(total, ROWS), 32, 1)
        if lane == 0:
            update(alpha, sums[0], beta, y, first * incy)
            if first + 1 < rows:  # past the end the last row was read once more
                update(alpha, sums[1], beta, y, (first + 1) * incy)

    return (shared_x,)


def geometry(problem, device, knobs):
    return Geometry((Launch((ceil_div(problem.rows, ROWS), 1, 1), (32, 1, 1)),))


def accepts(problem):
    return None if problem.access == "dot" else "this is for memory along the sum"


KERNEL = Kernel(
    "shared_x", 8, build, geometry, tile=lambda knobs: (2, 128), wide=True, accepts=accepts,
    doc=__doc__,
)  # fmt: skip


def goal(look):
    """Half as many loads of x as of A."""
    record = look(8, 256)
    a, x = len(record.of("a")), len(record.of("x"))
    if 2 * x > a:
        return f"{x} elements of x are loaded for {a} of A"
