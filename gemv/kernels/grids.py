"""Grids that several kernels share: tiles of rows, and columns split over blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from gemv.core.geometry import (
    CACHE_LINE_BYTES,
    LOAD_BYTES,
    MAX_GRID_Y,
    Device,
    Geometry,
    ceil_div,
    one_launch,
)
from gemv.core.problem import Problem

#: The geometry of problems that differ in their sizes alone: see :attr:`Kernel.prepared`.
GeometryOf: TypeAlias = Callable[[Problem], Geometry]

#: Loads of 16 bytes that a thread should have in flight where a batch has blocks enough.
LOADS_IN_BATCHES = 8


def power_above(number: int) -> int:
    """The smallest power of two that is not below `number`, which is 1 or more."""
    return 1 << (number - 1).bit_length()


def power_below(number: int) -> int:
    """The largest power of two that is not above `number`, which is 1 or more."""
    return 1 << (number.bit_length() - 1)


def most_blocks(device: Device, knobs: Mapping[str, int]) -> int:
    """Blocks that the GPU holds at a time, by what each multiprocessor holds at least."""
    return device.multiprocessors * knobs["MIN_BLOCKS"]


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
    problem: Problem,
    tiles: int,
    block: tuple[int, int, int],
    step: int,
    wanted: int,
    own: Mapping[str, int] = MappingProxyType({}),
) -> Geometry:
    """One launch: a block for each tile of rows, or up to `wanted` blocks that share its columns.

    Each of these splits has a whole number of passes of `step` columns, because the loads of a full
    pass are not masked: a single pass if there are fewer passes than blocks are wanted. The last
    block of a tile to begin adds up the sums that all of them post in the scratch array. `own` are
    the kernel's own sizes.
    """
    cols = problem.cols
    if wanted <= 1 or cols < 2 * step:
        sizes = {"splits": 1, "cols_per_split": ceil_div(cols, step) * step}
        if own:
            sizes.update(own)
        return one_launch((tiles, 1, 1), block, sizes)
    cols_per_split = ceil_div(ceil_div(cols, min(wanted, MAX_GRID_Y)), step) * step
    splits = ceil_div(cols, cols_per_split)
    sizes = {"splits": splits, "cols_per_split": cols_per_split}
    if own:
        sizes.update(own)
    return one_launch((tiles, splits, 1), block, sizes, splits * problem.rows, tiles, posts=True)


#: The first compute capability with clusters of blocks.
CLUSTERS = (9, 0)
#: Blocks of the largest cluster: more than 8 need a leave, which loading a kernel asks for.
MOST_CLUSTERED = 16


def split_in_clusters(
    name: str,
    problem: Problem,
    device: Device,
    tile_rows: int,
    threads_per_block: int,
    cluster: int,
) -> GeometryOf:
    """One launch: a cluster of `cluster` blocks for each tile of rows, which share its columns.

    Their shares are whole lines of the caches, so that vectors stay aligned. The last blocks have
    no columns if there are fewer lines than blocks.

    Raises
    ------
    ValueError
        If the kernel called `name` cannot have such clusters on this device.
    """
    # Where a launch has no clusters, ``st.async`` is an illegal instruction, so one block is none.
    if not 2 <= cluster <= MOST_CLUSTERED or cluster & (cluster - 1):
        raise ValueError(
            f"{name}: CLUSTER must be a power of two from 2 to {MOST_CLUSTERED}, got {cluster}"
        )
    lacks = device.lacks(CLUSTERS)
    if lacks:
        raise ValueError(f"{name}: blocks in clusters: {lacks}")
    block = (threads_per_block, 1, 1)

    def geometry_of(problem: Problem) -> Geometry:
        sizes = {"splits": cluster, "cols_per_split": columns_of_split(problem, cluster)}
        return one_launch((ceil_div(problem.rows, tile_rows), cluster, 1), block, sizes)

    return geometry_of


def columns_of_split(problem: Problem, cluster: int) -> int:
    """The number of columns of a block of a cluster; the last blocks may have fewer."""
    step = CACHE_LINE_BYTES // problem.dtype.itemsize if problem.access == "dot" else 1
    return ceil_div(ceil_div(problem.cols, cluster), step) * step


def columns_in_cluster(problem: Problem, geometry: Geometry) -> list[int]:
    """The number of columns of each block of a cluster."""
    splits, share = geometry.sizes["splits"], geometry.sizes["cols_per_split"]
    return [min(max(problem.cols - rank * share, 0), share) for rank in range(splits)]


def finishing(tile_rows: int, threads: int, slots: int, cluster: int) -> tuple[int, int]:
    """Rows of a tile that each block of a cluster finishes, and the lanes that share one of them.

    A row has `slots` partial sums, one of each warp of the cluster that had a part of it.
    """
    own = ceil_div(tile_rows, cluster)
    most = min(32, slots, threads // own)
    return own, 1 << (most.bit_length() - 1)


@functools.cache
def loads_for_one(width: int, itemsize: int) -> int:
    """Loads of `width` elements that move as many bytes as one of 16 bytes: 1, 2 or 4.

    There are 4 at most, because eight loads of 2 bytes would need more registers than a thread has.
    """
    return min(4, max(1, LOAD_BYTES // (width * itemsize)))


def partial_sums(width, precision):
    """How many sums a lane has for a row: elements of a vector do not wait for each other's sums.

    Eight wide sums for each row would take the registers that loads need.
    """
    return min(width, 2) if precision.sums.itemsize > 2 * precision.data.itemsize else width


def loads_of(vectors, width, itemsize):
    """Loads in flight for a row: as many bytes when alignment makes them narrower; 1 for 0."""
    return max(vectors * loads_for_one(width, itemsize), 1)
