"""Device functions on a bare pointer, in plain Python: the twins of those for the GPU."""

from __future__ import annotations

import numpy as np

from gemv.language.simulator.memory import Pointer
from gemv.language.simulator.thread import SimulatorError


def device(function):
    """Mark a device function; the simulator calls plain Python."""
    return function


inlined = device


def constant_array(name, dtype, size):
    """The twin: memory of this one function, bounds-checked, that only the host writes."""
    # The kernel's memory starts as NaN: a slot that nobody wrote must show.
    memory = Pointer(np.full(size, np.nan, dtype), writable=False, name=name)

    def load(index):
        return memory[index]

    load.__dict__["memory"] = memory.flat
    return load


def read_only_load(pointer, index):
    """The twin of a load through the read-only cache: a load."""
    return pointer[index]


def parameter_load(pointer, index):
    """The twin of a load from a by-value parameter, which is passed as a pointer here."""
    return pointer[index]


def natural(number):
    """The twin of a promise: it is looked at whether that is kept."""
    if number < 0:
        raise SimulatorError(f"natural({number}): it is negative")
    return number


def rolled():
    """The twin of a hint to the compiler: nothing."""


def rounded_down(number, multiple):
    """The twin of a mask, where `multiple` is a power of two."""
    return number // multiple * multiple


def quotient(number, divisor):
    """The twin of a shift, where `divisor` is a power of two."""
    return number // divisor
