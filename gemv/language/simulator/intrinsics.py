"""Device functions for integers, constant memory and single loads, in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.language.simulator.memory import Pointer
from gemv.language.simulator.thread import SimulatorError


def device(function):
    return function


inlined = device


def constant_array(name, dtype, size):
    """The memory is ``load.memory``: each kernel has its own, checks bounds and cannot write it."""
    # The kernel's memory starts as NaN: a slot that nobody wrote must show.
    memory = Pointer(np.full(size, np.nan, dtype), writable=False, name=name)

    def load(index):
        return memory[index]

    load.__dict__["memory"] = memory.flat
    return load


def element_of_arrays(sums: np.dtype) -> Any:
    """Python objects: an element is None, which nothing can be added to, until a sum is stored."""
    return object


def exact_of_arrays(sums: np.dtype) -> Any:
    return object


def read_only_load(pointer, index):
    return pointer[index]


def parameter_load(pointer, index):
    """The simulator passes a pointer to x also where a GPU gets the array by value."""
    return pointer[index]


def short(number):
    """Refuses what has no 32 bits; on a GPU its upper half is lost."""
    if not 0 <= number < 1 << 32:
        raise SimulatorError(f"short({number}): it is negative or too large")
    return number


def natural(number):
    """Refuses a negative number; on a GPU that is undefined."""
    if number < 0:
        raise SimulatorError(f"natural({number}): it is negative")
    return number


def rolled():
    pass


def rounded_down(number, multiple):
    return number // multiple * multiple


def quotient(number, divisor):
    return number // divisor
