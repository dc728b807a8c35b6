"""GPUs: which is current, what each one can do, and where memory lies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from cuda.bindings import driver

from gemv.core.geometry import Device, MemoryRange
from gemv.driver.library import check, libcuda

_get_context = libcuda.cuCtxGetCurrent
_get_device = libcuda.cuCtxGetDevice

_pointer_attribute = libcuda.cuPointerGetAttribute

_MEMORY_TYPE = 2
_DEVICE_ORDINAL = 9
_RANGE_START = 11
_RANGE_SIZE = 12
_DEVICE_MEMORY = 2


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


def enable_peer(device: int, peer: int) -> None:
    """Map the memory of a GPU for kernels on another one, as long as the process lives."""
    with on_device(peer):
        context = check(driver.cuCtxGetCurrent())
    with on_device(device):
        (status,) = driver.cuCtxEnablePeerAccess(context, 0)
    if status != driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
        check((status,))
