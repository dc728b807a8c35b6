"""Tiles of A as tuples, in plain Python: the twins of those in registers."""

from __future__ import annotations

import operator

import numpy as np
from numba import cuda

from gemv.core.shares import shares
from gemv.language.simulator.memory import vector_load, vector_store
from gemv.language.simulator.thread import SimulatorError


def load_vectors(pointer, index, step, count, width, valid=None):
    return tuple(
        value
        for k in range(count)
        for value in _vector(pointer, index + k * step, width, valid is None or k < valid)
    )


def _vector(pointer, index, width, present):
    if not present:
        return (pointer.nothing,) * width
    return vector_load(pointer, index, width) if width > 1 else (pointer[index],)


def load_back(pointer, index, step, count, width):
    return load_vectors(pointer, index, step, count, width)


def store_vectors(pointer, index, step, values, width):
    for k in range(len(values) // width):
        vector_store(pointer, index + k * step, values[k * width : (k + 1) * width])


def store(pointer, index, value):
    pointer[index] = value


def is_aligned(pointer, bytes_):
    return (pointer.address + pointer.origin * pointer.itemsize) % bytes_ == 0


def elements_past(pointer, index, bytes_):
    address = pointer.address + (pointer.origin + index) * pointer.itemsize
    return address % bytes_ // pointer.itemsize


def stream_tile(pointer, starts, index, step, count, width, valid=None):
    return tuple(
        value
        for start in starts
        for value in load_vectors(pointer, start + index, step, count, width, valid)
    )


def row_starts(first, step, last, stride, rows):
    return tuple(min(first + r * step, last) * stride for r in range(rows))


def gather(pointer, index, step, count, increment, width, valid=None, limit=None):
    numbers = ((k, index + k * step + lane) for k in range(count) for lane in range(width))
    return tuple(
        pointer[at * increment]
        if (valid is None or k < valid) and (limit is None or at < limit)
        else pointer.nothing
        for k, at in numbers
    )


gather_inside = gather
load_some, stream_some, gather_some = load_vectors, stream_tile, gather


def spread(factors, count, width, first, period):
    own = range(0, len(factors), count)
    last = count - 1
    return tuple(
        factors[at + min((first + lane) // period, last)] for at in own for lane in range(width)
    )


def load_shifted(pointer, index, step, count, width, shift):
    if elements_past(pointer, index, width * pointer.itemsize) != shift:
        raise SimulatorError(f"{pointer.name}[{index}] is not {shift} behind a boundary")
    if shift:  # the second vector of the last two is read whole: an error if it ends outside
        pointer[index - shift + (count - 1) * step + 2 * width - 1]
    return gather(pointer, index, step, count, 1, width)


def stream_inside(pointer, starts, index, width, limit):
    return tuple(
        pointer[index + start + lane] if 0 <= start + lane < limit else pointer.nothing
        for start in starts
        for lane in range(width)
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
    for block in range(len(sums) // width):
        for k, factor in enumerate(x):
            for lane in range(width):
                value = tile[(block * len(x) + k) * width + lane]
                product = (value.conjugate() if conjugate else value) * factor
                parts[block * width + lane] = parts[block * width + lane] + product
    return tuple(parts)


def put_pieces(shared, row, column, values, distance, width):
    for at, value in enumerate(values):
        piece, lane = divmod(at, width)
        shared[row, column + piece * distance + lane] = value


def butterfly(values, lanes, apart):
    step = lanes // 2
    while step >= apart:
        values = tuple(value + _exchange(value, step) for value in values)
        step //= 2
    return values


def scatter_sums(values, tid, width, lanes, apart):
    step = lanes // 2
    least = len(values) // shares(len(values), width, lanes, apart)
    while step >= apart:
        sent, kept = values, values
        if len(values) > least:
            half = len(values) // 2
            parts = values[:half], values[half:]
            upper = bool(tid & step)
            sent, kept = parts[not upper], parts[upper]
        exchanged = [_exchange(value, step) for value in sent]
        values = tuple(map(operator.add, kept, exchanged))
        step //= 2
    return values


def _exchange(value, step):
    if hasattr(value, "exchanged"):
        return value.exchanged(lambda part: cuda.shfl_xor_sync(0xFFFFFFFF, part, step))
    if np.iscomplexobj(value):
        real = cuda.shfl_xor_sync(0xFFFFFFFF, value.real, step)
        imag = cuda.shfl_xor_sync(0xFFFFFFFF, value.imag, step)
        return type(value)(complex(real, imag))
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, step)


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
