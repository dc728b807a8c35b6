"""Wide loads along the rows, enough of them in flight: the full rate of the memory.

Idea
    By Little's law, the number of bytes on their way from memory is rate times latency. A memory
    that delivers 4 TB in a second and answers after a microsecond must have requests for 4 MB at
    any time. On a GPU with a hundred multiprocessors, each of them has to ask for 40 KB; 1024
    threads with one float each ask for 4 KB. So each load is as wide as the hardware allows, 16
    bytes (a *vector*), and a thread starts VECTORS of them in each of ROWS rows before it uses the
    first. The ROWS rows are multiplied with the same elements of x, which are loaded once for all.

    LANES threads share a row. Short rows get 1 to 32 of them, so that a warp reads several rows
    and no lane idles; long rows get a whole block. If that makes too few blocks for the
    multiprocessors, the columns are divided into *splits*, and each block takes one. A split is a
    whole number of passes, because the loads of a full pass need no masks: a single pass where
    there are fewer passes than blocks. On an H100 a row of 189404 float32 took 4.08 us as 24 splits
    of two passes, and takes 3.15 us as 47 splits of one.

    The sums of splits have to meet. In ``last_block`` (rung 7) a block makes three trips to the L2
    cache after its last byte of A has come: for the fence, for its number, for the sums. Here it
    draws its number when it begins, and does not wait for the answer. The block with the last
    number knows that all others are running, and adds up. Fences are not needed: every word of the
    scratch array is all ones until a sum, or half of a complex one, is stored there. The last block
    reads each word until it is no longer all ones, and makes it all ones for the next launch.

    Instructions come from memory, too, which takes a good part of the time of a small product. So
    code that a launch never runs is not compiled: the end of splits (SPLIT), columns behind the
    last whole vector (WHOLE), the loop over rows of a tile if each has a thread (TURNS).

Picture
    ::

        LANES = 8, ROWS = 2, float32, 256 threads: 32 groups of 8 lanes, a lane loads 4 columns

        columns         0-3  4-7  ...  28-31 | 32-35 ...      Lk: lane k of a warp
        row 0           L0   L1   ...  L7    | L0    ...      group 0, first row
        row 1           L8   L9   ...  L15   | L8    ...      group 1, first row
        ...
        row 32          L0   L1   ...  L7    | L0    ...      group 0, second row

        sums            4 for each row of a lane: one for each element of a vector
                        4 -> 1 in the lane, 8 -> 1 by shuffles, then y

        4 splits        block of split 0   draws 1   reads A   sum -> word 0
                        block of split 1   draws 3   reads A   sum -> word 1   = the last of 4:
                        block of split 2   draws 0   reads A   sum -> word 2   reads the words
                        block of split 3   draws 2   reads A   sum -> word 3   until all are sums

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory. Of x, m*n/ROWS elements are
    loaded, from L1 or L2.

Wins
    A stored along rows (or transposed and stored along columns): large matrices, and skinny ones
    in both directions.

Loses
    To ``vector_columns`` (rung 9) where A is stored along columns. To ``phased_rows`` (rung 11)
    with elements of 2 bytes in rows that do not begin at multiples of 16 bytes: these are read by
    loads as wide as their alignment allows. Rows of only a few such elements are slow, too.

Sums
    Each lane takes every LANES-th vector of its split, and adds element k of a vector to partial
    sum k. (Elements of 2 bytes with sums of 8 bytes have two partial sums, k modulo 2: eight would
    take the registers that loads need.) The partial sums are added in pairs, the lanes of a warp by
    a butterfly, then the warps of the block in order, then the splits. The order is fixed by shape,
    alignment, the machine's file (the constants for a GPU, ``docs/machine.md``) and the number of
    multiprocessors. Same bits on every run.

Source
    Bytes in flight: J. D. C. Little, "A proof for the queuing formula L = lambda W" (1961).
    Unrolling keeps a tile in registers: S. Collange, "GPU programming: code optimization part 3".
    Words that say whether their value is there, and waiting for blocks that surely run: D. Merrill
    and M. Garland, "Single-pass parallel prefix scan with decoupled look-back" (2016).
"""

import numpy as np

from gemv.core.geometry import SECTOR_BYTES, ceil_div
from gemv.kernels.depths import in_halves, in_order, of_finishers, of_splits, shared_out
from gemv.kernels.grids import (
    LOADS_IN_BATCHES,
    loads_for_one,
    loads_of,
    partial_sums,
    power_above,
)
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_words import words_of_rows
from gemv.kernels.wide_tiles import TAKEN_FOR_ROWS as BATCH
from gemv.kernels.wide_tiles import finish_warps, split_rows, tail_of
from gemv.kernels.work import (
    bytes_of_lines,
    columns_of_splits,
    lines_of_warp,
    rounds_of_warps,
    steps_of_tree,
    work_of,
)

#: The time in which a block starts and ends, as the bytes that it could read meanwhile.
BYTES_OF_BLOCK = 2048
#: Threads of a multiprocessor that a batch asks for: each may have 128 registers.
THREADS_IN_BATCHES = 512
#: Bytes of rows that the L1 cache holds for the threads of a multiprocessor, and loads of a row
#: that need no such cache. In campaigns on an H200 and an H100 launches with more of both took 1.28
#: to 23 times as long as the best one, 2.6 times in the middle of 62; of 56 that were chosen with
#: fewer bytes none took more than 1.08 times.
MOST_HELD, FEW_LOADS = 160 << 10, 4


def build(spec):
    from gemv.language import (
        atomic_inc,
        butterfly,
        cuda,
        fold,
        gather,
        gather_some,
        load_some,
        load_vectors,
        multiply_add,
        natural,
        post,
        quotient,
        rounded_down,
        row_starts,
        stream_some,
        stream_tile,
        take,
        update_streaming,
        zeros,
    )

    number, zero = spec.number, spec.zero
    CONJUGATE = int(spec.conj)
    WIDTH, X_WIDTH = spec.widths
    WIDE_X = X_WIDTH > 0
    LANES, ROWS = spec["LANES"], spec["ROWS"]
    VECTORS = loads_of(spec["VECTORS"], WIDTH, spec.dtype.itemsize)
    THREADS = max(LANES, spec["THREADS_PER_BLOCK"])
    GROUPS = THREADS // LANES
    TILE_ROWS = GROUPS * ROWS
    TURNS = ceil_div(TILE_ROWS, THREADS)  # until each row of the tile had a thread
    WARP_LANES = min(LANES, 32)
    WARPS_PER_ROW = LANES // WARP_LANES
    WARPS = max(THREADS // 32, 1)
    STEP = LANES * WIDTH
    PASS = VECTORS * STEP
    TAIL = tail_of(WIDTH)
    WHOLE = WIDTH == 1 or spec.whole  # else some columns fill no vector
    SPLIT = spec["BLOCKS_PER_SM"] > 0  # else no code for splits has to be fetched
    # Warps, and threads, that share a row when the last block adds the splits.
    FINISH_WARPS = finish_warps(LANES, ROWS, THREADS)
    FINISHERS = 32 * FINISH_WARPS
    # Indices into tuples of ROWS numbers: constants, and inside the tuple even where it is shorter.
    SECOND, THIRD, FOURTH = (min(k, ROWS - 1) for k in (1, 2, 3))
    SUMS = ROWS * partial_sums(WIDTH, spec.precision)

    def vector_rows(
        rows, cols, cols_per_split, splits, alpha, a, row_stride, x, incx, beta, y, incy, scratch,
        counters,
    ):  # fmt: skip
        sums = cuda.shared.array((TILE_ROWS, WARPS_PER_ROW), number)
        parts = cuda.shared.array(WARPS, number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        lane = tid % LANES
        group = tid // LANES
        split = cuda.blockIdx.y
        begin = split * cols_per_split if SPLIT else 0
        end = min(cols, begin + cols_per_split) if SPLIT else cols
        if alpha == 0:
            end = begin
        drawn = np.uint32(0)
        if SPLIT and splits > 1 and tid == 0:
            drawn = atomic_inc(counters, cuda.blockIdx.x, splits - 1)  # not waited for here
        tile = cuda.blockIdx.x
        first = tile * TILE_ROWS
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
            values = stream_some(a, starts, j, 1, TAIL, 1, end - j)
            factors = gather_some(x, j, 1, TAIL, incx, 1, end - j)
            total = multiply_add(total, values, factors, CONJUGATE)
            j = end if TAIL == WIDTH - 1 else j + TAIL  # one turn, so that there is no loop
        row_sums = butterfly(fold(total, ROWS), WARP_LANES, 1)
        # The whole row is in this warp: no barrier is needed.
        if WARPS_PER_ROW == 1 and (not SPLIT or splits == 1):
            if lane == 0:
                i = first + group
                at, apart = i * incy, GROUPS * incy
                if i < rows:
                    update_streaming(alpha, row_sums[0], beta, y, at)
                if ROWS > 1 and i + GROUPS < rows:
                    update_streaming(alpha, row_sums[SECOND], beta, y, at + apart)
                if ROWS > 2 and i + 2 * GROUPS < rows:
                    update_streaming(alpha, row_sums[THIRD], beta, y, at + 2 * apart)
                if ROWS > 3 and i + 3 * GROUPS < rows:
                    update_streaming(alpha, row_sums[FOURTH], beta, y, at + 3 * apart)
            return
        if lane % WARP_LANES == 0:
            warp = lane // WARP_LANES
            sums[group, warp] = row_sums[0]
            if ROWS > 1:
                sums[GROUPS + group, warp] = row_sums[SECOND]
            if ROWS > 2:
                sums[2 * GROUPS + group, warp] = row_sums[THIRD]
            if ROWS > 3:
                sums[3 * GROUPS + group, warp] = row_sums[FOURTH]
        if SPLIT and splits > 1 and tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums are in place
        r = tid
        while r < TILE_ROWS:
            i = first + r
            if i < rows:
                row_sum = sums[r, 0]
                for warp in range(1, WARPS_PER_ROW):
                    row_sum += sums[r, warp]
                if not SPLIT or splits == 1:
                    update_streaming(alpha, row_sum, beta, y, i * incy)
                else:
                    post(scratch, split * rows + i, row_sum)
            r = r + THREADS if TURNS > 1 else TILE_ROWS
        if SPLIT and splits > 1 and ticket[0] == splits - 1:
            # This block began last: all other blocks have posted their sums, or are running.
            warp = tid // 32
            for r in range(warp // FINISH_WARPS, TILE_ROWS, WARPS // FINISH_WARPS):
                i = first + r
                k = warp % FINISH_WARPS * 32 + tid % 32
                row_sum = zero
                while k < splits and i < rows:
                    rest = quotient(splits - 1 - k, FINISHERS) + 1
                    several = take(zero, scratch, k * rows + i, FINISHERS * rows, BATCH, rest)
                    row_sum += fold(several, 1)[0]
                    k += BATCH * FINISHERS
                (row_sum,) = butterfly((row_sum,), 32, 1)
                if tid % 32 == 0:
                    if FINISH_WARPS > 1:
                        parts[warp] = row_sum
                    elif i < rows:
                        update_streaming(alpha, row_sum, beta, y, i * incy)
            if FINISH_WARPS > 1:
                cuda.syncthreads()  # all threads of the block are here: ticket is shared
                if tid < TILE_ROWS and first + tid < rows:
                    row_sum = parts[tid * FINISH_WARPS]
                    for warp in range(1, FINISH_WARPS):
                        row_sum += parts[tid * FINISH_WARPS + warp]
                    update_streaming(alpha, row_sum, beta, y, (first + tid) * incy)

    return (attach(vector_rows, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def prepared(problem, device, knobs):
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    if not 1 <= rows <= 4 or lanes & (lanes - 1) or threads & (threads - 1) or threads < 32:
        raise ValueError(
            f"vector_rows: ROWS must be 1 to 4, got {rows}, and LANES and THREADS_PER_BLOCK powers"
            f" of two, whole warps together, got {lanes} and {threads}"
        )
    if knobs["VECTORS"] < 0:
        raise ValueError(f"vector_rows: VECTORS must be 0 or more, got {knobs['VECTORS']}")
    return split_rows(problem, device, knobs)


def geometry(problem, device, knobs):
    return prepared(problem, device, knobs)(problem)


def far_apart(knobs):
    """Constants for rows of which the L1 cache cannot hold all that threads have begun.

    A thread that has a row for itself, and does one load at a time, finds the rest of its sectors
    in the L1 cache, if they are still there. 12414720 rows of 7 float32 with 5 more between two of
    them were read four times: they took an H100 898 us, and 212 by loads that are all on their way.
    The order of sums is the same, since columns are not split: where they are, splits follow from
    the number of tiles.
    """
    if knobs["VECTORS"] or knobs["LANES"] > 1 or knobs["BLOCKS_PER_SM"]:
        return None
    rows = knobs["THREADS_PER_BLOCK"] * knobs["MIN_BLOCKS"] * knobs["ROWS"]

    def is_read_again(problem):
        size, cols = problem.dtype.itemsize, problem.cols
        sectors = ceil_div(cols * size, SECTOR_BYTES) + 1
        held = min(abs(problem.row_stride) * size, sectors * SECTOR_BYTES)
        return cols > FEW_LOADS * problem.widths[0] and rows * held > MOST_HELD

    others = {"VECTORS": 4, "ROWS": 1, "THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 4}
    return {**knobs, **others}, is_read_again


def in_batches(problem, knobs):
    """Constants for a batch with the same sums: as many vectors as a row has, and more rows."""
    lanes, width = knobs["LANES"], problem.widths[0]
    own = ceil_div(problem.cols, lanes * width)
    each = loads_for_one(width, problem.dtype.itemsize)
    vectors = max(1, min(knobs["VECTORS"], ceil_div(power_above(own), each)))
    loads = loads_of(vectors, width, problem.dtype.itemsize)
    most = max(1, min(4, LOADS_IN_BATCHES // loads))

    row_bytes = problem.cols * problem.dtype.itemsize

    def rank(choice):
        """Bytes that an item costs, with rows behind the last one and the time of its blocks."""
        threads, rows = choice
        taken = threads // lanes * rows
        tiles = ceil_div(problem.rows, taken)
        return tiles * (BYTES_OF_BLOCK + taken * row_bytes), -rows, -threads

    blocks = [max(lanes, threads) for threads in (32, 64, 128)]
    threads, rows = min(((t, r) for t in blocks for r in range(1, most + 1)), key=rank)
    found = {"VECTORS": vectors, "ROWS": rows, "THREADS_PER_BLOCK": threads, "BLOCKS_PER_SM": 0}
    # Those of a single product may be for smaller blocks or fewer rows: a thread would spill.
    most_blocks = max(1, THREADS_IN_BATCHES // max(lanes, threads))
    found["MIN_BLOCKS"] = min(knobs["MIN_BLOCKS"], most_blocks)
    return {**knobs, **found}


def repeats(problem, knobs):
    return 1, tile(knobs)[0]


def in_tables(problem, knobs):
    """One set of constants for all items of a batch whose rows take the same LANES."""
    blocks = max(1, THREADS_IN_BATCHES // max(knobs["LANES"], 128))
    found = {"ROWS": 2, "VECTORS": 4, "THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 0}
    return {**knobs, **found, "MIN_BLOCKS": blocks}


def in_lists(problem, knobs):
    """The kernel that computes rows of many lengths in one launch; its warps share no row."""
    lanes, (width, x_width) = knobs["LANES"], problem.widths
    return ("list_rows", words_of_rows(problem, lanes, width, x_width > 0)) if lanes <= 32 else None


def tile(knobs):
    threads = max(knobs["LANES"], knobs["THREADS_PER_BLOCK"])
    return threads // knobs["LANES"] * knobs["ROWS"], 4 * knobs["LANES"]


def work(problem, geometry, knobs):
    (width, x_width), size = problem.widths, problem.dtype.itemsize
    lanes, rows = knobs["LANES"], knobs["ROWS"]
    vectors = loads_of(knobs["VECTORS"], width, size)
    (tiles, splits, _), (threads, _, _), _ = geometry.launches[0]
    warps, warps_per_row, tile_rows = threads // 32, ceil_div(lanes, 32), threads // lanes * rows
    x_each = 1 if x_width else width

    def of_split(columns):
        """Passes and tails; loads of A a row; loads of x; products of a row; lanes with work."""
        whole, tail = columns // width, columns % width
        full = columns // (vectors * lanes * width)
        left = whole - full * vectors * lanes  # vectors behind full passes
        turns = ceil_div(tail, tail_of(width))
        # The first lane has the most vectors. The lane with the tail may have one less.
        first, last = full + min(left, 1), full + min(left // lanes, 1)
        most, least, in_pass = ceil_div(whole, lanes), whole // lanes, vectors * width
        return (
            max(first, last + turns),
            max(most, least + tail),
            max(most * x_each, least * x_each + tail),
            max(first * in_pass, last * in_pass + turns * tail_of(width)),
            min(lanes, whole + min(tail, 1)),
        )

    first, last = columns_of_splits(problem, geometry)
    of_first, of_last = of_split(first), of_split(last)
    in_shared = warps_per_row > 1 or splits > 1
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_lines(problem, splits - 1, first * size),
        passes=max(of_first[0], of_last[0]),
        flight=rows * vectors * width * size,
        loads=rows * max(of_first[1], of_last[1]),
        x_loads=max(of_first[2], of_last[2]),
        products=rows * max(of_first[3], of_last[3]),
        busy_threads=tiles * (threads // lanes) * ((splits - 1) * of_first[4] + of_last[4]),
        warp_lines=lines_of_warp(problem, threads, lanes, width * size),
        end_steps=steps_of_tree(min(lanes, 32))
        + in_shared * (1 + ceil_div(tile_rows, threads) * warps_per_row),
        collects=rounds_of_warps(min(tile_rows, problem.rows), tile_rows, warps, splits, BATCH),
        sums_shared=tile_rows * warps_per_row + warps,
    )


def depth(problem, geometry, knobs):
    lanes, width = knobs["LANES"], problem.widths[0]
    threads, parts = max(lanes, knobs["THREADS_PER_BLOCK"]), partial_sums(width, problem.precision)
    sharing = finish_warps(lanes, knobs["ROWS"], threads)

    def of_lanes(depths):
        return in_order(in_halves(depths.reshape(-1, min(len(depths), 32)).T))

    def in_block(columns):
        vectors, tail = divmod(columns, width)
        products = np.repeat([shared_out(vectors, lanes) * (width // parts)], parts, axis=0)
        # Columns that fill no vector go to different partial sums if they are read at once.
        own = 1 if tail_of(width) == 1 else parts
        products[:own, vectors % lanes] += shared_out(tail, own)
        return of_lanes(in_halves(products - 1))

    depths = of_splits(problem, geometry, in_block)
    if len(depths) == 1:
        return int(depths[0])
    return int(of_lanes(of_finishers(depths, 32 * sharing, BATCH)))


KERNEL = Kernel(
    name="vector_rows",
    rung=8,
    build=build,
    geometry=geometry,
    prepared=prepared,
    tile=tile,
    repeats=repeats,
    in_tables=in_tables,
    in_lists=in_lists,
    far_apart=far_apart,
    depth=depth,
    work=work,
    in_batches=in_batches,
    wide=True,
    splits_apart=True,
    accepts=accepts,
    # LANES and THREADS_PER_BLOCK are powers of two. VECTORS counts 16 bytes; narrower loads are so
    # many more. 0 is one load of any width.
    knobs={
        "LANES": 256,
        "ROWS": 1,
        "VECTORS": 4,
        "THREADS_PER_BLOCK": 256,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 2,
    },
    small_knobs={
        "LANES": 4,
        "ROWS": 2,
        "VECTORS": 2,
        "THREADS_PER_BLOCK": 32,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
