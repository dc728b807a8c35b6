"""Find the missing barrier

Somebody took a barrier out of this kernel and found that their GPU still got the right result,
since eight threads of one warp happen to stay together. Nothing promises that they do. Run the
check: which barrier is missing, and which thread reads too early without it?
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update

THREADS = 8


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op

    def tree(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array(THREADS, number)
        tid = cuda.threadIdx.x
        if alpha == 0:
            cols = 0
        i = cuda.blockIdx.x
        total = zero
        for j in range(tid, cols, THREADS):
            total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
        sums[tid] = total
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if tid < half:
                sums[tid] += sums[tid + half]
            half //= 2
        if tid == 0:
            update(alpha, sums[0], beta, y, i * incy)

    return (tree,)


def geometry(problem, device, knobs):
    return Geometry((Launch((problem.rows, 1, 1), (THREADS, 1, 1)),))


KERNEL = Kernel("tree", 3, build, geometry, tile=lambda knobs: (1, THREADS), doc=__doc__)


def goal(look):
    """Nothing beyond a right result in every order of the threads."""
