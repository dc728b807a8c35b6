"""Few long rows by clusters: blocks read the sums of their row in each other's shared memory.

Idea
    A row of half a megabyte takes a fraction of a microsecond to read if many multiprocessors read
    it, so its columns are split over blocks. Then the sums have to meet. In the rungs before they
    meet in global memory: a sum goes to the L2 cache and from there to the last block, which
    waits until all of them have come. That takes a microsecond, longer than the reading.

    Blocks of a *cluster* run at the same time on multiprocessors that lie together, and each can
    load from the shared memory of the others. Here the CLUSTER blocks of a tile are one. Each warp
    leaves its sums in the shared memory of its own block, all threads of the cluster meet at one
    barrier, and then a few lanes load the sums of all warps of all blocks, all at once. The barrier
    is between the threads of a block, too, so these need none of their own. There is no scratch
    memory, no counter, and nothing to leave clean for the next launch.

    Shared memory ends with its block. So nobody leaves before the last sum is read: a thread comes
    to a second barrier when it has read, then writes y, and waits only before it ends.

Picture
    ::

        one row, CLUSTER = 4, two warps a block

        block 0   columns 0 ...       warp 0, warp 1   sums s00 s01 | barrier | reads 4 * 2 sums, y
        block 1   the next quarter    warp 0, warp 1   sums s10 s11 |         |
        block 2   the third           warp 0, warp 1   sums s20 s21 |         |
        block 3   the last            warp 0, warp 1   sums s30 s31 |         |

        lane            0    1    2    3    4    5    6    7      of the first warp of block 0
        reads          s00  s10  s20  s30  s01  s11  s21  s31     then 3 steps of shuffles

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; x comes from L1 or L2,
    m*n/ROWS elements of it.

Wins
    One row to a hundred, stored along the row, of 20 KB to some megabytes altogether.

Loses
    Where the rows alone fill the GPU, to the rung of vector rows: the barriers are for nothing.
    Where there are few rows and many megabytes: CLUSTER blocks a tile do not fill the GPU. On a GPU
    before Hopper there are no clusters. Rows that do not begin at a multiple of 16 bytes are read
    by narrower loads.

Sums
    In a lane and over the lanes of a warp as in the rung of vector rows. Then the warps of the
    cluster: lane p of those that finish a row adds every so many of block p modulo CLUSTER, in
    pairs, and a butterfly adds the lanes. The order is fixed by shape, alignment and constants,
    not by the GPU. Same bits on every run.

Source
    Clusters and distributed shared memory: NVIDIA, "CUDA C++ Programming Guide", the section on
    thread block clusters; its example, a histogram, adds atomically. Here each sum has a place.
"""

import numpy as np

from gemv.core.geometry import ceil_div
from gemv.kernels.depths import in_cluster, in_halves, shared_out
from gemv.kernels.grids import (
    CLUSTERS,
    columns_in_cluster,
    finishers_of,
    loads_for_one,
    split_in_clusters,
)
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.work import bytes_of_lines, lines_of_warp, steps_of_tree, work_of


def partial_sums(width, precision):
    """How many a lane has for a row: eight wide sums a row take the registers that loads need."""
    return min(width, 2) if precision.sums.itemsize > 2 * precision.data.itemsize else width


def build(spec):
    from gemv.language import (
        butterfly,
        cluster_arrive,
        cluster_load,
        cluster_rank,
        cluster_wait,
        cuda,
        fold,
        gather,
        gather_some,
        load_some,
        load_vectors,
        multiply_add,
        natural,
        quotient,
        rounded_down,
        row_starts,
        stream_some,
        stream_tile,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, ROWS, CLUSTER = spec["LANES"], spec["ROWS"], spec["CLUSTER"]
    VECTORS = spec["VECTORS"] * loads_for_one(WIDTH, spec.dtype.itemsize)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // LANES
    TILE_ROWS = GROUPS * ROWS
    WARP_LANES = min(LANES, 32)
    WARPS_PER_ROW = LANES // WARP_LANES
    STEP = LANES * WIDTH
    PASS = VECTORS * STEP
    WHOLE = WIDTH == 1 or spec.whole  # else there are columns that fill no vector
    # Lanes that share a row in the end, and how many sums each of them loads.
    FINISHERS = finishers_of(TILE_ROWS, THREADS, WARPS_PER_ROW, CLUSTER)
    LOADS = CLUSTER * WARPS_PER_ROW // FINISHERS
    # Constant indices into tuples of ROWS numbers: 0 again where there are fewer.
    SECOND, THIRD, FOURTH = (min(k, ROWS - 1) for k in (1, 2, 3))
    SUMS = ROWS * partial_sums(WIDTH, spec.precision)

    def cluster_rows(rows, cols, cols_per_split, alpha, a, row_stride, x, incx, beta, y, incy):
        sums = cuda.shared.array((TILE_ROWS, WARPS_PER_ROW), number)
        tid = natural(cuda.threadIdx.x)
        rank = natural(cluster_rank())
        lane = tid % LANES
        group = tid // LANES
        begin = rank * cols_per_split
        end = min(cols, begin + cols_per_split)
        if alpha == 0:
            end = begin
        first = cuda.blockIdx.x * TILE_ROWS
        starts = row_starts(first + group, GROUPS, rows - 1, row_stride, ROWS)
        total = zeros(zero, SUMS)
        j = begin + lane * WIDTH
        # Passes in which every lane has all of its vectors.
        limit = j + rounded_down(end - begin, PASS)
        while j + PASS <= limit:
            values = stream_tile(a, starts, j, STEP, VECTORS, WIDTH)
            if WIDE_X:
                factors = load_vectors(x, j, STEP, VECTORS, WIDTH)
            else:
                factors = gather(x, j, STEP, VECTORS, incx, WIDTH)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += PASS
        if j + WIDTH <= end:  # what is left goes out at once, too
            rest = quotient(end - WIDTH - j, STEP) + 1
            values = stream_some(a, starts, j, STEP, VECTORS, WIDTH, rest)
            if WIDE_X:
                factors = load_some(x, j, STEP, VECTORS, WIDTH, rest)
            else:
                factors = gather_some(x, j, STEP, VECTORS, incx, WIDTH, rest)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += rest * STEP
        while not WHOLE and j < end:  # one lane has the columns behind the last whole vector
            values = stream_some(a, starts, j, 1, 1, 1, 1)
            factors = gather_some(x, j, 1, 1, incx, 1, 1)
            total = multiply_add(total, values, factors, CONJUGATE)
            j += 1
        row_sums = butterfly(fold(total, ROWS), WARP_LANES, 1)
        if lane % WARP_LANES == 0:
            warp = lane // WARP_LANES
            sums[group, warp] = row_sums[0]
            if ROWS > 1:
                sums[GROUPS + group, warp] = row_sums[SECOND]
            if ROWS > 2:
                sums[2 * GROUPS + group, warp] = row_sums[THIRD]
            if ROWS > 3:
                sums[3 * GROUPS + group, warp] = row_sums[FOURTH]
        cluster_arrive()
        cluster_wait()  # all sums of all blocks are in place
        place = rank * THREADS + tid  # among the threads of the cluster
        r = place // FINISHERS
        i = first + r
        row_sum = zero
        if r < TILE_ROWS and i < rows:
            part = place % FINISHERS
            several = cluster_load(
                sums, part % CLUSTER, r, part // CLUSTER, FINISHERS // CLUSTER, LOADS
            )
            row_sum = fold(several, 1)[0]
        cluster_arrive()  # this thread reads no other block any more
        if place - tid % 32 < TILE_ROWS * FINISHERS:  # whole warps
            (row_sum,) = butterfly((row_sum,), FINISHERS, 1)
            if r < TILE_ROWS and i < rows and place % FINISHERS == 0:
                update_streaming(alpha, row_sum, beta, y, i * incy)
        cluster_wait()  # nobody reads this block any more

    return (attach(cluster_rows, launch_bounds=(THREADS, spec.min_blocks), cluster=CLUSTER),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def geometry(problem, device, knobs):
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if not 1 <= rows <= min(4, lanes) or lanes & (lanes - 1) or threads & (threads - 1):
        raise ValueError(
            f"cluster_rows: ROWS must be 1 to 4 and at most LANES, got {rows}, and LANES and"
            f" THREADS_PER_BLOCK powers of two, got {lanes} and {threads}"
        )
    if threads < 32:
        raise ValueError(f"cluster_rows: THREADS_PER_BLOCK must be 32 or more, got {threads}")
    tiles = ceil_div(problem.rows, threads // lanes * rows)
    return split_in_clusters("cluster_rows", problem, device, tiles, threads, knobs["CLUSTER"])


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


def work(problem, geometry, knobs):
    (width, x_width), size = problem.widths, problem.dtype.itemsize
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    vectors = knobs["VECTORS"] * loads_for_one(width, size)
    (tiles, cluster, _), (threads, _, _) = geometry.launches[0]
    warps_per_row, tile_rows = ceil_div(lanes, 32), threads // lanes * rows
    x_each = 1 if x_width else width
    shares = columns_in_cluster(problem, geometry)

    def of_block(columns):
        """Passes; loads of A a row; loads of x; products of a row; lanes with work."""
        whole, tail = columns // width, columns % width
        full = columns // (vectors * lanes * width)
        left = whole - full * vectors * lanes  # vectors behind full passes
        # The first lane has as many vectors as any. That with the tail may have one less.
        first, last = full + min(left, 1), full + min(left // lanes, 1)
        most, least, in_pass = ceil_div(whole, lanes), whole // lanes, vectors * width
        return (
            max(first, last + tail),
            max(most, least + tail),
            max(most * x_each, least * x_each + tail),
            max(first * in_pass, last * in_pass + tail),
            min(lanes, whole + min(tail, 1)),
        )

    passes, loads, x_loads, products, _ = map(max, zip(*map(of_block, shares), strict=True))
    finishers = finishers_of(tile_rows, threads, warps_per_row, cluster)
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_lines(problem, sum(map(bool, shares)) - 1, shares[0] * size),
        passes=passes,
        flight=rows * vectors * width * size,
        loads=rows * loads,
        x_loads=x_loads,
        products=rows * products,
        busy_threads=tiles * (threads // lanes) * sum(of_block(each)[4] for each in shares),
        warp_lines=lines_of_warp(problem, threads, lanes, width * size),
        end_steps=steps_of_tree(min(lanes, 32))
        + 2
        + steps_of_tree(cluster * warps_per_row // finishers)
        + steps_of_tree(finishers),
        sums_shared=tile_rows * warps_per_row,
        cluster=cluster,
    )


def depth(problem, geometry, knobs):
    lanes, width = knobs["LANES"], problem.widths[0]
    threads, parts = max(lanes, knobs["THREADS_PER_BLOCK"]), partial_sums(width, problem.precision)
    tile_rows, warps_per_row = threads // lanes * knobs["ROWS"], ceil_div(lanes, 32)

    def of_warps(columns):
        vectors, tail = divmod(columns, width)
        products = np.repeat([shared_out(vectors, lanes) * (width // parts)], parts, axis=0)
        products[0, vectors % lanes] += tail
        return in_halves(in_halves(products - 1).reshape(-1, min(lanes, 32)).T)

    shares = columns_in_cluster(problem, geometry)
    found = {columns: of_warps(columns) for columns in set(shares)}
    finishers = finishers_of(tile_rows, threads, warps_per_row, len(shares))
    return int(in_cluster(np.array([found[columns] for columns in shares]), finishers))


KERNEL = Kernel(
    name="cluster_rows",
    rung=14,
    build=build,
    geometry=geometry,
    tile=tile,
    depth=depth,
    work=work,
    wide=True,
    accepts=accepts,
    capability=CLUSTERS,
    # LANES, THREADS_PER_BLOCK and CLUSTER are powers of two; more than 32 LANES are a whole block
    # or a part of it. VECTORS are of 16 bytes.
    knobs={
        "LANES": 512,
        "ROWS": 1,
        "VECTORS": 4,
        "THREADS_PER_BLOCK": 512,
        "CLUSTER": 8,
        "MIN_BLOCKS": 1,
    },
    small_knobs={
        "LANES": 4,
        "ROWS": 2,
        "VECTORS": 2,
        "THREADS_PER_BLOCK": 32,
        "CLUSTER": 2,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
