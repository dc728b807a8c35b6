"""Many short columns: A is loaded as one stretch of memory, and each thread keeps its rows.

Idea
    A 16-byte load has four float32, but a column of A may have only three elements. If each load
    stayed within one column, it would be narrow, and most lanes would idle. But if the columns
    follow each other with small gaps, all of A is one stretch of memory, and a thread can load any
    aligned vector of 16 bytes from it, wherever columns begin. Element e of the stretch is in row
    ``e % lda`` of column ``e // lda``. One division per element would be slow, but one per thread
    is enough. A block advances by a multiple of lda elements in each step, so a thread's vectors
    contain the same rows in every step. The thread has WIDTH sums, one for each element of a
    vector, and its column number grows by a constant. Vectors repeat their rows after a whole
    number of columns. So the number of threads that read, `active`, is a multiple of the number of
    vectors in such a *cycle*; the other threads only help to add up at the end.

    A vector of four elements touches up to three columns of two rows or more, a vector of eight up
    to five. A thread loads the FACTORS elements of x for these columns together, and multiplies
    each element of the vector with the one for its column. Gaps between columns are read as well.
    Their sums belong to rows that A does not have, and no thread uses them.

    At the end, threads with the same rows add up their sums in shared memory. One step adds eight
    sums rather than two, because each step costs a barrier. Then one thread for each row adds up
    the elements of the cycle that belong to its row. Elements before the first multiple of 16 bytes
    and behind the last whole vector are fewer than a vector at each end, and are loaded one by one.
    The stretch is divided into splits, one for each block, and the block that began last adds up
    their sums, as in ``vector_rows`` (rung 8), by a second tree.

    The step of some loops is known only at run time. The compiler would make four copies of such a
    loop, and a division to find how often each copy runs. ``rolled()`` keeps it from doing so.

Picture
    ::

        float32, 3 rows, lda 3: a cycle is 3 vectors, 0 to 2, which contain 4 columns

        columns       0     1     2     3     4     5     6     7
        rows          0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2
        vectors      |   0   |   1   |   2   |   0   |   1   |   2   |

        sums          of thread 0: rows 0, 1, 2, 0; of thread 1: 1, 2, 0, 1; of thread 2: 2, 0, 1, 2

        a block of 8 threads: 6 read; 0 and 3, 1 and 4, 2 and 5 have the same rows

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory, and the gaps between
    columns. Each vector needs FACTORS elements of x, which come from L1 or L2.

Wins
    Millions of columns that have a few elements of 2 or 4 bytes each and follow each other in
    memory: the transposed product with a tall array of points, colours or features. On an H200, 3 x
    4992357 float16 took 14.8 us and ``vector_columns`` 20.6 (``benchmarks/results/fit/h200.json``,
    each kernel with its best constants).

Loses
    To ``vector_columns`` (rung 9) if every column is a whole number of vectors, or if there are
    too few columns to pay for the two trees at the end: a transposed 709504 x 3 float32 took 5.9 us
    instead of 4.6. Columns must be at most 128 elements apart, with gaps below 32 bytes between
    them; otherwise the loads would fetch whole sectors that no row uses.

Sums
    Each thread sums over every `active`-th vector of its split. Then threads with the same rows add
    up, eight at a step, those of even and of odd number separately. Then the elements of the cycle
    that belong to a row are added in order, then the elements at both ends, then the splits. The
    order is fixed by shape, leading dimension, address modulo 16 bytes, the machine's file (the
    constants for a GPU, ``docs/machine.md``) and the number of multiprocessors. Same bits on every
    run.

Source
    Trees in shared memory that add several sums in each step: M. Harris, "Optimizing parallel
    reduction in CUDA". The rest is arithmetic modulo lda.
"""

from functools import cache
from math import gcd

import numpy as np

from gemv.core.geometry import (
    LOAD_BYTES,
    MAX_GRID_Y,
    SECTOR_BYTES,
    SHARED_SUM_BYTES,
    ceil_div,
    one_launch,
)
from gemv.kernels.depths import in_order, joined, of_finishers, shared_out
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.work import bytes_of_stretches, lines_of_warp, rounds_of_finishers, work_of

#: The largest distance between columns, in elements: at the end each row has a thread.
MOST_ROWS = 128
#: Sums that a thread adds up in one step of a tree.
RADIX = 8
#: Partial sums that a thread of the last block has in flight at a time; a power of two.
BATCH = 8


def columns_touched(period, width):
    """The most columns that a vector of `width` elements can touch, wherever it begins."""
    return 1 + (period + width - 2) // period


def build(spec):
    from gemv.language import (
        atomic_inc,
        cuda,
        device,
        elements_past,
        fold,
        gather,
        gather_inside,
        multiply_add,
        natural,
        post,
        put_units,
        rolled,
        rounded_down,
        spread,
        stream_some,
        stream_tile,
        take,
        update_streaming,
        zeros,
    )

    number, zero, op = spec.number, spec.zero, spec.op
    CONJUGATE = int(spec.conj)
    WIDTH = spec.widths[0]
    VECTORS = spec["VECTORS"]
    FACTORS = spec["FACTORS"] or columns_touched(2, WIDTH)
    THREADS = spec["THREADS_PER_BLOCK"]
    PLACES = THREADS * WIDTH

    @device
    def add_up(sums, tid, distance, count):
        """Add `count` sums that are `distance` apart into the first; the whole block calls it."""
        while count > 1:
            kept = (count + RADIX - 1) // RADIX
            far, limit = kept * distance, count * distance
            at = tid
            while at < far:
                even, odd = sums[0, at], zero
                for k in range(1, RADIX):
                    if at + k * far < limit:
                        if k % 2 == 0:
                            even += sums[0, at + k * far]
                        else:
                            odd += sums[0, at + k * far]
                sums[0, at] = even + odd
                at += THREADS
                rolled()
            count = kept
            cuda.syncthreads()

    def short_columns(
        rows, cols, cols_per_split, splits, period, active, pass_columns, passes, cycle, row_bits,
        alpha, a, x, incx, beta, y, incy, scratch, counters,
    ):  # fmt: skip
        sums = cuda.shared.array((1, PLACES), number, alignment=16)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        split = cuda.blockIdx.y
        size = (cols - 1) * period + rows  # elements from the first of A to the last
        head = min((WIDTH - elements_past(a, 0, LOAD_BYTES)) & (WIDTH - 1), size)
        behind = head + rounded_down(size - head, WIDTH)  # the end of the last vector
        begin = head + split * passes * active * WIDTH
        end = begin + passes * active * WIDTH
        last = begin <= behind and behind < end  # there may be splits behind all vectors
        end = min(behind, end)
        if alpha == 0:
            head, behind, end = 0, size, 0
        drawn = np.uint32(0)
        if splits > 1 and tid == 0:
            drawn = atomic_inc(counters, 0, splits - 1)  # not waited for here
        place = natural(head + tid * WIDTH)
        # The column where this thread's first vector begins, by a division in 32 bits, which takes
        # a fifth of the time of one in 64 bits.
        away = np.int64(np.uint32(place) // np.uint32(period))
        first = place - away * period  # the row in which each of its vectors begins
        j = split * cols_per_split + away
        step = active * WIDTH
        e = begin + tid * WIDTH
        if tid >= active:
            e = end
        total = zeros(zero, WIDTH)
        # Below `inside` all FACTORS columns of a vector are in A, so x needs no bounds checks.
        inside = min(end, size - FACTORS * period + 1)
        while e + (VECTORS - 1) * step < inside:
            values = stream_tile(a, (e,), 0, step, VECTORS, WIDTH)
            factors = gather(x, j, pass_columns, VECTORS, incx, FACTORS)
            factors = spread(factors, FACTORS, WIDTH, first, period)
            total = multiply_add(total, values, factors, CONJUGATE)
            e += VECTORS * step
            j += VECTORS * pass_columns
            rolled()
        while e < end:  # the remaining vectors are loaded together, too
            rest = 1
            for k in range(1, VECTORS):
                rest += 1 if e + k * step < end else 0
            values = stream_some(a, (e,), 0, step, VECTORS, WIDTH, rest)
            factors = gather_inside(x, j, pass_columns, VECTORS, incx, FACTORS, rest, cols)
            factors = spread(factors, FACTORS, WIDTH, first, period)
            total = multiply_add(total, values, factors, CONJUGATE)
            e += VECTORS * step
            j += VECTORS * pass_columns
            rolled()
        put_units(sums, 0, tid * WIDTH, total, 0, WIDTH)
        if splits > 1 and tid == 0:
            ticket[0] = drawn
        cuda.syncthreads()  # all sums are in place
        add_up(sums, tid, cycle, active * WIDTH // cycle)
        part = zero
        if tid < rows:
            at = (tid + WIDTH * period - head) % period
            while at < cycle:
                part += sums[0, at]
                at += period
                rolled()
            if split == 0:
                e = tid
                j = 0
                while e < head:
                    part += op(a[e]) * x[j]
                    e += period
                    j += incx
                    rolled()
            if last:
                e = size - rows + tid
                j = (cols - 1) * incx
                while e >= behind:
                    part += op(a[e]) * x[j]
                    e -= period
                    j -= incx
                    rolled()
            if splits == 1:
                update_streaming(alpha, part, beta, y, tid * incy)
            else:
                post(scratch, split * rows + tid, part)
        if splits > 1 and ticket[0] == splits - 1:
            # This block began last: all other blocks have posted their sums, or are running.
            cuda.syncthreads()  # all threads of a block take this branch, and have read `sums`
            i = tid & ((1 << row_bits) - 1)
            k = tid >> row_bits
            shares = THREADS >> row_bits
            part = zero
            while k < splits and i < rows:
                rest = 1
                for n in range(1, BATCH):
                    rest += 1 if k + n * shares < splits else 0
                several = take(zero, scratch, k * rows + i, shares * rows, BATCH, rest)
                part += fold(several, 1)[0]
                k += BATCH * shares
                rolled()
            sums[0, tid] = part
            cuda.syncthreads()  # all partial sums are in place
            add_up(sums, tid, 1 << row_bits, shares)
            if tid < rows:
                update_streaming(alpha, sums[0, tid], beta, y, tid * incy)

    return (attach(short_columns, launch_bounds=(THREADS, spec.min_blocks)),)


def accepts(problem):
    refusal = wide_loads_object(problem, "axpy")
    if refusal:
        return refusal
    period = _period(problem)
    if not problem.rows <= period <= MOST_ROWS:
        return (
            f"columns of {problem.rows} elements, {period} elements apart: they must not overlap,"
            f" and be at most {MOST_ROWS} elements apart"
        )
    if (period - problem.rows) * problem.dtype.itemsize >= SECTOR_BYTES:
        return (
            f"gaps of {period - problem.rows} elements between columns: they must be smaller than"
            f" {SECTOR_BYTES} bytes"
        )
    return None


def _period(problem):
    """Elements from one column to the next."""
    return problem.rows if problem.cols == 1 else problem.col_stride


def geometry(problem, device, knobs):
    threads, width = knobs["THREADS_PER_BLOCK"], LOAD_BYTES // problem.dtype.itemsize
    vectors, factors = knobs["VECTORS"], knobs["FACTORS"]
    period = _period(problem)
    needed = min(columns_touched(max(period, 2), width), problem.cols)
    if not MOST_ROWS <= threads <= 1024 or threads & (threads - 1) or vectors < 1:
        raise ValueError(
            f"short_columns: THREADS_PER_BLOCK must be a power of two from {MOST_ROWS} to 1024 and"
            f" VECTORS 1 or more, got {threads} and {vectors}"
        )
    if 0 < factors < needed:
        raise ValueError(
            f"short_columns: a vector touches up to {needed} columns that are {period} elements"
            f" apart, so FACTORS must be {needed} or more, or 0, got {factors}"
        )
    sums = threads * width
    if sums * problem.precision.sums.itemsize > SHARED_SUM_BYTES:
        raise ValueError(
            f"short_columns: the sums of a block must fit into {SHARED_SUM_BYTES} bytes of shared"
            f" memory, got {sums} sums of {problem.precision.sums.itemsize} bytes"
        )
    # Vectors until the next one begins with the same row as the first.
    vectors_of_cycle = min(period // gcd(period, width), threads)
    active = threads // vectors_of_cycle * vectors_of_cycle
    pass_columns = active * width // period
    size = (problem.cols - 1) * period + problem.rows
    passes = ceil_div(ceil_div(size, width), active)
    wanted = min(max(device.multiprocessors * knobs["BLOCKS_PER_SM"], 1), MAX_GRID_Y)
    passes_per_split = max(ceil_div(passes, wanted), vectors)
    splits = ceil_div(passes, passes_per_split)
    # 1 for every accepted problem; streaming from the host asks how many rows a block can have.
    tiles = ceil_div(problem.rows, MOST_ROWS)
    sizes = {
        "splits": splits,
        "cols_per_split": passes_per_split * pass_columns,
        "period": period,
        "active": active,
        "pass_columns": pass_columns,
        "passes": passes_per_split,
        "cycle": vectors_of_cycle * width,
        "row_bits": min(problem.rows - 1, MOST_ROWS - 1).bit_length(),
    }
    scratch = splits * problem.rows if splits > 1 else 0
    return one_launch(
        (tiles, splits, 1), (threads, 1, 1), sizes, scratch, int(splits > 1), posts=splits > 1
    )


def tile(knobs):
    return 6, 4 * knobs["THREADS_PER_BLOCK"] * knobs["VECTORS"] // 6


def work(problem, geometry, knobs):
    itemsize, width = problem.dtype.itemsize, LOAD_BYTES // problem.dtype.itemsize
    threads, vectors, sizes = knobs["THREADS_PER_BLOCK"], knobs["VECTORS"], geometry.sizes
    splits, period, active, cycle = (
        sizes[name] for name in ("splits", "period", "active", "cycle")
    )
    in_split = sizes["passes"] * active
    size = (problem.cols - 1) * period + problem.rows
    edge = max(_edge_elements(problem, size, period, in_split, head) for head in problem.heads)
    whole = (size - min(problem.heads.start, size)) // width  # the most vectors
    own = min(sizes["passes"], ceil_div(whole, active))
    passes = ceil_div(own, vectors)
    busy = whole // in_split * active + min(whole % in_split, active)
    shares = threads >> sizes["row_bits"]
    return work_of(
        problem,
        geometry,
        bytes=bytes_of_stretches(
            count=1,
            nbytes=size * itemsize,
            apart=0,
            aligned=problem.a_alignment or itemsize,
            cuts=splits - 1,
            pitch=in_split * LOAD_BYTES,
        ),
        passes=passes,
        edge_passes=edge,
        flight=vectors * LOAD_BYTES,
        loads=own,
        x_loads=own * (knobs["FACTORS"] or columns_touched(2, width)),
        products=passes * vectors * width,
        busy_threads=busy if whole else problem.rows,
        warp_lines=lines_of_warp(problem, threads, threads, LOAD_BYTES),
        end_steps=1 + _steps_of_tree(cycle, active * width // cycle, threads) + cycle // period,
        collects=rounds_of_finishers(splits, shares, BATCH),
        sums_shared=threads * width,
    )


def _edge_elements(problem, size, period, in_split, head):
    """The most elements of a row that a block loads before the first and behind the last vector."""
    width = LOAD_BYTES // problem.dtype.itemsize
    head = min(head, size)
    whole = (size - head) // width
    behind = size - head - whole * width
    most = 0
    # Elements before the first vector are in the first rows, those behind in the last rows. So one
    # of two rows has the most.
    for row in (min((head - 1) % period, problem.rows - 1), problem.rows - 1):
        before_it = ceil_div(max(head - row, 0), period)
        behind_it = max(behind - problem.rows + row + period, 0) // period
        both = before_it + behind_it if whole < in_split else max(before_it, behind_it)
        most = max(most, both)
    return most


def _steps_of_tree(distance, count, threads):
    """Steps of ``add_up``: in each iteration RADIX // 2 additions in sequence, and a barrier."""
    steps = 0
    while count > 1:
        count = ceil_div(count, RADIX)
        steps += ceil_div(count * distance, threads) * (RADIX // 2) + 1
    return steps


def depth(problem, geometry, knobs):
    return max(_with_head(problem, geometry, knobs, head) for head in problem.heads)


def _with_head(problem, geometry, knobs, head):
    """Depth where `head` elements of A are before the first vector."""
    rows, cols, sizes = problem.rows, problem.cols, geometry.sizes
    width = LOAD_BYTES // problem.dtype.itemsize
    period, active, cycle = sizes["period"], sizes["active"], sizes["cycle"]
    size = (cols - 1) * period + rows
    head = min(head, size)
    vectors, in_split = (size - head) // width, sizes["passes"] * active
    row = np.arange(rows)
    before = shared_out(head, period)[:rows]
    behind = np.maximum(size - rows + row - head - vectors * width + period, 0) // period

    @cache
    def in_vectors(count):
        """The depth of each row's sum in a split of `count` vectors."""
        places = np.repeat(shared_out(count, active) - 1, width)
        of_place = _in_tree(places.reshape(-1, cycle))
        return in_order(of_place.reshape(-1, period))[(row - head) % period]

    depths = []
    for split in range(sizes["splits"]):
        left = vectors - split * in_split
        found = in_vectors(min(max(left, 0), in_split))
        # Each single element adds 1 to the depth.
        depths.append(found + before * (split == 0) + behind * (0 <= left < in_split))
    if len(depths) == 1:
        return int(depths[0].max())
    shares = knobs["THREADS_PER_BLOCK"] >> sizes["row_bits"]
    return int(_in_tree(of_finishers(np.array(depths), shares, BATCH)).max())


def _in_tree(depths):
    """Depth of the sums that ``add_up`` makes along the first axis."""
    while len(depths) > 1:
        kept = ceil_div(len(depths), RADIX)
        padded = np.full((RADIX * kept, *depths.shape[1:]), -1)
        padded[: len(depths)] = depths
        several = padded.reshape(RADIX, kept, *depths.shape[1:])
        depths = joined(in_order(several[::2]), in_order(several[1::2]))
    return depths[0]


KERNEL = Kernel(
    name="short_columns",
    rung=13,
    build=build,
    geometry=geometry,
    tile=tile,
    depth=depth,
    work=work,
    wide=True,
    phased=True,
    splits_apart=True,
    accepts=accepts,
    # FACTORS = 0 is enough for any column of two rows or more: columns_touched(2, width).
    knobs={
        "VECTORS": 4,
        "FACTORS": 0,
        "THREADS_PER_BLOCK": 256,
        "BLOCKS_PER_SM": 2,
        "MIN_BLOCKS": 2,
    },
    small_knobs={
        "VECTORS": 2,
        "FACTORS": 0,
        "THREADS_PER_BLOCK": 128,
        "BLOCKS_PER_SM": 4,
        "MIN_BLOCKS": 1,
    },
    doc=__doc__,
)
