"""Slots of constant memory: who has one, and when it may be written again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from gemv.core.geometry import CONSTANT_BYTES


class Memory(Protocol):
    """What a table needs of a device: writes, and marks that other streams can wait for."""

    #: Ordinal of the GPU, if there may be several.
    device: int | None

    def current(self) -> AbstractContextManager:
        """Have that GPU current for a while."""

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        """Enqueue ``alpha, beta`` for `slot`; `values` may change as soon as this returns."""

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        """Write behind `events` outside of any capture, and return when it is done."""

    def mark(self, stream: int, event: Any) -> Any:
        """An event behind all that is enqueued on `stream`: `event` itself again, if not None."""

    def wait(self, stream: int, event: Any) -> None:
        """Let what is enqueued on `stream` from now on come after `event`."""

    def capturing(self, stream: int) -> bool:
        """Whether `stream` is being captured into a graph."""

    def handle(self, stream: Any) -> int:
        """The handle of a stream that a caller names; that of the default stream for None."""

    def device_of(self, stream: int) -> int | None:
        """Ordinal of the GPU of a stream's handle; None where there is only one."""


class Slot:
    """A place for one alpha and one beta; `events` are the last work on it, by stream."""

    __slots__ = ("events", "index", "spare")

    def __init__(self, index: int) -> None:
        self.index = index
        self.events: dict[int, Any] = {}
        self.spare: list[Any] = []


class SlotTable:
    """The slots of one constant symbol, or of several that are written together.

    Parameters
    ----------
    memory : Memory
    dtype : numpy.dtype
        Of alpha and beta.
    count : int
        Slots of the symbol.
    """

    def __init__(self, memory: Memory, dtype: np.dtype, count: int) -> None:
        self.memory = memory
        self.dtype = dtype
        self.count = count
        # Appended at one end and taken from the other: both are atomic, and oldest comes first.
        self._free = deque(Slot(index) for index in range(count))

    def take(self) -> Slot:
        """A slot for the caller alone, until it is given back."""
        try:
            return self._free.popleft()
        except IndexError:
            raise RuntimeError(
                f"all {self.count} slots of a constant symbol are taken: close some gemv."
                f"Coefficients, or pass alpha and beta as arguments (constant memory ends at"
                f" {CONSTANT_BYTES // 1024} KB a module)"
            ) from None

    def give(self, slot: Slot) -> None:
        """End an ownership. What was enqueued on the slot may still be running."""
        self._free.append(slot)

    def values(self, alpha: Any, beta: Any) -> np.ndarray:
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


class HostMemory:
    """The simulator's constant memory: arrays of the host, written at once, without streams."""

    device: int | None = None

    def current(self) -> AbstractContextManager:
        return nullcontext()

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self.arrays = list(arrays)

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        for array in self.arrays:
            array[2 * slot : 2 * slot + 2] = values

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        self.write(slot, values, 0)

    def mark(self, stream: int, event: Any) -> Any:
        return None

    def wait(self, stream: int, event: Any) -> None:
        pass

    def capturing(self, stream: int) -> bool:
        return False

    def handle(self, stream: Any) -> int:
        return 0

    def device_of(self, stream: int) -> int | None:
        return None


class DeviceMemory:
    """Constant symbols of loaded modules, by their addresses."""

    def __init__(self, addresses: Iterable[int], device: int | None = None) -> None:
        from cuda.bindings import driver

        from gemv.driver.library import check

        self._driver, self._check = driver, check
        self.addresses = list(addresses)
        self.device = device
        self._aside: Any = None

    def current(self) -> AbstractContextManager:
        from gemv.driver.devices import on_device

        return nullcontext() if self.device is None else on_device(self.device)

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        # So few bytes of pageable memory are copied by the driver before the call returns.
        copy, nbytes = self._driver.cuMemcpyHtoDAsync, values.nbytes
        for address in self.addresses:
            self._check(copy(address + slot * nbytes, values.ctypes.data, nbytes, stream))

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        driver, check = self._driver, self._check
        # A thread that captures must not wait for a stream, unless it says that it knows better.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = check(driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            if self._aside is None:
                self._aside = check(driver.cuStreamCreate(1))  # 1: apart from stream 0
            for event in events:
                self.wait(self._aside, event)
            self.write(slot, values, self._aside)
            check(driver.cuStreamSynchronize(self._aside))
        finally:
            check(driver.cuThreadExchangeStreamCaptureMode(before))

    def mark(self, stream: int, event: Any) -> Any:
        driver = self._driver
        if event is None:
            event = self._check(driver.cuEventCreate(2))  # 2: no times, which makes it cheap
        self._check(driver.cuEventRecord(event, stream))
        return event

    def wait(self, stream: int, event: Any) -> None:
        self._check(self._driver.cuStreamWaitEvent(stream, event, 0))

    def capturing(self, stream: int) -> bool:
        status = self._check(self._driver.cuStreamIsCapturing(stream))
        return bool(status != self._driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def handle(self, stream: Any) -> int:
        from gemv.driver.streams import stream_handle

        return stream_handle(stream)

    def device_of(self, stream: int) -> int | None:
        from gemv.driver.streams import device_of_stream

        return None if self.device is None else device_of_stream(stream)
