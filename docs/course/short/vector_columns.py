"""Wide loads down the columns, several of them before the first is used; sums stay in registers.

Where rows are few, the rung has only some lanes of a warp along the rows, and the others take the
next columns. Then several threads have sums of the same row. They add them up by shuffles and in
shared memory, and the last block does so where columns are split over blocks.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import axpy_add, cuda, gather, row_starts, stream_tile, unrolled, update, zeros

THREADS, COLUMNS = 32, 4


def build(spec):
    zero, op, CONJUGATE = spec.zero, spec.op, int(spec.conj)
    WIDTH = spec.widths[0]  # numbers in 16 bytes
    _, _, update_all = unrolled(1, WIDTH)

    def wide_columns(rows, cols, alpha, a, col_stride, x, incx, beta, y, incy):
        mine = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * WIDTH  # the first of WIDTH rows
        edge = rows - rows % WIDTH  # rows from here on fill no vector
        total = zeros(zero, WIDTH)  # a sum for each of these rows
        if alpha == 0:
            cols = 0
        if mine < edge:
            piece = row_starts(mine, 0, edge - WIDTH, 1, 1)
            j = 0
            while j + COLUMNS <= cols:
                at = j * col_stride
                values = stream_tile(a, piece, at, col_stride, COLUMNS, WIDTH)  # on their way
                total = axpy_add(total, values, gather(x, j, 1, COLUMNS, incx, 1), WIDTH, CONJUGATE)
                j += COLUMNS
            for k in range(j, cols):
                values = stream_tile(a, piece, k * col_stride, 0, 1, WIDTH)
                total = axpy_add(total, values, gather(x, k, 0, 1, incx, 1), WIDTH, CONJUGATE)
            update_all(alpha, total, beta, y, mine, 0, edge, incy)
        elif mine == edge:  # one thread has the rows that fill no vector
            for i in range(edge, rows):
                part = zero
                for k in range(cols):
                    part += op(a[i + k * col_stride]) * x[k * incx]
                update(alpha, part, beta, y, i * incy)

    return (wide_columns,)


def geometry(problem, device, knobs):
    blocks = ceil_div(ceil_div(problem.rows, problem.widths[0]), THREADS)
    return Geometry((Launch((blocks, 1, 1), (THREADS, 1, 1)),))


def accepts(problem):
    return None if problem.access == "axpy" else "this is for memory along y"


KERNEL = Kernel(
    "wide_columns", 9, build, geometry, tile=lambda knobs: (THREADS * 4, COLUMNS), wide=True,
    accepts=accepts, doc=__doc__,
)  # fmt: skip
