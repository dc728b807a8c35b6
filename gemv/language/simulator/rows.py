"""Rows that begin anywhere, in plain Python: see :mod:`gemv.language.vocabulary_rows`.

Where there is an array, a place before it may be anything: here its number makes sums no numbers. A
place behind it is an error.
"""

from __future__ import annotations

from gemv.core.geometry import LOAD_BYTES
from gemv.language.simulator.thread import SimulatorError
from gemv.language.simulator.vectors import elements_past, multiply_add

#: Bytes of the words in which numbers of 2 bytes are loaded.
_PAIR_BYTES = 4


def stream_rows(pointer, starts, index, step, count, width, valid):
    values: list = []
    for start in starts:
        first = start - elements_past(pointer, start, LOAD_BYTES) + index
        for k in range(count):
            at = first + k * step
            if k >= valid:
                values += [pointer.nothing] * width
            elif elements_past(pointer, at, LOAD_BYTES):
                raise SimulatorError(f"{pointer.name}[{at}] is no multiple of {LOAD_BYTES} bytes")
            else:
                values += [_read(pointer, place, start) for place in range(at, at + width)]
    return tuple(values)


def rows_inside(pointer, starts, index, count, limit):
    return tuple(
        pointer[start + place] if 0 <= place < limit else pointer.nothing
        for start in starts
        for place in range(index, index + count)
    )


def load_anywhere(pointer, index, step, count, width):
    values: list = []
    for k in range(count):
        first, end = _in_pairs(pointer, index + k * step, width)
        for place in (first, end - 1):
            _read(pointer, place, index)  # an error if it lies behind the array
        values += pointer.elements(index + k * step, width)
    return tuple(values)


def load_inside(pointer, index, step, count, width, limit):
    return tuple(
        pointer[place] if 0 <= place < limit else pointer.nothing
        for k in range(count)
        for place in range(index + k * step, index + k * step + width)
    )


def _in_pairs(pointer, index, width):
    """The first element that is read with these, and the one behind the last."""
    if pointer.itemsize * 2 > _PAIR_BYTES:
        return index, index + width
    past = elements_past(pointer, index, _PAIR_BYTES)
    return index - past, index + width + past


def _read(pointer, place, inside):
    """An element; if it lies before the array, no number of the kind of the element `inside`."""
    return pointer[inside] * float("nan") if pointer.origin + place < 0 else pointer[place]


def multiply_inside(sums, tile, x, index, step, width, limit, conjugate):
    parts, rows = list(sums), len(tile) // len(x)
    each = len(parts) // rows
    for row in range(rows):
        for k, factor in enumerate(x):
            if 0 <= index + k // width * step + k % width < limit:
                at = row * each + k % each
                value = tile[row * len(x) + k]
                (parts[at],) = multiply_add((parts[at],), (value,), (factor,), conjugate)
    return tuple(parts)


def add_across(sums, distance):
    return tuple(each + sums[k ^ distance] for k, each in enumerate(sums))


def fold_first(sums, rows, left):
    each, found = len(sums) // rows, []
    for row in range(rows):
        part = sums[row * each : (row + 1) * each]
        while len(part) > left:
            half = len(part) // 2
            part = [low + high for low, high in zip(part[:half], part[half:], strict=True)]
        found.append(part[0])
    return tuple(found)
