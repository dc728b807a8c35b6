"""Atomics, fences, and sums that one block posts for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.language.simulator.memory import Pointer, write_back
from gemv.language.simulator.thread import SimulatorError, current


def threadfence() -> None:
    """Make what the thread stored, and what barriers showed it before, visible to all blocks."""
    thread = current()
    # Oldest first: what the thread itself stored last has to win.
    for stores in (thread.block.stores, thread.warp.stores, thread.stores):
        write_back(stores)
    for memory in thread.block.memories:
        memory.show_to_block(thread)
    thread.pause()


def threadfence_block() -> None:
    """Make what the thread and its warp stored visible to the block."""
    thread = current()
    for stores in (thread.warp.stores, thread.stores):
        thread.block.stores.update(stores)
        stores.clear()
    for memory in thread.block.memories:
        memory.show_to_block(thread)
    thread.pause()


def _atomic(target: Any, i: Any, update: Callable[[Any, Any], Any], value: Any) -> Any:
    """Replace an element by ``update(old, value)`` in one step; return the old one."""
    thread = current()
    thread.pause()
    if not isinstance(target, Pointer):
        old = target[i]
        target.put_for_all(i, update(old, target.dtype.type(value)))
        return old
    position = target.storable(i)
    if thread.block.has_stores:
        key = target.address + position * target.itemsize
        for stores in (thread.block.stores, thread.warp.stores, thread.stores):
            if key in stores:
                target.flat[position] = stores.pop(key)[2]
    old = target.flat[position]
    target.flat[position] = update(old, target.scalar(value))
    return old


def atomic_add(pointer: Any, index: Any, value: Any) -> Any:
    """Takes a shared array as well, and returns the old value.

    It adds a complex value in one step, where a GPU adds its two parts one after the other.
    """
    return _atomic(pointer, index, lambda old, value: old + value, value)


def atomic_inc(pointer: Any, index: Any, limit: Any) -> Any:
    def update(old: Any, limit: Any) -> Any:
        return old + 1 if old < limit else 0

    return _atomic(pointer, index, update, limit)


def is_empty(memory: np.ndarray) -> bool:
    """Whether no sum is posted in `memory`: all its bits are ones, or all its objects are None."""
    if memory.dtype.hasobject:
        return all(each is None for each in memory)
    return memory.tobytes().count(0xFF) == memory.nbytes


def make_empty(memory: np.ndarray) -> None:
    """Make `memory` empty, as memory for posted sums is before and after a launch."""
    if memory.dtype.hasobject:
        memory[...] = None
    else:
        memory.view(np.uint8)[...] = 0xFF


def post(pointer: Pointer, index: Any, value: Any) -> None:
    """All blocks see the sum at once; a place that is not empty is an error."""
    current().pause()
    position = pointer.storable(index)
    place = pointer.flat[position : position + 1]
    if not is_empty(place):
        raise SimulatorError(f"post: nobody has taken what is in {pointer.name}[{index}]")
    pointer.flat[position] = value
    if is_empty(place):
        pointer.flat[position] = np.nan


def take(zero, pointer, index, step, count, valid):
    """Takes one sum after the other, and lets other threads run while one is missing."""
    return tuple(take_one(pointer, index + k * step) if k < valid else zero for k in range(count))


def take_rows(zero, pointer, index, step, count, valid, apart, rows, present):
    """Takes one row after the other, as :func:`take` does."""
    each = (
        take(zero, pointer, index + row * apart, step, count, valid if row < present else 0)
        for row in range(rows)
    )
    return sum(each, ())


def peek(pointer: Pointer, index: Any) -> Any:
    """What atomics have left there so far."""
    current().pause()
    return pointer.flat[pointer.storable(index)]


def take_one(pointer: Pointer, index: Any) -> Any:
    """Wait for the sum that somebody posts at `index`, and leave the place empty."""
    position = pointer.storable(index)
    thread = current()
    thread.pause()
    place = pointer.flat[position : position + 1]
    while is_empty(place):
        thread.pause()
    value = pointer.flat[position]
    make_empty(place)
    return value


def _real_atomic(update: Callable[[Any, Any], Any]) -> staticmethod:
    def atomic(target: Any, i: Any, value: Any) -> Any:
        dtype = target.flat.dtype if isinstance(target, Pointer) else target.dtype
        if dtype.kind == "c":
            raise TypeError("Numba has no atomics for complex numbers")
        return _atomic(target, i, update, value)

    return staticmethod(atomic)


class AtomicNamespace:
    """What kernels call as ``cuda.atomic``."""

    add = _real_atomic(lambda old, value: old + value)
    sub = _real_atomic(lambda old, value: old - value)
    max = _real_atomic(lambda old, value: value if value > old else old)
    min = _real_atomic(lambda old, value: value if value < old else old)
    and_ = _real_atomic(lambda old, value: old & value)
    or_ = _real_atomic(lambda old, value: old | value)
    xor = _real_atomic(lambda old, value: old ^ value)
    exch = _real_atomic(lambda old, value: value)
    inc = staticmethod(atomic_inc)

    @staticmethod
    def cas(target: Any, i: Any, expected: Any, value: Any) -> Any:
        return _atomic(target, i, lambda old, new: new if old == expected else old, value)
