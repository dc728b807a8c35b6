"""Several blocks add up the sums of a tile whose columns are split: those that began last.

The block that began last finds the sums of all splits there, or on their way. While it adds them
up, the rest of the GPU has nothing to do, and eight vectors have eight times the sums of one. So
the last blocks to begin, the *helpers*, take a share of the tile each::

    number drawn      0  ...  splits-5 | splits-4  splits-3  splits-2  splits-1
    share, of four                     |    3         2         1         0
                                       |    `---------+---------+------> takes what is left

A block must not wait for sums before all blocks that post them have begun: waiting, it could keep
one from beginning. The counter that blocks draw their numbers from goes back to zero with the last
one. So a helper that has posted its own sums looks at that counter. If it is zero, the helper takes
its share. If not, it leaves its share to the block that began last, which waits for nobody that has
not begun. A helper says which of the two it does, in a counter of its own, and the block that began
last asks for it after its own share.

Who adds up the sums of a row changes nothing about their order.
"""

from __future__ import annotations

from typing import Any

#: The most blocks that finish a tile: on an H100 eight were hardly ever faster than four. Of so
#: many blocks one may be a helper.
MOST_HELPERS, BLOCKS_OF_HELPER = 4, 2
#: What a helper says of its share.
TAKEN, LEFT = 1, 2
#: The end of a kernel where one block finishes a tile. ``the share`` stands for what finishes it.
_BY_ONE = """
if <condition> and ticket[0] == splits - 1:
    # The last one to begin. Whole blocks take this branch.
    the share
"""
#: The end where several do. A loop over all shares, their own among them, spills registers.
_BY_SEVERAL = """
if <condition> and ticket[0] + HELPERS >= splits:
    # One of the last to begin. Whole blocks take this branch.
    is_mine = cuda.shared.array(HELPERS, uint32)
    share = short(splits - 1 - ticket[0])
    if share > 0:
        if tid == 0:
            is_mine[share] = says(counters, share)
        cuda.syncthreads()  # whether the block takes its share is known to all
    if share == 0 or is_mine[share] > 0:
        the share
    if ticket[0] == splits - 1:
        if tid > 0 and tid < HELPERS:
            is_mine[tid] = said(counters, tid)
        cuda.syncthreads()  # which shares are left is known to all
        for share in range(1, HELPERS):
            if is_mine[share] > 0:
                the share
"""


def in_shares(helpers: int, condition: str, share: str) -> str:
    """The end of a kernel where so many blocks finish a tile: each takes a `share` of it.

    It is for kernels for which `condition` holds. In the text of a share its number is
    ``<share>``: the first and only one is number 0.
    """
    end, number = (_BY_ONE, "0") if helpers == 1 else (_BY_SEVERAL, "share")
    lines: list[str] = []
    for line in end.strip("\n").replace("<condition>", condition).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        own = share.strip("\n").splitlines() if line.strip() == "the share" else [line.lstrip()]
        lines += (indent + each.replace("<share>", number) for each in own)
    return "\n".join(lines) + "\n"


def helpers_of(splits: int, most: int) -> int:
    """How many blocks finish a tile: a power of two, at most `most`."""
    helpers, most = 1, min(most, MOST_HELPERS, splits // BLOCKS_OF_HELPER)
    while 2 * helpers <= most:
        helpers *= 2
    return helpers


def names(helpers: int) -> dict[str, Any]:
    """What the end refers to, beside names of the kernel, where so many blocks finish a tile."""
    import numpy as np

    from gemv.language import atomic_add, atomic_inc, cuda, device, natural, peek, short

    taken, left, nothing, mine, not_mine = map(np.uint32, (TAKEN, LEFT, 0, 1, 0))

    @device
    def tile_of_turn():
        """The counter from which the blocks of this tile draw their numbers."""
        return natural(cuda.blockIdx.z) * natural(cuda.gridDim.x) + natural(cuda.blockIdx.x)

    @device
    def place_of(share):
        """The counter of a helper, behind those that the blocks of all tiles draw from."""
        tiles = natural(cuda.gridDim.x) * natural(cuda.gridDim.z)
        return share * tiles + tile_of_turn()

    @device
    def says(counters, share):
        """Whether this helper takes its share, which it says to the block that began last."""
        place = place_of(share)
        if peek(counters, tile_of_turn()) == 0:  # all blocks of the tile have begun
            atomic_add(counters, place, taken)
            return mine
        atomic_add(counters, place, left)
        return not_mine

    @device
    def said(counters, share):
        """Whether a helper has left its share. It has begun; its counter is zero afterwards."""
        place = place_of(share)
        found = atomic_inc(counters, place, nothing)
        while found == 0:
            found = atomic_inc(counters, place, nothing)
        return mine if found == left else not_mine

    return {"says": says, "said": said, "short": short, "HELPERS": helpers}
