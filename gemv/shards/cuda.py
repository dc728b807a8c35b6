"""Places on GPUs: a stream and an event for each, copies between GPUs, and packed launches."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.geometry import LOAD_BYTES, Geometry
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.driver import devices as driver_devices
from gemv.driver import libcuda
from gemv.driver.capture import outside_of_captures
from gemv.driver.devices import is_plain_memory
from gemv.driver.libcuda import check
from gemv.driver.memory import DeviceBytes, Shared, address_of, copy_lines, vector_of
from gemv.selection.select import Choice
from gemv.shards.copies import Copies
from gemv.shards.places import Launch


@contextmanager
def _naming(who: str) -> Iterator[None]:
    """Put `who` in front of what an error of the driver says, unless it is there."""
    try:
        yield
    except libcuda.CudaError as error:
        named = _named(error, who)
        if named is error:  # or it would be its own cause
            raise
        raise named from error


def _named(error: libcuda.CudaError, who: str) -> libcuda.CudaError:
    return error if str(error).startswith(who) else type(error)(f"{who}: {error}")


class CudaPlace:
    """One GPU, or one of several parts that a GPU plays, with a stream of its own."""

    def __init__(self, engine: Any, index: int, number: int) -> None:
        self._engine = engine
        self.index = index
        self.name = f"cuda:{index}"
        self._who = f"Matrix: shard {number} on {self.name}"
        #: How many turns have ended, each with a record of the event `done`.
        self.turns = 0
        with _naming(self._who), self.current():
            self.device = engine.device()
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            self.stream = int(check(driver.cuStreamCreate(flags)))
            #: Behind the last turn, if there was one.
            self.done = _event()
            #: None where there is no other GPU.
            self._copies = Copies(engine, self.stream) if engine.several else None
        weakref.finalize(self, _destroy, self.stream, [self.done]).atexit = False

    def current(self) -> AbstractContextManager[None]:
        return self._engine.on(self.index)

    @contextmanager
    def turn(self, starts: Iterable[Any], *others: CudaPlace) -> Iterator[None]:
        try:
            with self.current():
                for event in starts:
                    check(driver.cuStreamWaitEvent(self.stream, event, 0))
                for other in others:
                    if other.turns:  # a capture cannot wait for an event that was not recorded
                        check(driver.cuStreamWaitEvent(self.stream, other.done, 0))
                try:
                    yield
                except BaseException:
                    self._record()  # what it says is dropped: the block's error says more
                    raise
                check(self._record())
        except libcuda.CudaError as error:
            named = _named(error, self._who)
            if named is error:
                raise
            raise named from error

    def _record(self) -> tuple:
        answer = driver.cuEventRecord(self.done, self.stream)
        if answer[0] == driver.CUresult.CUDA_SUCCESS:
            self.turns += 1
        return answer

    def store(self, lines: np.ndarray, dtype: np.dtype, pitch: int, offset: int) -> Operand:
        count = len(lines)
        with _naming(self._who), self.current():
            made = self.vector(count * pitch, dtype, offset)
            self._engine.transfers.link(self.index).fill(lines, dtype, made.pointer, pitch)
        return made._replace(shape=lines.shape, strides=(pitch, 1))

    def vector(self, n: int, dtype: np.dtype, offset: int = 0) -> Operand:
        with self.current():
            try:
                memory = DeviceBytes(n * dtype.itemsize + LOAD_BYTES, np.uint8)
            except libcuda.OutOfMemory as error:
                free = self._engine.free_memory()
                raise MemoryError(
                    f"{self._who}: {n * dtype.itemsize} bytes are needed, and {free} are free"
                ) from error
        # The driver's memory begins at multiples of 256 bytes.
        return vector_of(memory, address_of(memory) + offset, n, dtype, self.index)

    def sums(self, geometry: Geometry, dtype: np.dtype) -> Shared:
        with _naming(self._who), self.current():
            return Shared(geometry, dtype, self.stream)

    def packed(self, choice: Choice, problem: Problem) -> Launch:
        engine = self._engine
        with _naming(self._who), self.current():
            functions = engine.load(choice, self.device)
            block = engine.block(choice, functions, problem.arguments(choice.geometry), 0, 0)
        stream, address = self.stream, block.address
        enqueue = engine.machine.enqueue
        numbers: tuple[float, ...] = (1.0, 0.0)
        if problem.dtype.kind == "c":
            enqueue, numbers = engine.machine.enqueue_complex, (1.0, 0.0, 0.0, 0.0)

        def launch(a: Operand, x: Operand, y: Operand, keep: Any = block) -> None:
            status = enqueue(address, stream, a.pointer, x.pointer, y.pointer, *numbers)
            if status:
                raise libcuda.failed(status)

        return launch

    def copy(self, source: Operand, target: Operand) -> None:
        nbytes = source.shape[0] * source.dtype.itemsize
        if not nbytes:
            return
        if self._copies is not None and self._joins(source, target):
            status = self._copies.enqueue(source, target, nbytes)
            if status:
                raise libcuda.failed(status)
            return
        # By the addresses alone: the driver knows their devices, and it refuses to capture a copy
        # that names the contexts.
        copied = driver.cuMemcpyAsync(target.pointer, source.pointer, nbytes, self.stream)
        check(copied)

    def copy_lines(self, source: Operand, target: Operand) -> None:
        if 0 in source.shape:
            return
        if self._copies is not None and self._joins(source, target):
            status = self._copies.enqueue_lines(source, target)
            if status:
                raise libcuda.failed(status)
            return
        copy_lines(source, target, self.stream)

    def _joins(self, *operands: Operand) -> bool:
        """Whether vectors lie on several GPUs, and kernels of this one reach all of them."""
        far = False
        for each in operands:
            if each.device != self.index:
                far = True
                if not self.reaches(each, own=False):
                    return False
        return far

    def settle(self) -> None:
        with _naming(self._who), self.current():
            check(driver.cuStreamSynchronize(self.stream))

    def reaches(self, operand: Operand, own: bool) -> bool:
        if operand.device in (None, self.index):
            return True
        try:
            self._engine.reach("Matrix", self.index, operand.device)
        except ValueError:
            return False
        return own or is_plain_memory(operand.pointer)


class CudaFabric:
    """All places of a matrix on GPUs."""

    def __init__(self, engine: Any, devices: list[int]) -> None:
        self._engine, self._devices = engine, devices
        self.places = tuple(
            CudaPlace(engine, index, number) for number, index in enumerate(devices)
        )
        #: An event for each GPU and each of the streams of a caller on it, by their number.
        self._starts: dict[tuple[int, int], Any] = {}
        for one in set(devices):
            for other in set(devices) - {one}:
                self._try_to_reach(one, other)

    def _try_to_reach(self, one: int, other: int) -> None:
        """Map memory where that can be; elsewhere the driver copies through host memory."""
        try:
            self._engine.reach("Matrix", one, other)
        except ValueError:
            pass

    def starts(self, streams: Iterable[tuple[int | None, int]]) -> list[Any]:
        marks = []
        for number, (device, stream) in enumerate(dict.fromkeys(streams)):
            index = self.places[0].index if device is None else device
            try:
                with self._engine.on(index):
                    event = self._starts.get((index, number))
                    if event is None:
                        event = self._starts[index, number] = _event()
                        weakref.finalize(self, _destroy, 0, [event]).atexit = False
                    check(driver.cuEventRecord(event, stream))
            except libcuda.CudaError as error:
                raise _named(error, f"Matrix: vectors on cuda:{index}") from error
            marks.append(event)
        return marks

    def join(self, streams: Iterable[tuple[int | None, int]], places: Iterable[Any]) -> None:
        events = [place.done for place in places]
        refused = None
        for device, stream in dict.fromkeys(streams):
            with self._engine.on(device):
                for event in events:
                    try:
                        check(driver.cuStreamWaitEvent(stream, event, 0))
                    except libcuda.CudaError as error:  # the others have to be waited for as well
                        refused = refused or _named(error, f"Matrix: vectors on cuda:{device}")
        if refused is not None:
            raise refused

    def another(self) -> CudaFabric:
        return CudaFabric(self._engine, self._devices)

    def free(self) -> None:
        for place in self.places:
            place.settle()
            with place.current():
                self._engine.release()


def count() -> int:
    """How many GPUs there are."""
    return driver_devices.count()


def _event() -> Any:
    return check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))


def _destroy(stream: int, events: list[Any]) -> None:
    with outside_of_captures():
        for event in events:
            driver.cuEventDestroy(event)
        if stream:
            driver.cuStreamDestroy(stream)
