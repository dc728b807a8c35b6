"""Walk to the boundary

Rows may begin anywhere, so this warp loads its row element by element, 32 of them at a time. Take
the few elements before the next multiple of 16 bytes that way, then whole vectors, and what is left
behind the last one element by element again. (`elements_past` tells how far a row begins behind
a multiple of 16 bytes. What if the row ends before the next one?)
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


def build(spec):
    zero, CONJUGATE = spec.zero, int(spec.conj)

    def narrow(rows, cols, alpha, a, row_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x
        i = cuda.blockIdx.x
        if alpha == 0:
            cols = 0
        start = row_starts(i, 0, i, row_stride, 1)
        total = zeros(zero, 1)
        j = lane
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
