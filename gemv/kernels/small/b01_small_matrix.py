"""One small matrix: a thread for each partial sum, and everything that it reads in flight at once.

Idea
    A product of 32 x 32 takes little more than its launch: there are few numbers to add, and one
    wait for the memory. What can be lost is a second wait, or hundreds of instructions, which have
    to be fetched before they run. So this kernel has no loop, no barrier and no shared memory. A
    thread has a partial sum of a row, with at most 16 columns; it asks for all of them, for their
    numbers of x and for the old y, and then adds up what comes.

    Blocks are single warps, so that several multiprocessors load the matrix. A, x and y are read
    as they lie, by any strides: one element is a load, whatever its address.

    Which columns a partial sum has depends on nothing but the shape, the dtype and the storage
    order. :mod:`gemv.kernels.small_sums` says it for ``small_items`` as well, which computes many
    such matrices, and for ``several_small``. So an item of a batch has the bits of the product
    alone.

    Columns are counted from the last one. Where a thread has fewer than the code has loads for, the
    zeros in their place come first, and a sum that starts from zero does not notice them. Behind
    the other columns they would turn a sum of -0 into +0.

Picture
    ::

        8 x 32 float32, memory along the rows: 4 partial sums a row, 8 columns each

        columns   0   1   2   3   4   5 ...  31       the warp
        row 0     T0  T8  T16 T24 T0  T8 ... T24      T0 + T16, T8 + T24: two sums
        row 1     T1  T9  T17 T25 T1  T9 ... T25      of these one, which T0 stores as y[0]
        ...
        row 7     T7  T15 T23 T31 T7  ...    T31

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory; the warps share x in the L2
    cache.

Wins
    One product of at most 32 columns and few rows.

Loses
    To ``small_items`` where there are many matrices: loads of one element fill the memory's
    pipeline with requests for a few bytes each.

Sums
    Those of all small matrices: with memory along the rows U partial sums, where U is the number of
    columns in 16 bytes of sums if they divide n, else 1. From 16 steps on 2 or 4 times as many; if
    sums are of two numbers, from 4 steps on up to 16 times. Each has its columns in order; then
    pairs of them are added (:mod:`gemv.kernels.small_sums`).
    Same bits on every run, and for every address, leading dimension and increment.

Source
    Arithmetic of latencies; which partial sums there are is that of ``small_items``.
"""

from __future__ import annotations

from gemv.core.geometry import MAX_GRID_X, SECTOR_BYTES, ceil_div, one_launch
from gemv.kernels.kernel import Kernel, attach
from gemv.kernels.small_sums import MOST, depth_of, limits_of, order_of
from gemv.kernels.work import bytes_of_lines, lines_of_warp, steps_of_tree, work_of

#: The loads of A that the code of a thread can have.
LOADS = (4, 8, 16)
#: Threads of the blocks of a batch: more of them than blocks fit on a multiprocessor.
MOST_THREADS = 128


def build(spec):
    from gemv.language import (
        blended,
        butterfly,
        cuda,
        gather_some,
        load_old,
        load_some,
        multiply_add,
        scaled,
        short,
        store,
        stream_some,
        zeros,
    )

    zero, CONJUGATE = spec.zero, int(spec.conj)
    UNIT, SHARES, LOADS = spec["UNIT"], spec["SHARES"], spec["LOADS"]
    LANES = UNIT * SHARES  # of a row
    APART = 32 // LANES  # rows of a warp, and lanes from one of a row to the next
    ROWS = spec["THREADS_PER_BLOCK"] // LANES
    ALONG = spec.access == "dot"
    SPLIT_A, PACKED_X = spec["SPLIT_A"] > 0, spec["PACKED_X"] > 0

    def small_matrix(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        tid = short(cuda.threadIdx.x)
        lane = tid % 32
        row = short(short(cuda.blockIdx.x) * ROWS + tid // 32 * APART + lane % APART)
        # Lanes with the highest bit apart are added first: these are of one unit.
        place = lane // APART
        first = short(place % SHARES * UNIT + place // SHARES)
        inside = row < short(rows)
        old = load_old(y, row * incy, beta != 0 and inside)
        count = short(short(cols) + (LANES - 1) - first) // LANES
        if alpha == 0 or not inside:
            count = 0
        count = short(count)
        last = first + (count - 1) * LANES
        step = 1 if ALONG else col_stride
        start, at = row * row_stride, last * step
        if SPLIT_A:
            values = gather_some(a, start + at, -LANES * step, LOADS, 1, 1, count)
        else:
            values = stream_some(a, (start,), at, -LANES * step, LOADS, 1, count)
        if PACKED_X:
            factors = load_some(x, last, -LANES, LOADS, 1, count)
        else:
            factors = gather_some(x, last, -LANES, LOADS, incx, 1, count)
        total = multiply_add(zeros(zero, 1), values[::-1], factors[::-1], CONJUGATE)
        (total,) = butterfly(total, 32, APART)
        if place == 0 and inside:
            if beta == 0:
                store(y, row * incy, scaled(alpha, total))
            else:
                store(y, row * incy, blended(alpha, total, beta, old))

    return (attach(small_matrix, launch_bounds=(spec["THREADS_PER_BLOCK"], 1)),)


def accepts(problem):
    if problem.cols > MOST or problem.rows > MAX_GRID_X:
        return (
            f"{problem.rows} rows and {problem.cols} columns: there must be at most {MOST} columns,"
            f" so that all are in flight, and {MAX_GRID_X} rows"
        )
    return None


def constants_of(problem):
    """The constants that the problem decides: UNIT and SHARES are the order of its sums."""
    _, unit, shares = order_of(problem)
    loads = LOADS[0]
    while loads * unit * shares < problem.cols:
        loads *= 2
    packed = problem.incx == 1 and problem.x_alignment >= problem.dtype.itemsize
    return {
        "UNIT": unit,
        "SHARES": shares,
        "LOADS": loads,
        "SPLIT_A": int(problem.splits_elements),
        "PACKED_X": int(packed),
    }


def for_many(problem, knobs):
    """The same sums in fewer blocks, where there are many items."""
    lanes, threads = knobs["UNIT"] * knobs["SHARES"], knobs["THREADS_PER_BLOCK"]
    while threads < min(problem.rows * lanes, MOST_THREADS):
        threads *= 2
    return {**knobs, "THREADS_PER_BLOCK": threads}


def for_tables(problem, knobs):
    """Constants for any increment and any number of columns that have this order of sums."""
    steps, _ = limits_of(problem.precision)
    loads = min(2 * steps, MOST // (knobs["UNIT"] * knobs["SHARES"]))
    return {**knobs, "LOADS": max(loads, LOADS[0]), "PACKED_X": 0}


def repeats(problem, knobs):
    return 1, tile(knobs)[0]


def geometry(problem, device, knobs):
    lanes, threads = knobs["UNIT"] * knobs["SHARES"], knobs["THREADS_PER_BLOCK"]
    if threads % 32 or lanes not in (1, 2, 4, 8, 16, 32):
        raise ValueError(
            "small_matrix: THREADS_PER_BLOCK must be whole warps, and UNIT * SHARES a power of two"
            f" up to 32, got {threads} and {lanes}"
        )
    if lanes * knobs["LOADS"] < problem.cols:
        raise ValueError(
            f"small_matrix: {lanes} partial sums of LOADS = {knobs['LOADS']} columns are fewer than"
            f" {problem.cols}"
        )
    return one_launch((ceil_div(problem.rows, threads // lanes), 1, 1), (threads, 1, 1))


def tile(knobs):
    lanes = knobs["UNIT"] * knobs["SHARES"]
    return knobs["THREADS_PER_BLOCK"] // lanes, lanes * knobs["LOADS"]


def work(problem, geometry, knobs):
    size, lanes = problem.dtype.itemsize, knobs["UNIT"] * knobs["SHARES"]
    of_warp = 32 // lanes
    tile_rows, _ = tile(knobs)
    beside = {"dot": lanes, "axpy": of_warp, "strided": 1}[problem.access]
    own = ceil_div(problem.cols, lanes)
    parts = 2 if problem.dtype.kind == "c" else 1  # loads of an element, of its real parts
    if problem.access == "strided":
        nbytes = problem.rows * problem.cols * SECTOR_BYTES
    else:
        cuts = 0 if problem.access == "dot" else ceil_div(problem.rows, tile_rows) - 1
        nbytes = bytes_of_lines(problem, cuts, tile_rows * size)
    return work_of(
        problem,
        geometry,
        bytes=nbytes,
        passes=1,
        flight=knobs["LOADS"] * size,
        loads=own * (parts if knobs["SPLIT_A"] else 1),
        x_loads=own * (1 if knobs["PACKED_X"] else parts),
        products=knobs["LOADS"],
        busy_threads=problem.rows * min(lanes, problem.cols),
        warp_lines=lines_of_warp(problem, 32, beside, size),
        end_steps=steps_of_tree(lanes),
    )


def depth(problem, geometry, knobs):
    return depth_of(problem.cols, knobs["UNIT"], knobs["SHARES"])


KERNEL = Kernel(
    name="small_matrix",
    rung=1,
    build=build,
    geometry=geometry,
    tile=tile,
    depth=depth,
    work=work,
    beside=True,
    accepts=accepts,
    constants_of=constants_of,
    in_batches=for_many,
    in_tables=for_tables,
    repeats=repeats,
    # Any 32 columns; what a problem gets follows from it: see constants_of.
    knobs={
        "UNIT": 1,
        "SHARES": 4,
        "LOADS": 8,
        "SPLIT_A": 1,
        "PACKED_X": 0,
        "THREADS_PER_BLOCK": 32,
    },
    small_knobs={
        "UNIT": 1,
        "SHARES": 4,
        "LOADS": 8,
        "SPLIT_A": 1,
        "PACKED_X": 0,
        "THREADS_PER_BLOCK": 32,
    },
    doc=__doc__,
)
