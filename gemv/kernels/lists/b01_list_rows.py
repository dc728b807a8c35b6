"""Rows of many matrices of any size: each warp takes an equal stretch of the list.

Idea
    A list has matrices of 4 x 4 and of 500 x 300. If each has blocks of its own, a block reads a
    few KB, and before that it waits three times for tables: for the number of its item, for the
    item's sizes, for its addresses. Most of the time it has nothing on the way from memory. And
    matrices with rows of different lengths want different numbers of lanes for a row, which are
    constants of ``vector_rows`` (rung 8), so that a list takes dozens of launches, most of them
    too small to fill the GPU.

    Here there is one launch, and as many warps as fit on the GPU. The host shares the tiles of all
    matrices out, so that each warp has a stretch with about the same number of bytes: it begins
    somewhere in one matrix and ends in another. While a warp works on a matrix, it already has the
    words of the next one in a register: lane k has word k, and shuffles hand them out. So only
    loads of A are waited for.

    The number of lanes for a row, and the elements of a load, are words of the item. Lanes are
    powers of two up to 32: the sums of a row are exchanged in five steps, and a row with fewer
    lanes leaves steps out. There is code for each width of a load, between which a warp chooses.

    Rows of small matrices begin anywhere. ``vector_rows`` has narrow loads there, of 2 bytes in the
    worst case. Here a lane loads the aligned 16 bytes that lie around the elements of several such
    loads, and has a sum for each element, as several lanes would have there. Sums of one load are
    added first, then those of lanes, then those that a lane has of several: it is the same tree.
    Where a row begins within the 16 bytes, all lanes are moved by as many elements, and so is the
    whole tree. The first and the last vector have elements of the rows beside. Their products are
    computed, but the sums stay what they were (a product with zero would make a NaN of a NaN). And
    where the last vector reaches past the end of A, its elements are loaded one by one.

    All lanes of a warp get the same word from a shuffle, but the compiler does not know that. It
    would collect lanes before each shuffle behind a branch, and move addresses from lane registers
    to those of the warp before each load. So where a word decides, the warp votes (``of_warp``):
    the result of a vote is that of all lanes.

    No warp waits for another: there is no barrier and no shared memory.

Picture
    ::

        items          |   item 0: 5 tiles   | item 1 | item 2: 2 tiles | item 3 |  ...
        tiles          | t0 | t1 | t2 | t3 |t4|  t0   |   t0   |   t1   |t0|t1|t2|
        warp 0           t0   t1   t2
        warp 1                          t3  t4   t0
        warp 2                                           t0       t1      t0 t1

        a tile: 32 lanes, 2 rows each, for instance 8 lanes a row: 4 + 4 rows

        a row around which two lanes have vectors, | is a multiple of 16 bytes (float32)
        memory              |. . 0 1|2 3 4 5|6 7 8 9|. . . .|
        loads                lane 0  lane 1  lane 0           a dot: of another row
        the sums there       lanes   0 1 2 3 4 5 6 7 0 1 of ``vector_rows``, loads of 4 bytes

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize for each item, and about 100 bytes for
    its words: sizes and strides, addresses, alpha and beta.

Wins
    Lists of matrices that are stored along the rows (or transposed and stored along the columns),
    above all small ones of many sizes. 68 MB of matrices with 4 to 512 rows and columns (1474 of
    them in float32, 743 in float64, 2915 in bfloat16) on an NVIDIA H100, where a kernel that only
    reads and writes as many bytes takes 24 us: 26.5 us in float32, 27.1 us in float64 (0.91 of that
    kernel's speed in both), 31.9 us in bfloat16 (0.76) and 32.4 us in float16 (0.74). With loads as
    wide as rows are aligned: 30.3 us, 29.4 us, 43.4 us and 45.4 us.

    Votes and the order of tiles counted before that: without votes, with four loads of a row on the
    way in place of two, with four blocks on a multiprocessor in place of six, and with another
    order of the tiles, 36.0 us in float32 and 31.2 us in float64.

Loses
    Where the numbers of a row, for aligned vectors, have too few lanes: with less than four of them
    narrow loads are as fast in float32 and float64, and stay. With eight blocks on a multiprocessor
    in place of six, bfloat16 takes 39.8 us; with one row and four vectors of a lane in place of two
    and two, 37.7 us. A list of items with 8 to 32 rows and columns takes 98 us in bfloat16, and 97
    with narrow loads.

    Where rows are so long that a block shares them, or many blocks: these items have launches of
    their own. To a batch of equal matrices, whose kernel needs no tables.

Sums
    Those of the kernel that an item has alone: of ``vector_rows`` with the same number of lanes and
    elements of a load, or of ``small_items``. Which warp computes a row does not matter. Same bits
    on every run.

Source
    Persistent warps with equal shares: D. Merrill and M. Garland, "Merge-based parallel sparse
    matrix-vector multiplication" (2016), which shares out rows and numbers together.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES, one_launch
from gemv.kernels.grids import loads_of, partial_sums
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_shares import BYTES_OF_PASS, HALVES, Tiles
from gemv.kernels.list_words import AROUND, OF_ROWS, has_around
from gemv.kernels.lists.walk import walk
from gemv.kernels.wide_tiles import tail_of


def build(spec):
    from gemv.language import (
        add_across,
        any_of_warp,
        butterfly,
        cuda,
        elements_past,
        fold,
        fold_first,
        gather_some,
        inlined,
        load_anywhere,
        load_inside,
        load_some,
        moved,
        multiply_add,
        multiply_inside,
        natural,
        of_lane,
        of_warp,
        row_starts,
        rows_inside,
        short,
        stream_rows,
        stream_some,
        update_streaming,
        zeros,
    )

    zero = spec.zero
    CONJUGATE = int(spec.conj)
    ROWS, WARPS = spec["ROWS"], spec["THREADS_PER_BLOCK"] // 32
    WIDEST = LOAD_BYTES // spec.dtype.itemsize
    OWN = len(OF_ROWS)
    SECOND = min(1, ROWS - 1)
    LOADS, BITS = spec["VECTORS"], WIDEST.bit_length() - 1
    AROUND_SUMS = ROWS * WIDEST
    HAS_AROUND = has_around(spec.dtype, spec.accumulate)  # else there is no code for it

    def sums_by(width):
        """A function for the sums of the rows of a lane, from loads of `width` elements."""
        VECTORS = loads_at_once(spec, width)
        SUMS = ROWS * partial_sums(width, spec.precision)
        TAIL, SHIFT = tail_of(width), width.bit_length() - 1

        def sums(a, starts, x, incx, wide, lane, lanes, cols):
            total = zeros(zero, SUMS)
            step = short(natural(width) << lanes)
            j = short(lane * width)
            while j + width <= cols:
                rest = min((short(cols - width - j) >> (lanes + SHIFT)) + 1, VECTORS)
                values = stream_some(a, starts, j, step, VECTORS, width, rest)
                if wide:
                    factors = load_some(x, j, step, VECTORS, width, rest)
                else:
                    factors = gather_some(x, j, step, VECTORS, incx, width, rest)
                total = multiply_add(total, values, factors, CONJUGATE)
                j = short(j + rest * step)
            while width > 1 and j < cols:  # one lane has the columns behind the last whole vector
                values = stream_some(a, starts, j, 1, TAIL, 1, cols - j)
                factors = gather_some(x, j, 1, TAIL, incx, 1, cols - j)
                total = multiply_add(total, values, factors, CONJUGATE)
                j = cols if TAIL == width - 1 else short(j + TAIL)
            return fold(total, ROWS)

        return inlined(sums)

    @inlined
    def starts_alike(i, groups, rows, stride):
        """Of rows i and i + groups, or, behind the last one, of a row with the same phase."""
        first = short(min(i, rows - 1))
        if ROWS == 1:
            return (first * stride,)
        second = short(i + groups if i + groups < rows else first)
        return (first * stride, second * stride)

    @inlined
    def sums_around(a, starts, end, x, part, lanes, cols):
        """For each row of a lane, a sum for each element of a vector of 16 bytes around the row."""
        total = zeros(zero, AROUND_SUMS)
        phase = elements_past(a, starts[0], LOAD_BYTES)
        step = short(natural(WIDEST) << lanes)
        own = short(part * WIDEST)
        # Columns are counted from the first vector on. The last vector may reach past the end of A.
        behind = short(cols + phase if cols > 0 else 0)
        last = short(max(behind - 1, 0) & -WIDEST)
        is_end = max(starts[0], starts[SECOND]) + last + WIDEST - phase > end and cols > 0
        whole = last if is_end else behind
        limit = short(max(whole - phase, 0))
        base = natural(0)
        while any_of_warp(base < whole):
            at = short(base + own)
            if of_warp(base > 0 and base + LOADS * step < cols):  # inside of all rows
                values = stream_rows(a, starts, at, step, LOADS, WIDEST, LOADS)
                factors = load_anywhere(x, at - phase, step, LOADS, WIDEST)
                total = multiply_add(total, values, factors, CONJUGATE)
            else:
                rest = ((whole - at - 1) >> (lanes + BITS)) + 1
                values = stream_rows(a, starts, at, step, LOADS, WIDEST, rest)
                factors = load_inside(x, at - phase, step, LOADS, WIDEST, limit)
                total = multiply_inside(
                    total, values, factors, at - phase, step, WIDEST, limit, CONJUGATE
                )
            base = short(base + LOADS * step)
        if any_of_warp(is_end):
            is_own = is_end and (last >> BITS) & ((natural(1) << lanes) - 1) == part
            limit, j = short(cols if is_own else 0), last - phase
            values = rows_inside(a, starts, j, WIDEST, limit)
            factors = load_inside(x, j, 0, 1, WIDEST, limit)
            total = multiply_inside(total, values, factors, j, 0, WIDEST, limit, CONJUGATE)
        return total

    @inlined
    def fold_around(total, loads, lanes):
        """The order of ``vector_rows``: elements of its loads, its lanes, some of them in here."""
        if WIDEST >= 8 and of_warp(loads & 8 > 0):
            total = add_across(total, 2)
        if WIDEST >= 4 and of_warp(loads & 12 > 0):
            total = add_across(total, 1)
        if of_warp(lanes > 3):
            total = butterfly(total, 16, 8)
        if of_warp(lanes > 2):
            total = butterfly(total, 8, 4)
        if of_warp(lanes > 1):
            total = butterfly(total, 4, 2)
        if of_warp(lanes > 0):
            total = butterfly(total, 2, 1)
        if WIDEST >= 8 and of_warp(loads & 8 > 0):
            sums = fold_first(total, ROWS, 4)
        elif WIDEST >= 4 and of_warp(loads & 4 > 0):
            sums = fold_first(total, ROWS, 2)
        else:
            sums = fold_first(total, ROWS, 1)
        return sums

    by_1, by_2, by_4, by_8 = (sums_by(min(width, WIDEST)) for width in (1, 2, 4, 8))

    @inlined
    def sums_aligned(a, starts, x, incx, loads, lane, lanes, cols):
        """For each row of a lane, its sum, from loads as wide as the row is aligned."""
        wide = loads & 1 > 0
        if WIDEST >= 4 and of_warp(loads >= 8):
            if WIDEST >= 8 and of_warp(loads >= 16):
                sums = by_8(a, starts, x, incx, wide, lane, lanes, cols)
            else:
                sums = by_4(a, starts, x, incx, wide, lane, lanes, cols)
        elif WIDEST >= 2 and of_warp(loads >= 4):
            sums = by_2(a, starts, x, incx, wide, lane, lanes, cols)
        else:
            sums = by_1(a, starts, x, incx, False, lane, lanes, cols)
        # A row with fewer lanes begins with a later step.
        if of_warp(lanes > 4):
            sums = butterfly(sums, 32, 16)
        if of_warp(lanes > 3):
            sums = butterfly(sums, 16, 8)
        if of_warp(lanes > 2):
            sums = butterfly(sums, 8, 4)
        if of_warp(lanes > 1):
            sums = butterfly(sums, 4, 2)
        if of_warp(lanes > 0):
            sums = butterfly(sums, 2, 1)
        return sums

    def prepared(own, lane, cols):
        return (short(of_lane(own, 6)),)

    def tile(own, lane, shared, first, rows, cols, done, alpha, a, x, beta, y):
        lanes = shared[0]
        loads, incx, stride = short(of_lane(own, 7)), of_lane(own, 4), of_lane(own, 1)
        own_a, own_x = moved(a, of_lane(own, 0)), moved(x, of_lane(own, OWN))
        groups, part = short(natural(32) >> lanes), lane & ((natural(1) << lanes) - 1)
        i = short(first + (lane >> lanes))
        if HAS_AROUND and of_warp(loads >= AROUND):
            starts = starts_alike(i, groups, rows, stride)
            end = (rows - 1) * max(stride, 0) + cols
            total = sums_around(own_a, starts, end, own_x, part, lanes, cols)
            sums = fold_around(total, loads, lanes)
        else:
            starts = row_starts(i, groups, rows - 1, stride, ROWS)
            sums = sums_aligned(own_a, starts, own_x, incx, loads, part, lanes, cols)
        own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 5)
        if part == 0:
            if i < rows:
                update_streaming(alpha, sums[0], beta, own_y, i * incy)
            if ROWS > 1 and i + groups < rows:
                update_streaming(alpha, sums[SECOND], beta, own_y, (i + groups) * incy)
        return groups * ROWS

    stretch = walk(OF_ROWS, prepared, tile)

    def list_rows(
        table, places, blocks, takers, turns, items, each, alpha_pointer, a, x, beta_pointer, y,
    ):  # fmt: skip
        tid = natural(cuda.threadIdx.x)
        warp = natural(cuda.blockIdx.x) * WARPS + tid // 32
        if of_warp(warp >= takers):
            return
        stretch(
            warp, tid % 32, table, places, blocks, turns, items, each, alpha_pointer, a, x,
            beta_pointer, y,
        )  # fmt: skip

    return (attach(list_rows, launch_bounds=(32 * WARPS, spec.min_blocks)),)


def loads_at_once(spec, width):
    """Loads of `width` elements that a lane has on the way for a row."""
    size = spec.dtype.itemsize
    # Numbers of 2 bytes take more registers than they have bits, once they are unpacked.
    return loads_of(spec["VECTORS"] // 2 if size == 2 else spec["VECTORS"], width, size)


def accepts(problem):
    return wide_loads_object(problem, "dot")


def geometry(problem, device, knobs):
    if knobs["ROWS"] > 2 or knobs["THREADS_PER_BLOCK"] % 32:
        raise ValueError(
            "list_rows: ROWS must be 1 or 2, and THREADS_PER_BLOCK whole warps, got"
            f" {knobs['ROWS']} and {knobs['THREADS_PER_BLOCK']}"
        )
    sizes = {"takers": 1, "turns": 1, "items": 1, "each": 1}
    return one_launch((1, 1, 1), (knobs["THREADS_PER_BLOCK"], 1, 1), sizes)


def tiles_of(columns, spec):
    """See :attr:`gemv.kernels.kernel.Kernel.tiles_of`."""
    lanes, width, cols = columns["lanes"], columns["loads"] % AROUND >> 1, columns["cols"]
    rows = (32 >> lanes) * spec["ROWS"]
    loads = np.array([loads_at_once(spec, each) for each in (1, 2, 4, 8)])
    passes = -(-cols // ((width << lanes) * loads[np.log2(width).astype(int)]))
    # Around a row there are up to so many elements more.
    widest = LOAD_BYTES // spec.dtype.itemsize
    around = -(-(cols + widest - 1) // ((widest << lanes) * spec["VECTORS"]))
    passes = np.where(columns["loads"] >= AROUND, around, passes)
    return Tiles(
        -(-columns["rows"] // rows), rows, passes, 1, BYTES_OF_PASS, 1, spec.min_blocks, HALVES
    )


def tile(knobs):
    return 32 * knobs["ROWS"], 4


KERNEL = Kernel(
    name="list_rows",
    rung=1,
    build=build,
    geometry=geometry,
    words=OF_ROWS,
    tiles_of=tiles_of,
    tile=tile,
    beside=True,
    accepts=accepts,
    knobs={"ROWS": 2, "VECTORS": 2, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 6},
    small_knobs={"ROWS": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1},
    doc=__doc__,
)
