"""Short columns by clusters: blocks take columns in turn, and add up in each other's shared memory.

Idea
    A matrix of few rows stored along its columns has a short y and a long sum for each element of
    it. Columns are shared out over groups of LANES threads, over the warps of a block and over the
    blocks of a cluster, as in the rung of vector columns; with less than a megabyte of A the sums
    of blocks must meet as fast as those of warps. The rung before says how: the CLUSTER blocks of a
    tile run at the same time, meet at one barrier, and load from each other's shared memory.

    There are more sums to read than for one row: of every row from every warp of every block. So
    all threads of the cluster read. Neighbouring lanes take the sums of one row from different
    blocks, each lane those of several warps at once, and a butterfly adds up what they have. As
    many lanes share a row as the cluster has threads for its rows, up to a warp.

Picture
    ::

        float32, LANES = 4, CLUSTER = 2: a warp reads 8 columns of 16 rows, a block of 4 warps 32

        block 0     columns 0-7   warp 0    8-15  warp 1 ...    its half of the columns in turn
        block 1     the other half likewise

                    warp 0  warp 1  warp 2  warp 3
        block 0     a0      a1      a2      a3        sums of one row in shared memory
        block 1     b0      b1      b2      b3

        lane 0      a0, a2      lane 1    b0, b2      FINISHERS = 4 lanes, 2 loads each
        lane 2      a1, a3      lane 3    b1, b3      then 2 steps of shuffles, then y

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    once for each tile of rows.

Wins
    Two rows to a hundred or so, stored along columns, in thousands of columns: 50 KB to some
    megabytes altogether.

Loses
    To the rung of vector columns where tiles of rows alone fill the GPU, or where A is so large
    that more blocks than a cluster has must share it. Columns that do not begin at multiples of 16
    bytes are read by narrower loads; short ones without gaps are then a single stretch, see the
    rung of short columns. On a GPU before Hopper there are no clusters.

Sums
    Each thread over every GROUPS-th column of its block's share, a butterfly over the groups of a
    warp, then the warps of the cluster as in the rung before. The order is fixed by shape,
    alignment and constants, not by the GPU. Same bits on every run.

Source
    As the rungs of vector columns and of cluster rows.
"""

import numpy as np

from gemv.core.geometry import ceil_div
from gemv.core.shares import share_of_lane
from gemv.kernels.depths import in_cluster, in_halves, shared_out
from gemv.kernels.grids import (
    CLUSTERS,
    columns_in_cluster,
    finishers_of,
    loads_for_one,
    split_in_clusters,
)
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.work import bytes_of_tiles, lines_of_warp, steps_of_tree, work_of


def tile_of_thread(knobs, width, itemsize):
    """LANES, PIECES and COLUMNS for loads of `width` elements: as many rows and bytes in flight.

    Narrower loads need more lanes for the rows of a tile, so groups of fewer threads take more
    columns each. Only what 32 lanes do not cover becomes more pieces.
    """
    wanted = knobs["LANES"] * loads_for_one(width, itemsize)
    lanes = min(wanted, 32)
    return lanes, knobs["PIECES"] * (wanted // lanes), knobs["COLUMNS"] * (lanes // knobs["LANES"])


def build(spec):
    from gemv.language import (
        axpy_add,
        butterfly,
        cluster_arrive,
        cluster_load,
        cluster_rank,
        cluster_wait,
        cuda,
        fold,
        gather,
        gather_some,
        natural,
        put_pieces,
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
    # What a lane has of the sums of its warp, and which lanes have the same.
    KEPT, HOLDERS, RUN = share_of_lane(SUMS, WIDTH, LANES)
    WHOLE = WIDTH == 1 or spec.whole  # else there are rows that fill no vector
    LINE = TILE_ROWS if WHOLE else TILE_ROWS + WIDTH  # sums of a warp, the last ones of such rows
    # Lanes that share a row in the end, and how many sums each of them loads.
    FINISHERS = finishers_of(TILE_ROWS, THREADS, WARPS, CLUSTER)
    LOADS = CLUSTER * WARPS // FINISHERS
    APART = FINISHERS // CLUSTER

    def cluster_columns(rows, cols, cols_per_split, alpha, a, col_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((WARPS, LINE), number)
        tid = natural(cuda.threadIdx.x)
        rank = natural(cluster_rank())
        lane = tid % LANES
        group = tid // LANES
        warp = tid // 32
        mine = lane * WIDTH  # the first of this thread's rows in a piece of the tile
        begin = rank * cols_per_split
        end = min(cols, begin + cols_per_split)
        if alpha == 0:
            end = begin
        step = GROUPS * col_stride
        edge = rows if WHOLE else rounded_down(rows, WIDTH)  # rows from here on fill no vector
        last = edge - WIDTH  # where the last whole vector starts, if there is one
        first = cuda.blockIdx.x * TILE_ROWS
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
                at = mine + k // WIDTH * PIECE_ROWS + k % WIDTH
                put_pieces(sums, warp, at, some, PIECE_ROWS, RUN)
        else:
            put_pieces(sums, warp, mine, total, PIECE_ROWS, WIDTH)
        if not WHOLE and edge < rows and first + TILE_ROWS >= rows:
            for i in range(edge, rows):  # the whole block for each of these few
                part = zero
                for k in range(begin + tid, end, THREADS):
                    part += op(a[i + k * col_stride]) * x[k * incx]
                (part,) = butterfly((part,), 32, 1)
                if tid % 32 == 0:
                    sums[warp, TILE_ROWS + i - edge] = part
        cluster_arrive()
        cluster_wait()  # all sums of all blocks are in place
        place = rank * THREADS + tid  # among the threads of the cluster
        r = place // FINISHERS
        i = first + r
        row_sum = zero
        if r < TILE_ROWS and i < rows:
            at = r if WHOLE or i < edge else TILE_ROWS + i - edge
            part = place % FINISHERS
            several = cluster_load(sums, part % CLUSTER, part // CLUSTER, at, APART * LINE, LOADS)
            row_sum = fold(several, 1)[0]
        cluster_arrive()  # this thread reads no other block any more
        if place - tid % 32 < TILE_ROWS * FINISHERS:  # whole warps
            (row_sum,) = butterfly((row_sum,), FINISHERS, 1)
            if r < TILE_ROWS and i < rows and place % FINISHERS == 0:
                update_streaming(alpha, row_sum, beta, y, i * incy)
        cluster_wait()  # nobody reads this block any more

    return (attach(cluster_columns, launch_bounds=(THREADS, spec.min_blocks), cluster=CLUSTER),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def geometry(problem, device, knobs):
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
    tiles = ceil_div(problem.rows, tile_rows)
    return split_in_clusters("cluster_columns", problem, device, tiles, threads, knobs["CLUSTER"])


def tile(knobs):
    groups = knobs["THREADS_PER_BLOCK"] // knobs["LANES"]
    return 4 * knobs["LANES"] * knobs["PIECES"], groups * knobs["COLUMNS"]


def work(problem, geometry, knobs):
    width, size = problem.widths[0], problem.dtype.itemsize
    lanes, pieces, columns = tile_of_thread(knobs, width, size)
    (tiles, cluster, _), (threads, _, _) = geometry.launches[0]
    groups, warps, tile_rows = threads // lanes, threads // 32, lanes * width * pieces
    shares = columns_in_cluster(problem, geometry)
    some = 1 if problem.rows >= width else 0  # else there is no vector, and the edge is all
    passes = some * ceil_div(shares[0], groups * columns)
    own = some * ceil_div(shares[0], groups)  # columns of a thread
    if some:
        busy = lanes * sum(min(groups, each) for each in shares)
    else:
        busy = sum(min(threads, each) for each in shares)
    finishers = finishers_of(tile_rows, threads, warps, cluster)
    line = tile_rows if width == 1 or problem.whole else tile_rows + width
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
        end_steps=steps_of_tree(32 // lanes)
        + 2
        + steps_of_tree(cluster * warps // finishers)
        + steps_of_tree(finishers),
        sums_shared=warps * line,
        cluster=cluster,
    )


def depth(problem, geometry, knobs):
    width, threads = problem.widths[0], knobs["THREADS_PER_BLOCK"]
    lanes, pieces, _ = tile_of_thread(knobs, width, problem.dtype.itemsize)
    shares = columns_in_cluster(problem, geometry)
    finishers = finishers_of(lanes * width * pieces, threads, threads // 32, len(shares))

    def in_warps(parties):
        """Of rows whose columns `parties` share in each block."""
        of_warp = parties * 32 // threads
        found = {
            columns: in_halves((shared_out(columns, parties) - 1).reshape(-1, of_warp).T)
            for columns in set(shares)
        }
        return int(in_cluster(np.array([found[columns] for columns in shares]), finishers))

    found = []
    if problem.rows >= width:
        found.append(in_warps(threads // lanes))
    if problem.rows % width:  # rows that fill no vector: the whole block for each of them
        found.append(in_warps(threads))
    return max(found)


KERNEL = Kernel(
    name="cluster_columns",
    rung=15,
    build=build,
    geometry=geometry,
    tile=tile,
    depth=depth,
    work=work,
    wide=True,
    accepts=accepts,
    capability=CLUSTERS,
    # All but COLUMNS and MIN_BLOCKS are powers of two, LANES 32 at most.
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
        "THREADS_PER_BLOCK": 64,
        "CLUSTER": 2,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
