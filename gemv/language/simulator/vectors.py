"""Tiles of A, numbers of x and sums as tuples, in plain Python.

:mod:`gemv.language.vocabulary` says what each function does. Vector loads and stores check the
alignment of addresses, and nothing is loaded for elements that are not there.
"""

from __future__ import annotations

import operator

import numpy as np

from gemv.core.shares import shares
from gemv.language.simulator.memory import vector_load, vector_store
from gemv.language.simulator.thread import SimulatorError
from gemv.language.simulator.warp import exchange

# Loads and stores -------------------------------------------------------------------------------


def load_some(pointer, index, step, count, width, valid):
    present = max(min(count, valid), 0)
    places = range(index, index + present * step, step) if step else [index] * present
    values: list = []
    for at in places:
        values += vector_load(pointer, at, width) if width > 1 else (pointer[at],)
    if present < count:
        values += (pointer.nothing,) * (width * (count - present))
    return tuple(values)


def load_vectors(pointer, index, step, count, width):
    return load_some(pointer, index, step, count, width, count)


load_back = load_vectors


def stream_some(pointer, starts, index, step, count, width, valid):
    return tuple(
        value
        for start in starts
        for value in load_some(pointer, start + index, step, count, width, valid)
    )


def stream_tile(pointer, starts, index, step, count, width):
    return stream_some(pointer, starts, index, step, count, width, count)


def stream_inside(pointer, starts, index, width, limit):
    return tuple(
        pointer[index + start + lane] if 0 <= start + lane < limit else pointer.nothing
        for start in starts
        for lane in range(width)
    )


def gather_inside(pointer, index, step, count, increment, width, valid, limit):
    values: list = []
    for k in range(count):
        first = index + k * step
        inside = width if limit is None else max(min(width, limit - first), 0)
        present = inside if k < valid else 0
        if increment == 1:
            values += pointer.elements(first, present)
        else:
            values += [pointer[at * increment] for at in range(first, first + present)]
        if present < width:
            values += (pointer.nothing,) * (width - present)
    return tuple(values)


def gather_some(pointer, index, step, count, increment, width, valid):
    return gather_inside(pointer, index, step, count, increment, width, valid, None)


def gather(pointer, index, step, count, increment, width):
    return gather_some(pointer, index, step, count, increment, width, count)


def load_shifted(pointer, index, step, count, width, shift):
    """Checks that the first vector does begin `shift` elements behind a multiple of its size."""
    if elements_past(pointer, index, width * pointer.itemsize) != shift:
        raise SimulatorError(f"{pointer.name}[{index}] is not {shift} behind a boundary")
    if shift:  # the second vector of the last two is read whole: an error if it ends outside
        pointer[index - shift + (count - 1) * step + 2 * width - 1]
    return gather(pointer, index, step, count, 1, width)


def store_vectors(pointer, index, step, values, width):
    for k in range(len(values) // width):
        vector_store(pointer, index + k * step, values[k * width : (k + 1) * width])


def store(pointer, index, value):
    pointer[index] = value


def put_pieces(shared, row, column, values, distance, width):
    for at, value in enumerate(values):
        piece, lane = divmod(at, width)
        shared[row, column + piece * distance + lane] = value


def put_unit(shared, index, values, first, count):
    _check_unit(index, count)
    for lane in range(count):
        shared[index + lane] = values[first + lane]


def load_units(shared, index, count):
    _check_unit(index, count)
    return tuple(shared[index + lane] for lane in range(count))


def _check_unit(index, count):
    if index % count:
        raise SimulatorError(f"{count} numbers of shared memory at {index}, which is no multiple")


# Addresses --------------------------------------------------------------------------------------


def is_aligned(pointer, bytes_):
    return (pointer.address + pointer.origin * pointer.itemsize) % bytes_ == 0


def elements_past(pointer, index, bytes_):
    address = pointer.address + (pointer.origin + index) * pointer.itemsize
    return address % bytes_ // pointer.itemsize


def row_starts(first, step, last, stride, rows):
    return tuple(min(first + r * step, last) * stride for r in range(rows))


# Sums -------------------------------------------------------------------------------------------


def spread(factors, count, width, first, period):
    own = range(0, len(factors), count)
    last = count - 1
    return tuple(
        factors[at + min((first + lane) // period, last)] for at in own for lane in range(width)
    )


def zeros(zero, count):
    return (zero,) * count


def multiply_add(sums, tile, x, conjugate):
    parts = list(sums)
    rows = len(tile) // len(x)
    width = len(sums) // rows
    for row in range(rows):
        for k, factor in enumerate(x):
            value = tile[row * len(x) + k]
            at = row * width + k % width
            parts[at] = parts[at] + (value.conjugate() if conjugate else value) * factor
    return tuple(parts)


def axpy_add(sums, tile, x, width, conjugate):
    parts = list(sums)
    for piece in range(len(sums) // width):
        for k, factor in enumerate(x):
            for lane in range(width):
                value = tile[(piece * len(x) + k) * width + lane]
                product = (value.conjugate() if conjugate else value) * factor
                parts[piece * width + lane] = parts[piece * width + lane] + product
    return tuple(parts)


def fold(sums, rows):
    width = len(sums) // rows
    folded = []
    for row in range(rows):
        part = list(sums[row * width : (row + 1) * width])
        while len(part) > 1:
            half = len(part) // 2
            part = [part[k] + part[k + half] for k in range(half)]
        folded.append(part[0])
    return tuple(folded)


def butterfly(values, lanes, apart):
    step = lanes // 2
    while step >= apart:
        values = tuple(map(operator.add, values, _exchanged(values, step)))
        step //= 2
    return values


def scatter_sums(values, tid, width, lanes, apart):
    step = lanes // 2
    least = len(values) // shares(len(values), width, lanes, apart)
    while step >= apart:
        sent, kept = values, values
        if len(values) > least:
            half = len(values) // 2
            halves = values[:half], values[half:]
            upper = bool(tid & step)
            sent, kept = halves[not upper], halves[upper]
        values = tuple(map(operator.add, kept, _exchanged(sent, step)))
        step //= 2
    return values


def _exchanged(values, step):
    """The values of lane ``lane ^ step``, by one stop of the warp for all of them."""
    sent = []

    def send(part):
        sent.append(part)
        return part

    for value in values:
        _in_parts(value, send)
    received = iter(exchange(sent, step))
    return [_in_parts(value, lambda part: next(received)) for value in values]


def _in_parts(value, move):
    """The number that `move` makes of a number: complex ones and sums of two travel in parts."""
    if hasattr(value, "exchanged"):
        return value.exchanged(move)
    if isinstance(value, complex | np.complexfloating):
        return type(value)(complex(move(value.real), move(value.imag)))
    return move(value)
