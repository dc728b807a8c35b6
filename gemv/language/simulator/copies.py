"""Copies from memory to shared memory that are there when they have been waited for, not earlier.

A copy spoils its place when it begins, and brings its bytes when its thread has waited; other
threads see them behind a barrier. So a wait that is missing, a barrier that is missing behind it,
or a copy to a place that another thread still reads, leaves numbers that are none.
"""

from __future__ import annotations

import numpy as np

from gemv.core.geometry import LOAD_BYTES
from gemv.language.simulator.shared import SharedArray
from gemv.language.simulator.thread import SimulatorError, current

_BYTE = np.dtype(np.uint8)


def _bytes_of(stage: SharedArray, index: int, pointer, count: int) -> slice:
    """The bytes of `count` elements of a stage from `index` on."""
    first, nbytes = index * pointer.itemsize, count * pointer.itemsize
    if stage.dtype != _BYTE or stage.ndim != 1:
        raise SimulatorError(f"a stage is an array of bytes, not of {stage.dtype}")
    if not 0 <= first <= stage.size - nbytes:
        raise SimulatorError(f"bytes {first} to {first + nbytes} of a stage of {stage.size}")
    return slice(first, first + nbytes)


def copy_async(stage, index, pointer, at):
    count = LOAD_BYTES // pointer.itemsize
    source = pointer.stored(at, count)
    address = pointer.address + (pointer.origin + at) * pointer.itemsize
    if address % LOAD_BYTES:
        raise SimulatorError(f"copy from address {address}, no multiple of {LOAD_BYTES}")
    _begin(stage, index, pointer, count, source.view(np.uint8).copy())


def copy_or_zeros(stage, index, pointer, at, present):
    if present:
        return copy_async(stage, index, pointer, at)
    count = LOAD_BYTES // pointer.itemsize
    return _begin(stage, index, pointer, count, np.zeros(LOAD_BYTES, np.uint8))


def _begin(stage, index, pointer, count, brought):
    """Spoil the place of a copy until its thread has waited for what it brings."""
    target = _bytes_of(stage, index, pointer, count)
    if target.start % LOAD_BYTES:
        raise SimulatorError(f"copy to byte {target.start}, no multiple of {LOAD_BYTES}")
    stage.memory.spoil(target)
    current().copies[-1].append((stage.memory, target, brought))


def copy_one(stage, index, pointer, at):
    target = _bytes_of(stage, index, pointer, 1)
    stage.memory.put(target, pointer.stored(at, 1).view(np.uint8))


def prefetch(pointer, index, bytes_):
    """Nothing, but for bounds and alignment."""
    pointer.stored(index, bytes_ // pointer.itemsize)
    address = pointer.address + (pointer.origin + index) * pointer.itemsize
    if address % LOAD_BYTES or bytes_ % LOAD_BYTES:
        raise SimulatorError(
            f"prefetch of {bytes_} bytes from address {address}, no multiples of {LOAD_BYTES}"
        )


def copies_commit():
    current().copies.append([])


def copies_wait(pending):
    """The last entry of a thread's list is the group that it has not closed."""
    groups = current().copies
    while len(groups) > pending + 1:
        for memory, target, brought in groups.pop(0):
            memory.put(target, brought)


def staged_some(stage, pointer, starts, index, step, count, width, valid):
    present = max(min(count, valid), 0)
    joined = present if step == width else 1  # vectors with nothing between them
    values: list = []
    dtype, numbers_of, seen = pointer.flat.dtype, pointer.numbers_of, stage.memory.seen
    for start in starts:
        for k in range(0, present, joined or 1):
            at = start + index + k * step
            if at % width:
                raise SimulatorError(f"{width} elements of a stage at {at}, which is no multiple")
            own = seen(_bytes_of(stage, at, pointer, joined * width))
            values += numbers_of(own.view(dtype))
        if present < count:
            values += (pointer.nothing,) * (width * (count - present))
    return tuple(values)


def staged_tile(stage, pointer, starts, index, step, count, width):
    return staged_some(stage, pointer, starts, index, step, count, width, count)
