"""Turn the tile

This tile suits A stored along rows: neighbouring threads read neighbouring columns. For A stored
along columns each of them reads a line of its own. `spec.access` is `"axpy"` where memory runs
along the rows of op(A), so ask it, and exchange the parts that `tx` and `ty` play. The shape of
`sums` has to follow: then a tile has 32 rows and 8 threads on each.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.grids import tile_shape
from gemv.kernels.kernel import Kernel
from gemv.language import cuda, update

BLOCK_X, BLOCK_Y = 32, 8


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op
    TILE_ROWS, LANES = BLOCK_Y, BLOCK_X

    def turned(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((TILE_ROWS, LANES + 1), number)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        r, lane = ty, tx
        if alpha == 0:
            cols = 0
        for row0 in range(cuda.blockIdx.x * TILE_ROWS, rows, cuda.gridDim.x * TILE_ROWS):
            i = row0 + r
            total = zero
            if i < rows:
                for j in range(lane, cols, LANES):
                    total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            sums[r, lane] = total
            cuda.syncthreads()
            if lane == 0 and i < rows:
                total = zero
                for k in range(LANES):
                    total += sums[r, k]
                update(alpha, total, beta, y, i * incy)
            cuda.syncthreads()

    return (turned,)


def geometry(problem, device, knobs):
    tile_rows, _ = tile_shape(problem.access, BLOCK_X, BLOCK_Y)
    return Geometry((Launch((ceil_div(problem.rows, tile_rows), 1, 1), (BLOCK_X, BLOCK_Y, 1)),))


KERNEL = Kernel("turned", 5, build, geometry, tile=lambda knobs: (BLOCK_Y, BLOCK_X), doc=__doc__)


def goal(look):
    """One line of memory for each request, in both storage orders."""
    for order, along in (("C", "rows"), ("F", "columns")):
        lines = look(32, 32, order=order).lines()
        if lines > 1:
            return f"for A stored along {along}, a request touches {lines:g} lines instead of one"
