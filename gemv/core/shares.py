"""Which lane of a warp holds which sum after ``scatter_sums`` has added them up.

This is arithmetic on compile-time constants: kernels use it while they are built, and their
geometry uses it without a compiler.
"""

from __future__ import annotations


def shares(count: int, width: int, lanes: int, apart: int) -> int:
    """How many shares :func:`scatter_sums` divides `count` sums into: a power of two.

    Each step halves the sums of a lane, as long as there are lanes to exchange them with. It stops
    where a half would be neither whole pieces of `width` sums nor a whole part of one.

    Parameters
    ----------
    count : int
        Sums that each lane has a part of.
    width : int
        Sums in a piece of neighbours, which kernels store together.
    lanes, apart : int
        Each sum is added up over the lanes of a group of `lanes` whose distance is a multiple of
        `apart`.
    """
    found = 1
    while found < lanes // apart and count // found % 2 == 0:
        half = count // found // 2
        if half % width and width % half:
            break
        found *= 2
    return found


def share_of_lane(count: int, width: int, lanes: int) -> tuple[int, int, int]:
    """Which row sums a lane holds after `scatter_sums`: ``(kept, holders, run)``.

    Each lane keeps `kept` sums; `holders` neighbouring lanes share them; they form runs of `run`
    neighbours. Example: 4 sums in groups of 2 lanes give (1, 8, 1): lanes 0 to 7 hold sum 0, lanes
    8 to 15 sum 1, and so on. The first `lanes` of the holders have sums of different rows; the
    other holders have the same ones again.

    Parameters
    ----------
    count, width : int
        Sums of a lane, and of a piece, as for :func:`shares`.
    lanes : int
        Lanes in a group: neighbours whose sums belong to different rows. A warp adds up its groups.
    """
    kept = count // shares(count, width, 32, min(lanes, 32))
    return kept, 32 * kept // count, min(kept, width)
