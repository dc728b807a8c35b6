"""One answer to the exercise of `vector_columns`."""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel
from gemv.language import axpy_add, cuda, gather, put_pieces, row_starts, stream_tile, update, zeros

LANES = 4


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op
    WIDTH, CONJUGATE = spec.widths[0], int(spec.conj)
    GROUPS = 32 // LANES
    TILE_ROWS = LANES * WIDTH

    def idle(rows, cols, alpha, a, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((GROUPS, TILE_ROWS), number)
        tid = cuda.threadIdx.x
        lane, group = tid % LANES, tid // LANES
        mine = lane * WIDTH  # the first of this thread's rows
        first = cuda.blockIdx.x * TILE_ROWS
        if alpha == 0:
            cols = 0
        last = rows - rows % WIDTH - WIDTH  # where the last whole vector starts
        total = zeros(zero, WIDTH)
        if last >= 0:
            piece = row_starts(first + mine, 0, last, 1, 1)
            for j in range(group, cols, GROUPS):
                values = stream_tile(a, piece, j * col_stride, 0, 1, WIDTH)
                total = axpy_add(total, values, gather(x, j, 0, 1, incx, 1), WIDTH, CONJUGATE)
        put_pieces(sums, group, mine, total, TILE_ROWS, WIDTH)
        cuda.syncthreads()
        for r in range(tid, TILE_ROWS, 32):
            i = first + r
            if i < rows:
                part = sums[0, r]
                for g in range(1, GROUPS):
                    part += sums[g, r]
                if i >= last + WIDTH:  # behind the last whole vector
                    part = zero
                    for k in range(cols):
                        part += op(a[i + k * col_stride]) * x[k * incx]
                update(alpha, part, beta, y, i * incy)

    return (idle,)


def geometry(problem, device, knobs):
    tile_rows = LANES * problem.widths[0]
    return Geometry((Launch((ceil_div(problem.rows, tile_rows), 1, 1), (32, 1, 1)),))


def accepts(problem):
    return None if problem.access == "axpy" else "this is for memory along y"


KERNEL = Kernel(
    "idle", 9, build, geometry, tile=lambda knobs: (4 * LANES, 8), wide=True, accepts=accepts,
    doc=__doc__,
)  # fmt: skip


def goal(look):
    """The first request takes eight columns of 16 rows."""
    taken = {one.element for one in look(16, 32, order="F").requests("a")[0]}
    if len(taken) != 128:
        return f"the first request of the warp takes {len(taken)} different elements instead of 128"
