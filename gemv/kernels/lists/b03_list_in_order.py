"""Few columns of many matrices of any size: each lane adds up a row from one column to the next.

Idea
    As ``list_columns``, for items whose columns are added up in order: small matrices, and long
    columns of which there are few. There is little to share, so each warp works for itself. Its
    lanes have neighbouring rows, and each of them loads up to sixteen columns at once.

    Where there are fewer rows than lanes, several lanes load the columns of one row, and the one
    after the other adds what it has to the sum so far, which a shuffle hands on.

Picture
    ::

        lanes as 8 x 4, float32       lanes 0-7  |  lanes 8-15  |    16-23     |    24-31
        columns, in order             0 to 15    |  16 to 31    |   32 to 47   |   48 to 63

        sum of a row                  lane 0 adds 16, lane 8 goes on with 16 more, ...

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize for each item, and about 100 bytes for
    its words: sizes and strides, addresses, alpha and beta.

Wins
    The small matrices of a list that are stored down the columns, and its few long columns. Its
    launch runs beside that of ``list_columns``.

Loses
    Where there are columns enough for several lanes: these items have trees of sums, and
    ``list_columns``.

Sums
    Those of the kernel that an item has alone: of ``long_columns``, or of ``small_items``. Same
    bits on every run.

Source
    Warps that take tiles of all matrices: see ``list_rows``.
"""

from __future__ import annotations

from gemv.core.geometry import one_launch
from gemv.kernels.kernel import Kernel, attach, wide_loads_object
from gemv.kernels.list_shares import BYTES_OF_PASS, FORWARD, Tiles
from gemv.kernels.list_words import OF_IN_ORDER, columns_at_once
from gemv.kernels.lists.walk import walk


def build(spec):
    from gemv.language import (
        add_each,
        axpy_add,
        butterfly,
        cuda,
        gather_some,
        inlined,
        moved,
        natural,
        of_lane,
        of_warp,
        short,
        stream_some,
        sums_of_lane,
        update_streaming,
        zeros,
    )

    zero = spec.zero
    CONJUGATE = int(spec.conj)
    WARPS = spec["THREADS_PER_BLOCK"] // 32
    COLUMNS = columns_at_once(spec.precision)
    OWN = len(OF_IN_ORDER)

    @inlined
    def in_order(
        a, at, col_stride, x, incx, cols, mine, row, share, lanes, shares, groups, in_pairs
    ):
        """The sum of a row: over the columns in order, or over those of two or four groups."""
        total = zeros(zero, 1)
        step = col_stride << shares
        if of_warp(groups == 1):
            base = natural(0)
            # Shares load columns at once, and add them up one after the other.
            while of_warp(base < cols):
                j = short(base + share * COLUMNS)
                rest = short(max(mine - j, 0))
                values = stream_some(a, (at,), j * col_stride, col_stride, COLUMNS, 1, rest)
                factors = gather_some(x, j, 1, COLUMNS, incx, 1, rest)
                u = natural(0)
                while of_warp(u < (natural(1) << shares) and base + u * COLUMNS < cols):
                    total = axpy_add(total, values, factors, 1, CONJUGATE)
                    total = sums_of_lane(total, (u << lanes) + row)
                    u = short(u + 1)
                base = short(base + (natural(COLUMNS) << shares))
            return total
        j = share
        while j < mine:
            rest = min(((mine - 1 - j) >> shares) + 1, COLUMNS)
            values = stream_some(a, (at,), j * col_stride, step, COLUMNS, 1, rest)
            factors = gather_some(x, j, natural(1) << shares, COLUMNS, incx, 1, rest)
            total = axpy_add(total, values, factors, 1, CONJUGATE)
            j = short(j + (natural(COLUMNS) << shares))
        if of_warp(in_pairs == 0):
            part = sums_of_lane(total, row)
            u = natural(1)
            while of_warp(u < (natural(1) << shares)):
                part = add_each(part, sums_of_lane(total, (u << lanes) + row))
                u = short(u + 1)
            return part
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

    def prepared(own, lane, cols):
        lanes, shares = short(of_lane(own, 6)), short(of_lane(own, 7))
        row, share = short(lane & ((natural(1) << lanes) - 1)), short(lane >> lanes)
        # Lanes behind those of all rows and columns have none.
        mine = cols if share < (natural(1) << shares) else short(0)
        return lanes, shares, row, share, mine

    def tile(own, lane, shared, first, rows, cols, done, alpha, a, x, beta, y):
        lanes, shares, row, share, mine = shared
        groups, col_stride, incx = short(of_lane(own, 8)), of_lane(own, 1), of_lane(own, 4)
        own_a, own_x = moved(a, of_lane(own, 0)), moved(x, of_lane(own, OWN))
        i = short(first + row)
        at = short(min(i, rows - 1))  # behind the last row it is read again
        total = in_order(
            own_a, at, col_stride, own_x, incx, cols, mine, row, share, lanes, shares, groups,
            of_lane(own, 9),
        )  # fmt: skip
        own_y, incy = moved(y, of_lane(own, OWN + 1)), of_lane(own, 5)
        if share == 0 and i < rows:
            update_streaming(alpha, total[0], beta, own_y, i * incy)
        return natural(1) << lanes

    stretch = walk(OF_IN_ORDER, prepared, tile)

    def list_in_order(
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

    return (attach(list_in_order, launch_bounds=(32 * WARPS, spec.min_blocks)),)


def accepts(problem):
    return wide_loads_object(problem, "axpy")


def geometry(problem, device, knobs):
    if knobs["THREADS_PER_BLOCK"] % 32:
        raise ValueError(
            "list_in_order: THREADS_PER_BLOCK must be whole warps, got"
            f" {knobs['THREADS_PER_BLOCK']}"
        )
    sizes = {"takers": 1, "turns": 1, "items": 1, "each": 1}
    return one_launch((1, 1, 1), (knobs["THREADS_PER_BLOCK"], 1, 1), sizes)


def tiles_of(columns, spec):
    """See :attr:`gemv.kernels.kernel.Kernel.tiles_of`."""
    rows = 1 << columns["lanes"]
    passes = -(-columns["cols"] // (columns_at_once(spec.precision) << columns["shares"]))
    warps = spec["THREADS_PER_BLOCK"] // 32
    return Tiles(
        -(-columns["rows"] // rows), rows, passes, 1, BYTES_OF_PASS, warps, spec.min_blocks, FORWARD
    )


def tile(knobs):
    return 32, 16


KERNEL = Kernel(
    name="list_in_order",
    rung=3,
    build=build,
    geometry=geometry,
    words=OF_IN_ORDER,
    tiles_of=tiles_of,
    tile=tile,
    beside=True,
    accepts=accepts,
    knobs={"THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 5},
    small_knobs={"THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1},
    doc=__doc__,
)
