"""Grids that several kernels share: tiles of rows, and columns split over blocks."""

from __future__ import annotations

import functools

from gemv.core.geometry import LOAD_BYTES, MAX_GRID_Y, Device, Geometry, ceil_div, one_launch
from gemv.core.problem import Problem

#: Loads of 16 bytes that a thread should have in flight where a batch has blocks enough.
LOADS_IN_BATCHES = 8


def power_above(number: int) -> int:
    """The smallest power of two that is not below `number`, which is 1 or more."""
    return 1 << (number - 1).bit_length()


def tile_shape(access: str, block_x: int, block_y: int) -> tuple[int, int]:
    """Rows of a block's tile, and threads on each row; ``threadIdx.x`` runs along memory."""
    return (block_x, block_y) if access == "axpy" else (block_y, block_x)


def split_columns(
    cols: int, step: int, row_tiles: int, threads_per_block: int, device: Device
) -> tuple[int, int]:
    """The number of blocks that share a row, and the columns that each of them takes.

    There are enough blocks for every multiprocessor to hold 2048 threads, as long as each thread
    still has four columns to add. One pass of a block covers `step` columns.
    """
    wanted = ceil_div(device.multiprocessors * (2048 // threads_per_block), row_tiles)
    most = max(1, cols // (4 * step))
    splits = max(1, min(wanted, most, MAX_GRID_Y))
    cols_per_split = ceil_div(ceil_div(cols, splits), step) * step
    return ceil_div(cols, cols_per_split), cols_per_split


def split_evenly(
    problem: Problem, tiles: int, threads_per_block: int, step: int, wanted: int
) -> Geometry:
    """One launch: a block for each tile of rows, or up to `wanted` blocks that share its columns.

    Each of these splits has a whole number of `step` columns, so that vectors stay aligned. The
    last block of a tile to begin adds up the sums that all of them post in the scratch array.
    """
    cols, block = problem.cols, (threads_per_block, 1, 1)
    if wanted <= 1 or cols < 2 * step:
        whole = {"splits": 1, "cols_per_split": ceil_div(cols, step) * step}
        return one_launch((tiles, 1, 1), block, whole)
    splits = min(wanted, cols // step, MAX_GRID_Y)
    cols_per_split = ceil_div(ceil_div(cols, splits), step) * step
    splits = ceil_div(cols, cols_per_split)
    sizes = {"splits": splits, "cols_per_split": cols_per_split}
    return one_launch((tiles, splits, 1), block, sizes, splits * problem.rows, tiles, posts=True)


@functools.cache
def loads_for_one(width: int, itemsize: int) -> int:
    """Loads of `width` elements that move as many bytes as one of 16 bytes: 1, 2 or 4.

    There are 4 at most, because eight loads of 2 bytes would need more registers than a thread has.
    """
    return min(4, max(1, LOAD_BYTES // (width * itemsize)))
