"""Sums that one block leaves for another, in plain Python."""

from __future__ import annotations

from gemv.language.simulator.atomics import take_one


def take(zero, pointer, index, step, count, valid):
    return tuple(take_one(pointer, index + k * step) if k < valid else zero for k in range(count))
