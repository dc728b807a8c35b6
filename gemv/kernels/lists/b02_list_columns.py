"""Columns of many matrices of any size: each warp takes an equal stretch of the list.

Idea
    As ``list_rows``, for matrices that are stored down the columns. There is one launch, in which
    each warp has a stretch of the list with about the same number of bytes, and the words of the
    next matrix are in a register before they are needed.

    A warp takes a few rows with all their columns. Its lanes are a small matrix: neighbours in one
    direction have neighbouring rows, so that they read whole sectors of memory, and in the other
    direction lanes share the columns. How many are which are words of the item, because a matrix
    with few rows wants its columns shared, and one with few columns does not.

    The order of a sum is that of ``vector_columns`` (rung 9), in which the threads of a block share
    the columns: group g of them has the columns g, g + groups, g + 2 * groups, and so on. The
    groups of a warp are added up as a tree, and then the warps in order. Here one lane computes
    what a whole warp does there. It loads eight or sixteen columns at once, which belong to as many
    groups, and adds their sums up as a tree in its own registers. Lanes that share columns take the
    trees in turn, and shuffles collect these in order.

Picture
    ::

        groups of vector_columns      0 1 ... 15 | 16 17 ... 31 | 32 ... 47 | 48 ... 63
        its warps, one tree each         tree 0  |    tree 1    |  tree 2   |  tree 3

        here, lanes as 8 x 4          lanes 0-7  |  lanes 8-15  |   16-23   |   24-31
        lane 0: row 0                 columns 0 to 15 and 64 to 79, ...
        lane 1: row 1                 the same columns

        sum of a row                  ((tree 0 + tree 1) + tree 2) + tree 3

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize for each item, and about 140 bytes for
    its words: sizes and strides, addresses, alpha and beta.

Wins
    Lists of matrices that are stored down the columns (or transposed and stored along the rows),
    above all small ones of many sizes. 68 MB of matrices with 4 to 512 rows and columns (1474 of
    them in float32, 743 in float64, 2915 in bfloat16) on an NVIDIA H100, where a kernel that only
    reads and writes as many bytes takes 24 us: 41.1 us in float32, 39.6 us in float64, 56.3 us in
    bfloat16. Without votes (see ``list_rows``), and with four blocks on a multiprocessor, two in
    bfloat16: 41.6 us, 40.8 us and 72.3 us.

Loses
    To ``list_rows`` on as many bytes: see there.

    Where columns are so long that blocks share them: these items have launches of their own. To a
    batch of equal matrices, whose kernel needs no tables.

Sums
    Those of the kernel that an item has alone: of ``vector_columns``, of ``long_columns``, or of
    ``small_items``. Which lane computes a part of them does not matter. Same bits on every run.

Source
    The order of sums is that of rung 9. Persistent warps: see ``list_rows``.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES, one_launch
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_shares import Tiles
from gemv.kernels.list_words import LONGEST, OF_COLUMNS, columns_at_once
from gemv.kernels.lists.walk import walk


def build(spec):
    from gemv.language import (
        add_each,
        add_trees,
        axpy_add,
        butterfly,
        cuda,
        fold_pieces,
        gather_some,
        inlined,
        moved,
        multiply_add,
        natural,
        of_lane,
        of_warp,
        read_only_load,
        short,
        spread,
        stream_some,
        sums_of_lane,
        unrolled,
        zeros,
    )

    zero = spec.zero
    CONJUGATE = int(spec.conj)
    WARPS = spec["THREADS_PER_BLOCK"] // 32
    IN_ORDER = columns_at_once(1, spec.precision)
    WIDEST = LOAD_BYTES // spec.dtype.itemsize
    OWN = len(OF_COLUMNS)

    def sums_by(width):
        """A function for the sums of `width` rows of a lane, from loads of as many elements."""
        COLUMNS = columns_at_once(width, spec.precision)
        DEEPEST, SUMS = COLUMNS.bit_length() - 1, COLUMNS * width

        def few_by(leaves):
            SUMS = leaves * width

            def few(a, at, col_stride, x, incx, mine, tree):
                """The sum over so few groups that a lane loads columns of all of them at once."""
                total = zeros(zero, SUMS)
                j = natural(0)
                while j < mine:
                    rest = min(short(mine - j), COLUMNS)
                    values = stream_some(a, (at,), j * col_stride, col_stride, COLUMNS, width, rest)
                    factors = spread(gather_some(x, j, 1, COLUMNS, incx, 1, rest), 1, width, 0, 1)
                    total = multiply_add(total, values, factors, CONJUGATE)
                    j = short(j + COLUMNS)
                part = zeros(zero, width)
                if tree == 2:
                    return add_trees(part, total, 4)
                if tree == 1:
                    return add_trees(part, total, 2)
                return add_trees(part, total, 1)

            return inlined(few)

        few_4, few_8 = few_by(4), few_by(8)

        def sums(
            a, at, col_stride, x, incx, cols, mine, lane, lanes, shares, tree, groups, parts,
        ):  # fmt: skip
            if COLUMNS > 8 and of_warp(groups == 8):  # fewer groups than columns at once
                return few_8(a, at, col_stride, x, incx, mine, tree)
            if COLUMNS > 4 and of_warp(groups == 4):
                return few_4(a, at, col_stride, x, incx, mine, tree)
            # A lane computes several small trees at once. Of a tree with more groups than that it
            # loads columns that are `turns` apart in each turn: those of an upper part of the tree.
            unit = short(max(tree, DEEPEST))
            by = short(unit - DEEPEST)
            turns = short(natural(1) << by)
            # Lanes with different parts of a tree take the turns that differ in the lowest bits.
            row = lane & ((natural(1) << lanes) - 1)
            place = short(lane >> lanes)
            share, own_part = short(place >> parts), place & ((natural(1) << parts) - 1)
            apart = by - parts
            base = natural(0)
            part = zeros(zero, width)
            while of_warp(base < min(cols, groups)):
                own = part
                first, second, third = own, own, own
                total = zeros(zero, SUMS)
                turn = natural(0)
                while of_warp(turn < turns >> parts):
                    # Those whose numbers differ in the highest bit are added up first, so they
                    # follow each other.
                    c = ((turn >> 2) | (turn & 2) | ((turn & 1) << 2)) >> (3 - apart)
                    j = short(base + (share << unit) + (c << parts) + own_part)
                    total = zeros(zero, SUMS)
                    while j < mine:
                        rest = min(((mine - 1 - j) >> by) + 1, COLUMNS)
                        values = stream_some(
                            a, (at,), j * col_stride, col_stride << by, COLUMNS, width, rest
                        )
                        factors = gather_some(x, j, turns, COLUMNS, incx, 1, rest)
                        factors = spread(factors, 1, width, 0, 1)
                        total = multiply_add(total, values, factors, CONJUGATE)
                        j = short(j + groups)
                    own = fold_pieces(total, width)
                    if turn & 1 == 0:
                        first = own
                    else:
                        own = add_each(first, own)
                        if turn & 2 == 0:
                            second = own
                        else:
                            own = add_each(second, own)
                            if turn & 4 == 0:
                                third = own
                            else:
                                own = add_each(third, own)
                    turn = short(turn + 1)
                distance = short((natural(1) << (lanes + parts)) >> 1)
                while of_warp(distance >= natural(1) << lanes):
                    own = add_each(own, sums_of_lane(own, lane ^ distance))
                    distance = short(distance >> 1)
                # Each share adds its trees to the sum of those before.
                u = natural(0)
                while of_warp(u < (natural(1) << shares) and base + (u << unit) < cols):
                    if of_warp(tree >= DEEPEST):
                        part = add_each(part, own)
                    elif DEEPEST > 3 and of_warp(tree == 3):
                        part = add_trees(part, total, 8)
                    elif DEEPEST > 2 and of_warp(tree == 2):
                        part = add_trees(part, total, 4)
                    elif of_warp(tree == 1):
                        part = add_trees(part, total, 2)
                    else:
                        part = add_trees(part, total, 1)
                    part = sums_of_lane(part, (u << (lanes + parts)) + row)
                    u = short(u + 1)
                base = short(base + (natural(1) << (shares + unit)))
            return part

        return inlined(sums)

    by_1, by_2, by_4, by_8 = (sums_by(min(width, WIDEST)) for width in (1, 2, 4, 8))
    _, _, update_1 = unrolled(1, 1)
    _, _, update_2 = unrolled(1, min(2, WIDEST))
    _, _, update_4 = unrolled(1, min(4, WIDEST))
    _, _, update_8 = unrolled(1, min(8, WIDEST))

    def in_order(a, at, col_stride, x, incx, cols, mine, row, share, lanes, shares, groups):
        """The sum of a row: over the columns in order, or over those of two or four groups."""
        total = zeros(zero, 1)
        step = col_stride << shares
        if of_warp(groups == 1):
            base = natural(0)
            # Shares load columns at once, and add them up one after the other.
            while of_warp(base < cols):
                j = short(base + share * IN_ORDER)
                rest = short(max(mine - j, 0))
                values = stream_some(a, (at,), j * col_stride, col_stride, IN_ORDER, 1, rest)
                factors = gather_some(x, j, 1, IN_ORDER, incx, 1, rest)
                u = natural(0)
                while of_warp(u < (natural(1) << shares) and base + u * IN_ORDER < cols):
                    total = axpy_add(total, values, factors, 1, CONJUGATE)
                    total = sums_of_lane(total, (u << lanes) + row)
                    u = short(u + 1)
                base = short(base + (natural(IN_ORDER) << shares))
            return total
        j = share
        while j < mine:
            rest = min(((mine - 1 - j) >> shares) + 1, IN_ORDER)
            values = stream_some(a, (at,), j * col_stride, step, IN_ORDER, 1, rest)
            factors = gather_some(x, j, natural(1) << shares, IN_ORDER, incx, 1, rest)
            total = axpy_add(total, values, factors, 1, CONJUGATE)
            j = short(j + (natural(IN_ORDER) << shares))
        # The lanes of a row are 1 << lanes apart; the farthest are added first.
        if of_warp(lanes <= 4 and lanes + shares > 4):
            total = butterfly(total, 32, 16)
        if of_warp(lanes <= 3 and lanes + shares > 3):
            total = butterfly(total, 16, 8)
        if of_warp(lanes <= 2 and lanes + shares > 2):
            total = butterfly(total, 8, 4)
        if of_warp(lanes <= 1 and lanes + shares > 1):
            total = butterfly(total, 4, 2)
        if of_warp(lanes <= 0 and lanes + shares > 0):
            total = butterfly(total, 2, 1)
        return total

    in_order = inlined(in_order)

    words_of, entry_of = walk(len(OF_COLUMNS))

    def list_columns(
        table, places, blocks, warps, turns, items, each, alpha_pointer, a, x, beta_pointer, y,
    ):  # fmt: skip
        tid = natural(cuda.threadIdx.x)
        lane = tid % 32
        warp = natural(cuda.blockIdx.x) * WARPS + tid // 32
        if of_warp(warp >= warps):
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
            rows, cols = short(of_lane(own, 3)), short(of_lane(own, 4))
            lanes, shares = short(of_lane(own, 7)), short(of_lane(own, 8))
            if of_lane(own, OWN + 2) == 0:
                cols = short(0)
            parts = short(of_lane(own, 12))
            row, share = short(lane & ((natural(1) << lanes) - 1)), short(lane >> lanes)
            # Lanes behind those of all rows and columns have none.
            mine = cols if share < (natural(1) << (shares + parts)) else short(0)
            while of_warp(left > 0 and first < rows):
                # What a word is needed for is short, so it stays in the lane that keeps it.
                tree, groups = of_lane(own, 9), short(of_lane(own, 10))
                width = short(of_lane(own, 11))
                col_stride, incx = of_lane(own, 1), of_lane(own, 5)
                own_a, own_x = moved(a, of_lane(own, 0)), moved(x, of_lane(own, OWN))
                i = short(first + row * width)
                at = short(min(i, rows - width))  # behind the last row it is read again
                limit = rows if share == 0 else short(0)  # of rows that this lane stores
                if of_warp(tree < 0):
                    total = in_order(
                        own_a, at, col_stride, own_x, incx, cols, mine, row, share, lanes, shares,
                        groups,
                    )  # fmt: skip
                    own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
                    update_1(alpha, total, beta, own_y, i, 0, limit, incy)
                elif WIDEST >= 8 and of_warp(width == 8):
                    total = by_8(
                        own_a, at, col_stride, own_x, incx, cols, mine, lane, lanes, shares, tree,
                        groups, parts,
                    )  # fmt: skip
                    own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
                    update_8(alpha, total, beta, own_y, i, 0, limit, incy)
                elif WIDEST >= 4 and of_warp(width == 4):
                    total = by_4(
                        own_a, at, col_stride, own_x, incx, cols, mine, lane, lanes, shares, tree,
                        groups, parts,
                    )  # fmt: skip
                    own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
                    update_4(alpha, total, beta, own_y, i, 0, limit, incy)
                elif WIDEST >= 2 and of_warp(width == 2):
                    total = by_2(
                        own_a, at, col_stride, own_x, incx, cols, mine, lane, lanes, shares, tree,
                        groups, parts,
                    )  # fmt: skip
                    own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
                    update_2(alpha, total, beta, own_y, i, 0, limit, incy)
                else:
                    total = by_1(
                        own_a, at, col_stride, own_x, incx, cols, mine, lane, lanes, shares, tree,
                        groups, parts,
                    )  # fmt: skip
                    own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
                    update_1(alpha, total, beta, own_y, i, 0, limit, incy)
                first = short(first + (width << lanes))
                left = short(left - 1)
            if of_warp(after < 0):
                return
            own, entry = ahead, after

    return (attach(list_columns, launch_bounds=(32 * WARPS, blocks_at_once(spec))),)


#: For every 4 blocks of a multiprocessor in float32, those in real numbers of 2 and 8 bytes. The
#: former take more registers, once they are unpacked; of the latter, a load brings fewer.
OF_FOUR = {2: 3, 8: 5}


def blocks_at_once(spec):
    """Blocks that a multiprocessor holds, which limits the registers of a thread."""
    of_four = 4 if spec.dtype.kind == "c" else OF_FOUR.get(spec.dtype.itemsize, 4)
    return max(1, spec.min_blocks * of_four // 4)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def geometry(problem, device, knobs):
    if knobs["THREADS_PER_BLOCK"] % 32:
        raise ValueError(
            f"list_columns: THREADS_PER_BLOCK must be whole warps, got {knobs['THREADS_PER_BLOCK']}"
        )
    sizes = {"warps": 1, "turns": 1, "items": 1, "each": 1}
    return one_launch((1, 1, 1), (knobs["THREADS_PER_BLOCK"], 1, 1), sizes)


def tiles_of(columns, spec):
    """See :attr:`gemv.kernels.kernel.Kernel.tiles_of`."""
    width, own = columns["loads"], columns["rows"] - columns["begin"]
    rows = width << columns["lanes"]
    at_once = np.array([columns_at_once(int(each), spec.precision) for each in width])
    passes = -(-columns["cols"] // (at_once << (columns["shares"] + columns["parts"])))
    warps = spec["THREADS_PER_BLOCK"] // 32
    return Tiles(-(-own // rows), rows, passes, warps, blocks_at_once(spec))


def tile(knobs):
    return 32, LONGEST


KERNEL = Kernel(
    name="list_columns",
    rung=2,
    build=build,
    geometry=geometry,
    words=OF_COLUMNS,
    tiles_of=tiles_of,
    tile=tile,
    beside=True,
    accepts=accepts,
    knobs={"THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 4},
    small_knobs={"THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1},
    doc=__doc__,
)
