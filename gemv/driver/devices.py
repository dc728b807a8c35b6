"""GPUs: which one is current, what each one can do, and whose memory an address is in."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from cuda.bindings import driver

from gemv.core.geometry import Chip, Device, MemoryRange
from gemv.driver.libcuda import check, libcuda

#: It only reads a variable of the thread, and so keeps the interpreter's lock. Every call of a
#: process with several GPUs asks it. While it let go of the lock, 24 threads handed that around all
#: the time: gemv.torch.mv took 34 us beside two NVIDIA H100s, and torch.mv 15.
_get_context = ctypes.PyDLL(libcuda._name).cuCtxGetCurrent
_get_device = libcuda.cuCtxGetDevice
_pointer_attribute = libcuda.cuPointerGetAttribute

# CUpointer_attribute
_MEMORY_TYPE, _DEVICE_ORDINAL, _RANGE_START, _RANGE_SIZE = 2, 9, 11, 12
_IS_FROM_MEM_ALLOC = 10  # CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
#: The ordinals of primary contexts, which no library of the process makes anew.
_ordinals: dict[int, int] = {}
# CUmemorytype; 0 stands for memory that the driver does not know.
_UNKNOWN, _HOST, _DEVICE = 0, 1, 2


def count() -> int:
    """How many GPUs there are."""
    return int(check(driver.cuDeviceGetCount()))


def current_device() -> int:
    """Ordinal of the current device; -1 where this thread has none."""
    # Asked first: without a context the other question is an error, which a sanitizer reports.
    context = ctypes.c_void_p()
    if _get_context(ctypes.byref(context)) != 0 or context.value is None:
        return -1
    known = _ordinals.get(context.value)
    return _asked(context.value) if known is None else known


def _asked(context: int) -> int:
    """The ordinal of the current device, whose context this is."""
    index = ctypes.c_int(-1)
    if _get_device(ctypes.byref(index)) != 0:
        return -1
    # A primary context that is not in use would be made by asking for it.
    state = driver.cuDevicePrimaryCtxGetState(check(driver.cuDeviceGet(index.value)))
    check(state)
    *_, in_use = state
    if in_use and int(primary_context(index.value)) == context:
        _ordinals[context] = index.value
    return index.value


def properties(index: int) -> Device:
    """What kernel selection and launch geometry may know of a GPU."""
    attribute = driver.CUdevice_attribute
    device = check(driver.cuDeviceGet(index))

    def ask(name: str) -> int:
        place = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(place, device)))

    name = check(driver.cuDeviceGetName(256, device)).split(b"\0")[0].decode()
    capability = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    ratio = ask("SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO")
    chip = Chip(
        threads=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
        registers=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        blocks=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        clock_khz=ask("CLOCK_RATE"),
        memory_khz=ask("MEMORY_CLOCK_RATE"),
        bus_bits=ask("GLOBAL_MEMORY_BUS_WIDTH"),
        cache_bytes=ask("L2_CACHE_SIZE"),
        block_bytes=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )
    return Device(name, capability, ask("MULTIPROCESSOR_COUNT"), index, ratio, chip)


@functools.cache
def primary_context(index: int) -> Any:
    """The context of a GPU that all libraries of the process share; it is never released."""
    return check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(index))))


def make_current(index: int) -> None:
    """Make a GPU the current one of this thread, which has none, as CUDA's runtime would."""
    check(driver.cuCtxSetCurrent(primary_context(index)))


_HERE = nullcontext()


def on_device(index: int) -> AbstractContextManager[None]:
    """``with on_device(index)``: the GPU is current inside the block, the one before it after that.

    It is asked here which one is current, so the block has to follow at once.
    """
    current = current_device()
    if current == index:
        return _HERE
    if current < 0:
        # A thread's first call: every runtime library leaves a GPU current then.
        make_current(index)
        return _HERE
    return _switched(index, current)


@contextmanager
def _switched(index: int, current: int) -> Iterator[None]:
    """Another GPU than the current one is current inside the block."""
    before = check(driver.cuCtxGetCurrent())
    check(driver.cuCtxPushCurrent(primary_context(index)))
    try:
        yield
    finally:
        check(driver.cuCtxPopCurrent())
        # A library that was called in between may have switched as well.
        if current_device() != current:
            check(driver.cuCtxSetCurrent(before))


def device_of(pointer: int) -> int | None:
    """Ordinal of the GPU that the memory at an address belongs to; None where there is none."""
    index = ctypes.c_int(-1)
    status = _pointer_attribute(ctypes.byref(index), _DEVICE_ORDINAL, ctypes.c_uint64(pointer))
    return index.value if status == 0 and index.value >= 0 else None


def devices_of(pointers: Sequence[int]) -> list[int | None]:
    """:func:`device_of` of each address, without a call of Python for each; None for 0."""
    index = ctypes.c_int(-1)
    at, ask, address, found = ctypes.byref(index), _pointer_attribute, ctypes.c_uint64, []
    for pointer in pointers:
        failed = not pointer or ask(at, _DEVICE_ORDINAL, address(pointer)) != 0
        found.append(None if failed or index.value < 0 else index.value)
    return found


def _memory_type(pointer: int) -> int:
    """The driver's CUmemorytype of the memory at an address, or 0 where it knows none."""
    kind = ctypes.c_uint(_UNKNOWN)
    status = _pointer_attribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(pointer))
    return kind.value if status == 0 else _UNKNOWN


def is_pinned(pointer: int) -> bool:
    """Whether the driver knows the address as host memory: pinned or registered."""
    return _memory_type(pointer) == _HOST


def is_plain_memory(pointer: int) -> bool:
    """Whether memory is from ``cuMemAlloc``: every GPU that reaches its GPU then reaches it.

    Memory of pools, and memory that a library has mapped by itself, has rights of its own.
    """
    yes = ctypes.c_uint(0)
    status = _pointer_attribute(ctypes.byref(yes), _IS_FROM_MEM_ALLOC, ctypes.c_uint64(pointer))
    return status == 0 and bool(yes.value & 0xFF)


def memory_at(pointer: int) -> MemoryRange | None:
    """The allocation that a GPU can reach and that holds an address; None if there is none."""
    kind = _memory_type(pointer)
    if kind == _UNKNOWN:
        return None
    first, size = ctypes.c_uint64(0), ctypes.c_size_t(0)
    for value, attribute in ((first, _RANGE_START), (size, _RANGE_SIZE)):
        if _pointer_attribute(ctypes.byref(value), attribute, ctypes.c_uint64(pointer)) != 0:
            return None
    device = device_of(pointer) if kind == _DEVICE else None
    return MemoryRange(first.value, first.value + size.value, device)


def enable_peer(device: int, peer: int) -> None:
    """Map the memory of GPU `peer` for kernels on `device`, as long as the process lives."""
    with on_device(peer):
        context = check(driver.cuCtxGetCurrent())
    with on_device(device):
        (status,) = driver.cuCtxEnablePeerAccess(context, 0)
    if status != driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
        check((status,))
