"""Half a warp is enough

With 16 columns, half of this warp has nothing to do. Let lanes 0 to 15 take one row and lanes 16
to 31 the next: a warp then does two rows at a time, and the butterfly is one step shorter. All 32
lanes still have to come to every shuffle, also when the second row lies past the end.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update


def build(spec):
    zero, op, shfl_xor = spec.zero, spec.op, spec.shfl_xor

    def half_warp(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        lane = cuda.threadIdx.x
        if alpha == 0:
            cols = 0
        for i in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
            total = zero
            for j in range(lane, cols, 32):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            total += shfl_xor(total, 16)
            total += shfl_xor(total, 8)
            total += shfl_xor(total, 4)
            total += shfl_xor(total, 2)
            total += shfl_xor(total, 1)
            if lane == 0:
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
