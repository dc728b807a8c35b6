"""Rows that begin anywhere: aligned loads, numbers of x beside them, and products inside a row."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.language.numba_cuda.formats import decoded_pair, is_narrow, widened
from gemv.language.numba_cuda.loads import KEEP, STREAM, halves_moved, load
from gemv.language.numba_cuda.registers import (
    integer_of,
    items_of,
    literal_of,
    present_at,
    registers_of,
)
from gemv.language.numba_cuda.sums import add, sum_with_product

_WORD, _LONG = ir.IntType(32), ir.IntType(64)


def _aligned(builder, address, bytes_):
    """The last address that is a multiple of `bytes_`, at `address` or before it."""
    whole = builder.and_(builder.ptrtoint(address, _LONG), integer_of(-bytes_))
    return builder.inttoptr(whole, address.type)


def _below(builder, number, offset, limit):
    """Whether ``0 <= number + offset < limit``: a negative number is large as an unsigned one."""
    return builder.icmp_unsigned("<", builder.add(number, ir.Constant(_WORD, offset)), limit)


@intrinsic
def stream_rows(typingctx, pointer, starts, index, step, count, width, valid):
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, starts.count * count_ * width_)

    def codegen(context, builder, signature, arguments):
        base, starts_, index, step, _, _, valid = arguments
        values = []
        for start in items_of(builder, starts_, starts.count):
            first = _aligned(builder, builder.gep(base, [builder.add(start, index)]), LOAD_BYTES)
            at = integer_of(0)
            for k in range(count_):
                at = builder.add(at, step) if k else at
                vector, present = builder.gep(first, [at]), present_at(builder, k, valid)
                values += load(context, builder, pointer, vector, width_, STREAM, present)
        return context.make_tuple(builder, result, values)

    sizes = types.int64, types.int64, count, width, types.int64
    return result(pointer, starts, *sizes), codegen


@intrinsic
def rows_inside(typingctx, pointer, starts, index, count, limit):
    known = literal_of(count)
    if known is None:
        return None
    result = types.UniTuple(pointer.dtype, starts.count * known[0])

    def codegen(context, builder, signature, arguments):
        base, starts_, index, _, limit = arguments
        number, limit = builder.trunc(index, _WORD), builder.trunc(limit, _WORD)
        values = []
        for start in items_of(builder, starts_, starts.count):
            first = builder.gep(base, [builder.add(start, index)])
            for e in range(known[0]):
                address, present = (
                    builder.gep(first, [integer_of(e)]),
                    _below(builder, number, e, limit),
                )
                values += load(context, builder, pointer, address, 1, STREAM, present)
        return context.make_tuple(builder, result, values)

    return result(pointer, starts, types.int64, count, types.int64), codegen


def _loading(pointer, count, width, *limit):
    """Signature and code of loads of x; `limit` is the type of that argument, if any."""
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, count_ * width_)
    loaded = _loaded_in_pairs if is_narrow(pointer) and width_ > 1 else _loaded

    def codegen(context, builder, signature, arguments):
        base, index, step, _, _, *limit = arguments
        limit = builder.trunc(limit[0], _WORD) if limit else None
        places = []
        for k in range(count_):
            index = builder.add(index, step) if k else index
            places.append((builder.gep(base, [index]), builder.trunc(index, _WORD)))
        values = loaded(context, builder, pointer, base, places, width_, limit)
        return context.make_tuple(builder, result, values)

    return result(pointer, types.int64, types.int64, count, width, *limit), codegen


def _loaded(context, builder, pointer, base, places, width, limit):
    values = []
    for address, number in places:
        for e in range(width):
            present = None if limit is None else _below(builder, number, e, limit)
            at = builder.gep(address, [integer_of(e)]) if e else address
            values += load(context, builder, pointer, at, 1, KEEP, present)
    return values


def _loaded_in_pairs(context, builder, pointer, base, places, width, limit):
    """Aligned words of two numbers each, moved by one number where the vector begins inside one."""
    if limit is not None:
        ends, last = [], builder.gep(base, [builder.sub(builder.zext(limit, _LONG), integer_of(1))])
    words_of = []
    for address, number in places:
        whole = _aligned(builder, address, 4)
        past = builder.and_(builder.trunc(builder.ptrtoint(address, _LONG), _WORD), _constant(2))
        odd = builder.icmp_unsigned("!=", past, _constant(0))
        first = builder.sub(number, builder.lshr(past, _constant(1)))
        whole = builder.bitcast(whole, _WORD.as_pointer())
        words = []
        for w in range(width // 2 + 1):
            at = builder.gep(whole, [integer_of(w)]) if w else whole
            if limit is None:
                present = odd if w == width // 2 else None
            else:  # by the second number of the word; the first one may be that before the array
                second = builder.add(first, _constant(2 * w + 1))
                present = builder.icmp_unsigned("<", second, limit)
                present = builder.and_(present, odd) if w == width // 2 else present
                ends.append(builder.icmp_unsigned("==", second, limit))
            words += registers_of(builder, types.uint32, at, 1, KEEP, present)
        words_of.append((words, odd))
    if limit is not None:  # a word of which only the first number is inside is loaded by itself
        some = ends[0]
        for end in ends[1:]:
            some = builder.or_(some, end)
        some = builder.and_(some, builder.icmp_unsigned("!=", limit, _constant(0)))
        (one,) = registers_of(builder, types.uint16, last, 1, KEEP, some)
        one = builder.zext(one, _WORD)
    values = []
    for words, odd in words_of:
        if limit is not None:
            words = [builder.select(ends.pop(0), one, word) for word in words]
        for word in halves_moved(builder, words, odd):
            numbers = decoded_pair(builder, pointer, word)
            values += [widened(context, builder, pointer, each) for each in numbers]
    return values


def _constant(number):
    return ir.Constant(_WORD, number)


@intrinsic
def load_anywhere(typingctx, pointer, index, step, count, width):
    return _loading(pointer, count, width)


@intrinsic
def load_inside(typingctx, pointer, index, step, count, width, limit):
    return _loading(pointer, count, width, types.int64)


@intrinsic
def multiply_inside(typingctx, sums, tile, x, index, step, width, limit, conjugate):
    """Each product is added, and the sum before it kept where the element belongs to no row."""
    known = literal_of(width, conjugate)
    if known is None:
        return None
    width_, conjugate_ = known
    rows = tile.count // x.count
    each = sums.count // rows

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        values = items_of(builder, arguments[1], tile.count)
        factors = items_of(builder, arguments[2], x.count)
        number, step, limit = (builder.trunc(arguments[k], _WORD) for k in (3, 4, 6))
        for k, factor in enumerate(factors):
            if k and k % width_ == 0:
                number = builder.add(number, step)
            inside = _below(builder, number, k % width_, limit)
            for row in range(rows):
                at, value = row * each + k % each, values[row * x.count + k]
                added = sum_with_product(
                    context, builder, sums.dtype, parts[at], value, factor, conjugate_
                )
                parts[at] = builder.select(inside, added, parts[at])
        return context.make_tuple(builder, sums, parts)

    return sums(sums, tile, x, types.int64, types.int64, width, types.int64, conjugate), codegen


@intrinsic
def add_across(typingctx, sums, distance):
    known = literal_of(distance)
    if known is None:
        return None

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        # The lower one first in both: there is one sum for two places.
        found = [
            add(context, builder, sums.dtype, parts[k & ~known[0]], parts[k | known[0]])
            for k in range(sums.count)
        ]
        return context.make_tuple(builder, sums, found)

    return sums(sums, distance), codegen


@intrinsic
def fold_first(typingctx, sums, rows, left):
    known = literal_of(rows, left)
    if known is None:
        return None
    rows_, left_ = known
    each = sums.count // rows_
    result = types.UniTuple(sums.dtype, rows_)

    def codegen(context, builder, signature, arguments):
        parts, found = items_of(builder, arguments[0], sums.count), []
        for row in range(rows_):
            part = parts[row * each : (row + 1) * each]
            while len(part) > left_:
                half = len(part) // 2
                pairs = zip(part[:half], part[half:], strict=True)
                part = [add(context, builder, sums.dtype, *pair) for pair in pairs]
            found.append(part[0])
        return context.make_tuple(builder, result, found)

    return result(sums, rows, left), codegen
