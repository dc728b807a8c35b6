"""Which lane holds which sum after a warp has added them up.

Host arithmetic on compile-time constants: kernels ask it as they are built, and their geometry
asks it without a compiler.
"""

from __future__ import annotations


def shares(count: int, width: int, lanes: int, apart: int) -> int:
    """Into how many :func:`scatter_sums` divides `count` sums: a power of two.

    Half of them, and half of those, as long as no half ends within one of two pieces of `width`.
    """
    found = 1
    while found < lanes // apart and count // found % 2 == 0:
        half = count // found // 2
        if half % width and width % half:
            break
        found *= 2
    return found


def share_of_lane(count: int, width: int, lanes: int) -> tuple[int, int, int]:
    """KEPT, HOLDERS and RUN of `count` sums that a warp adds up in groups of `lanes` lanes.

    Share k, of KEPT sums, is in the first `lanes` of the k-th HOLDERS neighbouring lanes: of 4 sums
    in 16 groups of 2 lanes, each share is 1 sum, in 2 of 8 lanes. It is RUN neighbours of one
    piece of `width` sums, or whole pieces.
    """
    kept = count // shares(count, width, 32, min(lanes, 32))
    return kept, 32 * kept // count, min(kept, width)
