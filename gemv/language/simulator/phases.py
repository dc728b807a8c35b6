"""Columns that begin anywhere, in plain Python: see :mod:`gemv.language.vocabulary_phases`."""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES
from gemv.language.simulator.vectors import elements_past
from gemv.language.simulator.warp import together


def stream_around(pointer, index, step, count, width, valid):
    values: list = []
    for k in range(count):
        at = index + k * step
        if k >= valid:
            values += [pointer.nothing] * width
            continue
        wanted = pointer[at]
        first = at - elements_past(pointer, at, LOAD_BYTES)
        for place in range(first, first + width):
            # What lies before the array may be anything: here the sums that it goes to are no
            # numbers. Behind the array there may be no memory: that is an error.
            before = pointer.origin + place < 0
            values.append(wanted * float("nan") if before else pointer[place])
    return tuple(values)


def sums_from(sums, pointer, index, step, count, width):
    phases = [elements_past(pointer, index + k * step, LOAD_BYTES) for k in range(count)]

    def moved(brought):
        results = []
        for lane, (own, phases) in enumerate(brought):
            after = brought[(lane + 1) % 32][0]
            found: tuple = ()
            for k, phase in enumerate(phases):
                piece = slice(k * width, (k + 1) * width)
                found += (own[piece] + after[piece])[phase : phase + width]
            results.append(found)
        return results

    return together("sums_from", (sums, phases), moved)
