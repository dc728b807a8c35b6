"""Streams of the CUDA driver: their handles, their order, and what lives as long as their work."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cuda.bindings import driver

from gemv.driver.capture import outside_of_captures
from gemv.driver.devices import current_device, on_device
from gemv.driver.libcuda import check

#: The handle that every thread has for a default stream of its own.
PER_THREAD = 2
_NON_BLOCKING = 1


def device_of_stream(stream: int) -> int:
    """Ordinal of the GPU that a stream is on: the current one for a default stream."""
    if stream in (0, 1, PER_THREAD):
        return current_device()
    context = check(driver.cuStreamGetCtx(stream))
    check(driver.cuCtxPushCurrent(context))
    try:
        return current_device()
    finally:
        check(driver.cuCtxPopCurrent())


_thread = threading.local()
_negatives = itertools.count(-1, -1)


def name(stream: int) -> int:
    """A number that no other living stream has: the handle, but for per-thread default streams.

    These have one handle in all threads, so each thread's has a negative number.

    Parameters
    ----------
    stream : int
        Its handle, as of :func:`stream_handle`.
    """
    if stream != PER_THREAD:
        return stream
    try:
        return int(_thread.name)
    except AttributeError:
        _thread.name = next(_negatives)
        return int(_thread.name)


def identity(stream: int) -> int:
    """A number that no other stream of the process has had or will have.

    The driver gives the handle of a destroyed stream to the next one, even while work of the old
    one is still running. The stream may not be captured: to ask for its number would end that.
    """
    return int(check(driver.cuStreamGetId(stream))) if stream > PER_THREAD else name(stream)


def normal(handle: int) -> int:
    """The handle, with 0 for the legacy default stream, which is also called 1."""
    return 0 if handle == 1 else handle


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: an int, or an object of Numba, CuPy or PyTorch.

    Raises
    ------
    TypeError
        If `stream` is none of these.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return normal(stream)
    if hasattr(stream, "__cuda_stream__"):
        return normal(int(stream.__cuda_stream__()[1]))
    for name in ("ptr", "cuda_stream"):  # CuPy, PyTorch
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    handle = getattr(stream, "handle", None)  # Numba: a ctypes void pointer, or an int
    handle = getattr(handle, "value", handle)
    if handle is None and hasattr(stream, "handle"):
        return 0
    if isinstance(handle, int):
        return handle
    raise TypeError(f"stream must be an int or a stream object, not {type(stream).__name__}")


def wait(
    waiting: int,
    other: int,
    waiting_device: int | None = None,
    other_device: int | None = None,
) -> None:
    """Let all later work on stream `waiting` come after the work that is on stream `other` now.

    The ordinals of their GPUs matter only where they differ: an event belongs to a GPU.
    """
    if waiting_device == other_device:
        waiting_device = other_device = None
    with _on(other_device):
        event = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))
        try:
            check(driver.cuEventRecord(event, other))
            with _on(waiting_device):
                check(driver.cuStreamWaitEvent(waiting, event, 0))
        finally:
            check(driver.cuEventDestroy(event))  # the driver does so when it is no longer needed


def _on(device: int | None) -> AbstractContextManager[None]:
    return nullcontext() if device is None else on_device(device)


class Behind:
    """A stream of this package's own on each GPU, which is never destroyed.

    An allocator that is told on which stream memory is used asks for that stream when the memory is
    given back. By then a stream of a caller's may be destroyed, and another one may have its
    handle; and the per-thread default stream is another one in each thread.
    """

    def __init__(self) -> None:
        #: By ordinal of the GPU.
        self._streams: dict[int, int] = {}
        self._lock = threading.Lock()

    def of(self, stream: int) -> int:
        """The stream of the current GPU, behind all work that is on `stream` by now."""
        index = current_device()
        own = self._streams.get(index)
        if own is None:
            with self._lock, outside_of_captures():
                own = self._streams.get(index)
                if own is None:
                    own = self._streams[index] = int(check(driver.cuStreamCreate(_NON_BLOCKING)))
        wait(own, stream)
        return own


def runs_by_itself(stream: int) -> bool:
    """Whether a stream is not ordered with the default streams: a non-blocking one."""
    return stream > PER_THREAD and bool(check(driver.cuStreamGetFlags(stream)) & _NON_BLOCKING)


class KeepAlive:
    """References to what enqueued work uses, each until its stream has come past that work."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()

    def hold(self, things: Any, stream: int) -> None:
        """Keep `things` until what is on `stream` by now is done."""
        self.sweep()
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        event = check(driver.cuEventCreate(flags))
        check(driver.cuEventRecord(event, stream))
        self._waiting.append((event, things))

    def sweep(self) -> None:
        """Drop what is done, unless another thread is just doing that."""
        if not self._waiting or not self._lock.acquire(blocking=False):
            return
        done = []
        try:
            # While any thread captures, an event may only be queried by who says that it is safe.
            with outside_of_captures():
                for _ in range(len(self._waiting)):
                    event, things = self._waiting.popleft()
                    if int(driver.cuEventQuery(event)[0]) == 0:
                        driver.cuEventDestroy(event)
                        done.append(things)
                    else:
                        self._waiting.append((event, things))
        finally:
            self._lock.release()
        # Dropped last, without the lock: freeing an array may call back into this module.
        done.clear()

    def __len__(self) -> int:
        return len(self._waiting)
