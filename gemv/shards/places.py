"""What the places of shards can do, and which devices are asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np

from gemv.core.geometry import Device, Geometry
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.core.splits import Lines
from gemv.core.values import digits, is_integer, is_word, shown, typed
from gemv.selection.select import Choice

#: Where y goes: ``"x"`` stands for the device of x.
Gather = Literal["x", "all"] | int | None

#: A launch that is packed: called with A, with x and y from their first elements on.
Launch = Callable[[Operand, Operand, Operand], None]


class Sums(Protocol):
    """Partial sums and counters of the launches of one product at one place."""

    def begin(self, counted: int, stream: int) -> None:
        """Enqueue: no sum is there, and every counter has the value `counted`."""

    def count(self, counted: int, stream: int) -> None:
        """Enqueue: every counter has the value `counted`."""

    def sums(self, lines: Lines, device: int | None) -> Operand:
        """The memory of some of the sums, of shape (lines, their length)."""

    def at(self, shift: int) -> dict[str, Any]:
        """The parameters ``scratch`` and ``counters`` of a launch; see the engine's ``Shared``."""


class Place(Protocol):
    """A device, or one of several parts that a device plays, with a stream of its own.

    A product enqueues work at a place in turns. A turn is what is enqueued on that stream between
    the waits at its start and the event that is recorded at its end; others wait for that event.

    Attributes
    ----------
    name : str
        For error texts: ``"cuda:1"``.
    index : int or None
        Ordinal of the GPU, as operands have it; None in the simulator.
    device : Device
    stream : int
    turns : int
        How many turns have ended so far. The simulator counts none, since nothing is pending
        there.
    """

    name: str
    index: int | None
    device: Device
    stream: int
    turns: int

    def current(self) -> AbstractContextManager[None]:
        """Make its device current for a block."""

    def turn(self, starts: Iterable[Any], *others: Place) -> AbstractContextManager[None]:
        """One turn: what the block enqueues comes behind `starts` and the last turns of `others`.

        If an error ends the block, the turn has what was enqueued before it.
        """

    def store(self, lines: np.ndarray, dtype: np.dtype, pitch: int, offset: int) -> Operand:
        """A copy of lines of host memory, `pitch` elements apart.

        The first begins `offset` bytes behind a multiple of 16.
        """

    def vector(self, n: int, dtype: np.dtype, offset: int = 0) -> Operand:
        """New memory, which begins `offset` bytes behind a multiple of 16."""

    def sums(self, geometry: Geometry, dtype: np.dtype) -> Sums:
        """New memory for the partial sums of a launch."""

    def packed(self, choice: Choice, problem: Problem) -> Launch:
        """A launch on its stream, compiled, loaded and packed, with alpha 1 and beta 0."""

    def copy(self, source: Operand, target: Operand) -> None:
        """Enqueue a copy between contiguous vectors on any devices."""

    def copy_lines(self, source: Operand, target: Operand) -> None:
        """The same for lines of memory, of shape (lines, their length), with gaps between them."""

    def settle(self) -> None:
        """Wait for the work on its stream."""

    def reaches(self, operand: Operand, own: bool) -> bool:
        """Whether its kernels can write to a vector; `own` says that this package allocated it."""


class Fabric(Protocol):
    """All places of a matrix, and the order between their streams and those of the caller.

    Attributes
    ----------
    places : sequence of Place
    """

    places: tuple[Any, ...]

    def starts(self, streams: Iterable[tuple[int | None, int]]) -> list[Any]:
        """Marks behind the work that is on these streams, each with the ordinal of its GPU."""

    def join(self, streams: Iterable[tuple[int | None, int]], places: Iterable[Any]) -> None:
        """Let later work on the streams come after the last turns of `places`.

        An error is raised after all streams that can wait do.
        """

    def another(self) -> Fabric:
        """New places on the same devices."""

    def free(self) -> None:
        """Give streams and kept memory back."""


def ordinals(devices: Any, there: int) -> list[int]:
    """The argument ``devices`` as a list of ordinals; `there` is how many GPUs there are."""
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(
                f'Matrix: devices must be "all" or a list of ordinals, got {shown(devices)}'
            )
        return list(range(there))
    if isinstance(devices, (int, np.integer)) or not isinstance(devices, Iterable):
        raise TypeError(
            f'Matrix: devices must be "all" or a list of ordinals, got {typed(devices)}'
        )
    try:
        listed = list(devices)
    except Exception:  # an array of no dimensions is Iterable, too, and an object's own may fail
        raise TypeError(
            f'Matrix: devices must be "all" or a list of ordinals, got {typed(devices)}'
        ) from None
    found = []
    for each in listed:
        try:
            found.append(operator.index(each))
        except Exception:  # whatever an object's own method raises
            raise TypeError(f"Matrix: devices must hold integers, got {typed(each)}") from None
    if not found:
        raise ValueError("Matrix: devices is empty; name at least one")
    for each in found:
        _check_ordinal("Matrix", "devices", each, there)
    return found


def _check_ordinal(routine: str, name: str, index: int, there: int) -> None:
    """Refuse a GPU that is not there."""
    if not 0 <= index < there:
        last = "there is only cuda:0" if there == 1 else f"there are cuda:0 to cuda:{there - 1}"
        raise ValueError(f"{routine}: {name} names cuda:{digits(index)}, but {last}")


def check_gather(routine: str, gather: Any, there: int) -> Gather:
    """The argument ``gather``, of as many GPUs as there are."""
    if gather is None or is_word(gather, ("x", "all")):
        return gather
    if not is_integer(gather):
        raise ValueError(
            f'{routine}: gather must be "x", "all", None or the ordinal of a GPU, got'
            f" {shown(gather)}"
        )
    _check_ordinal(routine, "gather", int(gather), there)
    return int(gather)


def same_model(places: Iterable[Any]) -> str | None:
    """Which two places differ in more than their ordinals, in words; None if all are alike."""
    first, *others = places
    for other in others:
        if other.device._replace(index=0) != first.device._replace(index=0):
            return (
                f"{first.name} is {first.device.name} with {first.device.multiprocessors}"
                f" multiprocessors, and {other.name} is {other.device.name} with"
                f" {other.device.multiprocessors}"
            )
    return None
