"""Short columns by clusters: blocks share out the columns, and send sums to each other's memory.

Idea
    A matrix of few rows stored along columns has a short y, and a long sum for each element of it.
    As in ``vector_columns`` (rung 9), columns are shared out over groups of LANES threads, over the
    warps of a block, and over blocks. But below a megabyte of A the blocks must add up as fast as
    warps do. ``cluster_rows`` (rung 14) says how: the CLUSTER blocks of a tile run at the same
    time, and send sums into each other's shared memory.

    Here every warp of every block has a sum of every row of the tile. So the rows are dealt out:
    each block finishes some of them. A warp sends each sum straight to the block that finishes its
    row. To add up the warps of a block first would cost a barrier, and would save nothing but
    stores. Up to 32 lanes finish a row together, as many as the block has threads for its rows.

Picture
    ::

        float32, LANES = 4, CLUSTER = 2: a warp reads 8 columns of 16 rows, a block of 4 warps 32

        block 0    columns 0-7   warp 0    8-15  warp 1 ...   its half of the columns in turn
        block 1    the other half likewise

                   sums of rows 0-7   of warp w of block b   ->  slot 4*b + w of block 0
                   sums of rows 8-15                         ->  slot 4*b + w of block 1

        block 0    8 slots a row: lane k reads slot k of a row, then 3 steps of shuffles, then y

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    once for each tile of rows.

Wins
    Up to about 60 rows, stored along a thousand columns or more: 60 KB to 2 MB altogether. On an
    H200, 8 x 11923 float32 took 1.84 us and ``vector_columns`` 2.75; 6680 x 7 float16, transposed,
    took 1.76 and 2.94 (``benchmarks/results/fit/h200.json``, each kernel with its best constants).

Loses
    To ``vector_columns`` where tiles of rows alone fill the GPU, or where A is so large that more
    blocks than a cluster has must share it: 3 x 106691 complex64 took 5.19 us instead of 3.92.
    Columns that do not begin at multiples of 16 bytes are read by narrower loads. GPUs before
    Hopper have no clusters.

Sums
    Each thread sums over every GROUPS-th column of its block's share. The groups of a warp are
    added as by a butterfly, then the slots as in ``cluster_rows``. The order is fixed by shape,
    alignment and constants, not by the number of multiprocessors or by who sends first. Same bits
    on every run.

Source
    As ``vector_columns`` and ``cluster_rows``.
"""

import numpy as np

from gemv.core.geometry import SHARED_SUM_BYTES, ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels.depths import in_halves, in_lanes, shared_out
from gemv.kernels.grids import (
    CLUSTERS,
    columns_in_cluster,
    finishing,
    loads_for_one,
    split_in_clusters,
)
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.work import bytes_of_tiles, lines_of_warp, steps_of_tree, work_of


def tile_of_thread(knobs, width, itemsize):
    """LANES, PIECES and COLUMNS for loads of `width` elements: the rows and bytes of 16-byte loads.

    Narrower loads need more lanes for the rows of a tile. Then a block has fewer groups, so each
    takes more columns. What would need more than 32 lanes becomes more pieces.
    """
    wanted = knobs["LANES"] * loads_for_one(width, itemsize)
    lanes = min(wanted, 32)
    return lanes, knobs["PIECES"] * (wanted // lanes), knobs["COLUMNS"] * (lanes // knobs["LANES"])


def build(spec):
    from gemv.language import (
        axpy_add,
        butterfly,
        cluster_arrive,
        cluster_expect,
        cluster_post,
        cluster_rank,
        cluster_take,
        cluster_wait,
        cuda,
        gather,
        gather_some,
        natural,
        quotient,
        rounded_down,
        row_starts,
        scatter_sums,
        stream_some,
        stream_tile,
        update_streaming,
        zeros,
    )

    number, zero, op = spec.number, spec.zero, spec.op
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    LANES, PIECES, COLUMNS = tile_of_thread(dict(spec.knobs), WIDTH, spec.dtype.itemsize)
    THREADS, CLUSTER = spec["THREADS_PER_BLOCK"], spec["CLUSTER"]
    WARPS = THREADS // 32
    GROUPS = THREADS // LANES
    PASS = GROUPS * COLUMNS
    PIECE_ROWS = LANES * WIDTH
    TILE_ROWS = PIECES * PIECE_ROWS
    SUMS = PIECES * WIDTH
    # How many sums of its warp a lane keeps, how many lanes keep the same, and runs of neighbours.
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    WHOLE = WIDTH == 1 or spec.whole  # else some rows fill no vector
    SLOTS = CLUSTER * WARPS  # partial sums of a row: one of each warp
    # Rows that a block finishes, lanes that share one of them, and slots of a lane.
    OWN, FINISHERS = finishing(TILE_ROWS, THREADS, SLOTS, CLUSTER)
    TURNS = SLOTS // FINISHERS

    def cluster_columns(rows, cols, cols_per_split, alpha, a, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((OWN, SLOTS), number)
        box = cuda.shared.array(1, np.uint64)
        tid = natural(cuda.threadIdx.x)
        rank = natural(cluster_rank())
        first = cuda.blockIdx.x * TILE_ROWS
        behind = min(rows, first + TILE_ROWS)
        mine = first + rank * OWN  # the first of the rows that this block finishes, if < behind
        if tid == 0:
            cluster_expect(box, sums, SLOTS * max(min(behind - mine, OWN), 0))
        cluster_arrive()
        lane = tid % LANES
        group = tid // LANES
        slot = rank * WARPS + tid // 32
        begins = lane * WIDTH  # the first of this thread's rows in a piece of the tile
        begin = rank * cols_per_split
        end = min(cols, begin + cols_per_split)
        if alpha == 0:
            end = begin
        step = GROUPS * col_stride
        edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
        last = edge - WIDTH  # where the last whole vector starts, if there is one
        j = begin + group
        # Passes in which every group has all of its columns.
        limit = j + rounded_down(end - begin, PASS)
        total = zeros(zero, SUMS)
        if WHOLE or last >= 0:
            # Past the edge the last vector is read again; no thread uses its sums.
            pieces = row_starts(first + begins, PIECE_ROWS, last, 1, PIECES)
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
        cluster_wait()  # all counters are set: sums may be sent
        limit = edge - first  # sums of the rows from here on are sent below
        if LANES < 32:
            some = scatter_sums(total, tid, WIDTH, 32, LANES)
            if tid % HOLDERS < LANES:
                k = tid % 32 // HOLDERS * KEPT  # the first of the sums that this lane keeps
                at = begins + k // WIDTH * PIECE_ROWS + k % WIDTH
                cluster_post(box, sums, slot, at, some, PIECE_ROWS, RUN, OWN, limit)
        else:
            cluster_post(box, sums, slot, begins, total, PIECE_ROWS, WIDTH, OWN, limit)
        if not WHOLE and edge < rows and first + TILE_ROWS >= rows:
            for i in range(edge, rows):  # the whole block shares each of these few rows
                part = zero
                for k in range(begin + tid, end, THREADS):
                    part += op(a[i + k * col_stride]) * x[k * incx]
                alone = butterfly((part,), 32, 1)
                if tid % 32 == 0:
                    cluster_post(box, sums, slot, i - first, alone, 1, 1, OWN, TILE_ROWS)
        if mine < behind and tid - tid % 32 < OWN * FINISHERS:  # the other warps end here
            cluster_take(box)
            r = tid // FINISHERS
            there = r < OWN and mine + r < behind
            row_sum = zero
            if there:
                row_sum = sums[r, tid % FINISHERS]
                for k in range(1, TURNS):
                    row_sum += sums[r, tid % FINISHERS + k * FINISHERS]
            (row_sum,) = butterfly((row_sum,), FINISHERS, 1)
            if there and tid % FINISHERS == 0:
                update_streaming(alpha, row_sum, beta, y, (mine + r) * incy)

    return (attach(cluster_columns, launch_bounds=(THREADS, spec.min_blocks), cluster=CLUSTER),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def prepared(problem, device, knobs):
    width, itemsize = problem.widths[0], problem.dtype.itemsize
    threads = knobs["THREADS_PER_BLOCK"]
    if knobs["LANES"] > 32 or knobs["LANES"] & (knobs["LANES"] - 1):
        raise ValueError(
            f"cluster_columns: LANES must be a power of two up to 32, got {knobs['LANES']}"
        )
    lanes, pieces, _ = tile_of_thread(knobs, width, itemsize)
    tile_rows = lanes * width * pieces
    if threads & (threads - 1) or threads < max(tile_rows, 32) or pieces & (pieces - 1):
        raise ValueError(
            "cluster_columns: PIECES and THREADS_PER_BLOCK must be powers of two, and there must be"
            f" a thread for each of {tile_rows} rows of a tile, got {pieces} and {threads}"
        )
    shared_bytes = tile_rows * (threads // 32) * problem.precision.sums.itemsize
    if shared_bytes > SHARED_SUM_BYTES:
        raise ValueError(
            f"cluster_columns: the sums that arrive at a block must fit into {SHARED_SUM_BYTES}"
            f" bytes of shared memory, got {shared_bytes}"
        )
    cluster = knobs["CLUSTER"]
    return split_in_clusters("cluster_columns", problem, device, tile_rows, threads, cluster)


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def repeats(problem, knobs):
    width = problem.widths[0]
    if problem.rows < width:
        return None  # `rows` in a table is larger, so it would not show that no vector is whole
    lanes, pieces, _ = tile_of_thread(knobs, width, problem.dtype.itemsize)
    return 1, lanes * width * pieces


def tile(knobs):
    groups = knobs["THREADS_PER_BLOCK"] // knobs["LANES"]
    return 4 * knobs["LANES"] * knobs["PIECES"], groups * knobs["COLUMNS"]


def work(problem, geometry, knobs):
    width, size = problem.widths[0], problem.dtype.itemsize
    lanes, pieces, columns = tile_of_thread(knobs, width, size)
    (tiles, cluster, _), (threads, _, _), _ = geometry.launches[0]
    groups, tile_rows = threads // lanes, lanes * width * pieces
    shares = columns_in_cluster(problem, geometry)
    some = 1 if problem.rows >= width else 0  # 0: no row is in a whole vector
    passes = some * ceil_div(shares[0], groups * columns)
    own = some * ceil_div(shares[0], groups)  # columns of a thread
    if some:
        busy = lanes * sum(min(groups, each) for each in shares)
    else:
        busy = sum(min(threads, each) for each in shares)
    slots = cluster * threads // 32
    own_rows, finishers = finishing(tile_rows, threads, slots, cluster)
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_tiles(problem, tiles, tile_rows),
        passes=passes,
        edge_passes=problem.rows % width * ceil_div(shares[0], threads),
        flight=pieces * columns * width * size,
        loads=pieces * own,
        x_loads=own,
        products=passes * pieces * columns * width,
        busy_threads=tiles * busy,
        warp_lines=lines_of_warp(problem, threads, lanes, width * size),
        end_steps=steps_of_tree(32 // lanes) + 1 + slots // finishers + steps_of_tree(finishers),
        sums_shared=own_rows * slots,
        cluster=cluster,
    )


def depth(problem, geometry, knobs):
    width, threads = problem.widths[0], knobs["THREADS_PER_BLOCK"]
    lanes, pieces, _ = tile_of_thread(knobs, width, problem.dtype.itemsize)
    shares = columns_in_cluster(problem, geometry)
    slots = len(shares) * threads // 32
    _, finishers = finishing(lanes * width * pieces, threads, slots, len(shares))

    def in_warps(parties):
        """Of rows whose columns `parties` share in each block."""
        of_warp = parties * 32 // threads
        found = {
            columns: in_halves((shared_out(columns, parties) - 1).reshape(-1, of_warp).T)
            for columns in set(shares)
        }
        return int(in_lanes(np.array([found[columns] for columns in shares]), finishers))

    found = []
    if problem.rows >= width:
        found.append(in_warps(threads // lanes))
    if problem.rows % width:  # the whole block shares each row that fills no vector
        found.append(in_warps(threads))
    return max(found)


KERNEL = Kernel(
    name="cluster_columns",
    rung=15,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    repeats=repeats,
    depth=depth,
    work=work,
    wide=True,
    accepts=accepts,
    capability=CLUSTERS,
    # All but COLUMNS and MIN_BLOCKS are powers of two, LANES 32 at most and CLUSTER from 2 to 16.
    knobs={
        "LANES": 4,
        "PIECES": 1,
        "COLUMNS": 8,
        "THREADS_PER_BLOCK": 256,
        "CLUSTER": 8,
        "MIN_BLOCKS": 2,
    },
    small_knobs={
        "LANES": 2,
        "PIECES": 2,
        "COLUMNS": 2,
        "THREADS_PER_BLOCK": 32,
        "CLUSTER": 2,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
