"""Wide loads down the columns, enough of them in flight: the full rate of the memory.

Idea
    Where A is stored along columns, a thread owns *pieces* of WIDTH neighbouring rows; one 16-byte
    load reads a piece of a column. The thread goes over the columns and adds x[j] times its piece
    of column j to WIDTH sums, which stay in registers. As in ``vector_rows`` (rung 8), it starts
    many loads before it uses the first: those of PIECES pieces in each of COLUMNS columns.

    A *group* is LANES threads side by side, which cover the rows of a tile in one column. For 16
    rows in float32 a group is four lanes, and the other lanes of the warp are groups that take the
    next seven columns. In the end the groups add up what they have of the same rows: those of a
    warp by shuffles, the warps in shared memory. No lane needs all sums. So when two lanes exchange
    sums, each keeps half of the rows and sends the other half, and the next step has half as many
    to add. If rows alone do not fill the GPU, columns are divided into splits, and the block that
    began last adds up, as in rung 8.

    A lane that has several neighbouring sums stores up to 16 bytes of them at once. Number by
    number, 32 lanes with 8 float32 each would meet 4 of the 32 banks of shared memory in each of 8
    stores, which take 64 steps. Two stores of 16 bytes meet 16 banks each, and take 16 steps.

    Where columns are not aligned, loads are narrower, and two or four lanes take the place of one,
    so that a warp still reads a run of memory from each column. But no more than the rows need: of
    four lanes for a single row, three would only load what nobody uses. On an H100 2 x 636755
    bfloat16 took 5.34 us with four lanes, and takes 4.30 us with one, whose load has both rows.

    With 132 splits, a thread that reads one partial sum after the other waits 132 times for the L2
    cache. So in the last block several threads share a row, and each of them has BATCH partial sums
    on their way.

    In a single product of few rows, LANES is small so that many threads share the columns. With
    LANES = 1 a warp reads 16 bytes of each of 32 columns, and that is half of a sector. A batch of
    products fills the GPU by its number. There, ACROSS (2 or 4) times as many lanes stand along the
    rows, and a block has ACROSS times as many warps. Groups that would share a warp are then in
    different warps: they add in the same order, but in shared memory rather than by a shuffle.

Picture
    ::

        float32, LANES = 4, 256 threads: a warp has 8 groups, the block 64

                         warp 0             warp 1    Lk: lane k of a warp
                 column  0  1  2 ... 7    | 8 ...     group g takes columns g, g + 64, ...
        rows 0-3         L0 L4 L8    L28  | L0
        rows 4-7         L1 L5 L9    L29  | L1
        rows 8-11        L2 L6 L10   L30  | L2
        rows 12-15       L3 L7 L11   L31  | L3

        shuffles        8 groups of a warp become one, in 3 steps; of the 4 sums of lane 0
                          with lane 16:  it keeps rows 0 1      (lane 16: 2 3)
                          with lane 8:   it keeps row 0         (lane 8: 1)
                          with lane 4:   both have row 0 of all 8 groups
        shared memory   sums[warp, row]: one thread for each row adds the warps in order

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    once for each tile of rows.

Wins
    A stored along columns (or transposed and stored along rows): large matrices, and many short
    columns.

Loses
    To ``vector_rows`` where A is stored along rows, to ``long_columns`` (rung 10) if A is a few
    long columns, and to ``phased_columns`` (rung 12) if columns do not begin at multiples of 16
    bytes: these are read by loads as wide as their alignment allows.

Sums
    Each thread sums over every GROUPS-th column of its split. Then the groups of a warp are added
    as by a butterfly, the warps of the block in order, then the splits. The order is fixed by
    shape, alignment, the machine's file (the constants for a GPU, ``docs/machine.md``) and the
    number of multiprocessors. Same bits on every run.

Source
    The axpy form of gemv: G. H. Golub and C. F. Van Loan, "Matrix Computations", section 1.1. To
    halve what is exchanged at each step: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
    collective communication operations in MPICH" (2005), for processes.
"""

import numpy as np

from gemv.core.geometry import ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels.columns_of_items import MOST_LANES, arguments_of, best_for_items, can_widen
from gemv.kernels.depths import in_halves, in_order, of_finishers, of_splits, shared_out
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_words import words_of_trees
from gemv.kernels.wide_tiles import TAKEN_FOR_COLUMNS as BATCH
from gemv.kernels.wide_tiles import (
    finishers_of_columns,
    lanes_and_pieces,
    lanes_and_pieces_of,
    narrow_loads,
    split_columns_of,
)
from gemv.kernels.work import (
    bytes_of_tiles,
    columns_of_splits,
    lines_of_warp,
    rounds_of_finishers,
    steps_of_tree,
    work_of,
)


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
        put_units,
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
    LANES, PIECES = lanes_and_pieces(dict(spec.knobs), WIDTH, spec.dtype.itemsize, spec.narrow)
    THREADS, ACROSS = max(LANES, spec["THREADS_PER_BLOCK"]), spec["ACROSS"]
    GROUPS, WARP_GROUPS = THREADS // LANES, max(32 // LANES, 1)
    LANES, THREADS = LANES * ACROSS, THREADS * ACROSS
    WARPS = THREADS // 32
    PASS = GROUPS * COLUMNS
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    TURNS = ceil_div(TILE_ROWS, THREADS)  # until each row of the tile had a thread
    SUMS = PIECES * WIDTH
    # How many sums of its warp a lane keeps, how many lanes keep the same, and runs of neighbours.
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    SLOTS = min(GROUPS, WARPS)  # sums of each row that shared memory holds
    WHOLE = WIDTH == 1 or spec.whole  # else some rows fill no vector
    SPLIT = spec["BLOCKS_PER_SM"] > 0  # else no code for splits has to be fetched
    # Threads that share a row when the last block adds the splits.
    FINISHERS = finishers_of_columns(THREADS, TILE_ROWS)
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
        sums = cuda.shared.array((SHARES, TILE_ROWS), number, alignment=16)
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
            # Past the edge the last vector is read again; no thread uses its sums.
            pieces = row_starts(first + mine, PIECE_ROWS, last, 1, PIECES)
            while j + PASS <= limit:
                values = stream_tile(a, pieces, j * col_stride, step, COLUMNS, WIDTH)
                factors = gather(x, j, GROUPS, COLUMNS, incx, 1)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
                j += PASS
            if j < end:  # the remaining columns are loaded together, too
                rest = quotient(end - 1 - j, GROUPS) + 1
                values = stream_some(a, pieces, j * col_stride, step, COLUMNS, WIDTH, rest)
                factors = gather_some(x, j, GROUPS, COLUMNS, incx, 1, rest)
                total = axpy_add(total, values, factors, WIDTH, CONJUGATE)
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT  # the first of the sums that this lane keeps
                place = mine + k // WIDTH * PIECE_ROWS + k % WIDTH
                put_units(sums, warp, place, some, PIECE_ROWS, RUN)
        else:
            put_units(sums, group, mine, total, PIECE_ROWS, WIDTH)
        if not WHOLE and edge < rows and first + TILE_ROWS >= rows:
            for i in range(edge, rows):  # the whole block shares each of these few rows
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
            # This block began last: all other blocks have posted their sums, or are running.
            cuda.syncthreads()  # all threads of a block are here, and have read `sums`
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
            cuda.syncthreads()  # all partial sums are in place
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


def prepared(problem, device, knobs):
    lanes, _ = lanes_and_pieces_of(problem, knobs)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if lanes & (lanes - 1) or threads % lanes or threads % 32:
        raise ValueError(
            "vector_columns: LANES must be a power of two, and THREADS_PER_BLOCK a multiple of it"
            f" in whole warps, got {lanes} and {threads}"
        )
    across = knobs["ACROSS"]
    if across > 1 and (
        across not in (2, 4) or lanes * across > MOST_LANES or not can_widen(problem)
    ):
        raise ValueError(
            "vector_columns: ACROSS must be 1, 2 or 4, up to 16 LANES together, and 1 for columns"
            f" that are no whole vectors, got {across} and {lanes}"
        )
    return split_columns_of(problem, device, knobs, across)


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def in_batches(problem, knobs):
    """Constants for a batch with the same sums: LANES and THREADS_PER_BLOCK stay."""
    own = best_for_items(problem, *arguments_of(problem, knobs))
    return {**knobs, **own, "BLOCKS_PER_SM": 0}


def in_tables(problem, knobs):
    """One set of constants for all items of a batch with the same LANES and threads."""
    blocks = max(1, 768 // max(knobs["LANES"], knobs["THREADS_PER_BLOCK"]))  # 85 registers a thread
    found = {"ACROSS": 1, "COLUMNS": 8, "PIECES": 1, "BLOCKS_PER_SM": 0}
    return {**knobs, **found, "MIN_BLOCKS": blocks}


def in_lists(problem, knobs):
    """The kernel that computes columns of many lengths in one launch."""
    lanes, _ = lanes_and_pieces_of(problem, knobs)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    tree = max(32 // lanes, 1)
    return words_of_trees(problem, tree, threads // lanes // tree)


def repeats(problem, knobs):
    width = problem.widths[0]
    if problem.rows < width:
        return None  # `rows` in a table is larger, so it would not show that no vector is whole
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    return 1, lanes * knobs["ACROSS"] * width * pieces


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return 4 * knobs["LANES"] * knobs["PIECES"], threads // knobs["LANES"] * knobs["COLUMNS"]


def work(problem, geometry, knobs):
    width, size, columns = problem.widths[0], problem.dtype.itemsize, knobs["COLUMNS"]
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    (tiles, splits, _), (threads, _, _), _ = geometry.launches[0]
    groups, warps, tile_rows = threads // lanes, threads // 32, lanes * width * pieces
    first, last = columns_of_splits(problem, geometry)
    some = 1 if problem.rows >= width else 0  # 0: no row is in a whole vector
    passes = some * ceil_div(first, groups * columns)
    own = some * ceil_div(first, groups)  # columns of a thread
    finishers = finishers_of_columns(threads, tile_rows)
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
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    finishers = finishers_of_columns(threads, lanes * width * pieces)

    def in_warps(parties, in_warp):
        """Of rows whose columns `parties` share; `in_warp` of these are in the same warp."""

        def in_block(columns):
            return in_order(in_halves((shared_out(columns, parties) - 1).reshape(-1, in_warp).T))

        depths = of_splits(problem, geometry, in_block)
        if len(depths) == 1:
            return int(depths[0])
        return int(in_order(of_finishers(depths, finishers, BATCH)))

    found = []
    if problem.rows >= width:
        found.append(in_warps(threads // lanes, 32 // min(lanes, 32)))
    if problem.rows % width:  # the whole block shares each row that fills no vector
        found.append(in_warps(threads, 32))
    return max(found)


KERNEL = Kernel(
    name="vector_columns",
    rung=9,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    repeats=repeats,
    in_tables=in_tables,
    in_lists=in_lists,
    depth=depth,
    work=work,
    in_batches=in_batches,
    wide=True,
    narrow=narrow_loads,
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
