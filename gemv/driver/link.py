"""From host memory to the GPU as fast as the link between them is: Link.

The GPU's copy engine reads only memory that the system cannot move. Out of pinned or registered
memory it copies by itself. Anything else the driver first copies into a pinned buffer of its own,
with one thread. Here several threads do that: each fills one stage (:mod:`gemv.driver.stages`) at a
time, converting and gathering on the way, and enqueues the copy of the stage to the GPU. The kernel
of one panel runs while the next panel is on its way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.dtypes import BFLOAT16
from gemv.core.operand import Operand
from gemv.driver import libcuda
from gemv.driver.libcuda import check
from gemv.driver.memory import DeviceBytes, address_of, pinned_array
from gemv.driver.stages import (
    LEAST_BYTES,
    LEAST_GATHERED_BYTES,
    MAX_PITCH,
    PIECES_PER_THREAD,
    STRIP_BYTES,
    THREADS,
    Stage,
    copy_async,
    event,
    in_pieces,
    is_pinned,
    query,
    record,
)

#: A vector or a matrix of up to so many bytes goes through a stage of its own, without threads.
SMALL_BYTES = 2**20
#: Device memory of a vector is kept for the next call up to so many bytes.
_KEPT_BYTES = 64 * 2**20


class Link:
    """The way from host memory into one GPU's memory and back; one call has it at a time.

    `reader`, an argument of most methods, is the stream on which kernels read what is sent.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stream = check(
            driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        )
        self._context = check(driver.cuCtxGetCurrent())
        #: Stages that no thread is filling.
        self._free: queue.SimpleQueue[Stage] = queue.SimpleQueue()
        #: The stage of the thread that has the lock.
        self._own: Stage | None = None
        #: Whether a session has begun and not come to its end.
        self._unfinished = False
        self._pool: ThreadPoolExecutor | None = None
        # Memory that is kept for the next call: of panels, of vectors by name, and pinned.
        self._panels: list[DeviceBytes] = []
        self._vectors: dict[str, DeviceBytes] = {}
        self._small: dict[str, np.ndarray] = {}
        # For each of two panels: it has been copied to the GPU; the kernel has read it.
        self._copied = [event(), event()]
        self._read = [event(), event()]

    @contextmanager
    def session(self, reader: int) -> Iterator[None]:
        """Have the link alone inside the block, with nothing of an earlier session on its way.

        Ctrl-C may end a session anywhere, even while it waits for its own copies. What it leaves
        behind, copies and launches on `reader`, uses the same memory, so the next session first
        waits for that.
        """
        with self.lock:
            if self._unfinished:
                self._wait_for_all(reader)
            self._unfinished = True
            yield
            self._unfinished = False

    def _wait_for_all(self, reader: int) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # its threads end what they have begun
            self._pool = None
        check(driver.cuStreamSynchronize(self.stream))
        check(driver.cuStreamSynchronize(reader))

    def _start(self) -> tuple[ThreadPoolExecutor, Stage]:
        """The threads, and a stage that none of them uses; both made at first use."""
        if self._own is None:
            for _ in range(THREADS * PIECES_PER_THREAD - self._free.qsize()):
                self._free.put(Stage())
            # It belongs to the thread that has the lock and is never taken from the others: Ctrl-C,
            # which only the main thread gets, could come before that stage is given back.
            self._own = Stage()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "gemv-stage", self._enter)
        return self._pool, self._own

    def _enter(self) -> None:
        check(driver.cuCtxSetCurrent(self._context))

    def copy(self, block: np.ndarray, dtype: np.dtype, pointer: int, pitch: int) -> list[Future]:
        """Copy the lines of `block` to the GPU, where they begin `pitch` elements apart.

        When the futures that it returns are done, all copies are enqueued on the link's stream.
        """
        lines, length = block.shape
        if lines == 0 or length == 0:
            return []
        if dtype == BFLOAT16:  # its bits, which NumPy copies faster
            block, dtype = block.view(np.uint16), np.dtype(np.uint16)
        size = dtype.itemsize
        copied = (
            block.dtype == dtype
            and block.dtype.isnative
            and (length == 1 or block.strides[1] == size)
        )
        # The copy engine takes as long for a few bytes as for some thousand.
        in_strips = lines == 1 or length * size >= STRIP_BYTES or block.strides[0] == length * size
        if copied and in_strips and is_pinned(block):
            self._enqueue_lines(block, size, pointer, pitch)
            return []
        threads, own = self._start()
        least = LEAST_BYTES if copied else LEAST_GATHERED_BYTES
        pieces = list(in_pieces(block, size, pointer, pitch, least))
        if len(pieces) == 1:  # this thread has nothing else to do meanwhile
            self._stage_piece(own, *pieces[0], dtype)
            return []
        shared = iter(pieces)  # each thread takes the next piece from it
        count = min(THREADS, len(pieces))
        return [threads.submit(self._work, shared, dtype) for _ in range(count)]

    def _enqueue_lines(self, block: np.ndarray, size: int, pointer: int, pitch: int) -> None:
        lines, length = block.shape
        source, step = block.ctypes.data, block.strides[0]
        if lines == 1 or (step == pitch * size and pitch == length):
            nbytes = lines * length * size
            check(driver.cuMemcpyHtoDAsync(pointer, source, nbytes, self.stream))
            return
        if not length * size <= step <= MAX_PITCH or pitch * size > MAX_PITCH:
            # The copy engine cannot repeat lines or go backwards, so each line is a copy.
            for line in range(lines):
                target, start = pointer + line * pitch * size, source + line * step
                check(driver.cuMemcpyHtoDAsync(target, start, length * size, self.stream))
            return
        strip = driver.CUDA_MEMCPY2D()
        strip.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        strip.srcHost, strip.srcPitch = source, step
        strip.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        strip.dstDevice, strip.dstPitch = pointer, pitch * size
        strip.WidthInBytes, strip.Height = length * size, lines
        check(driver.cuMemcpy2DAsync(strip, self.stream))

    def _work(self, pieces: Iterator[tuple[np.ndarray, int, int]], dtype: np.dtype) -> None:
        """Fill a stage with each piece and enqueue its copy; run by a thread of the pool."""
        for piece in pieces:
            stage = self._free.get()
            try:
                self._stage_piece(stage, *piece, dtype)
            finally:
                self._free.put(stage)

    def _stage_piece(
        self, stage: Stage, block: np.ndarray, pointer: int, pitch: int, dtype: np.dtype
    ) -> None:
        size, stream = dtype.itemsize, int(self.stream)
        if query(stage.event_at):
            check(driver.cuEventSynchronize(stage.event))
        lines, length = block.shape
        nbytes = lines * pitch * size
        staged = stage.memory[:nbytes].view(dtype).reshape(lines, pitch)
        # Releases the interpreter's lock.
        np.copyto(staged[:, :length], block, casting="unsafe")
        status = copy_async(pointer, stage.address, nbytes, stream) or record(
            stage.event_at, stream
        )
        if status:
            raise libcuda.failed(status)

    def fill(
        self, block: np.ndarray, dtype: np.dtype, pointer: int, pitch: int | None = None
    ) -> None:
        """Copy the lines of `block` to the GPU, and wait until it is done.

        They begin `pitch` elements apart there; by default each is right behind the one before.
        """
        with self.session(0):
            futures: list[Future] = []
            try:
                futures = self.copy(block, dtype, pointer, pitch or block.shape[1])
                for future in futures:
                    future.result()
            finally:
                self._settle(futures)

    def feed(
        self, source: Any, cut: Any, buffers: list[DeviceBytes], reader: int
    ) -> Generator[tuple[Any, int]]:
        """Copy the panels of a cut to the GPU in turn; yield each with the place of its buffer.

        The caller enqueues what reads a panel on `reader` before it takes the next panel.
        """
        pointers = [address_of(buffer) for buffer in buffers]
        pending: dict[int, list[Future]] = {}

        def send(number: int) -> None:
            panel = cut.panels[number]
            target = pointers[number % len(pointers)]
            pending[number] = self.copy(source.block(panel), source.dtype, target, panel.pitch)

        with self.lock:
            try:
                for number in range(min(len(pointers), len(cut.panels))):
                    send(number)
                for number, panel in enumerate(cut.panels):
                    for future in pending.pop(number):
                        future.result()
                    place = number % len(pointers)
                    check(driver.cuEventRecord(self._copied[place], self.stream))
                    check(driver.cuStreamWaitEvent(reader, self._copied[place], 0))
                    yield panel, place
                    following = number + len(pointers)
                    if following < len(cut.panels):
                        check(driver.cuEventRecord(self._read[place], reader))
                        check(driver.cuStreamWaitEvent(self.stream, self._read[place], 0))
                        send(following)
            finally:
                self._settle([future for each in pending.values() for future in each])
                # The next session writes to the buffers, so the kernels must have read them.
                check(driver.cuStreamSynchronize(reader))

    def _settle(self, futures: list[Future]) -> None:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
        check(driver.cuStreamSynchronize(self.stream))

    def panels(self, count: int, nbytes: int, kept: int) -> list[DeviceBytes]:
        """Buffers for `count` panels; those of up to `kept` bytes stay for the next call."""
        if nbytes > kept:
            return [DeviceBytes(nbytes, np.uint8) for _ in range(count)]
        while len(self._panels) < count:
            self._panels.append(DeviceBytes(kept, np.uint8))
        return self._panels[:count]

    def send(self, name: str, host: np.ndarray, dtype: np.dtype, reader: int) -> Operand:
        """Copy a contiguous vector or small matrix to the GPU, for kernels on `reader`."""
        operand = self.reserve(name, host.size, dtype)
        nbytes = operand.shape[0] * dtype.itemsize
        if nbytes <= SMALL_BYTES:
            stage = self._stage(name)[:nbytes].view(dtype)
            np.copyto(stage, host.ravel(order="K"), casting="unsafe")
            check(driver.cuMemcpyHtoDAsync(operand.pointer, stage.ctypes.data, nbytes, reader))
            return operand
        futures: list[Future] = []
        try:
            futures = self.copy(host.reshape(1, -1), dtype, operand.pointer, host.size)
            for future in futures:
                future.result()
        finally:
            self._settle(futures)
        return operand

    def reserve(self, name: str, length: int, dtype: np.dtype) -> Operand:
        """Device memory for a vector, which the next vector of that name gets as well.

        More than 64 MiB of it are not kept for that.
        """
        nbytes = max(1, length * dtype.itemsize)
        array = self._vectors.get(name)
        if array is None or array.size < nbytes:
            array = DeviceBytes(max(nbytes, SMALL_BYTES), np.uint8)
            if nbytes <= _KEPT_BYTES:
                self._vectors[name] = array
        return operand_in(array, length, dtype)

    def receive(self, operand: Operand, stream: int) -> np.ndarray:
        """The values of a vector, once the work on `stream` is done."""
        nbytes = operand.shape[0] * operand.dtype.itemsize
        if nbytes > SMALL_BYTES:
            result = np.empty(operand.shape[0], operand.dtype)
            check(driver.cuMemcpyDtoHAsync(result.ctypes.data, operand.pointer, nbytes, stream))
            check(driver.cuStreamSynchronize(stream))
            return result
        stage = self._stage("out")[:nbytes].view(operand.dtype)
        check(driver.cuMemcpyDtoHAsync(stage.ctypes.data, operand.pointer, nbytes, stream))
        check(driver.cuStreamSynchronize(stream))
        return stage.copy()

    def _stage(self, name: str) -> np.ndarray:
        """A pinned buffer for the values of one vector; it is free again when the call is over."""
        stage = self._small.get(name)
        if stage is None:
            stage = self._small[name] = pinned_array(SMALL_BYTES, np.uint8)
        return stage

    def release(self) -> None:
        """Free the device memory that was kept for the next call."""
        with self.session(0):
            self._panels.clear()
            self._vectors.clear()


def operand_in(array: DeviceBytes, length: int, dtype: np.dtype) -> Operand:
    """A vector at the start of device memory that this package has allocated."""
    return Operand("numba", dtype, (length,), (1,), address_of(array), False, array, origin=array)


class Vectors:
    """Pinned memory beside two vectors `x` and `y` on the GPU, for a matrix that stays there."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y
        self._sent, self._received = (pinned_array(each.size, each.dtype) for each in (x, y))
        # Where they are on the GPU and in host memory, and their bytes.
        self._x = address_of(x), self._sent.ctypes.data, self._sent.nbytes
        self._y = address_of(y), self._received.ctypes.data, self._received.nbytes

    def put(self, x: np.ndarray, y: Any, stream: int) -> None:
        """Enqueue the copies to the GPU for the next product; None for a y that is not read."""
        self._sent[...] = x
        check(driver.cuMemcpyHtoDAsync(*self._x, stream))
        if y is not None:
            self._received[...] = y
            check(driver.cuMemcpyHtoDAsync(*self._y, stream))

    def get(self, stream: int) -> np.ndarray:
        """Wait for the product; its y as a new array."""
        on_gpu, in_host_memory, nbytes = self._y
        check(driver.cuMemcpyDtoHAsync(in_host_memory, on_gpu, nbytes, stream))
        check(driver.cuStreamSynchronize(stream))
        return self._received.copy()
