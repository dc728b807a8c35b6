"""Numbers of x loaded into registers one by one, for the columns of a tile."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.language.numba_cuda.formats import decoded, is_narrow, load_number, widened
from gemv.language.numba_cuda.loads import KEEP, single_of
from gemv.language.numba_cuda.registers import (
    integer_of,
    items_of,
    literal_of,
    present_at,
    registers_of,
)


def _gathering(pointer, count, width, *bounds):
    """Signature and code of a gather; `bounds` are the types of ``valid`` and ``limit``, if any."""
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, count_ * width_)

    def codegen(context, builder, signature, arguments):
        base, index, step, _, increment, _, *bounds_ = arguments
        valid, limit = bounds_[:1], bounds_[1:]
        values, number = [], index
        start, far = builder.mul(index, increment), builder.mul(step, increment)
        for k in range(count_):
            at = start = builder.add(start, far) if k else start
            present = present_at(builder, k, *valid)
            number = builder.add(number, step) if k and limit else number
            for lane in range(width_):
                at = builder.add(at, increment) if lane else at
                address = builder.gep(base, [at])
                inside = present
                if limit:
                    own = builder.add(number, integer_of(lane)) if lane else number
                    inside = builder.and_(present, builder.icmp_signed("<", own, *limit))
                values.append(
                    single_of(context, builder, pointer, address, inside)
                    if valid
                    else load_number(context, builder, pointer, address)
                )
        return context.make_tuple(builder, result, values)

    sizes = types.int64, types.int64, count, types.int64, width
    return result(pointer, *sizes, *bounds), codegen


@intrinsic
def gather(typingctx, pointer, index, step, count, increment, width):
    return _gathering(pointer, count, width)


@intrinsic
def gather_some(typingctx, pointer, index, step, count, increment, width, valid):
    return _gathering(pointer, count, width, types.int64)


@intrinsic
def gather_inside(typingctx, pointer, index, step, count, increment, width, valid, limit):
    return _gathering(pointer, count, width, types.int64, types.int64)


@intrinsic
def gather_stored(typingctx, pointer, index, step, count, increment, valid):
    known = literal_of(count)
    if known is None:
        return None
    narrow = is_narrow(pointer)
    result = types.UniTuple(types.uint16 if narrow else pointer.dtype, known[0])

    def codegen(context, builder, signature, arguments):
        base, index, step, _, increment, valid = arguments
        at, far = builder.mul(index, increment), builder.mul(step, increment)
        values: list = []
        for k in range(result.count):
            at = builder.add(at, far) if k else at
            address, present = builder.gep(base, [at]), present_at(builder, k, valid)
            values += (
                registers_of(builder, types.uint16, address, 1, KEEP, present)
                if narrow
                else [single_of(context, builder, pointer, address, present)]
            )
        return context.make_tuple(builder, result, values)

    sizes = types.int64, types.int64, count, types.int64, types.int64
    return result(pointer, *sizes), codegen


@intrinsic
def from_stored(typingctx, pointer, values):
    result = types.UniTuple(pointer.dtype, values.count)

    def codegen(context, builder, signature, arguments):
        items = items_of(builder, arguments[1], values.count)
        if is_narrow(pointer):
            items = [
                widened(context, builder, pointer, decoded(builder, pointer, bits))
                for bits in items
            ]
        return context.make_tuple(builder, result, items)

    return result(pointer, values), codegen


@intrinsic
def spread(typingctx, factors, count, width, first, period):
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(factors.dtype, factors.count // count_ * width_)

    def codegen(context, builder, signature, arguments):
        values, _, _, first, period = arguments
        values = items_of(builder, values, factors.count)
        kind = ir.IntType(32)
        first, period = builder.trunc(first, kind), builder.trunc(period, kind)
        behind = []  # for each place, whether it is behind 1, 2, ... periods
        for lane in range(width_):
            at, limit, marks = builder.add(first, ir.Constant(kind, lane)), period, []
            for _ in range(1, count_):
                marks.append(builder.icmp_unsigned(">=", at, limit))
                limit = builder.add(limit, period)
            behind.append(marks)
        found = []
        for own in range(0, factors.count, count_):
            for marks in behind:
                value = values[own]
                for k, mark in enumerate(marks, 1):
                    value = builder.select(mark, values[own + k], value)
                found.append(value)
        return context.make_tuple(builder, result, found)

    return result(factors, count, width, types.int64, types.int64), codegen
