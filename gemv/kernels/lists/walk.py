"""How a warp goes through its stretch of a list."""

from __future__ import annotations

from collections.abc import Callable

from gemv.kernels.list_words import PLACES


def walk(count: int) -> tuple[Callable, Callable]:
    """Functions that load the words of an item, and what a warp does in a turn.

    Parameters
    ----------
    count : int
        Words of an item in the table. Those of its place follow them in the lanes of a warp.
    """
    # here: the compiler is loaded only where a kernel is built
    from gemv.language import inlined

    def words_of(table, places, slot, lane):
        """The word that this lane keeps of an item; all lanes load theirs at once."""
        word = 0
        if lane < count:
            word = table[count * slot + lane]
        elif lane < count + PLACES:
            word = places[PLACES * slot + lane - count]
        return word

    def entry_of(blocks, warp, turns, turn):
        """An item, times 2**32, and a row of it; negative behind the last turn."""
        entry = -1
        if turn < turns:
            entry = blocks[warp * turns + turn]
        return entry

    return inlined(words_of), inlined(entry_of)
