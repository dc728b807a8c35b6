"""``GEMV_CHECK=full``: each call asks the driver whether its arrays lie in memory that exists.

An array says where it lies and how far it reaches. Calls believe it, as asking the driver costs
more than a call. With this variable in the environment every call goes the long way, and compares
what its arrays say with the driver's list of allocations before anything is launched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np

from gemv.core.geometry import MemoryRange
from gemv.core.operand import Operand, matrix_view
from gemv.core.rules import value_error

VARIABLE = "GEMV_CHECK"


def asked_for(text: str | None) -> bool:
    """Whether the variable's value asks for the full check; an error for an unknown value."""
    value = (text or "").strip().lower()
    if value not in ("", "full"):
        raise ValueError(f"{VARIABLE} must be 'full' or not set, got {text!r}")
    return value == "full"


#: Read once: looking the variable up would cost each call of the short way.
FULL = asked_for(os.environ.get(VARIABLE))


def check(
    routine: str,
    operands: Iterable[tuple[str, Operand]],
    memory_at: Callable[[int], MemoryRange | None],
) -> None:
    """Refuse a call whose arrays reach beyond the memory that the driver lists.

    ``memory_at(address)`` asks the driver.
    """
    for name, operand in operands:
        if 0 in operand.shape:
            continue
        first, end = np.lib.array_utils.byte_bounds(matrix_view(operand))
        wrong = unreachable(first, end, operand.device, memory_at)
        if wrong:
            raise value_error(
                routine, name, f"{name} reaches from {first:#x} to {end:#x}, but {wrong}"
            )


def unreachable(
    first: int, end: int, device: int | None, ask: Callable[[int], MemoryRange | None]
) -> str | None:
    """Why a GPU must not follow pointers from `first` up to `end`; None where it may.

    Memory of one array may be listed in several pieces, as it is when an allocator maps them to
    one range of addresses.
    """
    at = first
    while at < end:
        memory = ask(at)
        if memory is None:
            return f"the driver knows of no memory at {at:#x}"
        if None not in (device, memory.device) and memory.device != device:
            return f"the driver says that {at:#x} is on cuda:{memory.device}, not cuda:{device}"
        at = max(memory.end, at + 1)
    return None
