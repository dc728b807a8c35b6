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

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize for each item, and about 100 bytes for
    its words: sizes and strides, addresses, alpha and beta.

Wins
    Lists of matrices that are stored along the rows (or transposed and stored along the columns),
    above all small ones of many sizes. 68 MB of matrices with 4 to 512 rows and columns (1474 of
    them in float32, 743 in float64) on an NVIDIA H100, where a kernel that only reads and writes
    as many bytes takes 24 us: 30.2 us in float32, 29.1 us in float64. Without votes, with four
    loads of a row on the way in place of two, with four blocks on a multiprocessor in place of six,
    and with another order of the tiles: 36.0 us and 31.2 us.

Loses
    To the memory in bfloat16: 43.7 us for such a list, and 52.6 us without votes.

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
from gemv.kernels.list_shares import HALVES, Tiles
from gemv.kernels.list_words import OF_ROWS
from gemv.kernels.lists.walk import walk
from gemv.kernels.wide_tiles import tail_of


def build(spec):
    from gemv.language import (
        butterfly,
        cuda,
        fold,
        gather_some,
        inlined,
        load_some,
        moved,
        multiply_add,
        natural,
        of_lane,
        of_warp,
        read_only_load,
        row_starts,
        short,
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

    by_1, by_2, by_4, by_8 = (sums_by(min(width, WIDEST)) for width in (1, 2, 4, 8))

    words_of, entry_of = walk(len(OF_ROWS))

    def list_rows(
        table, places, blocks, takers, turns, items, each, alpha_pointer, a, x, beta_pointer, y,
    ):  # fmt: skip
        tid = natural(cuda.threadIdx.x)
        lane = tid % 32
        warp = natural(cuda.blockIdx.x) * WARPS + tid // 32
        if of_warp(warp >= takers):
            return
        # The words of the first item of a warp stand behind those of all items, by the warp.
        slot = items + warp
        own = words_of(table, places, slot, lane)
        turn = natural(0)
        listed = entry_of(blocks, warp, turns, lane)
        entry = of_lane(listed, 0)
        while True:
            alpha, beta = read_only_load(alpha_pointer, slot), read_only_load(beta_pointer, slot)
            turn = short(turn + 1)
            if turn % 32 == 0:
                listed = entry_of(blocks, warp, turns, turn + lane)
            after = of_lane(listed, turn % 32)
            slot = natural(max(after, 0) >> 32)
            ahead = words_of(table, places, slot, lane)
            first, left = short(entry & 0xFFFFFFFF), short(each)
            rows, cols = short(of_lane(own, 2)), short(of_lane(own, 3))
            lanes = short(of_lane(own, 6))
            if of_lane(own, OWN + 2) == 0:
                cols = short(0)
            while of_warp(left > 0 and first < rows):
                # What a word is needed for is short, so it stays in the lane that keeps it.
                loads, incx = short(of_lane(own, 7)), of_lane(own, 4)
                own_a, own_x = moved(a, of_lane(own, 0)), moved(x, of_lane(own, OWN))
                groups, part = short(natural(32) >> lanes), lane & ((natural(1) << lanes) - 1)
                i = short(first + (lane >> lanes))
                starts = row_starts(i, groups, rows - 1, of_lane(own, 1), ROWS)
                wide = loads & 1 > 0
                if WIDEST >= 4 and of_warp(loads >= 8):
                    if WIDEST >= 8 and of_warp(loads >= 16):
                        sums = by_8(own_a, starts, own_x, incx, wide, part, lanes, cols)
                    else:
                        sums = by_4(own_a, starts, own_x, incx, wide, part, lanes, cols)
                elif WIDEST >= 2 and of_warp(loads >= 4):
                    sums = by_2(own_a, starts, own_x, incx, wide, part, lanes, cols)
                else:
                    sums = by_1(own_a, starts, own_x, incx, False, part, lanes, cols)
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
                own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 5)
                if part == 0:
                    if i < rows:
                        update_streaming(alpha, sums[0], beta, own_y, i * incy)
                    if ROWS > 1 and i + groups < rows:
                        update_streaming(alpha, sums[SECOND], beta, own_y, (i + groups) * incy)
                first = short(first + groups * ROWS)
                left = short(left - 1)
            if of_warp(after < 0):
                return
            own, entry = ahead, after

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
    lanes, width = columns["lanes"], columns["loads"] >> 1
    rows = (32 >> lanes) * spec["ROWS"]
    loads = np.array([loads_at_once(spec, each) for each in (1, 2, 4, 8)])
    passes = -(-columns["cols"] // ((width << lanes) * loads[np.log2(width).astype(int)]))
    return Tiles(-(-columns["rows"] // rows), rows, passes, 1, 1, spec.min_blocks, HALVES)


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
