"""New vectors for calls on Numba's arrays, from the driver's stream-ordered allocator.

``cuda.device_array`` asks the driver for memory and waits for the whole GPU when it gives some
back, which costs several times as much as a launch. What is made here is taken and given back in
the order of Numba's default stream, and nobody waits. Every stream that Numba makes is ordered
with it. A stream of another library may not be: who uses a result there holds on to it until that
work is done, as with any allocator of this kind. A call of this package does.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from gemv.driver import streams
from gemv.driver.library import check
from gemv.driver.machine import Machine

#: Bytes that the driver keeps for the next vectors when it could give them back to the system.
KEPT_BYTES = 32 << 20
#: Bytes that lie ready without asking the driver.
SPARE_BYTES = 4 << 20
#: Forms of vectors that are remembered.
_MAX_FORMS = 1024


class Pool:
    """The vectors of one device, on one stream."""

    def __init__(self, device: int, stream: int, machine: Machine) -> None:
        self.device, self.stream = device, stream
        self._allocate, self._give_back = machine.allocate, machine.give_back
        self.context = cuda.current_context()
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        self._pool = check(driver.cuMemPoolCreate(properties))
        self.handle = int(self._pool)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        check(driver.cuMemPoolSetAttribute(self._pool, threshold, driver.cuuint64_t(KEPT_BYTES)))
        self._forms: dict[tuple[int, np.dtype], tuple[int, dict, dict]] = {}
        #: What could not be given back when its time came.
        self._late: deque[Any] = deque()
        self._lock = threading.Lock()
        #: Memory that was given back, by its size. What is on the stream by now comes before
        #: whatever uses it next, which is on the same stream: not so where each thread has its own.
        self._spare: dict[int, list[int]] = {}
        self._spare_left = 0 if stream == streams.PER_THREAD else SPARE_BYTES

    def empty(self, length: int, dtype: np.dtype) -> tuple[Any, int]:
        """A contiguous vector and its address; the pool's device is current."""
        if self._late:
            self._give_back_late()
        form = self._forms.get((length, dtype))
        if form is None:
            form = self._new_form(length, dtype)
        nbytes, of_array, of_memory = form
        spare = self._spare.get(nbytes)
        if spare and self._lock.acquire(blocking=False):
            address = self._take_spare(spare, nbytes)
        else:
            address = self._allocate(self.handle, self.stream, nbytes)
        if not address:
            # The driver's error, or memory after all: what was freed by now may be in use so far.
            check(driver.cuCtxSynchronize())
            address = int(check(driver.cuMemAllocFromPoolAsync(nbytes, self._pool, self.stream)))
        pointer = driver.CUdeviceptr(address)
        memory = _Memory.__new__(_Memory)
        memory.__dict__.update(of_memory)
        memory.device_pointer = memory.handle = pointer
        memory.address, memory.pool = address, self
        array = DeviceNDArray.__new__(DeviceNDArray)
        array.__dict__.update(of_array)
        array.gpu_data = memory
        return array, address

    def _new_form(self, length: int, dtype: np.dtype) -> tuple[int, dict, dict]:
        """The attributes of a vector and of its memory: Numba takes its time to find them."""
        nbytes = length * dtype.itemsize
        memory = cuda.MemoryPointer(self.context, driver.CUdeviceptr(0), nbytes)
        array = DeviceNDArray((length,), (dtype.itemsize,), dtype, gpu_data=memory)
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        form = self._forms[length, dtype] = (nbytes, vars(array), vars(memory))
        return form

    def _take_spare(self, spare: list[int], nbytes: int) -> int:
        """One of them, for who holds the lock, which is released."""
        try:
            if not spare:  # another thread came first
                return self._allocate(self.handle, self.stream, nbytes)
            self._spare_left += nbytes
            return spare.pop()
        finally:
            self._lock.release()

    def give_back(self, address: int, nbytes: int) -> None:
        """Free behind what is on the stream by now."""
        # Not waiting for the lock: the thread that has it may be the one that drops this memory.
        if nbytes <= self._spare_left and self._lock.acquire(blocking=False):
            try:
                self._spare_left -= nbytes
                self._spare.setdefault(nbytes, []).append(address)
            finally:
                self._lock.release()
        else:
            self._free(address)

    def _free(self, address: int) -> None:
        """Tell the driver; later, if that would break a capture."""
        if self._give_back(address, self.stream, self.device):
            self._late.append(address)

    def _give_back_late(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            for _ in range(len(self._late)):
                self._free(self._late.popleft())
        finally:
            self._lock.release()

    def share(self, peer: int) -> None:
        """Let another device read and write these vectors."""
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = peer
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(driver.cuMemPoolSetAccess(self._pool, [access], 1))


class _Memory(cuda.MemoryPointer):
    """Memory that goes back to its pool with its last reference; a view of it is one."""

    address: int
    pool: Pool

    def __del__(self) -> None:
        # Not at the end of the process, which takes everything back.
        if not sys.is_finalizing():
            self.pool.give_back(self.address, self.size)
