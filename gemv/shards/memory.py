"""Memory for x and y beside the shards, which the products of any number of vectors share."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.operand import Operand, part_of


class Room:
    """Memory for vectors at one place, each of its uses as large as a product has needed so far.

    Parameters
    ----------
    place : Place
    """

    def __init__(self, place: Any) -> None:
        self._place = place
        #: By what the memory is used for, and the bytes between a multiple of 16 and its start.
        self._memory: dict[tuple[str, int], Operand] = {}
        #: Parts of that memory as vectors, by the same and by their number, length and distance.
        self._views: dict[tuple[tuple[str, int], int, int, int], Operand] = {}

    def vectors(
        self, use: str, count: int, length: int, step: int, dtype: np.dtype, offset: int = 0
    ) -> Operand:
        """Memory for so many vectors, which begin `step` elements apart; for one, a vector.

        More vectors than ever before get new memory, and that from before is freed. The driver
        waits for the work that uses it.
        """
        key = (use, offset)
        view = self._views.get((key, count, length, step))
        if view is not None:
            return view
        needed = (count - 1) * step + length
        memory = self._memory.get(key)
        if memory is None or memory.shape[0] < needed:
            del memory  # so that nothing keeps it
            self._memory.pop(key, None)
            self._views = {each: view for each, view in self._views.items() if each[0] != key}
            memory = self._memory[key] = self._place.vector(needed, dtype, offset)
        if count == 1:
            view = part_of(memory, 0, (length,), (1,))
        else:
            view = part_of(memory, 0, (count, length), (step, 1))
        self._views[key, count, length, step] = view
        return view

    def sums(self, count: int, pitch: int, dtype: np.dtype) -> Operand:
        """Memory for the y of `count` shards, `pitch` elements apart."""
        return self.vectors("partial", 1, count * pitch, count * pitch, dtype)


class Memory:
    """The rooms of all launches of one form of the matrix.

    The products that share them run one after the other: each is enqueued as a whole, on the same
    streams.
    """

    def __init__(self) -> None:
        self._rooms: dict[tuple[int, str], Room] = {}

    def room(self, place: Any, number: int, role: str = "") -> Room:
        """The room of one launch of a shard; `role` tells several launches of it apart."""
        found = self._rooms.get((number, role))
        if found is None:
            found = self._rooms[number, role] = Room(place)
        return found


def flat(owner: Any) -> Any:
    """The simulator's memory of one line as a vector."""
    return owner.reshape(-1) if isinstance(owner, np.ndarray) else owner
