"""One answer to the exercise of `phased_rows`."""

from gemv.core.geometry import LOAD_BYTES, Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import (
    butterfly,
    cuda,
    elements_past,
    fold,
    gather,
    multiply_add,
    row_starts,
    stream_tile,
    update,
    zeros,
)


def build(spec):
    zero, CONJUGATE = spec.zero, int(spec.conj)
    WIDTH = LOAD_BYTES // spec.dtype.itemsize

    def narrow(rows, cols, alpha, a, row_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x
        i = cuda.blockIdx.x
        if alpha == 0:
            cols = 0
        start = row_starts(i, 0, i, row_stride, 1)
        total = zeros(zero, WIDTH)
        body = (WIDTH - elements_past(a, i * row_stride, LOAD_BYTES)) % WIDTH
        behind = body + max(cols - body, 0) // WIDTH * WIDTH
        j = lane
        while j < min(body, cols):
            values = stream_tile(a, start, j, 1, 1, 1)
            total = multiply_add(total, values, gather(x, j, 1, 1, incx, 1), CONJUGATE)
            j += 32
        j = body + lane * WIDTH
        while j < behind:
            values = stream_tile(a, start, j, WIDTH, 1, WIDTH)
            factors = gather(x, j, WIDTH, 1, incx, WIDTH)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += 32 * WIDTH
        j = behind + lane
        while j < cols:
            values = stream_tile(a, start, j, 1, 1, 1)
            total = multiply_add(total, values, gather(x, j, 1, 1, incx, 1), CONJUGATE)
            j += 32
        (row_sum,) = butterfly(fold(total, 1), 32, 1)
        if lane == 0:
            update(alpha, row_sum, beta, y, i * incy)

    return (narrow,)


def geometry(problem, device, knobs):
    return Geometry((Launch((problem.rows, 1, 1), (32, 1, 1)),))


def accepts(problem):
    return None if problem.access == "dot" else "this is for memory along the sum"


KERNEL = Kernel(
    "narrow", 11, build, geometry, tile=lambda knobs: (1, 128), accepts=accepts, doc=__doc__
)


def goal(look):
    """Rows of 517 float32, which begin in four different ways, in 7 requests of a warp each."""
    requests = len(look(4, 517).requests("a"))
    if requests > 28:
        return f"the warps ask {requests} times for parts of 4 rows instead of 28 times at most"
