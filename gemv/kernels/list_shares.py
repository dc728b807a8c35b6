"""How the tiles of a list are shared out, so that all warps end at about the same time.

The longest tiles are given out first, each to the warp that has least to do so far, and short tiles
fill the gaps. Where neighbouring tiles share lines of memory, they go to the warps of one block at
the same time. Tiles that the warps of a block compute together have a file of their own,
``list_blocks.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Orders in which tiles are taken.
FORWARD, HALVES, BLOCKS_FIRST = 0, 1, 2


class Tiles(NamedTuple):
    """The tiles of all items of a table.

    Attributes
    ----------
    tiles, rows, passes : ndarray of int64
        Of each item: its tiles, the rows of one of them, and how often a warp waits for the memory
        while it computes one.
    warps : int or ndarray of int64
        How many warps compute a tile together: those of a block, or 1.
    wait : int
        The bytes that a warp could read in the time of a pass: see BYTES_OF_PASS.
    together : int
        How many warps should take neighbouring tiles at the same time: those of a block, or 1.
    blocks : int
        How many blocks a multiprocessor holds.
    order : int
        The order in which tiles are taken: FORWARD or HALVES, see :func:`shared_out`, or
        BLOCKS_FIRST, see :func:`gemv.kernels.list_blocks.shared_out_to_blocks`.
    """

    tiles: np.ndarray
    rows: np.ndarray
    passes: np.ndarray
    warps: np.ndarray | int
    wait: int
    together: int
    blocks: int
    order: int


#: The time that a warp waits for the memory, as bytes that it could read meanwhile: loads that a
#: warp waits for one after the other count more than bytes. On an NVIDIA H100, a list of columns of
#: 68 MB took 49.9 us in bfloat16 and 34.2 us in float32 with 1 KiB here, 47.4 and 31.9 us with
#: 16 KiB.
BYTES_OF_PASS = 16 << 10
#: Tiles that a warp takes at once are so many that there are about so many turns at most, unless
#: there are more items than that.
MOST_TURNS = 256


def shared_out(
    tiles: np.ndarray, rows: np.ndarray, costs: np.ndarray, takers: int, together: int, order: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Which tiles each warp takes, where each tile belongs to one.

    Neighbouring tiles of columns share lines of memory, because a tile ends within a line. So they
    should be read at about the same time, when the line is in the L2 cache: all begin with their
    longest tiles, and neighbours have the same turn (FORWARD). If every second warp begins with its
    shortest tiles, such lines are read from memory again. A list of columns of 68 MB in float32
    took 41.0 us then, and 35.7 us forward, on an NVIDIA H100, while all of them had this order.

    Tiles of rows share few lines. There it counts more that short tiles, which end soon and wait
    more often, are at work beside long ones at all times. So the second half of the warps begins
    with its shortest tiles (HALVES): 30.2 us for a list of rows as large, 32.7 us forward, and 31.3
    us if it is every second warp.

    Parameters
    ----------
    tiles, rows, costs : ndarray of int64
        Of each item: how many tiles it has, the rows of one of them, and what it costs.
    takers : int
        How many warps there are at most.
    together : int
        The warps of a block, which take neighbouring tiles at about the same time; or 1.
    order : int
        FORWARD or HALVES.

    Returns
    -------
    item, row : ndarray of int64, shape (takers, turns)
        What each of them does, one after the other: the item, -1 where there is nothing left to do,
        and the first of its tiles, as a row of the item.
    each : int
        The tiles that are one entry, the last one of an item left out: more than 1 in a long list.
    """
    each, unit, item, number = entries_of(tiles, 1, together, takers // together)
    left = tiles[item] - number * unit  # tiles of the item from this one on
    cost = np.minimum(left, unit) * costs[item]
    longest = np.argsort(-cost, kind="stable")
    groups = min(takers // together, len(item))
    owner, _ = owners(cost[longest], np.zeros(groups, np.int64))
    by_owner = np.argsort(owner, kind="stable")  # and by cost, as they were
    own, owner = longest[by_owner], owner[by_owner]
    many = np.bincount(owner, minlength=groups)
    turn = np.arange(len(own)) - (np.cumsum(many) - many)[owner]
    if order == HALVES:
        turn = np.where(owner >= groups // 2, many[owner] - 1 - turn, turn)
    units = np.full((groups, many.max()), -1, np.int64)
    units[owner, turn] = own
    return (*_split(units, item, number * unit, left, rows, costs, each, together), each)


def entries_of(
    tiles: np.ndarray, warps: np.ndarray | int, together: int, takers: int
) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Tiles that a warp takes at once, those of an entry; and of each entry its item and number.

    An entry is a turn of `warps` takers.
    """
    each, unit = 1, together
    counts = -(-tiles // unit)
    # As many entries as items are always needed.
    while (counts * warps).sum() > MOST_TURNS * takers and counts.max() > 1:
        each, unit = 2 * each, 2 * unit
        counts = -(-tiles // unit)
    item = np.repeat(np.arange(len(tiles), dtype=np.int64), counts)
    number = np.arange(len(item), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return each, unit, item, number


def owners(costs: np.ndarray, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who takes what has these costs, the largest of which come first; and what each has then.

    `loads` are the costs of what they have already.
    """
    groups, loads = len(loads), loads.copy()
    limit = -(-int(costs.sum() + loads.sum()) // groups)
    owner = np.empty(len(costs), np.int64)
    done = 0
    while done < len(costs):
        cost = costs[done : done + groups]
        least = np.argsort(loads, kind="stable")[: len(cost)]
        fits = loads[least] + cost <= limit
        # Those that have enough to do are left out, unless only a few would be left in.
        count = len(cost) if fits.all() else max(int(fits.argmin()), -(-groups // 8))
        loads[least[:count]] += cost[:count]
        owner[done : done + count] = least[:count]
        done += count
    return owner, loads


def _split(
    units: np.ndarray, item: np.ndarray, first: np.ndarray, left: np.ndarray, rows: np.ndarray,
    costs: np.ndarray, each: int, together: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Items and rows for each warp, from the units of neighbouring tiles that each block takes."""
    blocks, turns = units.shape
    items, starts = (
        np.full((blocks, together, turns), value, np.int64) for value in (-1, 0)
    )  # fmt: skip
    loads = np.zeros((blocks, together), np.int64)
    block, part = np.arange(blocks)[:, None], np.arange(together) * each
    for turn in range(turns):
        unit = units[:, turn, None]
        tiles = np.where(unit < 0, 0, np.clip(left[unit] - part, 0, each))
        warp = np.argsort(loads, axis=1, kind="stable")
        loads[block, warp] += tiles * costs[item[unit]]
        items[block, warp, turn] = np.where(tiles > 0, item[unit], -1)
        starts[block, warp, turn] = (first[unit] + part) * rows[item[unit]]
    by_warp = [array.reshape(blocks * together, turns) for array in (items, starts)]
    ahead = np.argsort(by_warp[0] < 0, axis=1, kind="stable")  # turns without tiles come last
    return np.take_along_axis(by_warp[0], ahead, 1), np.take_along_axis(by_warp[1], ahead, 1)
