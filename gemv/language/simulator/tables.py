"""Pointers of a launch whose blocks find their item in tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gemv.language.simulator.memory import Pointer
from gemv.language.simulator.thread import SimulatorError


class Words(Pointer):
    """A pointer to int64 that a kernel only reads, as Python's integers: their sums are exact."""

    __slots__ = ()

    def __init__(self, words: np.ndarray, name: str) -> None:
        super().__init__(words, writable=False, name=name)

    def __getitem__(self, i: int) -> int:
        return int(super().__getitem__(i))


class Items:
    """A pointer to the first of several items, which lie anywhere.

    On a GPU a distance leads from one to the other. Here each item has the pointer that checks its
    bounds, and a distance that leads to no item is an error.
    """

    def __init__(self, pointers: Iterable[Pointer]) -> None:
        self._pointers: dict[int, Pointer] = {}
        for pointer in pointers:
            address = pointer.address + pointer.origin * pointer.itemsize
            if not self._pointers:
                self._first, self._itemsize, self._name = address, pointer.itemsize, pointer.name
            kept = self._pointers.setdefault(address, pointer)
            if kept.size < pointer.size:  # a part of another item: both begin at one element
                self._pointers[address] = pointer

    def moved(self, count: int) -> Pointer:
        """The pointer to the item that begins `count` elements behind the first one."""
        found = self._pointers.get(self._first + count * self._itemsize)
        if found is None:
            raise SimulatorError(f"{self._name}[{count}] is the first element of no item")
        return found
