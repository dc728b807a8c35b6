"""Many short columns: A as one stretch of memory, and a thread that always meets the same rows.

Idea
    A column of three numbers is no work for a load of four, and lanes that share one mostly idle.
    But where columns follow each other closely, all of A is one stretch of memory, and nothing
    keeps a thread from reading 16 bytes of it wherever they begin. Element e of the stretch is in
    row ``e % lda`` of column ``e // lda``. To divide for each element would be slow, and once for
    each thread is enough: if a block steps on by a multiple of lda, a thread meets the same rows in
    every step, so it has WIDTH sums, one for each place in its vectors, and its column grows by a
    constant. The rows repeat after as many vectors as fill a whole number of columns, so the
    largest multiple of that many threads reads; those that are left over only help at the end.

    A vector of four touches up to three columns, one of eight up to five, most of them two. The
    numbers of x for them, FACTORS of them, are loaded together, and each place takes its own. What
    lies between two columns is read along: its sums belong to rows that A does not have, and nobody
    looks at them.

    In the end threads with the same rows add up in shared memory, eight at a step, as each step
    costs a barrier; then one thread for each row adds the places of its row. What lies before the
    first multiple of 16 bytes and behind the last one is less than a vector each, and is read one
    by one.

    Steps that are known at run time only are a temptation for the compiler: it makes four copies of
    such a loop, and divides to know how often they run. ``rolled()`` keeps it from that.

Picture
    ::

        float32, 3 rows, lda 3: vectors 0 to 2 hold 4 columns, then all repeats

        columns       0     1     2     3     4     5     6     7
        rows          0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2
        vectors      |   0   |   1   |   2   |   0   |   1   |   2   |

        sums          of thread 0: rows 0, 1, 2, 0; of thread 1: 1, 2, 0, 1; of thread 2: 2, 0, 1, 2

        a block of 8 threads: 6 read, of which 0 and 3, 1 and 4, 2 and 5 have the same rows

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory, and what lies between two
    columns; x comes from L1 or L2, FACTORS numbers for each vector.

Wins
    Columns of a few numbers, a hundred thousand to millions of them, one behind the other: the
    transposed product with a tall array of points, colours or features.

Loses
    To the rungs before where every column is a whole number of vectors, and where there are too few
    of them to pay for two trees at the end. Refuses columns that are more than 128 elements
    apart, and those with a gap of 32 bytes or more, which memory would have to read in vain.

Sums
    Each thread over every ACTIVE-th vector of its split; threads with the same rows eight at a
    step, those of even and of odd number apart; the places of a row in order; the elements at both
    ends; then the splits. The order is fixed by shape, leading dimension, address modulo 16 bytes,
    the selection table and the number of multiprocessors. Same bits on every run.

Source
    Trees in shared memory with several sums a step: M. Harris, "Optimizing parallel reduction in
    CUDA". The rest is arithmetic modulo lda.
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

#: Elements from one column to the next, at most: each row has a thread.
MOST_ROWS = 128
#: Sums that a thread adds up in one step of a tree.
RADIX = 8
#: Partial sums that a thread of the last block asks for at a time; a power of two.
BATCH = 8


def columns_touched(period, width):
    """Columns that a vector may have elements of, wherever it begins."""
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
        put_pieces,
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
        """What is `distance` apart, `count` times, ends in the first; all threads come together."""
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
        sums = cuda.shared.array((1, PLACES), number)
        ticket = cuda.shared.array(1, np.uint32)
        tid = natural(cuda.threadIdx.x)
        split = cuda.blockIdx.y
        size = (cols - 1) * period + rows  # elements from the first of A to the last
        head = min((WIDTH - elements_past(a, 0, LOAD_BYTES)) & (WIDTH - 1), size)
        behind = head + rounded_down(size - head, WIDTH)  # the last vector
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
        # Where this thread's first vector begins; a division of 32 bits takes a fifth of the time.
        away = np.int64(np.uint32(place) // np.uint32(period))
        first = place - away * period  # the row, which is that of all of its vectors
        j = split * cols_per_split + away
        step = active * WIDTH
        e = begin + tid * WIDTH
        if tid >= active:
            e = end
        total = zeros(zero, WIDTH)
        # All of FACTORS columns from here on are in A: no need to ask for each number of x.
        inside = min(end, size - FACTORS * period + 1)
        while e + (VECTORS - 1) * step < inside:
            values = stream_tile(a, (e,), 0, step, VECTORS, WIDTH)
            factors = gather(x, j, pass_columns, VECTORS, incx, FACTORS)
            factors = spread(factors, FACTORS, WIDTH, first, period)
            total = multiply_add(total, values, factors, CONJUGATE)
            e += VECTORS * step
            j += VECTORS * pass_columns
            rolled()
        while e < end:  # what is left goes out at once, too
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
        put_pieces(sums, 0, tid * WIDTH, total, 0, WIDTH)
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
            # The last one to begin: all sums are there, or on their way.
            cuda.syncthreads()  # whole blocks take this branch; their own sums are read
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
            cuda.syncthreads()  # all shares are in place
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
            f"columns of {problem.rows} numbers, {period} elements apart, are none of at most"
            f" {MOST_ROWS}, one behind the other"
        )
    if (period - problem.rows) * problem.dtype.itemsize >= SECTOR_BYTES:
        return f"{period - problem.rows} elements between two columns would be read in vain"
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
            f"short_columns: sums of a block must fit into {SHARED_SUM_BYTES} bytes of shared"
            f" memory, and {sums} of {problem.precision.sums.itemsize} bytes do not"
        )
    # Vectors until one begins with the same row as the first.
    vectors_of_cycle = min(period // gcd(period, width), threads)
    active = threads // vectors_of_cycle * vectors_of_cycle
    pass_columns = active * width // period
    size = (problem.cols - 1) * period + problem.rows
    passes = ceil_div(ceil_div(size, width), active)
    wanted = min(max(device.multiprocessors * knobs["BLOCKS_PER_SM"], 1), MAX_GRID_Y)
    passes_per_split = max(ceil_div(passes, wanted), vectors)
    splits = ceil_div(passes, passes_per_split)
    # One, for all that it accepts; panels of a matrix on the host ask what rows a block can have.
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
    """The most elements that a row has before the first and behind the last vector, in a block."""
    width = LOAD_BYTES // problem.dtype.itemsize
    head = min(head, size)
    whole = (size - head) // width
    behind = size - head - whole * width
    most = 0
    # Elements before are of the first rows, those behind of the last: one of two rows has most.
    for row in (min((head - 1) % period, problem.rows - 1), problem.rows - 1):
        before_it = ceil_div(max(head - row, 0), period)
        behind_it = max(behind - problem.rows + row + period, 0) // period
        both = before_it + behind_it if whole < in_split else max(before_it, behind_it)
        most = max(most, both)
    return most


def _steps_of_tree(distance, count, threads):
    """Steps of ``add_up``: RADIX // 2 numbers one after the other in each turn, and a barrier."""
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
        """Of each row, in a split of so many vectors."""
        places = np.repeat(shared_out(count, active) - 1, width)
        of_place = _in_tree(places.reshape(-1, cycle))
        return in_order(of_place.reshape(-1, period))[(row - head) % period]

    depths = []
    for split in range(sizes["splits"]):
        left = vectors - split * in_split
        found = in_vectors(min(max(left, 0), in_split))
        # One product after the other adds one each.
        depths.append(found + before * (split == 0) + behind * (0 <= left < in_split))
    if len(depths) == 1:
        return int(depths[0].max())
    shares = knobs["THREADS_PER_BLOCK"] >> sizes["row_bits"]
    return int(_in_tree(of_finishers(np.array(depths), shares, BATCH)).max())


def _in_tree(depths):
    """Depths of what ``add_up`` adds up, along the first axis."""
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
    # FACTORS = 0: as many numbers of x as columns that a vector may touch, with two rows each.
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
