"""Pointers made of others inside a kernel: moved, conjugating, with old elements elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemv.language.simulator.memory import Pointer


class _Conjugating:
    """A pointer of any kind, through which complex numbers are loaded as their conjugates."""

    def __init__(self, pointer: Pointer) -> None:
        self._pointer = pointer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pointer, name)

    def __getitem__(self, i: int) -> Any:
        return self._pointer[i].conjugate()

    def elements(self, i: int, count: int) -> Sequence[Any]:
        return [value.conjugate() for value in self._pointer.elements(i, count)]

    def elements_apart(self, i: int, step: int, count: int) -> Sequence[Any]:
        return [value.conjugate() for value in self._pointer.elements_apart(i, step, count)]

    def vectors(self, i: int, step: int, count: int, width: int) -> list[Any]:
        return [value.conjugate() for value in self._pointer.vectors(i, step, count, width)]

    def numbers_of(self, stored: np.ndarray) -> Sequence[Any]:
        return [value.conjugate() for value in self._pointer.numbers_of(stored)]

    def moved(self, count: int) -> _Conjugating:
        return _Conjugating(self._pointer.moved(count))


def conjugated(pointer: Any) -> Any:
    """A pointer that loads the conjugates of complex elements."""
    return _Conjugating(pointer)


def moved(pointer: Any, count: int) -> Any:
    """A pointer to the same memory, `count` elements further on."""
    return pointer.moved(count)


class _Reading:
    """Two pointers: stores go through the first, loads through the second."""

    __slots__ = ("new", "old")

    def __init__(self, new: Any, old: Any) -> None:
        self.new, self.old = new, old

    @property
    def nothing(self) -> Any:
        return self.old.nothing

    def __getitem__(self, i: int) -> Any:
        return self.old[i]

    def __setitem__(self, i: int, value: Any) -> None:
        self.new[i] = value


def reading(pointer: Any, old: Any) -> Any:
    """A pointer that stores through `pointer` and loads from `old`."""
    return _Reading(pointer, old)


def new_of(pointer: Any) -> Any:
    """The pointer that stores go through."""
    return pointer.new if type(pointer) is _Reading else pointer


def old_of(pointer: Any) -> Any:
    """The pointer that loads go through."""
    return pointer.old if type(pointer) is _Reading else pointer
