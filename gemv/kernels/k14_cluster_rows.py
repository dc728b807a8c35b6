"""Few long rows by clusters: blocks send the sums of their row into each other's shared memory.

Idea
    Many multiprocessors together read a row of half a megabyte in a fraction of a microsecond, so
    its columns are divided over blocks. Then their sums have to meet. In the rungs before they
    meet in global memory: each sum goes to the L2 cache and from there to the last block, which
    waits for all of them. That takes a microsecond, longer than reading the row.

    The blocks of a *cluster* (compute capability 9.0) run at the same time on neighbouring
    multiprocessors, and each can store into the shared memory of the others. Here CLUSTER blocks
    share a tile of rows. Each block finishes some of these rows, and has a *slot* in its shared
    memory for each sum of them. Each warp sends its sums straight to the blocks of their rows.

    How does a block know that all its sums are there? The blocks could meet at the cluster's
    barrier. But a barrier that orders stores is compiled to a fence for the whole GPU. So these
    stores count themselves: each carries the address of a counter in the shared memory that it
    goes to, and when it arrives, the hardware adds its bytes to that counter. A block sets its
    counter to the number of bytes that it expects, and waits until they have come. That needs the
    barrier once, without any ordering of stores: no sum may be sent before all counters are set.
    Each thread arrives at it before it reads A, and waits for it when it has its sums; by then
    the others have long arrived. A block that expects no sums ends when it has sent its own.

    There is no scratch memory, and nothing to clean for the next launch.

Picture
    ::

        one row, CLUSTER = 4, two warps a block

        block 0   first quarter        warp 0 -> slot 0   warp 1 -> slot 1     of block 0
        block 1   second quarter       warp 0 -> slot 2   warp 1 -> slot 3     of block 0
        block 2   third quarter        warp 0 -> slot 4   warp 1 -> slot 5     of block 0
        block 3   fourth quarter       warp 0 -> slot 6   warp 1 -> slot 7     of block 0

        block 0   waits for 8 sums of 4 bytes; lanes 0-7 read a slot each, 3 steps of shuffles, y

        four rows in a tile: the sums of row 1 go to block 1, and so on

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory. Of x, m*n/ROWS elements are
    loaded, from L1 or L2.

Wins
    One row to about 30, stored along the row, of 120 KB to 1 MB altogether. On an H200, 1 x 17024
    float32 took 1.63 us and ``vector_rows`` 2.79; 6 x 18038 took 1.76 and 3.04
    (``benchmarks/results/fit/h200.json``, each kernel with its best constants).

Loses
    To ``vector_rows`` (rung 8) where rows alone fill the GPU, and where CLUSTER blocks for each
    tile are too few for the size of A: 1 x 212224 complex64 took 5.00 us instead of 3.93. Rows that
    do not begin at multiples of 16 bytes are read by narrower loads. GPUs before Hopper have no
    clusters.

Sums
    In a warp as in ``vector_rows``. The slots of a row are ordered by block and warp. Each of the
    lanes that finish a row adds every so many of its slots in order, and a butterfly adds the
    lanes. The order is fixed by shape, alignment and constants, not by the number of
    multiprocessors or by who sends first. Same bits on every run.

Source
    Clusters and distributed shared memory: NVIDIA, "CUDA C++ Programming Guide", the section on
    thread block clusters; its example, a histogram, adds atomically. Here each sum has a slot, so
    that the order is fixed. Stores that count themselves: ``st.async`` and ``mbarrier`` in NVIDIA,
    "Parallel Thread Execution ISA".
"""

import numpy as np

from gemv.core.geometry import ceil_div
from gemv.kernels.depths import in_halves, in_lanes, shared_out
from gemv.kernels.grids import (
    CLUSTERS,
    columns_in_cluster,
    finishing,
    loads_for_one,
    partial_sums,
    split_in_clusters,
)
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.work import bytes_of_lines, lines_of_warp, steps_of_tree, work_of


def build(spec):
    from gemv.language import (
        butterfly,
        cluster_arrive,
        cluster_expect,
        cluster_post,
        cluster_rank,
        cluster_take,
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
    WHOLE = WIDTH == 1 or spec.whole  # else some columns fill no vector
    SLOTS = CLUSTER * WARPS_PER_ROW  # partial sums of a row: one of each warp that has a part
    # Rows that a block finishes, lanes that share one of them, and slots of a lane.
    OWN, FINISHERS = finishing(TILE_ROWS, THREADS, SLOTS, CLUSTER)
    TURNS = SLOTS // FINISHERS
    SUMS = ROWS * partial_sums(WIDTH, spec.precision)

    def cluster_rows(rows, cols, cols_per_split, alpha, a, row_stride, x, incx, beta, y, incy):
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
        begin = rank * cols_per_split
        end = min(cols, begin + cols_per_split)
        if alpha == 0:
            end = begin
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
        if j + WIDTH <= end:  # the remaining vectors are loaded together, too
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
        cluster_wait()  # all counters are set: sums may be sent
        if lane % WARP_LANES == 0:
            slot = rank * WARPS_PER_ROW + lane // WARP_LANES
            cluster_post(box, sums, slot, group, row_sums, GROUPS, 1, OWN, rows - first)
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

    return (attach(cluster_rows, launch_bounds=(THREADS, spec.min_blocks), cluster=CLUSTER),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def prepared(problem, device, knobs):
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if not 1 <= rows <= min(4, lanes) or lanes & (lanes - 1) or threads & (threads - 1):
        raise ValueError(
            f"cluster_rows: ROWS must be 1 to 4 and at most LANES, got {rows}, and LANES and"
            f" THREADS_PER_BLOCK powers of two, got {lanes} and {threads}"
        )
    if threads < 32:
        raise ValueError(f"cluster_rows: THREADS_PER_BLOCK must be 32 or more, got {threads}")
    tile_rows = threads // lanes * rows
    return split_in_clusters("cluster_rows", problem, device, tile_rows, threads, knobs["CLUSTER"])


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def repeats(problem, knobs):
    return 1, tile(knobs)[0]


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


def work(problem, geometry, knobs):
    (width, x_width), size = problem.widths, problem.dtype.itemsize
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    vectors = knobs["VECTORS"] * loads_for_one(width, size)
    (tiles, cluster, _), (threads, _, _), _ = geometry.launches[0]
    warps_per_row, tile_rows = ceil_div(lanes, 32), threads // lanes * rows
    x_each = 1 if x_width else width
    shares = columns_in_cluster(problem, geometry)

    def of_block(columns):
        """Passes; loads of A a row; loads of x; products of a row; lanes with work."""
        whole, tail = columns // width, columns % width
        full = columns // (vectors * lanes * width)
        left = whole - full * vectors * lanes  # vectors behind full passes
        # The first lane has the most vectors. The lane with the tail may have one less.
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
    slots = cluster * warps_per_row
    own_rows, finishers = finishing(tile_rows, threads, slots, cluster)
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
        end_steps=steps_of_tree(min(lanes, 32)) + 1 + slots // finishers + steps_of_tree(finishers),
        sums_shared=own_rows * slots,
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
    _, finishers = finishing(tile_rows, threads, len(shares) * warps_per_row, len(shares))
    return int(in_lanes(np.array([found[columns] for columns in shares]), finishers))


KERNEL = Kernel(
    name="cluster_rows",
    rung=14,
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
    # LANES, THREADS_PER_BLOCK and CLUSTER are powers of two, CLUSTER from 2 to 16. VECTORS counts
    # 16 bytes; narrower loads are so many more.
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
