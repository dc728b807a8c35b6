"""From host memory to the GPU at the rate of the link: pinned stages filled by several threads.

The GPU's copy engine reads only memory that the system cannot move. Out of pinned or registered
memory it copies by itself. Anything else the driver first copies into a pinned buffer of its own,
with one thread; here several threads do that, each a piece at a time into its own part of a ring,
converting and gathering on the way, and a copy of the piece is enqueued behind each. The kernel of
one panel runs while the next one is on its way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda

from gemv.core.dtypes import BFLOAT16
from gemv.core.operand import Operand
from gemv.driver import library
from gemv.driver.library import check
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

#: Up to here a matrix or a vector goes through a stage of its own, without threads.
SMALL_BYTES = 2**20
#: Up to here device memory of vectors stays for the next call.
_KEPT_BYTES = 64 * 2**20


class Link:
    """The way into one GPU's memory. One transfer has it at a time: there is one wire."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stream = check(
            driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        )
        self._context = check(driver.cuCtxGetCurrent())
        self._free: queue.SimpleQueue[Stage] = queue.SimpleQueue()
        self._own: Stage | None = None
        #: Whether a session has begun and not come to its end.
        self._unfinished = False
        self._pool: ThreadPoolExecutor | None = None
        self._panels: list[Any] = []
        self._vectors: dict[str, Any] = {}
        self._small: dict[str, np.ndarray] = {}
        self._copied = [event(), event()]
        self._read = [event(), event()]

    @contextmanager
    def session(self, reader: int) -> Iterator[None]:
        """Have the link alone, while nothing of an earlier session is on its way any more.

        Ctrl-C may end a session anywhere, even while it waits for its own copies. So the next
        session first waits for what such a one has left behind, which writes to the same memory:
        copies, and launches on the stream `reader`.
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
        """The threads, and a stage that none of them has."""
        if self._own is None:
            for _ in range(THREADS * PIECES_PER_THREAD - self._free.qsize()):
                self._free.put(Stage())
            # That of whoever has the lock: Ctrl-C, which only the main thread gets, could come
            # between taking one of the others and being able to give it back.
            self._own = Stage()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "gemv-stage", self._enter)
        return self._pool, self._own

    def _enter(self) -> None:
        check(driver.cuCtxSetCurrent(self._context))

    def copy(self, block: np.ndarray, dtype: np.dtype, pointer: int, pitch: int) -> list[Future]:
        """Enqueue a copy of lines to the device, `pitch` elements apart there; what to wait for.

        The copies are enqueued, all of them on the link's stream, when the futures are done.
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
        pool, own = self._start()
        least = LEAST_BYTES if copied else LEAST_GATHERED_BYTES
        pieces = list(in_pieces(block, size, pointer, pitch, least))
        if len(pieces) == 1:  # there is nothing to wait for meanwhile
            self._stage_piece(own, *pieces[0], dtype)
            return []
        shared = iter(pieces)  # each thread takes the next one that nobody has
        count = min(THREADS, len(pieces))
        return [pool.submit(self._work, shared, dtype) for _ in range(count)]

    def _enqueue_lines(self, block: np.ndarray, size: int, pointer: int, pitch: int) -> None:
        lines, length = block.shape
        source, step = block.ctypes.data, block.strides[0]
        if lines == 1 or (step == pitch * size and pitch == length):
            nbytes = lines * length * size
            check(driver.cuMemcpyHtoDAsync(pointer, source, nbytes, self.stream))
            return
        if not length * size <= step <= MAX_PITCH or pitch * size > MAX_PITCH:
            # Repeated or backward lines as well, which the copy engine does not know.
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
            raise library.failed(status)

    def fill(self, block: np.ndarray, dtype: np.dtype, pointer: int) -> None:
        """Copy lines to the device, one behind the other, and wait for the end."""
        with self.session(0):
            futures: list[Future] = []
            try:
                futures = self.copy(block, dtype, pointer, block.shape[1])
                for future in futures:
                    future.result()
            finally:
                self._settle(futures)

    def feed(
        self, source: Any, made: Any, panels: list[Any], reader: int
    ) -> Iterator[tuple[Any, int]]:
        """Each panel with its place in `panels`, filled; it is read by work on stream `reader`.

        Whoever takes a panel enqueues its work on it before taking the next one.
        """
        pointers = [int(each.__cuda_array_interface__["data"][0]) for each in panels]
        pending: dict[int, list[Future]] = {}

        def send(number: int) -> None:
            panel = made.panels[number]
            target = pointers[number % len(pointers)]
            pending[number] = self.copy(source.block(panel), source.dtype, target, panel.pitch)

        with self.lock:
            try:
                for number in range(min(len(pointers), len(made.panels))):
                    send(number)
                for number, panel in enumerate(made.panels):
                    for future in pending.pop(number):
                        future.result()
                    place = number % len(pointers)
                    check(driver.cuEventRecord(self._copied[place], self.stream))
                    check(driver.cuStreamWaitEvent(reader, self._copied[place], 0))
                    yield panel, place
                    following = number + len(pointers)
                    if following < len(made.panels):
                        check(driver.cuEventRecord(self._read[place], reader))
                        check(driver.cuStreamWaitEvent(self.stream, self._read[place], 0))
                        send(following)
            finally:
                self._settle([future for each in pending.values() for future in each])
                # Nobody may write to the panels before they have been read.
                check(driver.cuStreamSynchronize(reader))

    def _settle(self, futures: list[Future]) -> None:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
        check(driver.cuStreamSynchronize(self.stream))

    def panels(self, count: int, nbytes: int, kept: int) -> list[Any]:
        """Device memory for so many panels; up to `kept` bytes each it stays for the next call."""
        if nbytes > kept:
            return [cuda.device_array(nbytes, np.uint8) for _ in range(count)]
        while len(self._panels) < count:
            self._panels.append(cuda.device_array(kept, np.uint8))
        return self._panels[:count]

    def send(self, name: str, host: np.ndarray, dtype: np.dtype, reader: int) -> Operand:
        """A contiguous vector or small matrix on the device, for work on the stream `reader`."""
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
        """Device memory for a vector; until the next one of that name, unless it is a large one."""
        nbytes = max(1, length * dtype.itemsize)
        array = self._vectors.get(name)
        if array is None or array.size < nbytes:
            array = cuda.device_array(max(nbytes, SMALL_BYTES), np.uint8)
            if nbytes <= _KEPT_BYTES:
                self._vectors[name] = array
        return _operand(array, length, dtype)

    def receive(self, operand: Operand, stream: int) -> np.ndarray:
        """The values of a vector, once the work on a stream is done."""
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
        """A pinned buffer that is free again when the call is over."""
        stage = self._small.get(name)
        if stage is None:
            stage = self._small[name] = cuda.pinned_array(SMALL_BYTES, np.uint8)
        return stage

    def release(self) -> None:
        """Give back what was kept for the next call."""
        with self.session(0):
            self._panels.clear()
            self._vectors.clear()


def _operand(array: Any, length: int, dtype: np.dtype) -> Operand:
    pointer = int(array.__cuda_array_interface__["data"][0])
    return Operand("numba", dtype, (length,), (1,), pointer, False, array, origin=array)


class Vectors:
    """x and y on the GPU, and pinned memory beside them, for a matrix that stays there."""

    def __init__(self, cols: int, rows: int, dtype: np.dtype, stream: int) -> None:
        self.x, self.y = cuda.device_array(cols, dtype), cuda.device_array(rows, dtype)
        self._stream = stream
        self._sent, self._received = cuda.pinned_array(cols, dtype), cuda.pinned_array(rows, dtype)
        self._x = int(self.x.__cuda_array_interface__["data"][0])
        self._y = int(self.y.__cuda_array_interface__["data"][0])

    def put(self, x: np.ndarray, y: Any) -> None:
        """Enqueue the values of the next product; None for a y that is not read."""
        sent, received, stream = self._sent, self._received, self._stream
        sent[...] = x
        check(driver.cuMemcpyHtoDAsync(self._x, sent.ctypes.data, sent.nbytes, stream))
        if y is not None:
            received[...] = y
            check(driver.cuMemcpyHtoDAsync(self._y, received.ctypes.data, received.nbytes, stream))

    def get(self) -> np.ndarray:
        """The y that came out."""
        received, stream = self._received, self._stream
        check(driver.cuMemcpyDtoHAsync(received.ctypes.data, self._y, received.nbytes, stream))
        check(driver.cuStreamSynchronize(stream))
        return received.copy()
