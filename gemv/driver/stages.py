"""Stages: pinned buffers through which host memory is copied to the GPU, a piece at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.processors import copying_threads
from gemv.driver import devices
from gemv.driver.libcuda import check, libcuda
from gemv.driver.memory import pinned_array

#: Bytes of one stage, large beside the microseconds of Python that a piece costs, and how many of
#: them a thread has: one is filled while the other is on its way.
PIECE_BYTES = 8 * 2**20
PIECES_PER_THREAD = 2
#: Smaller pieces cost more in threads that wake up than they save, if they are only copied; those
#: that are gathered or converted take longer.
LEAST_BYTES, LEAST_GATHERED_BYTES = 2 * 2**20, 2**19
#: Lines at least so long are copied from pinned memory as they lie, whatever lies between them.
STRIP_BYTES = 4096
#: The distance between lines that one copy of several can have.
MAX_PITCH = 2**31 - 1
#: Threads that fill stages.
THREADS = copying_threads()


def is_pinned(array: np.ndarray) -> bool:
    """Whether the copy engine can read the array's memory: it is pinned or registered."""
    if not array.size:
        return False
    low, high = np.lib.array_utils.byte_bounds(array)
    return devices.is_pinned(low) and devices.is_pinned(high - 1)


def in_pieces(
    block: np.ndarray, size: int, pointer: int, pitch: int, least: int
) -> Iterator[tuple[np.ndarray, int, int]]:
    """Cut `block` into pieces that fit a stage: each with its address on the GPU and its pitch.

    The pitch counts elements from one line of `block` on the GPU to the next. A piece has at least
    `least` bytes, where there are so many.
    """
    lines, length = block.shape
    per_line = pitch * size
    # A piece for each thread, if that leaves enough in it.
    nbytes = min(PIECE_BYTES, max(least, -(-lines * per_line // THREADS)))
    if per_line <= nbytes:
        step = nbytes // per_line
        for first in range(0, lines, step):
            yield block[first : first + step], pointer + first * per_line, pitch
        return
    width = nbytes // size
    for line in range(lines):
        for first in range(0, length, width):
            piece = block[line : line + 1, first : first + width]
            yield piece, pointer + line * per_line + first * size, piece.shape[1]


#: The driver called with the interpreter's lock kept: these return at once, and whoever gives the
#: lock away has to wait for all other threads to get it back.
_quick = ctypes.PyDLL(libcuda._name)
copy_async = _quick.cuMemcpyHtoDAsync_v2
copy_async.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
record = _quick.cuEventRecord
record.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
query = _quick.cuEventQuery
query.argtypes = (ctypes.c_void_p,)


def event() -> Any:
    """A new event without times, for which a thread waits without spinning."""
    flags = driver.CUevent_flags
    return check(
        driver.cuEventCreate(
            flags.CU_EVENT_DISABLE_TIMING.value | flags.CU_EVENT_BLOCKING_SYNC.value
        )
    )


class Stage:
    """A pinned buffer, and an event recorded behind the last copy out of it."""

    def __init__(self) -> None:
        self.memory = pinned_array(PIECE_BYTES, np.uint8)
        self.address = self.memory.ctypes.data
        self.event = event()
        self.event_at = int(self.event)
