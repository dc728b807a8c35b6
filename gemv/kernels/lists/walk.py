"""How a warp goes through its stretch of a list."""

from __future__ import annotations

from collections.abc import Callable

from gemv.kernels.list_words import PLACES


def walk(words: tuple[str, ...], prepared: Callable, tile: Callable) -> Callable:
    """A device function that computes the tiles of a taker, which is a warp.

    Warps of a block that compute a tile together have it in their stretches at the same place.

    While it works on an item, it already has the words of the next one in a register: lane k has
    word k, and ``of_lane`` hands them out.

    Parameters
    ----------
    words : tuple of str
        Words of an item in the table. Those of its place follow them in the lanes of a warp.
    prepared : callable
        ``prepared(own, lane, cols)`` gives integers that all tiles of an item share: at least one.
        `own` is the word that the lane has.
    tile : callable
        ``tile(own, lane, shared, first, rows, cols, done, alpha, a, x, beta, y)`` computes the tile
        whose first row is `first`, and gives the number of its rows. `shared` are the integers of
        `prepared`, and `done` counts the tiles before it. Pointers are those of the first item.

    Returns
    -------
    callable
        ``stretch(taker, lane, table, places, blocks, turns, items, each, alpha_pointer, a, x,
        beta_pointer, y)``.
    """
    # here: the compiler is loaded only where a kernel is built
    from gemv.language import inlined, natural, of_lane, of_warp, read_only_load, short

    COUNT, OF_ROWS, OF_COLS = len(words), words.index("rows"), words.index("cols")
    of_item, of_tile = inlined(prepared), inlined(tile)

    @inlined
    def words_of(table, places, slot, lane):
        """The word that this lane keeps of an item; all lanes load theirs at once."""
        word = 0
        if lane < COUNT:
            word = table[COUNT * slot + lane]
        elif lane < COUNT + PLACES:
            word = places[PLACES * slot + lane - COUNT]
        return word

    @inlined
    def entry_of(blocks, taker, turns, turn):
        """An item, times 2**32, and a row of it; negative behind the last turn."""
        entry = -1
        if turn < turns:
            entry = blocks[taker * turns + turn]
        return entry

    def stretch(
        taker, lane, table, places, blocks, turns, items, each, alpha_pointer, a, x, beta_pointer,
        y,
    ):  # fmt: skip
        # The words of the first item of a taker stand behind those of all items, by the taker.
        slot = items + taker
        own = words_of(table, places, slot, lane)
        turn, done = natural(0), natural(0)
        listed = entry_of(blocks, taker, turns, lane)
        entry = of_lane(listed, 0)
        while True:
            alpha, beta = read_only_load(alpha_pointer, slot), read_only_load(beta_pointer, slot)
            turn = short(turn + 1)
            if turn % 32 == 0:
                listed = entry_of(blocks, taker, turns, turn + lane)
            after = of_lane(listed, turn % 32)
            slot = natural(max(after, 0) >> 32)
            ahead = words_of(table, places, slot, lane)
            first, left = short(entry & 0xFFFFFFFF), short(each)
            rows, cols = short(of_lane(own, OF_ROWS)), short(of_lane(own, OF_COLS))
            if of_lane(own, COUNT + 2) == 0:  # alpha is 0
                cols = short(0)
            shared = of_item(own, lane, cols)
            while of_warp(left > 0 and first < rows):
                # What a word is needed for is short, so it stays in the lane that keeps it.
                count = of_tile(own, lane, shared, first, rows, cols, done, alpha, a, x, beta, y)
                first = short(first + count)
                left = short(left - 1)
                done = short(done + 1)
            if of_warp(after < 0):
                return
            own, entry = ahead, after

    return inlined(stretch)
