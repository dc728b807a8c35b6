"""Wide loads down the columns, enough of them in flight: the axpy side at the memory roofline.

Idea
    Where memory runs along y, a thread owns pieces of WIDTH neighbouring rows, one 16-byte load of
    a column each, and walks over the columns with a sum for each of its rows: x[j] times a piece
    of column j is added to a piece of y, which stays in registers all the time. The loads of
    COLUMNS columns and PIECES pieces are started before the first is used (the bytes in flight of
    the rung before).

    LANES threads stand along the rows. When there are few rows, 16 say, a handful of lanes covers
    them, and the rest of the warp takes the next columns, which lie behind in memory: the warp
    still reads one piece. Threads with the same rows and different columns meet in shared memory
    at the end. Columns are split over blocks where rows alone do not fill the GPU, and the last
    block adds up.

Picture
    ::

        float32, LANES = 4: a warp reads 8 columns of 16 rows

                 column 0  1  2 ... 7 |  8 ...       lane 0 of a group: rows 0-3
        rows 0-3        L0 L4 L8   L28 L0            lane 1:            rows 4-7
        rows 4-7        L1 L5 L9   L29 L1            a group of 4 lanes takes one column
        rows 8-11       L2 L6 L10  L30 L2            of 8 (of 64 with a block of 256 threads)
        rows 12-15      L3 L7 L11  L31 L3

        shared memory   [group, row]: one thread a row adds the groups in order

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    once for each tile of rows.

Wins
    A stored along columns (or transposed and stored along rows): large matrices, and skinny ones
    in both directions.

Loses
    A good part of the read rate for matrices up to some 2000 x 2000 and for a single column. To the
    rows rung where memory runs along the sum. Columns that do not begin at a multiple of 16 bytes
    are read by narrower loads, as wide as their alignment allows.

Sums
    Each thread over every GROUPS-th column of its split, the groups of a block in order, then the
    splits. The order is fixed by shape, alignment, the selection table and the number of
    multiprocessors. Same bits on every run.

Source
    The axpy form of gemv: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 1.1.
"""

import numpy as np
from numba import cuda

from gemv._intrinsics import atomic_inc
from gemv._problem import MAX_GRID_X, MAX_GRID_Y, Geometry, Launch, ceil_div
from gemv._vectors import axpy_add, gather, put_pieces, row_starts, stream_tile, zeros
from gemv.kernels._base import Kernel, attach, loads_for_one, update


def build(spec):
    number, zero, op = spec.number, spec.zero, spec.op
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    LANES, PIECES = spec["LANES"], spec["PIECES"]
    # As many bytes in flight when alignment makes the loads narrower.
    COLUMNS = spec["COLUMNS"] * loads_for_one(WIDTH, spec.dtype.itemsize)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // LANES
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    # Threads that share a row when the last block adds the splits.
    FINISHERS = max(THREADS // TILE_ROWS, 1)
    SHARES = max(GROUPS, FINISHERS)
    SUMS = PIECES * WIDTH

    def vector_columns(
        rows, cols, cols_per_split, splits, alpha, a, col_stride, x, incx, beta, y, incy, scratch,
        counters,
    ):  # fmt: skip
        sums = cuda.shared.array((SHARES, TILE_ROWS), number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = cuda.threadIdx.x
        lane = tid % LANES
        group = tid // LANES
        mine = lane * WIDTH  # the first of this thread's rows in a piece of the tile
        split = cuda.blockIdx.y
        begin = split * cols_per_split
        end = min(cols, begin + cols_per_split)
        if alpha == 0:
            end = 0
        step = GROUPS * col_stride
        tail = rows % WIDTH  # rows behind the last whole vector
        last = rows - tail - WIDTH  # where that one starts, if there is one
        tile = cuda.blockIdx.x
        first = tile * TILE_ROWS
        j = begin + group
        total = zeros(zero, SUMS)
        if last >= 0:
            # Past the edge the last vector is read again; nobody looks at those sums.
            pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
            while j + (COLUMNS - 1) * GROUPS < end:
                values = stream_tile(a, pieces, j * col_stride, step, COLUMNS, WIDTH)
                factors = gather(x, j, GROUPS, COLUMNS, incx, 1)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
                j += COLUMNS * GROUPS
            while j < end:
                values = stream_tile(a, pieces, j * col_stride, step, 1, WIDTH)
                factors = gather(x, j, GROUPS, 1, incx, 1)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
                j += GROUPS
        put_pieces(sums, group, mine, total, PIECE_ROWS, WIDTH)
        if tail > 0 and first + TILE_ROWS >= rows:
            cuda.syncthreads()  # the tail is written over what stands in its place
            for r in range(rows - tail - first + lane, rows - first, LANES):
                part = zero
                for k in range(begin + group, end, GROUPS):
                    part += op(a[first + r + k * col_stride]) * x[k * incx]
                sums[group, r] = part
        cuda.syncthreads()  # all sums are in place
        for r in range(tid, TILE_ROWS, THREADS):
            i = first + r
            if i < rows:
                part = sums[0, r]
                for g in range(1, GROUPS):
                    part += sums[g, r]
                if splits == 1:
                    update(alpha, part, beta, y, i * incy)
                else:
                    scratch[split * rows + i] = part
                    cuda.threadfence()  # visible to all blocks before the number is drawn
        cuda.syncthreads()  # all sums of this block are read, and fenced
        if splits > 1:
            if tid == 0:
                ticket[0] = atomic_inc(counters, tile, splits - 1)
            cuda.syncthreads()  # the number is known to all threads
            if ticket[0] == splits - 1:
                cuda.threadfence()  # the sums are read after the number that promised them
                share = tid // TILE_ROWS
                if share < FINISHERS:
                    for r in range(tid % TILE_ROWS, TILE_ROWS, THREADS):
                        part = zero
                        if first + r < rows:
                            for k in range(share, splits, FINISHERS):
                                part += scratch[k * rows + first + r]
                        sums[share, r] = part
                cuda.syncthreads()  # whole blocks take this branch: ticket is shared
                for r in range(tid, TILE_ROWS, THREADS):
                    i = first + r
                    if i < rows:
                        part = sums[0, r]
                        for g in range(1, FINISHERS):
                            part += sums[g, r]
                        update(alpha, part, beta, y, i * incy)

    return (attach(vector_columns, launch_bounds=(THREADS, spec["MIN_BLOCKS"])),)


def accepts(problem):
    if problem.access != "axpy":
        return "wide loads down the columns need memory to run there with a unit stride"
    if problem.splits_elements:
        return "an element of A is not aligned to its own size"
    if problem.rows > MAX_GRID_X:
        return f"a block for each tile needs at most {MAX_GRID_X} rows, not {problem.rows}"
    return None


def geometry(problem, device, knobs):
    lanes, width = knobs["LANES"], problem.widths[0]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if threads % lanes:
        raise ValueError(
            f"vector_columns: THREADS_PER_BLOCK must be a multiple of LANES, got {threads} and"
            f" {lanes}"
        )
    tiles = ceil_div(problem.rows, lanes * width * knobs["PIECES"])
    # One pass of a block over the columns.
    loads = knobs["COLUMNS"] * loads_for_one(width, problem.dtype.itemsize)
    step = threads // lanes * loads
    wanted = ceil_div(device.multiprocessors * knobs["BLOCKS_PER_SM"], tiles)
    splits = max(1, min(wanted, problem.cols // step, MAX_GRID_Y))
    cols_per_split = ceil_div(ceil_div(problem.cols, splits), step) * step
    splits = ceil_div(problem.cols, cols_per_split)
    return Geometry(
        (Launch((tiles, splits, 1), (threads, 1, 1)),),
        sizes={"splits": splits, "cols_per_split": cols_per_split},
        scratch=splits * problem.rows if splits > 1 else 0,
        counters=tiles if splits > 1 else 0,
    )


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


KERNEL = Kernel(
    name="vector_columns",
    rung=9,
    build=build,
    geometry=geometry,
    tile=tile,
    wide=True,
    accepts=accepts,
    # LANES divides THREADS_PER_BLOCK, or is the whole block.
    knobs={
        "LANES": 32,
        "PIECES": 1,
        "COLUMNS": 8,
        "THREADS_PER_BLOCK": 256,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 2,
    },
    small_knobs={
        "LANES": 2,
        "PIECES": 2,
        "COLUMNS": 2,
        "THREADS_PER_BLOCK": 8,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
