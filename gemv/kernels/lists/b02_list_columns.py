"""Columns of many matrices of any size: each warp takes an equal stretch of the list.

Idea
    As ``list_rows``, for matrices that are stored down the columns: as many blocks as fit on the
    GPU have stretches of the list with about the same number of bytes, and the words of the next
    matrix are in a register before they are needed.

    A tile is a few rows with all their columns. The lanes of a warp are a small matrix: neighbours
    in one direction have neighbouring rows, at least 128 bytes of a column, and in the other
    direction lanes share the columns. How many are which are words of the item, because a matrix
    with few rows wants its columns shared, and one with few columns does not.

    A tile of up to 9 KB belongs to one warp. Whatever a tile takes beside its loads is done once
    then: finding its place, moving sums, adding up trees. The warp waits for no other one. A larger
    tile would keep one warp busy for too long, so it belongs to a block, and its four warps share
    the columns; if there are too few columns, these have rows of their own. All warps of a block
    must come to the same barriers: they begin with the tiles of their block, and go on with their
    own ones.

    The order of a sum is that of ``vector_columns`` (rung 9), in which the threads of a block share
    the columns: group g of them has the columns g, g + groups, g + 2 * groups, and so on. The
    groups of a warp are added up as a tree, and then the warps in order. Here one lane computes
    what many threads do there. It loads four columns at once, which belong to as many groups, and
    adds their sums up as a tree in its own registers. Where it has registers for what they bring,
    the next four columns of these groups are loaded at the same time, so it waits half as often.
    Lanes that share a tree do the rest of it by shuffles. All trees go to shared memory, where one
    thread for each row adds them in order.

    Columns of small matrices begin anywhere, and narrow loads would take many instructions. As in
    ``phased_columns`` (rung 12), a lane loads the 16 aligned bytes around its rows. How far they
    begin before these rows is the *phase* of the column. All columns of a group have one phase, as
    the number of groups is a multiple of the elements of a load. So a lane adds up what its loads
    bring, and moves the sums of a group to its own rows when they are done: some come from the next
    lane. Where every second column of a lane has the same phase, the sums of two are added first. A
    warp therefore has a vector of rows less than it reads. At the end of A a vector may reach past
    the last element, where memory may end. There the lane leaves the last column out of its loop,
    and adds it from loads of single elements when the loop is done: it is the last one of its sum
    anyway. Of short columns several are left out, and all of those that run backwards.

    How tiles of blocks and those of warps are given out is in
    :func:`~gemv.kernels.list_blocks.shared_out_to_blocks`. Two neighbouring tiles of rows share a
    line of memory in each column. They cost the same, so they are taken at about the same time, and
    the second one finds the line in the L2 cache.

Picture
    ::

        groups of vector_columns      0 1 ... 15 | 16 17 ... 31 | 32 ... 47 | 48 ... 63
        its warps, one tree each         tree 0  |    tree 1    |  tree 2   |  tree 3

        here, warps                      warp 0  |    warp 1    |  warp 2   |  warp 3
        a warp, lanes as 8 x 4           lanes 0-7, 8-15, 16-23, 24-31: a quarter of the tree each
        lane 0: rows 0-3                 columns 0 4 8 12, and 64 68 72 76, ...
        lane 1: rows 4-7                 the same columns

        a column of phase 1, | is a multiple of 16 bytes (float32)
        in memory                        |. 0 1 2|3 4 5 6|7 8 ...
        sums of lane 0, lane 1           |s s s s|s s s s|
        moved                              0 1 2  3         lane 0 has rows 0-3

        sum of a row                  ((tree 0 + tree 1) + tree 2) + tree 3

        a block, from left to right: tiles of the block, |, and of its warps
        warp 0                        A A A A|B B B C D D
        warp 1                        A A A A|E E F F G
        warp 2                        A A A A|H H H H I
        warp 3                        A A A A|J K K L M M

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize for each item, and about 150 bytes for
    its words: sizes and strides, addresses, alpha and beta. Lines that two tiles share come from
    memory once.

Wins
    Lists of matrices that are stored down the columns (or transposed and stored along the rows),
    above all small ones of many sizes. 68 MB of matrices with 4 to 512 rows and columns (1474 of
    them in float32, 743 in float64, 2915 in bfloat16) on an NVIDIA H100, where a kernel that only
    reads and writes as many bytes takes 24 us: 33.5 us in float32, 31.2 us in float64, 40.7 us in
    bfloat16. Where all tiles belonged to blocks, 32.2 us, 31.2 us and 46.2 us. Matrices of 65 x 65
    bfloat16 take 52.2 us, and took 86.3 us then; of 64 x 64, 29.3 us and 49.8 us.

    These times are from before eight columns were loaded at once, where four were. With eight, the
    matrices of many sizes take 0.91 times as long in float32, with 5 blocks on a multiprocessor;
    0.96 times in float64 and in bfloat16. In float16 eight would take 1.05 times as long: they need
    more registers than there are, so some are stored to memory. A row's trees are added up from
    four loads at once, whose places are numbers of 32 bits: on an NVIDIA H200 that takes 0.96 times
    as long in bfloat16, 0.97 in float16, 0.98 in float32 and 0.99 in float64.

    With loads as wide as columns are aligned, and warps that share nothing, the matrices of many
    sizes took 35.7 us, 33.4 us and 56.3 us; and if every second warp takes its tiles the other way
    round, 41.0 us, 39.6 us and 57.2 us.

Loses
    To ``list_rows`` on as many bytes, in float32 and bfloat16: see there.

    Where columns are so long that blocks share them: these items have launches of their own. To a
    batch of equal matrices, whose kernel needs no tables.

Sums
    Those of ``vector_columns``, which an item has alone. Which lane computes a part of them does
    not matter. Same bits on every run.

Source
    The order of sums is that of rung 9, and the phases are those of rung 12. Persistent blocks: see
    ``list_rows``.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES, one_launch
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_shares import BLOCKS_FIRST, BYTES_OF_PASS, Tiles
from gemv.kernels.list_words import AT_ONCE, OF_COLUMNS, SHARED_BYTES, WARPS
from gemv.kernels.lists.walk import walk


def passes_at_once(spec) -> int:
    """How many passes of four loads a lane has on their way at the same time.

    More of them need registers for what they bring. Those of float16 would not fit.
    """
    is_real = spec.dtype.kind != "c" and spec.dtype != np.float16
    return 2 if is_real and spec.accumulate == "plain" else 1


def blocks_at_once(spec) -> int:
    """Blocks that a multiprocessor holds: one more in float32, which takes fewer registers."""
    is_small = spec.dtype == np.float32 and spec.accumulate == "plain"
    return spec.min_blocks + 1 if is_small else spec.min_blocks


def build(spec):
    from gemv.language import (
        add_each,
        any_of_warp,
        cuda,
        elements_past,
        fold_pieces,
        gather,
        gather_some,
        inlined,
        load_vectors,
        moved,
        multiply_add,
        multiply_inside,
        natural,
        of_lane,
        of_warp,
        pieces_of,
        put_unit,
        rows_inside,
        short,
        spread,
        stream_around,
        sums_from,
        sums_of_lane,
        update_streaming,
        zeros,
    )

    zero, number = spec.zero, spec.number
    CONJUGATE = int(spec.conj)
    WIDTH = LOAD_BYTES // spec.dtype.itemsize
    PASSES = passes_at_once(spec)
    DEEPEST, SHIFT = AT_ONCE.bit_length() - 1, WIDTH.bit_length() - 1
    HALF_PHASE, TWO_WIDTH = WIDTH // 2 - 1, 2 * WIDTH
    SUMS, HALF = AT_ONCE * WIDTH, AT_ONCE // 2
    PLACES = SHARED_BYTES // spec.precision.sums.itemsize
    # Two buffers for the tiles of the block, then two for those of each warp, half as large.
    OF_WARP = PLACES // 2
    ALL_PLACES = (2 + WARPS) * PLACES
    TWOFOLD = spec.precision.sums.fields is not None
    UNIT = 1 if TWOFOLD else min(LOAD_BYTES // spec.precision.sums.itemsize, WIDTH)
    UNITS = WIDTH // UNIT
    THIRD, FOURTH = 2 * UNIT, 3 * UNIT
    OWN = len(OF_COLUMNS)
    # The columns of a lane are neighbours where it has whole trees: so are their numbers of x.
    OF_X = min(WIDTH, AT_ONCE)
    LOADS_OF_X = AT_ONCE // OF_X

    @inlined
    def all_loaded(a, at, rows, col_stride, cols):
        """The columns of a lane, up to the first one whose vector may reach past the end of A."""
        # In short columns the vectors of several reach there. The last column may be anywhere.
        past, ends = natural(0), WIDTH - 1 if col_stride > 0 else cols
        if col_stride >= WIDTH - 1:
            past, ends = elements_past(a, (cols - 1) * col_stride, LOAD_BYTES), 1
        return short(max(cols - ends, 0) if at - past + WIDTH > rows else cols)

    @inlined
    def repeated(values):
        """Once for each of the four columns that a lane has at once."""
        twice = values + values
        return twice + twice

    @inlined
    def with_ends(total, a, at, rows, col_stride, x, incx, j, begin, by, groups, whole, cols):
        """Adds the columns of a turn from `whole` on, one by one; those of `j` would be next."""
        slot = natural(0)
        if j > begin:
            loaded = ((whole - 1 - (j - groups)) >> by) + 1
            if loaded < AT_ONCE:
                slot, j = loaded, short(j - groups)
        while any_of_warp(j + (slot << by) < cols):
            c = short(j + (slot << by))
            start = c * col_stride
            first = at - elements_past(a, start, LOAD_BYTES)
            some = natural(1) if c < cols else natural(0)
            values = rows_inside(a, (start - at,), first, WIDTH, rows * some)
            factors = gather_some(x, c, 0, 1, incx, 1, some)
            factors = spread(factors, 1, SUMS, 0, 1)
            # Of the sums, those of this column alone have numbers from 0 to WIDTH - 1.
            total = multiply_inside(
                total, repeated(values), factors, -slot * WIDTH, WIDTH, WIDTH,
                WIDTH * some, CONJUGATE,
            )  # fmt: skip
            slot = slot + 1
            if slot == AT_ONCE:
                slot, j = natural(0), short(j + groups)
        return total

    @inlined
    def put(kept, at, own):
        """Stores the sums of a lane by as few stores as they take; those of two numbers singly."""
        if TWOFOLD:
            kept[at] = own[0]
            if WIDTH > 1:
                kept[at + 1] = own[1]
            return 0
        put_unit(kept, at, own, 0, UNIT)
        if UNITS > 1:
            put_unit(kept, at + UNIT, own, UNIT, UNIT)
        if UNITS > 2:
            put_unit(kept, at + THIRD, own, THIRD, UNIT)
            put_unit(kept, at + FOURTH, own, FOURTH, UNIT)
        return 0

    @inlined
    def sums(
        a, at, rows, col_stride, x, incx, wide, cols, lane, lanes, shares, share, part, tree,
        groups, parts, is_phased, kept, place, apart,
    ):  # fmt: skip
        """Stores the sums of all trees of the lane's rows, a tree `apart` from the one before."""
        unit = short(max(tree, DEEPEST))
        by = short(unit - DEEPEST)
        turns, bits = short(natural(1) << by), by - parts
        whole = all_loaded(a, at, rows, col_stride, cols) if WIDTH > 1 else cols
        base = natural(0)
        while of_warp(base < min(cols, groups)):
            own = zeros(zero, WIDTH)
            first, second = own, own
            total = zeros(zero, SUMS)
            turn = natural(0)
            while of_warp(turn < turns >> parts):
                # Those whose numbers differ in the highest bit are added up first, so they follow
                # each other. There are four at most.
                c = ((turn >> 1) | ((turn & 1) << 1)) >> (2 - bits)
                j = short(base + (share << unit) + (c << parts) + part)
                total = zeros(zero, SUMS)
                begin = j
                # Where all columns of a turn are there, no load is predicated.
                while j + ((AT_ONCE - 1) << by) + (PASSES - 1) * groups < whole:
                    after = short(j + groups)
                    values = stream_around(
                        a, j * col_stride, col_stride << by, AT_ONCE, WIDTH, AT_ONCE
                    )
                    if PASSES > 1:
                        more = stream_around(
                            a, after * col_stride, col_stride << by, AT_ONCE, WIDTH, AT_ONCE
                        )
                    if wide > by:
                        factors = load_vectors(x, j, OF_X, LOADS_OF_X, OF_X)
                        if PASSES > 1:
                            others = load_vectors(x, after, OF_X, LOADS_OF_X, OF_X)
                    else:
                        factors = gather(x, j, turns, AT_ONCE, incx, 1)
                        if PASSES > 1:
                            others = gather(x, after, turns, AT_ONCE, incx, 1)
                    total = multiply_add(total, values, spread(factors, 1, WIDTH, 0, 1), CONJUGATE)
                    if PASSES > 1:
                        total = multiply_add(total, more, spread(others, 1, WIDTH, 0, 1), CONJUGATE)
                    j = short(j + PASSES * groups)
                if j < whole:
                    after = short(j + groups)
                    rest = ((whole - 1 - j) >> by) + 1
                    values = stream_around(
                        a, j * col_stride, col_stride << by, AT_ONCE, WIDTH, rest
                    )
                    if PASSES > 1:
                        left = ((whole - 1 - after) >> by) + 1  # 0 or less where there are none
                        more = stream_around(
                            a, after * col_stride, col_stride << by, AT_ONCE, WIDTH, left
                        )
                    factors = gather_some(x, j, turns, AT_ONCE, incx, 1, rest)
                    if PASSES > 1:
                        others = gather_some(x, after, turns, AT_ONCE, incx, 1, left)
                    total = multiply_add(total, values, spread(factors, 1, WIDTH, 0, 1), CONJUGATE)
                    j = after
                    if PASSES > 1:
                        total = multiply_add(total, more, spread(others, 1, WIDTH, 0, 1), CONJUGATE)
                        if after < whole:
                            j = short(after + groups)
                if WIDTH > 1:
                    total = with_ends(
                        total, a, at, rows, col_stride, x, incx, j, begin, by, groups, whole, cols
                    )
                two_phases = (col_stride << by) & HALF_PHASE == 0 and tree >= DEEPEST
                if WIDTH > 1 and of_warp(is_phased and two_phases):
                    # The first and the third column have one phase: their sums are added, and
                    # then moved. So are those of the second and the fourth.
                    both = sums_from(
                        fold_pieces(total, TWO_WIDTH), a, begin * col_stride, col_stride << by,
                        HALF, WIDTH,
                    )  # fmt: skip
                    own = fold_pieces(both, WIDTH)
                else:
                    if WIDTH > 1 and of_warp(is_phased):
                        total = sums_from(
                            total, a, begin * col_stride, col_stride << by, AT_ONCE, WIDTH
                        )
                    own = fold_pieces(total, WIDTH)
                if turn & 1 == 0:
                    first = own
                else:
                    own = add_each(first, own)
                    if turn & 2 == 0:
                        second = own
                    else:
                        own = add_each(second, own)
                turn = short(turn + 1)
            # Lanes with different parts of a tree; the farthest are added first.
            distance = short((natural(1) << (lanes + parts)) >> 1)
            while of_warp(distance >= natural(1) << lanes):
                own = add_each(own, sums_of_lane(own, lane ^ distance))
                distance = short(distance >> 1)
            to = ((base + (share << unit)) >> tree) * apart + place
            if part == 0:
                if tree >= DEEPEST:
                    put(kept, to, own)
                elif tree == 1:
                    low = fold_pieces(pieces_of(total, 0, HALF, WIDTH), WIDTH)
                    high = fold_pieces(pieces_of(total, HALF, HALF, WIDTH), WIDTH)
                    put(kept, to, low)
                    put(kept, to + apart, high)
                else:
                    put(kept, to, pieces_of(total, 0, 1, WIDTH))
                    put(kept, to + apart, pieces_of(total, 1, 1, WIDTH))
                    put(kept, to + 2 * apart, pieces_of(total, 2, 1, WIDTH))
                    put(kept, to + 3 * apart, pieces_of(total, 3, 1, WIDTH))
            base = short(base + (natural(1) << (shares + unit)))
        return 0

    def prepared(own, lane, cols):
        lanes, shares = short(of_lane(own, 7)), short(of_lane(own, 8))
        parts, warps = short(of_lane(own, 9)), short(of_lane(own, 10))
        warp = natural(cuda.threadIdx.x) // 32
        # The warps of a block share columns, or they have runs of rows of their own, or both; or
        # each warp has an item of its own.
        runs = short(of_lane(own, 15))
        run = short((warp >> warps) & ((natural(1) << runs) - 1))
        of_columns = warp & ((natural(1) << warps) - 1)
        row, place = short(lane & ((natural(1) << lanes) - 1)), short(lane >> lanes)
        share = short((of_columns << shares) + (place >> parts))
        # Lanes behind those of all rows and columns would begin behind the last column.
        has_some = place < natural(1) << (shares + parts)
        part = short(place & ((natural(1) << parts) - 1) if has_some else cols)
        return lanes, shares, parts, warps, runs, run, row, share, part

    def tile(own, lane, shared, first, rows, cols, done, alpha, a, x, beta, y):
        kept = cuda.shared.array(ALL_PLACES, number, alignment=LOAD_BYTES)
        lanes, shares, parts, warps, runs, run, row, share, part = shared
        tree, groups = short(of_lane(own, 11)), short(of_lane(own, 12))
        step, wide = short(of_lane(own, 13)), short(of_lane(own, 14))
        col_stride, incx = of_lane(own, 1), of_lane(own, 5)
        own_a, own_x = moved(a, of_lane(own, 0)), moved(x, of_lane(own, OWN))
        in_run = short(natural(WIDTH) << lanes)
        in_tile = short(in_run << runs)
        # Behind the last row it is read again.
        at = short(min(first + run * step + row * WIDTH, rows - 1))
        warp, alone = natural(cuda.threadIdx.x) // 32, warps + runs == 0
        keep = short((done & 1) * PLACES)  # where the sums begin
        # In a tile of few rows one warp finishes them all: another one in each tile.
        r, finishers = short(lane + 32 * ((warp + done) % WARPS)), short(32 * WARPS)
        if of_warp(alone):
            keep = short((2 + warp) * PLACES + (done & 1) * OF_WARP)
            r, finishers = short(lane), short(32)
        sums(
            moved(own_a, at), at, rows, col_stride, own_x, incx, wide, cols, lane, lanes,
            shares + warps, share, part, tree, groups, parts, step < in_run, kept,
            keep + run * in_run + row * WIDTH, in_tile,
        )  # fmt: skip
        # The other buffer is written next, so one barrier for a tile is enough.
        if of_warp(alone):
            cuda.syncwarp()
        else:
            cuda.syncthreads()
        own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 6)
        count = short(min(cols, groups) + (natural(1) << tree) - 1) >> tree
        while r < in_tile:
            in_step = r & (in_run - 1)
            i = short(first + (r >> (lanes + SHIFT)) * step + in_step)
            if in_step < step and i < rows:
                total = zero
                # The loads of four trees wait together; places are numbers of 32 bits.
                place, k = short(keep + r), natural(0)
                while k + 3 < count:
                    one, two = kept[place], kept[short(place + in_tile)]
                    three = kept[short(place + 2 * in_tile)]
                    four = kept[short(place + 3 * in_tile)]
                    total = total + one + two + three + four
                    place, k = short(place + 4 * in_tile), short(k + 4)
                while k < count:
                    total += kept[place]
                    place, k = short(place + in_tile), short(k + 1)
                update_streaming(alpha, total, beta, own_y, i * incy)
            r = short(r + finishers)
        return step << runs

    stretch = walk(OF_COLUMNS, prepared, tile)

    def list_columns(
        table, places, blocks, takers, turns, items, each, alpha_pointer, a, x, beta_pointer, y,
    ):  # fmt: skip
        tid = natural(cuda.threadIdx.x)
        stretch(
            natural(cuda.blockIdx.x) * WARPS + tid // 32, tid % 32, table, places, blocks, turns,
            items, each, alpha_pointer, a, x, beta_pointer, y,
        )  # fmt: skip

    return (attach(list_columns, launch_bounds=(32 * WARPS, blocks_at_once(spec))),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def geometry(problem, device, knobs):
    sizes = {"takers": 1, "turns": 1, "items": 1, "each": 1}
    return one_launch((1, 1, 1), (32 * WARPS, 1, 1), sizes)


def tiles_of(columns, spec):
    """See :attr:`gemv.kernels.kernel.Kernel.tiles_of`."""
    rows = columns["step"] << columns["runs"]
    warps = 1 << (columns["runs"] + columns["warps"])
    shared = columns["shares"] + columns["parts"] + columns["warps"]
    passes = -(-columns["cols"] // (passes_at_once(spec) * AT_ONCE << shared))
    tiles = -(-(columns["rows"] - columns["begin"]) // rows)
    # Of the warps of a block each waits as long, so it counts as a part of the block's bytes.
    wait = BYTES_OF_PASS // WARPS
    return Tiles(tiles, rows, passes, warps, wait, WARPS, blocks_at_once(spec), BLOCKS_FIRST)


def tile(knobs):
    return 32, AT_ONCE


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
    knobs={"MIN_BLOCKS": 4},
    small_knobs={"MIN_BLOCKS": 1},
    doc=__doc__,
)
