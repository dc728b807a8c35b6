"""How much the busiest multiprocessor has to do, where blocks take tile after tile of rows."""

from __future__ import annotations

from gemv.core.geometry import ceil_div

#: Multiprocessors of an H100, on which tiles were timed.
MULTIPROCESSORS = 132
#: Rows of A that a multiprocessor copies while x comes for a tile, and while a tile ends.
TILE_COST = 2


def of_busiest(rows: int, of_tile: int, blocks: int = 1) -> int:
    """What the busiest multiprocessor does, as a number of rows that it copies.

    Parameters
    ----------
    rows : int
        Of A.
    of_tile : int
        Rows of a tile.
    blocks : int
        Those of each multiprocessor. Each takes as many tiles as another one, or one less.
    """
    tiles = ceil_div(ceil_div(rows, of_tile), MULTIPROCESSORS * blocks)
    return tiles * (blocks * of_tile + TILE_COST)
