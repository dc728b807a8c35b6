"""Slots of constant memory: who owns one, and when it may be written again.

The rules are at the top of :mod:`gemv.engines.coefficients`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gemv.core.geometry import CONSTANT_BYTES


class ConstantMemory(Protocol):
    """Constant symbols that are written together, and events that order the writes."""

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU that they are on; None in the simulator."""

    def current(self) -> AbstractContextManager:
        """Make that GPU current for a block."""

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        """Enqueue ``alpha, beta`` for `slot`; `values` may change as soon as this returns."""

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        """Write as soon as `events` have come, outside of any capture; wait until it is done."""

    def mark(self, stream: int, event: Any) -> Any:
        """Record an event behind all that is on `stream`: `event`, or a new one if it is None."""

    def wait(self, stream: int, event: Any) -> None:
        """Let all later work on `stream` come after `event`."""

    def capturing(self, stream: int) -> bool:
        """Whether `stream` is being captured into a graph."""

    def handle(self, stream: Any) -> int:
        """The handle of a stream that a caller names; that of the default stream for None."""

    def device_of(self, stream: int) -> int | None:
        """Ordinal of the GPU of a stream's handle; None where there is only one."""


class Slot:
    """A place for one alpha and one beta.

    `events` come after the last work on it, one for each stream; `spare` may be recorded again.
    """

    __slots__ = ("events", "index", "spare")

    def __init__(self, index: int) -> None:
        self.index = index
        self.events: dict[int, Any] = {}
        self.spare: list[Any] = []


class SlotTable:
    """The slots of one constant symbol, or of several that are written together.

    Parameters
    ----------
    memory : ConstantMemory
    dtype : numpy.dtype
        Of alpha and beta.
    count : int
        Slots of the symbol.
    """

    def __init__(self, memory: ConstantMemory, dtype: np.dtype, count: int) -> None:
        self.memory = memory
        self.dtype = dtype
        self.count = count
        # Both ends are atomic. What was given back first is taken first: its work is mostly over.
        self._free = deque(Slot(index) for index in range(count))

    def take(self) -> Slot:
        """A slot that is the caller's alone until it is given back."""
        try:
            return self._free.popleft()
        except IndexError:
            raise RuntimeError(
                f"all {self.count} slots of a constant symbol are taken: close some gemv."
                f"Coefficients, or pass alpha and beta as arguments (constant memory ends at"
                f" {CONSTANT_BYTES // 1024} KB a module)"
            ) from None

    def give(self, slot: Slot) -> None:
        """Take a slot back. What was enqueued on it may still be running."""
        self._free.append(slot)

    def values(self, alpha: Any, beta: Any) -> np.ndarray:
        """The two numbers as they are in a slot."""
        return np.array([alpha, beta], self.dtype)

    def write(self, slot: Slot, alpha: Any, beta: Any, stream: int) -> None:
        """Enqueue new values, behind everything that still needs the old ones."""
        for event in slot.events.values():
            self.memory.wait(stream, event)
        self.memory.write(slot.index, self.values(alpha, beta), stream)
        slot.spare.extend(slot.events.values())
        slot.events.clear()

    def write_now(self, slot: Slot, alpha: Any, beta: Any) -> None:
        """Write while a stream is captured, without becoming part of the graph."""
        self.memory.write_now(slot.index, self.values(alpha, beta), list(slot.events.values()))

    def mark(self, slot: Slot, stream: int) -> None:
        """Remember what has just been enqueued on `stream` as the last work on the slot."""
        old = slot.events.get(stream)
        if old is None and slot.spare:
            old = slot.spare.pop()
        slot.events[stream] = self.memory.mark(stream, old)
