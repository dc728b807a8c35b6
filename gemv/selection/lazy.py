"""A sequence whose items are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T], Generic[T]):
    """Items by number, each made once: of a machine's many constants a process uses a few.

    Parameters
    ----------
    length : int
        How many there are.
    make : callable
        ``make(number)`` gives an item.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._numbers, self._make = range(length), make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[number] for number in self._numbers[at]]
        number = self._numbers[at]
        if number not in self._made:
            self._made.setdefault(number, self._make(number))
        return self._made[number]
