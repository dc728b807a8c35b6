"""Shared memory of a block, where other threads see a store at once, or as late as they may.

A GPU promises that a thread sees what another one has stored once both have been at a barrier, or
at the same ``syncwarp`` if they are of one warp, or once the other one has been at a fence. It does
not promise that behind a shuffle or a vote, although all lanes come to these together. Where stores
are *late*, each byte knows whose it is until then, and everybody else goes on reading what was
there before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gemv.language.simulator.memory import CheckedArray
from gemv.language.simulator.thread import WARP, Thread, current

#: Of a byte that not all threads see; :attr:`Memory.held` has zeros elsewhere.
HELD = 0xFF
#: What has as many bytes as an element, and is false if all of them are 0.
_BY_SIZE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
#: An element of each such type of which all bytes are held.
_ALL_HELD = {
    np.dtype(kind): np.full(size, HELD, np.uint8).view(kind)[0] for size, kind in _BY_SIZE.items()
}


def _is_of(thread: Thread, owner: np.ndarray) -> np.ndarray:
    """Which places a thread or its warp has stored in."""
    return (owner == thread.tid + 1) | (owner == -1 - thread.tid // WARP)


class Memory:
    """The bytes of one array, or the objects where it has objects, and who sees which of them.

    Attributes
    ----------
    new, old : ndarray
        What has been stored, and what was there before.
    held : ndarray
        :data:`HELD` where only some threads see what is new; 0 where all of the block do.
    owner : ndarray
        Who they are, where it is held: thread k by ``k + 1``, warp k by ``-1 - k``.
    is_late : bool
        Whether stores are held at all.
    is_held : bool
        Whether anything is held now.
    """

    __slots__ = ("held", "is_held", "is_late", "new", "old", "owner")

    def __init__(self, new: np.ndarray, is_late: bool) -> None:
        self.new, self.is_late = new, is_late
        self.held = np.zeros(new.shape, np.uint8)
        # Where no store is late, nobody looks at the other two: to make them takes time.
        self.old = new.copy() if is_late else new
        self.owner = np.zeros(new.shape, np.int16) if is_late else self.held
        self.is_held = False

    def seen(self, place: slice) -> np.ndarray:
        """What the thread that is running sees in some places."""
        if not self.is_held:
            return self.new[place]
        hidden = (self.held[place] != 0) & ~_is_of(current(), self.owner[place])
        return np.where(hidden, self.old[place], self.new[place])

    def put(self, place: slice, values: np.ndarray) -> None:
        """Store for the thread that is running."""
        if not self.is_late:
            self.new[place] = values
            return
        free = self.held[place] == 0
        self.old[place][free] = self.new[place][free]
        self.new[place] = values
        self.held[place] = HELD
        self.owner[place] = current().tid + 1
        self.is_held = True

    def spoil(self, place: slice) -> None:
        """Leave no number in some places, for any thread."""
        self.new[place] = 0xFF  # NaN in every format
        if self.is_late:
            self.held[place] = 0

    def show_to_warp(self, lanes: Iterable[Thread]) -> None:
        """Show to a warp what some of its lanes have stored."""
        if self.is_held:
            own = [lane.tid + 1 for lane in lanes]
            self.owner[np.isin(self.owner, own)] = -1 - (own[0] - 1) // WARP

    def show_to_block(self, thread: Thread | None = None) -> None:
        """Show to the block what a thread and its warp have stored, or what all have."""
        if not self.is_held:
            return
        if thread is None:
            self.held.fill(0)
            self.is_held = False
        else:
            self.held[_is_of(thread, self.owner)] = 0


class SharedArray(CheckedArray):
    """A view of the memory of a block: it refuses indices out of range.

    Parameters
    ----------
    memory : Memory
        All of the array, or all dynamic shared memory of the block.
    new, old, held, owner : ndarray
        Those of `memory` as elements; of `owner`, an element has one number for each of its bytes,
        and of `held` one for all, which is not 0 if one of the bytes is held.
    """

    __slots__ = ("_all_held", "held", "memory", "old", "owner")
    one_by_one = False  # whether somebody watches each element that is loaded

    def __init__(
        self, memory: Memory, new: np.ndarray, old: np.ndarray, held: np.ndarray, owner: np.ndarray
    ) -> None:
        super().__init__(new)
        self.memory, self.old, self.held, self.owner = memory, old, held, owner
        self._all_held = _ALL_HELD[held.dtype]

    @classmethod
    def of(cls, memory: Memory, dtype: np.dtype, shape: Any = -1) -> SharedArray:
        """All of a memory as elements of a type, as far as it has whole ones."""
        size = 1 if dtype.hasobject else dtype.itemsize
        whole = memory.new.size // size * size
        new, old, held = (
            each[:whole].view(kind).reshape(shape)
            for each, kind in (
                (memory.new, dtype), (memory.old, dtype), (memory.held, _BY_SIZE[size]),
            )
        )  # fmt: skip
        return cls(memory, new, old, held, memory.owner[:whole].reshape(*new.shape, size))

    @classmethod
    def made(cls, shape: Any, dtype: Any, is_late: bool) -> SharedArray:
        """A new array, which is filled with NaN at first."""
        data = CheckedArray.poisoned(shape, dtype).data
        flat = data.reshape(-1)
        memory = Memory(flat if flat.dtype.hasobject else flat.view(np.uint8), is_late)
        return cls.of(memory, data.dtype, shape)

    def elements(self, i: int, count: int) -> tuple:
        if self.one_by_one or self.memory.is_held:
            return tuple(self[i + k] for k in range(count))
        return super().elements(i, count)

    def __getitem__(self, i: Any) -> Any:
        i = self._checked(i)
        new = self.data[i]
        if type(new) is np.ndarray:
            if not self.memory.is_late:
                return CheckedArray(new)
            return SharedArray(self.memory, new, self.old[i], self.held[i], self.owner[i])
        if not self.memory.is_held or not self.held[i]:
            return new
        owner = self.owner[i]
        is_held = np.array([self.held[i]]).view(np.uint8) != 0
        hidden = is_held & ~_is_of(current(), owner)
        if not hidden.any():
            return new
        if hidden.all():
            return self.old[i]
        both = (np.array([each]).view(np.uint8) for each in (self.old[i], new))
        return np.where(hidden, *both).view(self.dtype)[0]

    def __setitem__(self, i: Any, value: Any) -> None:
        i = self._checked(i)
        if not self.memory.is_late:
            self.data[i] = value
            return
        held = self.held[i]
        if type(held) is np.ndarray:  # a row: all of its elements
            for k in range(len(held)):
                self[i][k] = value
            return
        if not held:
            self.old[i] = self.data[i]
        elif held != self._all_held:  # numbers of another size
            old, new = (np.array([each]).view(np.uint8) for each in (self.old[i], self.data[i]))
            free = np.array([held]).view(np.uint8) == 0
            self.old[i] = np.where(free, new, old).view(self.dtype)[0]
        self.data[i] = value
        self.held[i] = self._all_held
        self.owner[i] = current().tid + 1
        self.memory.is_held = True

    def put_for_all(self, i: Any, value: Any) -> None:
        """Store an element for all threads of the block at once, as an atomic operation does."""
        i = self._checked(i)
        self.data[i] = value
        self.held[i] = 0
