"""New vectors for calls on Numba's arrays, from the driver's stream-ordered allocator.

``cuda.device_array`` asks the driver for memory, and freeing it waits for the whole GPU, which
costs several times as much as a launch. A pool allocates and frees in the order of Numba's default
stream, so nothing waits. Every stream that Numba makes is ordered with that one. A stream of
another library may not be: whoever uses a result there must keep a reference until that work is
done, as with any stream-ordered allocator. A call of this package does.

Where each thread has a default stream of its own, one thread may drop what another one uses. So
vectors are freed in the order of the legacy default stream then, which is ordered with all of them.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from gemv.driver import streams
from gemv.driver.libcuda import check
from gemv.driver.machine import Machine

#: Freed bytes that the driver keeps for the next vectors instead of giving them to the system.
KEPT_BYTES = 32 << 20
#: Freed bytes that the pool itself keeps, so that the next vectors need no call of the driver.
SPARE_BYTES = 4 << 20
#: How many pairs of length and dtype are remembered with the attributes of their vectors.
_MAX_FORMS = 1024


class Pool:
    """The vectors of one device, on one stream."""

    def __init__(self, device: int, stream: int, machine: Machine) -> None:
        self.device, self.stream = device, stream
        self._allocate, self._give_back = machine.allocate, machine.give_back
        self._freed_on = 0 if stream == streams.PER_THREAD else stream
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
        #: Memory whose freeing was put off because it would have broken a capture.
        self._late: deque[Any] = deque()
        self._lock = threading.Lock()
        #: Memory that was given back, by its size. Its next user works on the same stream, behind
        #: everything that is there now; but not where each thread has a default stream of its own.
        self._spare: dict[int, list[int]] = {}
        self._spare_left = 0 if stream == streams.PER_THREAD else SPARE_BYTES

    def vector(self, length: int, dtype: np.dtype) -> Any:
        """A contiguous vector, which may have no elements; the pool's GPU is current."""
        return self.empty(length, dtype)[0] if length else cuda.device_array(0, dtype)

    def empty(self, length: int, dtype: np.dtype) -> tuple[Any, int]:
        """A contiguous vector of at least one element, and its address."""
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
            # Again, once all work that still uses freed memory is done; this may raise.
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
        """The attributes of a vector and of its memory, which Numba takes long to work out."""
        nbytes = length * dtype.itemsize
        memory = cuda.MemoryPointer(self.context, driver.CUdeviceptr(0), nbytes)
        array = DeviceNDArray((length,), (dtype.itemsize,), dtype, gpu_data=memory)
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        form = self._forms[length, dtype] = (nbytes, vars(array), vars(memory))
        return form

    def _take_spare(self, spare: list[int], nbytes: int) -> int:
        """Memory from `spare`; the caller holds the lock, and this releases it."""
        try:
            if not spare:  # another thread came first
                return self._allocate(self.handle, self.stream, nbytes)
            self._spare_left += nbytes
            return spare.pop()
        finally:
            self._lock.release()

    def give_back(self, address: int, nbytes: int) -> None:
        """Free memory once the work that is on the stream now is done."""
        # Without waiting for the lock: this very thread may have it, interrupted by garbage
        # collection.
        if nbytes <= self._spare_left and self._lock.acquire(blocking=False):
            try:
                self._spare_left -= nbytes
                self._spare.setdefault(nbytes, []).append(address)
            finally:
                self._lock.release()
        else:
            self._free(address)

    def _free(self, address: int) -> None:
        """Free memory by the driver, or put it off if that would break a capture."""
        if self._give_back(address, self._freed_on, self.device):
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

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Not at the end of the process, which takes everything back, and the name `sys` first.
        if not is_finalizing():
            self.pool.give_back(self.address, self.size)
