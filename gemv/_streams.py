"""Streams, events, capture and current devices of the CUDA driver, in the few forms needed here.

The driver is asked through ctypes where a call is on the way of every gemv, and where the bindings
change a function's form between major versions.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from cuda.bindings import driver

from gemv.core import errors
from gemv.core.geometry import Device, MemoryRange

_library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")

_get_context = _library.cuCtxGetCurrent
_get_device = _library.cuCtxGetDevice
_exchange_mode = _library.cuThreadExchangeStreamCaptureMode
_capture_info = _library.cuStreamGetCaptureInfo_v2
_capture_info.argtypes = (
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_void_p,
)

_pointer_attribute = _library.cuPointerGetAttribute

_MEMORY_TYPE = 2
_DEVICE_ORDINAL = 9
#: The handle that every thread has for a default stream of its own.
PER_THREAD = 2
_NON_BLOCKING = 1
_RANGE_START = 11
_RANGE_SIZE = 12
_DEVICE_MEMORY = 2
_CAPTURE_IMPLICIT = 906
_RELAXED = 2


def addresses() -> dict[str, int]:
    """Where the functions of the driver lie that machine code calls."""
    functions = {
        "launch": _library.cuLaunchKernelEx,
        "allocate": _library.cuMemAllocFromPoolAsync,
        "free": _library.cuMemFreeAsync,
        "is_capturing": _library.cuStreamIsCapturing,
        "current_device": _library.cuCtxGetDevice,
    }
    return {
        name: ctypes.cast(function, ctypes.c_void_p).value or 0
        for name, function in functions.items()
    }


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class OutOfMemory(CudaError, MemoryError):
    """The memory of the GPU does not suffice."""


def check(answer: tuple) -> Any:
    """The results of a driver call, or a :class:`CudaError` that names the driver's error."""
    status, *results = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise failed(int(status))
    return results[0] if results else None


def failed(status: int) -> CudaError:
    """The error for a status of the driver."""
    result = driver.CUresult(status)
    text = driver.cuGetErrorString(result)[1]
    said = text.decode() if text else "unknown error"
    words = [result.name, said, errors.of_status(result.name)]
    kind = OutOfMemory if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY else CudaError
    return kind(": ".join(filter(None, words)))


# Devices -------------------------------------------------------------------------------------


def current_device() -> int:
    """Ordinal of the current device; -1 where this thread has none."""
    # Asked first: without a context the other question is an error, which a sanitizer reports.
    context, index = ctypes.c_void_p(), ctypes.c_int(-1)
    if _get_context(ctypes.byref(context)) != 0 or not context:
        return -1
    return index.value if _get_device(ctypes.byref(index)) == 0 else -1


def describe(index: int) -> Device:
    """What selection and geometry may know of a device."""
    attribute = driver.CUdevice_attribute
    device = check(driver.cuDeviceGet(index))

    def ask(name: str) -> int:
        place = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(place, device)))

    name = check(driver.cuDeviceGetName(256, device)).split(b"\0")[0].decode()
    capability = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    ratio = ask("SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO")
    return Device(name, capability, ask("MULTIPROCESSOR_COUNT"), index, ratio)


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """Make a device current, and the one that was current afterwards."""
    current = current_device()
    if current == index:
        yield
        return
    from numba import cuda

    if current < 0:
        # A thread's first call: every runtime library leaves a device current then.
        cuda.gpus[index].get_primary_context().push()
        yield
    else:
        before = check(driver.cuCtxGetCurrent())
        try:
            with cuda.gpus[index]:
                yield
        finally:
            # A library that was called in between may have switched as well.
            if current_device() != current:
                check(driver.cuCtxSetCurrent(before))


def device_of(pointer: int) -> int | None:
    """Ordinal of the GPU that memory belongs to; None for memory that the driver does not know."""
    index = ctypes.c_int(-1)
    status = _pointer_attribute(ctypes.byref(index), _DEVICE_ORDINAL, ctypes.c_uint64(pointer))
    return index.value if status == 0 and index.value >= 0 else None


def memory_at(pointer: int) -> MemoryRange | None:
    """What the driver lists at an address that a GPU can follow; None for nothing."""
    kind = ctypes.c_uint(0)
    if _pointer_attribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(pointer)) != 0:
        return None
    first, size = ctypes.c_uint64(0), ctypes.c_size_t(0)
    for value, attribute in ((first, _RANGE_START), (size, _RANGE_SIZE)):
        if _pointer_attribute(ctypes.byref(value), attribute, ctypes.c_uint64(pointer)) != 0:
            return None
    device = device_of(pointer) if kind.value == _DEVICE_MEMORY else None
    return MemoryRange(first.value, first.value + size.value, device)


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


# Streams and events --------------------------------------------------------------------------


def normal(handle: int) -> int:
    """A stream's handle with one name for the legacy default stream."""
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


def wait(waiting: int, other: int) -> None:
    """What is enqueued on one stream from now on comes after what is on the other by now."""
    flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
    event = check(driver.cuEventCreate(flags))
    try:
        check(driver.cuEventRecord(event, other))
        check(driver.cuStreamWaitEvent(waiting, event, 0))
    finally:
        check(driver.cuEventDestroy(event))  # when it is no longer needed


def wait_across(
    waiting: int, waiting_device: int | None, other: int, other_device: int | None
) -> None:
    """The same for streams of two GPUs: an event is recorded where its stream is."""
    flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
    with nullcontext() if other_device is None else on_device(other_device):
        event = check(driver.cuEventCreate(flags))
        try:
            check(driver.cuEventRecord(event, other))
            with nullcontext() if waiting_device is None else on_device(waiting_device):
                check(driver.cuStreamWaitEvent(waiting, event, 0))
        finally:
            check(driver.cuEventDestroy(event))


def enable_peer(device: int, peer: int) -> None:
    """Map the memory of a GPU for kernels on another one, as long as the process lives."""
    with on_device(peer):
        context = check(driver.cuCtxGetCurrent())
    with on_device(device):
        (status,) = driver.cuCtxEnablePeerAccess(context, 0)
    if status != driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
        check((status,))


class Capture:
    """A stream's part in a graph that is being captured."""

    __slots__ = ("graph", "identity")

    def __init__(self, identity: int, graph: int) -> None:
        self.identity = identity
        self.graph = graph


def capture_of(stream: int) -> Capture | None:
    """The capture that a stream is part of, or None.

    Raises
    ------
    CudaError
        If work on the stream would break a capture elsewhere: the legacy default stream while
        another stream that waits for it is captured.
    """
    status, identity, graph = ctypes.c_int(0), ctypes.c_uint64(0), ctypes.c_void_p()
    answer = _capture_info(
        stream, ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph), None, None
    )
    if answer == _CAPTURE_IMPLICIT:
        raise CudaError(
            "a stream is being captured that waits for the legacy default stream, on which this"
            " call would run: capture the stream that the arrays are used on, or pass it as stream="
        )
    if answer != 0:
        raise failed(answer)
    return Capture(identity.value, graph.value or 0) if status.value else None


@contextmanager
def outside_of_captures() -> Iterator[None]:
    """Let this thread allocate, free and query while a stream is captured, apart from the graph."""
    mode = ctypes.c_int(_RELAXED)
    _exchange_mode(ctypes.byref(mode))
    try:
        yield
    finally:
        _exchange_mode(ctypes.byref(mode))


def runs_by_itself(stream: int) -> bool:
    """Whether a stream is not ordered with the default streams."""
    return stream > PER_THREAD and bool(check(driver.cuStreamGetFlags(stream)) & _NON_BLOCKING)


class Held:
    """References that live until a stream has come past the point where they were held."""

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
        """Drop what is done. One thread at a time; another one has nothing to wait for."""
        if not self._waiting or not self._lock.acquire(blocking=False):
            return
        done = []
        try:
            # To ask for an event is forbidden while any thread captures, unless said to be safe.
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
        # Dropped last: freeing an array may call back into this module.
        done.clear()

    def __len__(self) -> int:
        return len(self._waiting)


class GraphLife:
    """Tells whether a graph that was captured still exists.

    The driver posts a semaphore when the graph and all that was instantiated from it is destroyed.
    It does so on a thread of its own, where no Python may run, hence a function of the C library.
    """

    def __init__(self, graph: int) -> None:
        self._semaphore: Any = None
        if sys.platform == "win32" or not graph:
            return  # taken for alive for ever
        libc = ctypes.CDLL(None)
        semaphore = ctypes.create_string_buffer(64)
        if libc.sem_init(semaphore, 0, 0) != 0:
            return
        post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        user_object = ctypes.c_void_p()
        _library.cuUserObjectCreate.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        _library.cuGraphRetainUserObject.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        address = ctypes.addressof(semaphore)
        created = _library.cuUserObjectCreate(ctypes.byref(user_object), address, post, 1, 1)
        # 1: the graph takes our reference over.
        if created == 0 and _library.cuGraphRetainUserObject(graph, user_object, 1, 1) == 0:
            self._semaphore = semaphore
            # The driver writes to it whenever it likes, so its memory stays.
            _semaphores.append(semaphore)
            self._libc = libc

    def ended(self) -> bool:
        """Whether the graph is gone."""
        if self._semaphore is None or self._libc.sem_trywait(self._semaphore) != 0:
            return False
        _semaphores.remove(self._semaphore)
        self._semaphore = None
        return True


_semaphores: list[Any] = []
