"""Tiles and splits of the rungs of rows and of columns, for one vector and for several.

A kernel for several vectors has the sums of the rung for one vector, so it needs the same lanes and
the same splits, and it takes the sums of splits in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemv.core.geometry import Device, Geometry, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.grids import GeometryOf, loads_for_one, loads_of, split_evenly

#: Partial sums that a thread of the last block asks for at a time; powers of two.
TAKEN_FOR_ROWS, TAKEN_FOR_COLUMNS = 4, 8
#: Bytes of a column that a warp should read at least: two sectors of the memory.
RUN_BYTES = 64


def tail_of(width: int) -> int:
    """Of the columns that fill no vector: three or fewer are read at once, seven one by one."""
    return width - 1 if 1 < width <= 4 else 1


def split_rows(problem: Problem, device: Device, knobs: Mapping[str, int]) -> GeometryOf:
    """The launch of the rung of rows: a split is a whole number of the passes of a group.

    So its vectors stay aligned. Of the problem only the width of its loads counts.
    """
    lanes, width = knobs["LANES"], problem.widths[0]
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    tile_rows = threads // lanes * knobs["ROWS"]
    step = lanes * width * loads_of(knobs["VECTORS"], width, problem.dtype.itemsize)
    blocks, block = device.multiprocessors * knobs["BLOCKS_PER_SM"], (threads, 1, 1)

    def geometry_of(problem: Problem) -> Geometry:
        tiles = ceil_div(problem.rows, tile_rows)
        return split_evenly(problem, tiles, block, step, ceil_div(blocks, tiles))

    return geometry_of


def finish_warps(lanes: int, rows: int, threads_per_block: int) -> int:
    """Warps of the rung of rows that share a row when the last block adds the splits."""
    threads = max(lanes, threads_per_block)
    return max(max(threads // 32, 1) // (threads // lanes * rows), 1)


def finishers_of_columns(threads: int, tile_rows: int) -> int:
    """Threads of the rung of columns that share a row when the last block adds the splits."""
    return min(max(threads // tile_rows, 1), 16)


def narrow_loads(problem: Problem, knobs: Mapping[str, int]) -> int:
    """Loads of a column that stand for each one of 16 bytes: 1, 2 or 4, as many as rows need.

    Where that is less than for more rows, one tile has all of them. So some of the rows have as
    many tiles with their own number as with that of all rows.
    """
    width = problem.widths[0]
    loads = loads_for_one(width, problem.dtype.itemsize)
    while loads > 1 and loads // 2 * knobs["LANES"] * width >= problem.rows:
        loads //= 2
    return loads


def lanes_and_pieces(
    knobs: Mapping[str, int], width: int, itemsize: int, narrow: int
) -> tuple[int, int]:
    """LANES and PIECES for loads of `width` elements, `narrow` of which stand for one of 16 bytes.

    Narrower loads need more lanes for a whole run of memory, then more pieces; more columns
    would do for the bytes in flight, too, but each column costs a load of x.
    """
    lanes, loads = knobs["LANES"], narrow
    while loads > 1 and lanes < 32 and lanes * width * itemsize < RUN_BYTES:
        lanes, loads = 2 * lanes, loads // 2
    return lanes, knobs["PIECES"] * loads


def lanes_and_pieces_of(problem: Problem, knobs: Mapping[str, int]) -> tuple[int, int]:
    """:func:`lanes_and_pieces` for the loads and the rows of a problem."""
    narrow = narrow_loads(problem, knobs)
    return lanes_and_pieces(knobs, problem.widths[0], problem.dtype.itemsize, narrow)


def split_columns_of(
    problem: Problem, device: Device, knobs: Mapping[str, int], across: int = 1
) -> GeometryOf:
    """The launch of the rung of columns: a split is a whole number of the passes of a block.

    Of the problem only the width of its loads counts, and how many of them stand for one of 16
    bytes.
    """
    width = problem.widths[0]
    lanes, pieces = lanes_and_pieces_of(problem, knobs)
    threads = max(lanes, knobs["THREADS_PER_BLOCK"])
    tile_rows = lanes * across * width * pieces
    step = threads // lanes * knobs["COLUMNS"]
    blocks, block = device.multiprocessors * knobs["BLOCKS_PER_SM"], (threads * across, 1, 1)

    def geometry_of(problem: Problem) -> Geometry:
        tiles = ceil_div(problem.rows, tile_rows)
        return split_evenly(problem, tiles, block, step, blocks // tiles)

    return geometry_of
