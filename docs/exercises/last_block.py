"""The number that overtakes

Blocks leave their sums in `scratch` and draw a number; who draws the last one adds them up. Without
a fence the number may be seen before the sums it announces, on a GPU once in a blue moon and here
every time. Put `cuda.threadfence()` where it belongs. (There are two places. The simulator insists
on one of them. What could go wrong on a GPU without the other?)
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import atomic_inc, cuda, update

SPLITS = 3


def build(spec):
    zero, op, shfl_xor = spec.zero, spec.op, spec.shfl_xor

    def fence(
        rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy, scratch, counters
    ):
        lane = cuda.threadIdx.x
        if alpha == 0:
            cols = 0
        i, split = cuda.blockIdx.x, cuda.blockIdx.y
        total = zero
        for j in range(32 * split + lane, cols, 32 * SPLITS):
            total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
        for step in range(5):
            total += shfl_xor(total, 16 >> step)
        if lane == 0:
            scratch[split * rows + i] = total
            if atomic_inc(counters, i, SPLITS - 1) == SPLITS - 1:
                total = zero
                for k in range(SPLITS):
                    total += scratch[k * rows + i]
                update(alpha, total, beta, y, i * incy)

    return (fence,)


def geometry(problem, device, knobs):
    return Geometry(
        (Launch((problem.rows, SPLITS, 1), (32, 1, 1)),),
        scratch=SPLITS * problem.rows,
        counters=problem.rows,
    )


KERNEL = Kernel("fence", 7, build, geometry, tile=lambda knobs: (1, 32 * SPLITS), doc=__doc__)


def goal(look):
    """Nothing beyond a right result in every order of the blocks."""
