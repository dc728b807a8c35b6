"""Two hands

Here one thread does everything. Let the block have two threads, and let each of them do every
second row: thread 0 the even ones, thread 1 the odd ones. `cuda.threadIdx.x` says which of the two
you are. Change `geometry` so that there are two, and `build` so that they share the rows.
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update  # noqa: F401


def build(spec):
    zero, op = spec.zero, spec.op

    def two_threads(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        if alpha == 0:
            cols = 0
        for i in range(rows):
            total = zero
            for j in range(cols):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            update(alpha, total, beta, y, i * incy)

    return (two_threads,)


def geometry(problem, device, knobs):
    return Geometry((Launch((1, 1, 1), (1, 1, 1)),))


KERNEL = Kernel("two_threads", 1, build, geometry, tile=lambda knobs: (2, 1), doc=__doc__)


def goal(look):
    """Each of two threads reads the elements of every second row."""
    reads = look(6, 10).of("a")
    shares = {tid: {one.element // 10 % 2 for one in reads if one.tid == tid} for tid in (0, 1)}
    if shares != {0: {0}, 1: {1}}:
        return "thread 0 should read the even rows and thread 1 the odd ones, and nobody else any"
