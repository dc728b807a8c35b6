"""Wide loads down the columns, enough of them in flight: the axpy side at the memory roofline.

Idea
    Where memory runs along y, a thread owns pieces of WIDTH neighbouring rows, one 16-byte load of
    a column each, and walks over the columns with a sum for each of its rows: x[j] times a piece
    of column j is added to a piece of y, which stays in registers all the time. The loads of
    COLUMNS columns and PIECES pieces are started before the first is used (the bytes in flight of
    the rung before).

    LANES threads stand along the rows. When there are few rows, 16 say, a handful of lanes covers
    them, and the rest of the warp takes the next columns, which lie behind in memory: the warp
    still reads one piece. Threads with the same rows and different columns meet at the end, those
    of a warp by shuffles, the warps in shared memory. A vector is several sums, and no lane needs
    all of them: where two lanes meet, each keeps half of the rows and sends the other half, so
    that the next step has half as many to add. Columns are split over blocks where rows alone do
    not fill the GPU, and the block that began last adds up, as in the rung before.

    Adding up must not become the longest part: with 132 splits, a thread that waits for one
    partial sum after the other waits 132 times for the L2. Here BATCH of them are on their way at
    any time, in each of several threads a row.

    A single product spreads few rows over a whole GPU: with one or two LANES a warp reads 32
    columns by 16 bytes each, which is half of what the L2 cache hands out at a time. A batch has
    blocks enough. There ACROSS times as many threads stand along the rows, with as many warps to a
    block; groups change warps with them, so that the same sums meet in the same order, what two
    lanes of a warp added up before in shared memory now.

Picture
    ::

        float32, LANES = 4: a warp reads 8 columns of 16 rows

                 column 0  1  2 ... 7 |  8 ...       lane 0 of a group: rows 0-3
        rows 0-3        L0 L4 L8   L28 L0            lane 1:            rows 4-7
        rows 4-7        L1 L5 L9   L29 L1            a group of 4 lanes takes one column
        rows 8-11       L2 L6 L10  L30 L2            of 8 (of 64 with a block of 256 threads)
        rows 12-15      L3 L7 L11  L31 L3

        shuffles        8 groups of a warp become one, in 3 steps; of the 4 sums of lane 0
                          with lane 16:  it keeps rows 0 1      (lane 16: 2 3)
                          with lane 8:   it keeps row 0         (lane 8: 1)
                          with lane 4:   row 0 of all 8 groups, as lane 4 has it
        shared memory   [warp, row]: one thread a row adds the warps in order

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    once for each tile of rows.

Wins
    A stored along columns (or transposed and stored along rows): large matrices, and many short
    columns.

Loses
    A part of the rate of the L2 cache for matrices that are there. To the next rung where a few
    long columns are all of A, to the rows rung where memory runs along the sum. Columns that do not
    begin at a multiple of 16 bytes are read by narrower loads, as wide as their alignment allows:
    see the rung of columns with phases.

Sums
    Each thread over every GROUPS-th column of its split, a butterfly over the groups of a warp,
    the warps of the block in order, then the splits. The order is fixed by shape, alignment, the
    machine's file and the number of multiprocessors. Same bits on every run.

Source
    The axpy form of gemv: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 1.1. To
    halve what is exchanged at each step: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
    collective communication operations in MPICH" (2005), for processes.
"""

import numpy as np

from gemv.core.geometry import CACHE_LINE_BYTES, ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels.depths import in_halves, in_order, of_finishers, of_splits, shared_out
from gemv.kernels.grids import LOADS_IN_BATCHES, power_above
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.wide_tiles import RUN_BYTES, lanes_and_pieces, split_columns_of
from gemv.kernels.wide_tiles import TAKEN_FOR_COLUMNS as BATCH
from gemv.kernels.work import (
    bytes_of_tiles,
    columns_of_splits,
    lines_of_warp,
    rounds_of_finishers,
    steps_of_tree,
    work_of,
)

#: The most threads that a block has for the sake of ACROSS.
MOST_IN_BATCHES = 512


def build(spec):
    from gemv.language import (
        atomic_inc,
        axpy_add,
        butterfly,
        cuda,
        device,
        fold,
        gather,
        gather_some,
        natural,
        post,
        put_pieces,
        quotient,
        rounded_down,
        row_starts,
        scatter_sums,
        stream_some,
        stream_tile,
        take,
        update_streaming,
        zeros,
    )

    number, zero, op = spec.number, spec.zero, spec.op
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    COLUMNS = spec["COLUMNS"]
    LANES, PIECES = lanes_and_pieces(dict(spec.knobs), WIDTH, spec.dtype.itemsize)
    THREADS, ACROSS = max(LANES, spec["THREADS_PER_BLOCK"]), spec["ACROSS"]
    GROUPS, WARP_GROUPS = THREADS // LANES, max(32 // LANES, 1)
    LANES, THREADS = LANES * ACROSS, THREADS * ACROSS
    WARPS = THREADS // 32
    PASS = GROUPS * COLUMNS
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    TURNS = ceil_div(TILE_ROWS, THREADS)  # until each row of the tile had a thread
    SUMS = PIECES * WIDTH
    # What a lane has of the sums of its warp, and which lanes have the same.
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    SLOTS = min(GROUPS, WARPS)  # sums of a row that meet in shared memory
    WHOLE = WIDTH == 1 or spec.whole  # else there are rows that fill no vector
    SPLIT = spec["BLOCKS_PER_SM"] > 0  # else there is no code for splits, and less to fetch
    # Threads that share a row when the last block adds the splits.
    FINISHERS = min(max(THREADS // TILE_ROWS, 1), 16)
    SHARES = max(SLOTS, FINISHERS)

    @device
    def of_warps(sums, k, r):
        """The sum of a row over warp `k`, or over the ACROSS warps in its place."""
        if ACROSS == 1:
            return sums[k, r]
        if ACROSS == 2:
            return sums[2 * k, r] + sums[2 * k + 1, r]
        return (sums[4 * k, r] + sums[4 * k + 2, r]) + (sums[4 * k + 1, r] + sums[4 * k + 3, r])

    def vector_columns(
        rows, cols, cols_per_split, splits, alpha, a, col_stride, x, incx, beta, y, incy, scratch,
        counters,
    ):  # fmt: skip
        sums = cuda.shared.array((SHARES, TILE_ROWS), number)
        edges = cuda.shared.array((WARPS, WIDTH), number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        lane = tid % LANES
        warp = tid // 32
        group = tid // LANES
        if ACROSS > 1:
            group = warp // ACROSS * WARP_GROUPS + tid % 32 // LANES * ACROSS + warp % ACROSS
        mine = lane * WIDTH  # the first of this thread's rows in a piece of the tile
        split = cuda.blockIdx.y
        begin = split * cols_per_split if SPLIT else 0
        end = min(cols, begin + cols_per_split) if SPLIT else cols
        if alpha == 0:
            end = begin
        drawn = np.uint32(0)
        if SPLIT and splits > 1 and tid == 0:
            drawn = atomic_inc(counters, cuda.blockIdx.x, splits - 1)  # not waited for here
        step = GROUPS * col_stride
        edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
        last = edge - WIDTH  # where the last whole vector starts, if there is one
        tile = cuda.blockIdx.x
        first = tile * TILE_ROWS
        j = begin + group
        # Passes in which every group has all of its columns.
        limit = j + rounded_down(end - begin, PASS)
        total = zeros(zero, SUMS)
        if WHOLE or last >= 0:
            # Past the edge the last vector is read again; nobody looks at those sums.
            pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
            while j + PASS <= limit:
                values = stream_tile(a, pieces, j * col_stride, step, COLUMNS, WIDTH)
                factors = gather(x, j, GROUPS, COLUMNS, incx, 1)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
                j += PASS
            if j < end:  # what is left goes out at once, too
                rest = quotient(end - 1 - j, GROUPS) + 1
                values = stream_some(a, pieces, j * col_stride, step, COLUMNS, WIDTH, rest)
                factors = gather_some(x, j, GROUPS, COLUMNS, incx, 1, rest)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT  # of all sums, the first that this lane has
                place = mine + k // WIDTH * PIECE_ROWS + k % WIDTH
                put_pieces(sums, warp, place, some, PIECE_ROWS, RUN)
        else:
            put_pieces(sums, group, mine, total, PIECE_ROWS, WIDTH)
        if not WHOLE and edge < rows and first + TILE_ROWS >= rows:
            for i in range(edge, rows):  # the whole block for each of these few
                part = zero
                for k in range(begin + tid, end, THREADS):
                    part += op(a[i + k * col_stride]) * x[k * incx]
                (part,) = butterfly((part,), 32, 1)
                if tid % 32 == 0:
                    edges[warp, i - edge] = part
        if SPLIT and splits > 1 and tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums are in place
        r = tid
        while r < TILE_ROWS:
            i = first + r
            if i < rows:
                if WHOLE or i < edge:
                    part = of_warps(sums, 0, r)
                    for k in range(1, SLOTS // ACROSS):
                        part += of_warps(sums, k, r)
                else:
                    part = edges[0, i - edge]
                    for k in range(1, WARPS):
                        part += edges[k, i - edge]
                if not SPLIT or splits == 1:
                    update_streaming(alpha, part, beta, y, i * incy)
                else:
                    post(scratch, split * rows + i, part)
            r = r + THREADS if TURNS > 1 else TILE_ROWS
        if SPLIT and splits > 1 and ticket[0] == splits - 1:
            # The last one to begin: all sums are there, or on their way.
            cuda.syncthreads()  # whole blocks take this branch; their own sums are read
            share = tid // TILE_ROWS
            r = tid % TILE_ROWS
            while r < TILE_ROWS:
                i = first + r
                k = share
                part = zero
                while k < splits and i < rows and share < FINISHERS:
                    rest = quotient(splits - 1 - k, FINISHERS) + 1
                    several = take(zero, scratch, k * rows + i, FINISHERS * rows, BATCH, rest)
                    part += fold(several, 1)[0]
                    k += BATCH * FINISHERS
                if share < FINISHERS:
                    sums[share, r] = part
                r = r + THREADS if TURNS > 1 else TILE_ROWS
            cuda.syncthreads()  # all shares are in place
            r = tid
            while r < TILE_ROWS:
                i = first + r
                if i < rows:
                    part = sums[0, r]
                    for k in range(1, FINISHERS):
                        part += sums[k, r]
                    update_streaming(alpha, part, beta, y, i * incy)
                r = r + THREADS if TURNS > 1 else TILE_ROWS

    return (attach(vector_columns, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def geometry(problem, device, knobs):
    lanes, _ = lanes_and_pieces(knobs, problem.widths[0], problem.dtype.itemsize)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if lanes & (lanes - 1) or threads % lanes or threads % 32:
        raise ValueError(
            "vector_columns: LANES must be a power of two, and THREADS_PER_BLOCK a multiple of it"
            f" in whole warps, got {lanes} and {threads}"
        )
    across = knobs["ACROSS"]
    if across > 1 and (across not in (2, 4) or lanes * across > 16 or not _can_widen(problem)):
        raise ValueError(
            "vector_columns: ACROSS must be 1, 2 or 4, up to 16 LANES together, and 1 for columns"
            f" that are no whole vectors, got {across} and {lanes}"
        )
    return split_columns_of(problem, device, knobs, across)


def _can_widen(problem):
    """Whether no rows are left to the whole block, whose number of threads would count."""
    return problem.whole or problem.widths[0] == 1


def in_batches(problem, knobs):
    """Other constants with the same sums: longer pieces of columns, and no more of them than are.

    LANES and threads are what sums depend on; ACROSS makes good for few LANES.
    """
    width, itemsize = problem.widths[0], problem.dtype.itemsize
    lanes, pieces = lanes_and_pieces(knobs, width, itemsize)
    again = pieces // knobs["PIECES"]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])

    def fits(taken):
        """Not more than an eighth of the rows that a tile of `taken` has are no rows."""
        return 8 * (-problem.rows % (taken * again * width)) <= problem.rows

    across = 1
    while (
        _can_widen(problem)
        and lanes * across * width * itemsize < RUN_BYTES
        and 2 * lanes * across <= 16
        and across < 4
        and 2 * across * threads <= MOST_IN_BATCHES
        and fits(2 * across * lanes)
    ):
        across *= 2
    lanes, found = lanes * across, 1
    # Two blocks of 512 threads leave 64 registers to a thread, and have 64 KB in flight by 4 loads.
    most = LOADS_IN_BATCHES if across == 1 else LOADS_IN_BATCHES // 2

    def more(columns):
        return 2 * found * again * columns <= most and fits(2 * found * lanes)

    while found * again * lanes * width * itemsize < CACHE_LINE_BYTES and more(1):
        found *= 2
    columns = power_above(ceil_div(problem.cols * lanes, threads * across))
    columns = max(1, min(knobs["COLUMNS"], columns, most // (found * again)))
    while more(columns):
        found *= 2
    few = {"ACROSS": across, "MIN_BLOCKS": 2} if across > 1 else {}
    own = {"COLUMNS": columns, "PIECES": max(found, knobs["PIECES"]), "BLOCKS_PER_SM": 0}
    return {**knobs, **own, **few}


def in_tables(problem, knobs):
    """One set of constants for all items whose sums take so many lanes of so many threads."""
    blocks = max(1, 768 // max(knobs["LANES"], knobs["THREADS_PER_BLOCK"]))  # 85 registers a thread
    found = {"ACROSS": 1, "COLUMNS": 8, "PIECES": 1, "BLOCKS_PER_SM": 0}
    return {**knobs, **found, "MIN_BLOCKS": blocks}


def repeats(problem, knobs):
    width = problem.widths[0]
    if problem.rows < width:
        return None  # no vector is whole, which a count of rows from somewhere else does not show
    lanes, pieces = lanes_and_pieces(knobs, width, problem.dtype.itemsize)
    return 1, lanes * knobs["ACROSS"] * width * pieces


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


def work(problem, geometry, knobs):
    width, size, columns = problem.widths[0], problem.dtype.itemsize, knobs["COLUMNS"]
    lanes, pieces = lanes_and_pieces(knobs, width, size)
    (tiles, splits, _), (threads, _, _) = geometry.launches[0]
    groups, warps, tile_rows = threads // lanes, threads // 32, lanes * width * pieces
    first, last = columns_of_splits(problem, geometry)
    some = 1 if problem.rows >= width else 0  # else there is no vector, and the edge is all
    passes = some * ceil_div(first, groups * columns)
    own = some * ceil_div(first, groups)  # columns of a thread
    finishers = min(max(threads // tile_rows, 1), 16)
    if some:
        busy = lanes * ((splits - 1) * min(groups, first) + min(groups, last))
    else:
        busy = (splits - 1) * min(threads, first) + min(threads, last)
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_tiles(problem, tiles, tile_rows),
        passes=passes,
        edge_passes=problem.rows % width * ceil_div(first, threads),
        flight=pieces * columns * width * size,
        loads=pieces * own,
        x_loads=own,
        products=passes * pieces * columns * width,
        busy_threads=tiles * busy,
        warp_lines=lines_of_warp(problem, threads, lanes, width * size),
        end_steps=steps_of_tree(32 // min(lanes, 32))
        + 1
        + ceil_div(tile_rows, threads) * min(groups, warps),
        collects=ceil_div(min(tile_rows, problem.rows), threads)
        * rounds_of_finishers(splits, finishers, BATCH),
        sums_shared=max(min(groups, warps), finishers) * tile_rows + warps * width,
    )


def depth(problem, geometry, knobs):
    width = problem.widths[0]
    lanes, pieces = lanes_and_pieces(knobs, width, problem.dtype.itemsize)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    finishers = min(max(threads // (lanes * width * pieces), 1), 16)

    def in_warps(parties, in_warp):
        """Of rows whose columns `parties` share, `in_warp` in each warp, or one in several."""

        def in_block(columns):
            return in_order(in_halves((shared_out(columns, parties) - 1).reshape(-1, in_warp).T))

        depths = of_splits(problem, geometry, in_block)
        if len(depths) == 1:
            return int(depths[0])
        return int(in_order(of_finishers(depths, finishers, BATCH)))

    found = []
    if problem.rows >= width:
        found.append(in_warps(threads // lanes, 32 // min(lanes, 32)))
    if problem.rows % width:  # rows that fill no vector: the whole block for each of them
        found.append(in_warps(threads, 32))
    return max(found)


KERNEL = Kernel(
    name="vector_columns",
    rung=9,
    build=build,
    geometry=geometry,
    tile=tile,
    repeats=repeats,
    in_tables=in_tables,
    depth=depth,
    work=work,
    in_batches=in_batches,
    wide=True,
    splits_apart=True,
    accepts=accepts,
    # LANES is a power of two that divides THREADS_PER_BLOCK, or is the whole block.
    knobs={
        "LANES": 32,
        "PIECES": 1,
        "COLUMNS": 8,
        "THREADS_PER_BLOCK": 256,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 2,
        "ACROSS": 1,
    },
    small_knobs={
        "LANES": 2,
        "PIECES": 2,
        "COLUMNS": 2,
        "THREADS_PER_BLOCK": 64,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
        "ACROSS": 1,
    },
    doc=__doc__,
)
