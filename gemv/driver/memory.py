"""Memory of the CUDA driver: on the GPU, and pinned on the host."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.geometry import Geometry
from gemv.core.operand import Operand
from gemv.core.splits import Lines
from gemv.driver.capture import outside_of_captures
from gemv.driver.libcuda import OutOfMemory, check


def address_of(array: Any) -> int:
    """The address of a device array's first element."""
    return int(array.__cuda_array_interface__["data"][0])


def fill(pointer: int, nbytes: int, value: int, stream: int) -> None:
    """Enqueue on `stream`: set each of `nbytes` bytes of device memory to `value`."""
    if nbytes:
        check(driver.cuMemsetD8Async(pointer, value, nbytes, stream))


#: The most bytes from one line to the next in a copy of the driver's.
_MOST_PITCH = 2**31 - 1


def copy_lines(source: Operand, target: Operand, stream: int) -> None:
    """Enqueue a copy between lines of memory with gaps, whose addresses say where they are."""
    (count, length), size = source.shape, source.dtype.itemsize
    of_source, of_target = (each.strides[0] * size for each in (source, target))
    if not all(length * size <= each <= _MOST_PITCH for each in (of_source, of_target)):
        for line in range(count):
            there, here = source.pointer + line * of_source, target.pointer + line * of_target
            check(driver.cuMemcpyAsync(here, there, length * size, stream))
        return
    made = driver.CUDA_MEMCPY2D()
    made.srcMemoryType = made.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    made.srcDevice, made.srcPitch = source.pointer, of_source
    made.dstDevice, made.dstPitch = target.pointer, of_target
    made.WidthInBytes, made.Height = length * size, count
    check(driver.cuMemcpy2DAsync(made, stream))


class DeviceBytes:
    """A vector on the current GPU, which any library can read; freed with this object."""

    def __init__(self, size: int, dtype: Any) -> None:
        dtype = np.dtype(dtype)
        self.size, self.nbytes = size, size * dtype.itemsize
        pointer = _allocate(self.nbytes) if size else 0
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": dtype.str,
            "data": (pointer, False),
            "strides": None,
            "version": 2,
        }
        if size:
            # Not a __del__: when Python ends, the driver may be gone, and it frees everything.
            weakref.finalize(self, _free, pointer).atexit = False


def _allocate(nbytes: int) -> int:
    try:
        return int(check(driver.cuMemAlloc(nbytes)))
    except OutOfMemory:
        if not free_what_numba_keeps():
            raise
        return int(check(driver.cuMemAlloc(nbytes)))


def _free(pointer: int) -> None:
    with outside_of_captures():
        driver.cuMemFree(pointer)  # waits for the work that uses it


class _PinnedBytes:
    """Pinned memory as NumPy reads it; freed with this object."""

    def __init__(self, nbytes: int) -> None:
        pointer = int(check(driver.cuMemHostAlloc(max(1, nbytes), 0)))
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip
        weakref.finalize(self, _free_pinned, pointer).atexit = False


def _free_pinned(pointer: int) -> None:
    with outside_of_captures():
        driver.cuMemFreeHost(pointer)


def pinned_array(size: int, dtype: Any) -> np.ndarray:
    """A vector in host memory that the GPU's copy engine reads and writes by itself."""
    dtype = np.dtype(dtype)
    return np.asarray(_PinnedBytes(size * dtype.itemsize)).view(dtype)


def free_what_numba_keeps() -> bool:
    """Free the device memory that Numba holds back until it is enough; False without Numba.

    Numba frees arrays in batches, since each call of ``cuMemFree`` waits for the GPU.
    """
    current_context = getattr(sys.modules.get("numba.cuda"), "current_context", None)
    if current_context is None:
        return False
    current_context().deallocations.clear()
    return True


def free_memory() -> int:
    """Bytes of the current GPU's memory that are free, once Numba has freed what it holds back."""
    free_what_numba_keeps()
    return int(check(driver.cuMemGetInfo()))


def is_exhausted(error: BaseException) -> bool:
    """Whether an error of Numba or of the driver says that the GPU's memory is all taken."""
    out = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    return getattr(error, "code", None) == out or out.name in str(error)


class Shared:
    """Scratch memory and counters that the launches of one product share.

    Each product has its own, so a product that is interrupted between two launches leaves counters
    that are not zero to nobody else.
    """

    def __init__(self, geometry: Geometry, dtype: np.dtype, stream: int) -> None:
        self._itemsize, self._posts = dtype.itemsize, geometry.posts
        self._scratch = DeviceBytes(max(1, geometry.scratch), dtype)
        self._counters = DeviceBytes(max(1, geometry.counters), np.uint32)
        fill(address_of(self._counters), self._counters.nbytes, 0, stream)
        if geometry.posts:
            fill(address_of(self._scratch), self._scratch.nbytes, 0xFF, stream)

    def at(self, shift: int) -> dict[str, int]:
        """Addresses of both, that of the scratch memory `shift` elements further on."""
        return {
            "scratch": address_of(self._scratch) + shift * self._itemsize,
            "counters": address_of(self._counters),
        }

    def begin(self, counted: int, stream: int) -> None:
        """Enqueue: no sum is there, and every counter has the value `counted`."""
        if self._posts:
            fill(address_of(self._scratch), self._scratch.nbytes, 0xFF, stream)
        self.count(counted, stream)

    def count(self, counted: int, stream: int) -> None:
        """Enqueue: every counter has the value `counted`."""
        address, size = address_of(self._counters), self._counters.size
        check(driver.cuMemsetD32Async(address, counted, size, stream))

    def sums(self, lines: Lines, device: int | None) -> Operand:
        """The memory of some sums, as lines of bytes on the GPU that it was made on."""
        size, (first, count, length, pitch) = self._itemsize, lines
        pointer = address_of(self._scratch) + first * size
        line = vector_of(self._scratch, pointer, length * size, _BYTE, device)
        return line._replace(shape=(count, length * size), strides=(pitch * size, 1))


_BYTE = np.dtype(np.uint8)


def vector_of(owner: Any, pointer: int, n: int, dtype: np.dtype, device: int | None) -> Operand:
    """A contiguous vector at an address, in memory that `owner` keeps."""
    return Operand("numba", dtype, (n,), (1,), pointer, False, owner, device=device, origin=owner)
