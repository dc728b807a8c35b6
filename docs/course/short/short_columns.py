"""All of A is one stretch of memory, and each thread meets the same row again and again.

The rung loads the stretch in vectors of 16 bytes, from the first multiple of 16 bytes on; a vector
may contain several rows, and parts of several columns. The rung has more than one block. It adds up
in a tree, eight sums in each step, where this kernel adds one sum after the other.
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update

THREADS = 128


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op

    def one_stretch(rows, cols, alpha, a, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array(THREADS, number)
        tid = cuda.threadIdx.x
        columns = THREADS // col_stride  # so many whole columns at a time
        row, j = tid % col_stride, tid // col_stride  # one division for all elements of a thread
        total = zero
        if alpha != 0 and row < rows and j < columns:
            while j < cols:  # element j*col_stride + row: neighbouring threads have neighbours
                total += op(a[j * col_stride + row]) * x[j * incx]
                j += columns
        sums[tid] = total
        cuda.syncthreads()  # all sums are in place
        if tid < rows:
            for k in range(1, columns):
                total += sums[tid + k * col_stride]
            update(alpha, total, beta, y, tid * incy)

    return (one_stretch,)


def geometry(problem, device, knobs):
    return Geometry((Launch((1, 1, 1), (THREADS, 1, 1)),))


def accepts(problem):
    if problem.access != "axpy" or not 0 < problem.rows <= problem.col_stride <= THREADS:
        return "this is for short columns, one behind the other"
    return None


KERNEL = Kernel(
    "one_stretch", 13, build, geometry, tile=lambda knobs: (7, THREADS // 7), accepts=accepts,
    doc=__doc__,
)  # fmt: skip
