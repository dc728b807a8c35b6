"""Tiles of A, numbers of x and sums as tuples, in plain Python.

:mod:`gemv.language.vocabulary` says what each function does. Vector loads and stores check the
alignment of addresses, and nothing is loaded for elements that are not there.
"""

from __future__ import annotations

from itertools import repeat
from operator import add as _add
from operator import itemgetter
from operator import mul as _multiply

import numpy as np

from gemv.core.geometry import LOAD_BYTES
from gemv.core.shares import shares
from gemv.language.simulator.memory import vector_store
from gemv.language.simulator.pointers import new_of, old_of
from gemv.language.simulator.thread import WARP, SimulatorError
from gemv.language.simulator.warp import together

# Loads and stores -------------------------------------------------------------------------------


def load_some(pointer, index, step, count, width, valid):
    return tuple(_loaded(pointer, index, step, count, width, valid))


def _loaded(pointer, index, step, count, width, valid):
    present = max(min(count, valid), 0)
    if width > 1:
        values = pointer.vectors(index, step, present, width)
    elif present > 1:
        values = pointer.elements_apart(index, step, present)
    else:
        values = [pointer[index]] if present else []
    if present < count:
        values += (pointer.nothing,) * (width * (count - present))
    return values


def load_vectors(pointer, index, step, count, width):
    return load_some(pointer, index, step, count, width, count)


def load_back(pointer, index, step, count, width):
    return load_vectors(old_of(pointer), index, step, count, width)


def load_old(pointer, index, present):
    return pointer[index] if present else pointer.nothing


def stream_some(pointer, starts, index, step, count, width, valid):
    values: list = []
    for start in starts:
        values += _loaded(pointer, start + index, step, count, width, valid)
    return tuple(values)


def stream_tile(pointer, starts, index, step, count, width):
    return stream_some(pointer, starts, index, step, count, width, count)


def pass_tile(pointer, starts, index, step, count, width):
    return stream_some(pointer, starts, index, step, count, width, count)


def pass_some(pointer, starts, index, step, count, width, valid):
    return stream_some(pointer, starts, index, step, count, width, valid)


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
            if present == 1:
                values.append(pointer[first])
            elif present:
                values += pointer.elements(first, present)
        else:
            values += [pointer[at * increment] for at in range(first, first + present)]
        if present < width:
            values += (pointer.nothing,) * (width - present)
    return tuple(values)


def gather_some(pointer, index, step, count, increment, width, valid):
    return gather_inside(pointer, index, step, count, increment, width, valid, None)


def gather_stored(pointer, index, step, count, increment, valid):
    """Each in a tuple of its own, so that nobody computes with it."""
    return tuple((each,) for each in gather_some(pointer, index, step, count, increment, 1, valid))


def from_stored(pointer, values):
    return tuple(number for (number,) in values)


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
        vector_store(new_of(pointer), index + k * step, values[k * width : (k + 1) * width])


def store(pointer, index, value):
    pointer[index] = value


def put_pieces(shared, row, column, values, distance, width):
    for at, value in enumerate(values):
        piece, lane = divmod(at, width)
        shared[row, column + piece * distance + lane] = value


def put_units(shared, row, column, values, distance, width):
    sizes = (column, shared.shape[1], *((distance,) if len(values) > width else ()))
    for size in sizes:
        _check_unit(size, width)
    put_pieces(shared, row, column, values, distance, width)


def put_unit(shared, index, values, first, count):
    _check_unit(index, count)
    for lane in range(count):
        shared[index + lane] = values[first + lane]


def load_units(shared, index, count):
    _check_unit(index, count)
    return shared.elements(index, count)


def _check_unit(index, count):
    if index % count:
        raise SimulatorError(f"{count} numbers of shared memory at {index}, which is no multiple")


# Addresses --------------------------------------------------------------------------------------


def is_aligned(pointer, bytes_):
    each = {new_of(pointer), old_of(pointer)}
    return all((one.address + one.origin * one.itemsize) % bytes_ == 0 for one in each)


def elements_past(pointer, index, bytes_):
    address = pointer.address + (pointer.origin + index) * pointer.itemsize
    return address % bytes_ // pointer.itemsize


def row_starts(first, step, last, stride, rows):
    if first + (rows - 1) * step <= last:
        return tuple([(first + r * step) * stride for r in range(rows)])
    return tuple([min(first + r * step, last) * stride for r in range(rows)])


# Sums -------------------------------------------------------------------------------------------


def spread(factors, count, width, first, period):
    own = range(0, len(factors), count)
    last = count - 1
    return tuple(
        factors[at + min((first + lane) // period, last)] for at in own for lane in range(width)
    )


def zeros(zero, count):
    return (zero,) * count


def kept(values):
    return values


def times(factor, number):
    return factor * number


def plus_zero(number):
    if isinstance(number, np.number):
        return number + type(number)(0)
    return number.plus_zero()


def multiply_add(sums, tile, x, conjugate):
    if conjugate:
        tile = [value.conjugate() for value in tile]
    count = len(x)
    rows = len(tile) // count
    width = len(sums) // rows
    if width == count:  # one product for each sum
        if len(tile) != rows * count or len(sums) != len(tile):
            _check_sizes(rows * count, sums, tile)
        return tuple(map(_add, sums, map(_multiply, tile, tuple(x) * rows)))
    parts = list(sums)
    for row in range(rows):
        first = row * width
        for k, value in enumerate(tile[row * count : (row + 1) * count]):
            at = first + k % width
            parts[at] = parts[at] + value * x[k]
    return tuple(parts)


def axpy_add(sums, tile, x, width, conjugate):
    if conjugate:
        tile = [value.conjugate() for value in tile]
    whole = len(sums) // width * width
    if len(sums) != whole or len(tile) != whole * len(x):
        _check_sizes(whole * len(x), tile)
        _check_sizes(whole, sums)
    parts, at = [], 0
    for first in range(0, whole, width):
        own = sums[first : first + width]
        for factor in x:  # nothing is added before the last line: no lists in between
            own = map(_add, own, map(_multiply, tile[at : at + width], repeat(factor)))
            at += width
        parts += own
    return tuple(parts)


def _check_sizes(count, *sequences):
    """An error if one has not so many elements: ``map`` would leave out what the shortest lacks."""
    for each in sequences:
        if len(each) != count:
            raise SimulatorError(f"{len(each)} numbers where there should be {count}")


def outer_add(sums, tile, shared, index, step, count, width, conjugate):
    each = len(sums) // count
    columns = len(tile) // each
    unit = max(min(count, LOAD_BYTES // shared.dtype.itemsize), 1)
    factors: list[list] = []
    for k in range(columns):
        column: list = []
        for first in range(0, count, unit):
            column += load_units(shared, index + k * step + first, unit)
        factors.append(column)
    parts: tuple = ()
    for v in range(count):
        own = [column[v] for column in factors]
        parts += axpy_add(sums[v * each : (v + 1) * each], tile, own, width, conjugate)
    return parts


def fold(sums, rows):
    width = len(sums) // rows
    folded = []
    for row in range(rows):
        part = list(sums[row * width : (row + 1) * width])
        while len(part) > 1:
            half = len(part) // 2
            part = list(map(_add, part[:half], part[half:]))
        folded.append(part[0])
    return tuple(folded)


def fold_pieces(sums, width):
    parts = list(sums)
    while len(parts) > width:
        half = len(parts) // 2
        _check_sizes(half, parts[half:])
        parts = list(map(_add, parts[:half], parts[half:]))
    return tuple(parts)


def pieces_of(sums, first, count, width):
    return sums[first * width : (first + count) * width]


def add_each(left, right):
    return tuple(one + other for one, other in zip(left, right, strict=True))


#: Of 32 numbers, for each lane that of the lane whose number differs in one bit.
_LANES_ACROSS = {
    step: itemgetter(*(lane ^ step for lane in range(WARP))) for step in (1, 2, 4, 8, 16)
}


def sums_of_lane(values, lane):
    def handed_out(brought):
        _check_counts([own for own, _ in brought])
        return [brought[wanted][0] for _, wanted in brought]

    return together("sums_of_lane", (values, int(lane)), handed_out)


def butterfly(values, lanes, apart):
    def added_up(brought):
        _check_counts(brought)
        columns = list(zip(*brought, strict=True))  # each of the sums, of all lanes
        step = lanes // 2
        while step >= apart:
            others = _LANES_ACROSS[step]
            columns = [tuple(map(_add, column, others(column))) for column in columns]
            step //= 2
        return list(zip(*columns, strict=True)) or brought

    return together("butterfly", values, added_up)


def scatter_sums(values, tid, width, lanes, apart):
    least = len(values) // shares(len(values), width, lanes, apart)

    def added_up(brought):
        kept, tids = [own for own, _ in brought], [own for _, own in brought]
        _check_counts(kept)
        step = lanes // 2
        while step >= apart:
            sent = kept
            if len(kept[0]) > least:
                half = len(kept[0]) // 2
                halves = [(own[:half], own[half:]) for own in kept]
                uppers = [bool(tid & step) for tid in tids]
                sent = [own[not upper] for own, upper in zip(halves, uppers, strict=True)]
                kept = [own[upper] for own, upper in zip(halves, uppers, strict=True)]
            kept = [tuple(map(_add, own, sent[lane ^ step])) for lane, own in enumerate(kept)]
            step //= 2
        return kept

    return together("scatter_sums", (values, tid), added_up)


def _check_counts(brought):
    """An error if lanes of a warp bring more or fewer values than each other."""
    counts = set(map(len, brought))
    if len(counts) > 1:
        raise SimulatorError(f"lanes exchange {min(counts)} and {max(counts)} values")
