"""Tiles of A, numbers of x and sums as tuples, in plain Python.

:mod:`gemv.language.vocabulary` says what each function does. Vector loads and stores check the
alignment of addresses, and nothing is loaded for elements that are not there.
"""

from __future__ import annotations

import operator

import numpy as np
from numba import cuda

from gemv.core.shares import shares
from gemv.language.simulator.memory import vector_load, vector_store
from gemv.language.simulator.thread import SimulatorError

_FULL_WARP = 0xFFFFFFFF


# Loads and stores -------------------------------------------------------------------------------


def load_some(pointer, index, step, count, width, valid):
    return tuple(
        value
        for k in range(count)
        for value in _vector(pointer, index + k * step, width, k < valid)
    )


def _vector(pointer, index, width, present):
    if not present:
        return (pointer.nothing,) * width
    return vector_load(pointer, index, width) if width > 1 else (pointer[index],)


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
    numbers = ((k, index + k * step + lane) for k in range(count) for lane in range(width))
    return tuple(
        pointer[at * increment] if k < valid and (limit is None or at < limit) else pointer.nothing
        for k, at in numbers
    )


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
        values = tuple(value + _exchanged(value, step) for value in values)
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
        values = tuple(map(operator.add, kept, [_exchanged(value, step) for value in sent]))
        step //= 2
    return values


def _exchanged(value, step):
    """The value of lane ``lane ^ step``; complex numbers and sums of two travel in parts."""
    if hasattr(value, "exchanged"):
        return value.exchanged(lambda part: cuda.shfl_xor_sync(_FULL_WARP, part, step))
    if np.iscomplexobj(value):
        real = cuda.shfl_xor_sync(_FULL_WARP, value.real, step)
        imag = cuda.shfl_xor_sync(_FULL_WARP, value.imag, step)
        return type(value)(complex(real, imag))
    return cuda.shfl_xor_sync(_FULL_WARP, value, step)
