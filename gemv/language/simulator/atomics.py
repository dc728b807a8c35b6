"""Atomics, fences and posts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.language.simulator.memory import Pointer, is_empty, make_empty, write_back
from gemv.language.simulator.thread import SimulatorError, current


def threadfence() -> None:
    """Make what the thread stored, and what barriers showed it before, visible to all blocks."""
    thread = current()
    # Oldest first: what the thread itself stored last has to win.
    for stores in (thread.block.stores, thread.warp.stores, thread.stores):
        write_back(stores)
    thread.pause()


def threadfence_block() -> None:
    thread = current()
    for stores in (thread.warp.stores, thread.stores):
        thread.block.stores.update(stores)
        stores.clear()
    thread.pause()


def _atomic(target: Any, i: Any, update: Callable[[Any, Any], Any], value: Any) -> Any:
    """Replace an element by ``update(old, value)`` in one step; return the old one."""
    thread = current()
    thread.pause()
    if not isinstance(target, Pointer):
        value = target.dtype.type(value)
        old = target[i]
        target[i] = update(old, value)
        return old
    position = target._storable(i)
    if thread.block.has_stores:
        key = target.address + position * target.itemsize
        for stores in (thread.block.stores, thread.warp.stores, thread.stores):
            if key in stores:
                target.flat[position] = stores.pop(key)[2]
    old = target.flat[position]
    target.flat[position] = update(old, target.scalar(value))
    return old


def atomic_add(pointer_or_array: Any, index: Any, value: Any) -> Any:
    """Add to an element of a pointer or shared array and return the old value.

    A complex value is added whole, though a GPU moves its two parts one after the other.
    """
    return _atomic(pointer_or_array, index, lambda old, value: old + value, value)


def atomic_inc(pointer_or_array: Any, index: Any, limit: Any) -> Any:
    """Return the old value of an element, which becomes old + 1, or 0 if it has reached `limit`."""

    def update(old: Any, limit: Any) -> Any:
        return old + 1 if old < limit else 0

    return _atomic(pointer_or_array, index, update, limit)


def post(pointer: Pointer, index: Any, value: Any) -> None:
    """The twin of a store to a place where nothing is, seen whole and by all blocks at once."""
    current().pause()
    position = pointer._storable(index)
    place = pointer.flat[position : position + 1]
    if not is_empty(place):
        raise SimulatorError(f"post: nobody has taken what is in {pointer.name}[{index}]")
    pointer.flat[position] = value
    if is_empty(place):
        pointer.flat[position] = np.nan


def take_one(pointer: Pointer, index: Any) -> Any:
    """The twin of a wait for what somebody posts; nothing is there again afterwards."""
    position = pointer._storable(index)
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
