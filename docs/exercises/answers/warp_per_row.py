"""One answer to the exercise of `warp_per_row`."""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update


def build(spec):
    zero, op, shfl_xor = spec.zero, spec.op, spec.shfl_xor

    def half_warp(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x % 16
        half = cuda.threadIdx.x // 16
        if alpha == 0:
            cols = 0
        # The same for all 32 lanes, so they stay together up to each shuffle.
        for first in range(2 * cuda.blockIdx.x, rows, 2 * cuda.gridDim.x):
            i = first + half
            total = zero
            if i < rows:
                for j in range(lane, cols, 16):
                    total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            total += shfl_xor(total, 8)
            total += shfl_xor(total, 4)
            total += shfl_xor(total, 2)
            total += shfl_xor(total, 1)
            if lane == 0 and i < rows:
                update(alpha, total, beta, y, i * incy)

    return (half_warp,)


def geometry(problem, device, knobs):
    return Geometry((Launch((ceil_div(problem.rows, 2), 1, 1), (32, 1, 1)),))


KERNEL = Kernel("half_warp", 6, build, geometry, tile=lambda knobs: (2, 16), doc=__doc__)


def goal(look):
    """The first request takes 16 elements of each of two rows."""
    cols = 16
    rows = [one.element // cols for one in look(4, cols).requests("a")[0]]
    if len(rows) != 32 or len(set(rows)) != 2:
        return f"the first request takes {len(rows)} elements of {len(set(rows))} row(s)"
