"""Homes on the GPU: bring alpha, beta and x to where a kernel reads them.

The words for homes are in :data:`gemv.kernels.spec.HOMES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.driver import streams
from gemv.driver.capture import capture_of, outside_of_captures
from gemv.driver.devices import on_device
from gemv.driver.libcuda import check
from gemv.driver.memory import DeviceBytes, address_of
from gemv.engines.coefficients import Coefficients, Lease
from gemv.engines.launches import Launcher
from gemv.engines.loading import LoadedFunction
from gemv.engines.slots import SlotTable
from gemv.kernels.spec import COEFFICIENTS, SLOTS, X_SYMBOL
from gemv.selection.select import Choice


class ConstantSymbols:
    """The constant symbols of loaded functions, for a :class:`~gemv.engines.slots.SlotTable`."""

    def __init__(self, addresses: Iterable[int], device: int, several: bool) -> None:
        self.addresses = list(addresses)
        self.device = device
        #: Whether there is more than one GPU, so that a stream may be another one's.
        self.several = several
        #: A stream for writes outside of captures, made at first use.
        self._aside: Any = None

    def current(self) -> AbstractContextManager:
        # Even the only GPU is current in no thread that has not used CUDA yet.
        return on_device(self.device)

    def write(self, slot: int, values: np.ndarray, stream: int) -> None:
        # So few bytes of pageable memory are copied by the driver before the call returns.
        for address in self.addresses:
            target = address + slot * values.nbytes
            check(driver.cuMemcpyHtoDAsync(target, values.ctypes.data, values.nbytes, stream))

    def write_now(self, slot: int, values: np.ndarray, events: Sequence[Any]) -> None:
        # A thread that captures must not wait for a stream, unless it says that it is safe.
        with outside_of_captures():
            if self._aside is None:
                flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
                self._aside = check(driver.cuStreamCreate(flags))
            for event in events:
                self.wait(self._aside, event)
            self.write(slot, values, self._aside)
            check(driver.cuStreamSynchronize(self._aside))

    def mark(self, stream: int, event: Any) -> Any:
        if event is None:
            flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
            event = check(driver.cuEventCreate(flags))
        check(driver.cuEventRecord(event, stream))
        return event

    def wait(self, stream: int, event: Any) -> None:
        check(driver.cuStreamWaitEvent(stream, event, 0))

    def capturing(self, stream: int) -> bool:
        status = check(driver.cuStreamIsCapturing(stream))
        return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def handle(self, stream: Any) -> int:
        return streams.stream_handle(stream)

    def device_of(self, stream: int) -> int | None:
        return streams.device_of_stream(stream) if self.several else None


class Homes:
    """Where alpha, beta and x are, for all kernels of all GPUs.

    Parameters
    ----------
    launcher : Launcher
    several : bool
        Whether there is more than one GPU.
    """

    def __init__(self, launcher: Launcher, several: bool) -> None:
        self._launcher, self._several = launcher, several
        #: By name of the kernel, what it is compiled for, and ordinal of the GPU.
        self._slot_tables: dict[tuple, SlotTable] = {}

    @contextmanager
    def coefficients(
        self,
        choice: Choice,
        device: Device,
        functions: tuple[LoadedFunction, ...],
        alpha: Any,
        beta: Any,
        stream: int,
        owner: Coefficients | None,
    ) -> Iterator[dict[str, int]]:
        """Bring alpha and beta to their homes for the launches enqueued inside the block.

        Yields the parameters that tell a kernel where they are. alpha and beta are operands where
        their home is device memory, else numbers; `owner` has the slot, if there is one.
        """
        homes = choice.spec.homes
        places = {
            f"{name}_pointer": operand.pointer
            for name, operand, home in zip(("alpha", "beta"), (alpha, beta), homes, strict=True)
            if home in ("pointer", "global")
        }
        if "constant" not in homes:
            yield places
            return
        alpha_in_slot = alpha if homes[0] == "constant" else 0
        beta_in_slot = beta if homes[1] == "constant" else 0
        table = self._slot_table(choice, device, functions)
        lease = Lease(table, alpha_in_slot, beta_in_slot, stream, owner)
        try:
            yield {**places, "slot": lease.slot}
        finally:
            lease.done()

    def _slot_table(
        self, choice: Choice, device: Device, functions: tuple[LoadedFunction, ...]
    ) -> SlotTable:
        key = (choice.kernel.name, choice.spec, device.index)
        table = self._slot_tables.get(key)
        if table is None:
            symbols = [
                _symbol(each, COEFFICIENTS) for each in functions if "slot" in each.binary.arguments
            ]
            memory = ConstantSymbols(symbols, device.index, self._several)
            # Two threads may come here at once, and both must use the same table.
            table = self._slot_tables.setdefault(
                key, SlotTable(memory, choice.spec.precision.factors, SLOTS)
            )
        return table

    def x(
        self,
        choice: Choice,
        device: Device,
        functions: tuple[LoadedFunction, ...],
        problem: Problem,
        pointer: int,
        stream: int,
    ) -> np.ndarray | None:
        """Bring x to constant memory, or return it to be passed by value, if the kernel wants so.

        All launches of the kernel read the same symbol, so calls with x in constant memory must not
        overlap.
        """
        home = choice.kernel.x_home(choice.knobs)
        if home == "pointer":
            return None
        strided = problem.incx != 1
        if (home == "value" or strided) and capture_of(stream):
            raise RuntimeError(
                f"kernel {choice.kernel.name!r} waits for a copy of x, which a stream that is"
                " being captured cannot do"
            )
        cols, dtype = problem.cols, problem.dtype
        nbytes = cols * dtype.itemsize
        packed = None
        if strided:
            packed = DeviceBytes(cols, dtype)
            target = address_of(packed)
            self._launcher.copy_vector(device, dtype, cols, pointer, problem.incx, target, stream)
            pointer = target
        host = None
        if home == "constant":
            room = choice.spec.constant_bytes
            if nbytes > room:
                raise ValueError(
                    f"x takes {nbytes} bytes, and {room} of the 64 KB"
                    " of constant memory are left beside alpha and beta"
                )
            for function in functions:
                symbol = _symbol(function, X_SYMBOL)
                check(driver.cuMemcpyDtoDAsync(symbol, pointer, nbytes, stream))
        else:
            host = np.empty(cols, dtype)
            check(driver.cuMemcpyDtoHAsync(host.ctypes.data, pointer, nbytes, stream))
            check(driver.cuStreamSynchronize(stream))
        if packed is not None:
            check(driver.cuStreamSynchronize(stream))  # its memory is freed on return
        return host


def _symbol(function: LoadedFunction, name: str) -> int:
    """The address of a symbol in constant memory."""
    return int(check(driver.cuModuleGetGlobal(function.module, name.encode())))
