"""Store as you load

This kernel loads 16 bytes of a column at a time and stores y one element after the other: four
store instructions where one would do, each of them with holes between what the lanes write. Store
whole vectors with ``store_vectors`` where that is allowed: y is dense, its first element aligned,
and all rows of the block exist. Elsewhere the elements must still leave one by one.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import axpy_add, cuda, gather, row_starts, stream_tile, unrolled, update, zeros

THREADS = 32


def build(spec):
    zero, op = spec.zero, spec.op
    WIDTH, CONJUGATE = spec.widths[0], int(spec.conj)
    scaled_all, blended_all, update_all = unrolled(1, WIDTH)

    def scattered(rows, cols, alpha, a, col_stride, x, incx, beta, y, incy):
        tid = cuda.threadIdx.x
        first = cuda.blockIdx.x * (THREADS * WIDTH)
        mine = first + tid * WIDTH
        if alpha == 0:
            cols = 0
        edge = rows - rows % WIDTH  # rows from here on fill no vector
        total = zeros(zero, WIDTH)
        if edge > 0:
            piece = row_starts(mine, 0, edge - WIDTH, 1, 1)
            for j in range(cols):
                values = stream_tile(a, piece, j * col_stride, 0, 1, WIDTH)
                total = axpy_add(total, values, gather(x, j, 0, 1, incx, 1), WIDTH, CONJUGATE)
        update_all(alpha, total, beta, y, mine, 0, edge, incy)
        i = edge + tid
        if i < rows and first + THREADS * WIDTH >= rows:
            part = zero
            for j in range(cols):
                part += op(a[i + j * col_stride]) * x[j * incx]
            update(alpha, part, beta, y, i * incy)

    return (scattered,)


def geometry(problem, device, knobs):
    tiles = ceil_div(problem.rows, THREADS * problem.widths[0])
    return Geometry((Launch((tiles, 1, 1), (THREADS, 1, 1)),))


def accepts(problem):
    return None if problem.access == "axpy" else "this is for memory along y"


KERNEL = Kernel(
    "scattered", 10, build, geometry, tile=lambda knobs: (4 * THREADS, 2), wide=True,
    accepts=accepts, doc=__doc__,
)  # fmt: skip


def goal(look):
    """A whole block's y leaves in one request of its warp."""
    requests = len(look(4 * THREADS, 2, order="F").requests("y", write=True))
    if requests != 1:
        return f"the warp stores its 128 elements of y in {requests} requests instead of 1"
