"""The tile turned towards memory: neighbouring threads on neighbouring addresses, either order.

Idea
    A warp's 32 loads go out as one request. If they fall into one line of 128 bytes, it moves 4
    sectors of 32 bytes, and every byte is used; if they fall into 32 lines, it moves 32 sectors. So
    threadIdx.x must walk the way A is stored: along the columns for A in rows (C), along the rows
    for A in columns (Fortran). Everything else follows from one index each: which row of the tile a
    thread adds to, and its place among the threads of that row.

    The block may be rectangular, 32 x 8 here: 32 threads fill the line, and the other side is
    free to choose. The shared array gets one unused column: with a pitch of 33 numbers instead of
    32, the threads that walk down a column of it meet 32 different banks.

Picture
    ::

        A in rows (C)                            A in columns (Fortran)
                 column 0 .. 31 | 32 ..                   column 0   1  ..  7 | 8 ..
        row 0    ty=0: x0 .. x31  x0 ..          row 0    tx=0    y0  y1 ..  y7  y0 ..
        row 1    ty=1: x0 .. x31  x0 ..          ...
        ...                                      row 31   tx=31   y0  y1 ..  y7  y0 ..
        row 7    ty=7: x0 .. x31  x0 ..          a warp (one ty) reads down a column

        shared   row r: 32 sums + 1 unused       row r: 8 sums + 1 unused
                 one thread adds a whole row of it, so result r lands in thread r
                 and 32 results leave as one write

Bytes
    (m*n + len(x) * m/tile_rows + 2 * splits*m + len(y) * (1 + [beta != 0])) * itemsize as asked
    for; x and the scratch array come from L2.

Wins
    Large matrices, square or wide, in both storage orders, against every kernel before.

Loses
    Rows of 64 elements: two for each thread, and then 32 sums to add for a row; a thread a row does
    better. A second launch for the sums over the blocks. One element a load, so the threads that
    fit have too few bytes in flight to reach the roofline.

Sums
    Each thread over every 32nd (8th) column of its split, then the threads of a row in order, then
    the splits. The order depends on shape, storage order and the number of multiprocessors. Same
    bits on every run.

Source
    "Matrix-vector product", a CUDA exercise of EPCC: coalescing left until last, array tails, and
    a rectangular block as the check of a robust solution.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.depths import in_order, of_splits, shared_out
from gemv.kernels.grids import split_columns, tile_shape
from gemv.kernels.kernel import Kernel, attach


def build(spec):
    from gemv.language import cuda, update

    number, zero, op = spec.number, spec.zero, spec.op
    BLOCK_X = spec["BLOCK_X"]
    THREADS_COMBINE = spec["THREADS_COMBINE"]
    DOWN_THE_COLUMNS = spec.access == "axpy"
    TILE_ROWS, LANES = tile_shape(spec.access, BLOCK_X, spec["BLOCK_Y"])
    PITCH = LANES + 1  # odd, so a walk down a column of the array meets every bank

    def partial_sums(
        rows, cols, cols_per_split, alpha, a, row_stride, col_stride, x, incx, scratch
    ):
        sums = cuda.shared.array((TILE_ROWS, PITCH), number)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        tid = ty * BLOCK_X + tx
        if DOWN_THE_COLUMNS:
            r, lane = tx, ty
        else:
            r, lane = ty, tx
        split = cuda.blockIdx.y
        end = min(cols, (split + 1) * cols_per_split)
        if alpha == 0:
            end = 0
        a_step = LANES * col_stride
        x_step = LANES * incx
        for row0 in range(cuda.blockIdx.x * TILE_ROWS, rows, cuda.gridDim.x * TILE_ROWS):
            i = row0 + r
            total = zero
            if i < rows:
                j = split * cols_per_split + lane
                at = i * row_stride + j * col_stride
                at_x = j * incx
                while j < end:  # steps of a constant size: no multiplication in the loop
                    total += op(a[at]) * x[at_x]
                    j += LANES
                    at += a_step
                    at_x += x_step
            sums[r, lane] = total
            cuda.syncthreads()  # all sums are in place; threads past the edge came along
            if tid < TILE_ROWS and row0 + tid < rows:
                total = zero
                for k in range(LANES):
                    total += sums[tid, k]
                scratch[split * rows + row0 + tid] = total
            cuda.syncthreads()  # sums of others have been read before these overwrite them

    def combine(rows, splits, alpha, scratch, beta, y, incy):
        first = cuda.blockIdx.x * THREADS_COMBINE + cuda.threadIdx.x
        for i in range(first, rows, cuda.gridDim.x * THREADS_COMBINE):
            total = zero
            for split in range(splits):
                total += scratch[split * rows + i]
            update(alpha, total, beta, y, i * incy)

    # Three blocks on a multiprocessor leave a thread 80 registers on compute capability 9.0. The
    # bound also decides how many loads the compiler starts in a row, so it was found by trying.
    bounds = BLOCK_X * spec["BLOCK_Y"], 3
    return (attach(partial_sums, launch_bounds=bounds), combine)


def geometry(problem, device, knobs):
    block_x, block_y, threads = knobs["BLOCK_X"], knobs["BLOCK_Y"], knobs["THREADS_COMBINE"]
    tile_rows, lanes = tile_shape(problem.access, block_x, block_y)
    most = knobs["MAX_BLOCKS"]
    row_tiles = ceil_div(problem.rows, tile_rows)
    splits, cols_per_split = split_columns(
        problem.cols, lanes, row_tiles, block_x * block_y, device
    )
    return Geometry(
        (
            Launch((min(row_tiles, most), splits, 1), (block_x, block_y, 1)),
            Launch((min(ceil_div(problem.rows, threads), most), 1, 1), (threads, 1, 1)),
        ),
        sizes={"splits": splits, "cols_per_split": cols_per_split},
        scratch=splits * problem.rows,
    )


def depth(problem, geometry, knobs):
    _, lanes = tile_shape(problem.access, knobs["BLOCK_X"], knobs["BLOCK_Y"])

    def in_block(columns):
        return in_order(shared_out(columns, lanes) - 1)

    return int(in_order(of_splits(problem, geometry, in_block)))


KERNEL = Kernel(
    name="coalesced",
    rung=5,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["BLOCK_Y"], knobs["BLOCK_X"]),
    depth=depth,
    teaching=True,
    knobs={"BLOCK_X": 32, "BLOCK_Y": 8, "THREADS_COMBINE": 128, "MAX_BLOCKS": 1 << 20},
    small_knobs={"BLOCK_X": 8, "BLOCK_Y": 2, "THREADS_COMBINE": 4, "MAX_BLOCKS": 2},
    doc=__doc__,
)
