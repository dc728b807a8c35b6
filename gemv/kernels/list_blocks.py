"""How tiles of blocks and tiles of single warps are shared out in one launch.

All warps of a block must come to the same barriers in the same order. So they begin with the tiles
that belong to the block, each warp with the same ones. Behind these each has tiles of its own.
"""

from __future__ import annotations

import numpy as np

from gemv.kernels.list_shares import entries_of, owners


def shared_out_to_blocks(
    tiles: np.ndarray, rows: np.ndarray, costs: np.ndarray, warps: np.ndarray | int, takers: int,
    of_block: int,
) -> tuple[np.ndarray, np.ndarray, int]:  # fmt: skip
    """Which tiles each warp takes; those of a block are taken by all of its warps.

    The longest tiles of blocks are given out first, each to the block that has least to do so far,
    and then those of warps in the same way. So tiles of warps fill the gaps that are left.

    Parameters
    ----------
    tiles, rows, costs, warps : ndarray of int64
        Of each item: how many tiles it has, the rows of one of them, what it costs each of its
        warps, and how many these are: `of_block`, or 1.
    takers : int
        How many warps there are at most.
    of_block : int
        The warps of a block.

    Returns
    -------
    item, row, each
        As those of :func:`~gemv.kernels.list_shares.shared_out`.
    """
    each, _, item, number = entries_of(tiles, warps, 1, takers)
    cost = np.minimum(tiles[item] - number * each, each) * costs[item]
    longest = np.argsort(-cost, kind="stable")
    is_alone = np.broadcast_to(warps, tiles.shape)[item[longest]] == 1
    of_blocks, of_warps = longest[~is_alone], longest[is_alone]
    blocks = min(takers // of_block, len(item))
    block, loads = owners(cost[of_blocks], np.zeros(blocks, np.int64))
    # Warps of a block are far apart among those that have as much to do: all blocks get something.
    warp, _ = owners(cost[of_warps], np.tile(loads, of_block))
    warp = warp % blocks * of_block + warp // blocks
    # Each warp has the tiles of its block, and then its own ones.
    entry = np.concatenate([np.repeat(of_blocks, of_block), of_warps])
    of_all = (block[:, None] * of_block + np.arange(of_block)).reshape(-1)
    taker = np.concatenate([of_all, warp])
    by_taker = np.argsort(taker, kind="stable")
    entry, taker = entry[by_taker], taker[by_taker]
    many = np.bincount(taker, minlength=blocks * of_block)
    turn = np.arange(len(taker)) - (np.cumsum(many) - many)[taker]
    items, starts = (np.full((len(many), many.max()), value, np.int64) for value in (-1, 0))
    items[taker, turn] = item[entry]
    starts[taker, turn] = number[entry] * each * rows[item[entry]]
    return items, starts, each
