"""Products with x, added up in a thread and between the lanes of a warp."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.core.shares import shares
from gemv.language.numba_cuda.registers import (
    complex_of,
    integer_of,
    items_of,
    literal_of,
    stored_bits,
    unit_of,
)
from gemv.language.numba_cuda.twofold import (
    added,
    exchanged,
    multiplied,
    plus_zero_of,
    product_added,
    rounded_product,
)
from gemv.language.numba_cuda.twofold_types import TwofoldType


def _negative(builder, value):
    # NVVM's IR has no negation of floats; it writes -0.0 - value, which is right for zeros as well.
    return builder.fsub(ir.Constant(value.type, -0.0), value)


def sum_with_product(context, builder, element, total, value, factor, conjugate):
    """``total + op(value)*factor`` by explicit fused multiply-adds, four for complex numbers."""
    if isinstance(element, TwofoldType):
        return product_added(context, builder, element, total, value, factor, conjugate)
    if not isinstance(element, types.Complex):
        if value.type != total.type:  # float16 in float64: float32 holds the product exactly
            return builder.fadd(builder.fpext(builder.fmul(value, factor), total.type), total)
        return builder.fma(value, factor, total)
    number = context.make_complex(builder, element, value)
    factor = context.make_complex(builder, element, factor)
    total = context.make_complex(builder, element, total)
    imag = _negative(builder, number.imag) if conjugate else number.imag
    minus = _negative(builder, imag)
    real = builder.fma(number.real, factor.real, total.real)
    real = builder.fma(minus, factor.imag, real)
    other = builder.fma(number.real, factor.imag, total.imag)
    other = builder.fma(imag, factor.real, other)
    return complex_of(context, builder, element, real, other)


@intrinsic
def times(typingctx, factor, number):
    of_two = isinstance(number, TwofoldType)
    if not of_two and not isinstance(number, (types.Float, types.Complex)):
        return None

    def codegen(context, builder, signature, arguments):
        if of_two:
            return multiplied(context, builder, number, *arguments)
        if not isinstance(number, types.Complex):
            return rounded_product(builder, *arguments)
        left, right = (context.make_complex(builder, number, each) for each in arguments)
        minus = _negative(builder, left.imag)
        real = builder.fma(minus, right.imag, rounded_product(builder, left.real, right.real))
        other = rounded_product(builder, left.real, right.imag)
        other = builder.fma(left.imag, right.real, other)
        return complex_of(context, builder, number, real, other)

    return number(number.plain if of_two else number, number), codegen


@intrinsic
def plus_zero(typingctx, number):
    of_two = isinstance(number, TwofoldType)
    if not of_two and not isinstance(number, (types.Float, types.Complex)):
        return None

    def codegen(context, builder, signature, arguments):
        (value,) = arguments
        if of_two:
            return plus_zero_of(context, builder, number, value)
        if not isinstance(number, types.Complex):
            return builder.fadd(value, ir.Constant(value.type, 0.0))
        parts = context.make_complex(builder, number, value)
        nothing = ir.Constant(parts.real.type, 0.0)
        real, imag = (builder.fadd(part, nothing) for part in (parts.real, parts.imag))
        return complex_of(context, builder, number, real, imag)

    return number(number), codegen


@intrinsic
def multiply_add(typingctx, sums, tile, x, conjugate):
    if literal_of(conjugate) is None:
        return None
    element = sums.dtype
    rows = tile.count // x.count
    width = sums.count // rows

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        values = items_of(builder, arguments[1], tile.count)
        factors = items_of(builder, arguments[2], x.count)
        for row in range(rows):
            for k, factor in enumerate(factors):
                at = row * width + k % width
                parts[at] = sum_with_product(
                    context, builder, element, parts[at], values[row * x.count + k], factor,
                    conjugate.literal_value,
                )  # fmt: skip
        return context.make_tuple(builder, sums, parts)

    return sums(sums, tile, x, conjugate), codegen


@intrinsic
def axpy_add(typingctx, sums, tile, x, width, conjugate):
    known = literal_of(width, conjugate)
    if known is None:
        return None
    width_, conjugate_ = known
    element = sums.dtype

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        values = items_of(builder, arguments[1], tile.count)
        factors = items_of(builder, arguments[2], x.count)
        for at in range(sums.count):
            piece, lane = divmod(at, width_)
            for k, factor in enumerate(factors):
                value = values[(piece * x.count + k) * width_ + lane]
                parts[at] = sum_with_product(
                    context, builder, element, parts[at], value, factor, conjugate_
                )
        return context.make_tuple(builder, sums, parts)

    return sums(sums, tile, x, width, conjugate), codegen


@intrinsic
def outer_add(typingctx, sums, tile, shared, index, step, count, width, conjugate):
    known = literal_of(count, width, conjugate)
    if known is None:
        return None
    count_, width_, conjugate_ = known
    element = sums.dtype
    each = sums.count // count_
    columns = tile.count // each
    unit = min(count_, LOAD_BYTES * 8 // stored_bits(shared.dtype))

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        values = items_of(builder, arguments[1], tile.count)
        array, at, step = arguments[2:5]
        for k in range(columns):
            at = builder.add(at, step) if k else at
            factors = []
            for first in range(0, count_, unit):
                place = builder.add(at, integer_of(first)) if first else at
                factors += unit_of(context, builder, shared, array, place, unit)
            for own, factor in enumerate(factors):
                for lane in range(each):
                    piece, row = divmod(lane, width_)
                    value = values[(piece * columns + k) * width_ + row]
                    parts[own * each + lane] = sum_with_product(
                        context, builder, element, parts[own * each + lane], value, factor,
                        conjugate_,
                    )  # fmt: skip
        return context.make_tuple(builder, sums, parts)

    sizes = types.int64, types.int64, count, width
    return sums(sums, tile, shared, *sizes, conjugate), codegen


def add(context, builder, element, left, right):
    """``left + right`` for numbers of type `element`."""
    if isinstance(element, TwofoldType):
        return added(context, builder, element, left, right)
    if not isinstance(element, types.Complex):
        return builder.fadd(left, right)
    left = context.make_complex(builder, element, left)
    right = context.make_complex(builder, element, right)
    real, imag = builder.fadd(left.real, right.real), builder.fadd(left.imag, right.imag)
    return complex_of(context, builder, element, real, imag)


#: How a shuffle finds the other lane: by its number, or by the bits in which the two differ.
_NUMBER, _DIFFERENCE = 0, 3


def of_lane_number(context, builder, element, value, lane):
    """The `value` that the lane with this number has."""
    return _exchanged(context, builder, element, value, lane, _NUMBER)


def _exchanged(context, builder, element, value, other, mode=_DIFFERENCE):
    """The `value` of another lane; a shuffle moves 32 bits at a time."""
    if isinstance(element, TwofoldType):
        return exchanged(
            context, builder, element, value,
            lambda part: _exchanged(context, builder, element.real, part, other, mode),
        )  # fmt: skip
    if isinstance(element, types.Complex):
        number = context.make_complex(builder, element, value)
        real = element.underlying_float
        return complex_of(
            context, builder, element,
            _exchanged(context, builder, real, number.real, other, mode),
            _exchanged(context, builder, real, number.imag, other, mode),
        )  # fmt: skip
    word, whole = ir.IntType(32), ir.IntType(element.bitwidth)
    bits = builder.bitcast(value, whole)
    result = ir.Constant(whole, 0)
    for shift in range(0, element.bitwidth, 32):
        half = builder.trunc(builder.lshr(bits, ir.Constant(whole, shift)), word)
        half = builder.zext(_shuffled(builder, half, other, mode), whole)
        result = builder.or_(result, builder.shl(half, ir.Constant(whole, shift)))
    return builder.bitcast(result, value.type)


def _shuffled(builder, word, other, mode):
    """The 32-bit `word` of another lane; `other` is a number, or a value of 32 bits."""
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.LiteralStructType([i32, ir.IntType(1)]), [i32] * 5)
    # NVVM's own function: no optimisation moves it into a branch.
    shuffle = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.shfl.sync.i32")
    full_warp, last_lane = -1, 31
    lane = ir.Constant(i32, other) if isinstance(other, int) else other
    mask, how, clamp = (ir.Constant(i32, number) for number in (full_warp, mode, last_lane))
    return builder.extract_value(builder.call(shuffle, [mask, how, word, lane, clamp]), 0)


@intrinsic
def butterfly(typingctx, values, lanes, apart):
    known = literal_of(lanes, apart)
    if known is None:
        return None
    element = values.dtype

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], values.count)
        step = known[0] // 2
        while step >= known[1]:
            parts = [
                add(context, builder, element, part,
                     _exchanged(context, builder, element, part, step))
                for part in parts
            ]  # fmt: skip
            step //= 2
        return context.make_tuple(builder, values, parts)

    return values(values, lanes, apart), codegen


@intrinsic
def sums_of_lane(typingctx, values, lane):
    element = values.dtype

    def codegen(context, builder, signature, arguments):
        lane = builder.trunc(arguments[1], ir.IntType(32))
        parts = [
            of_lane_number(context, builder, element, part, lane)
            for part in items_of(builder, arguments[0], values.count)
        ]
        return context.make_tuple(builder, values, parts)

    return values(values, types.int64), codegen


@intrinsic
def scatter_sums(typingctx, values, tid, width, lanes, apart):
    known = literal_of(width, lanes, apart)
    if known is None:
        return None
    element, (_, lanes_, apart_) = values.dtype, known
    least = values.count // shares(values.count, *known)
    result = types.UniTuple(element, least)

    def codegen(context, builder, signature, arguments):
        parts, tid = items_of(builder, arguments[0], values.count), arguments[1]
        step = lanes_ // 2
        while step >= apart_:
            kept = sent = parts
            if len(parts) > least:
                bit = builder.and_(tid, integer_of(step))
                upper = builder.icmp_unsigned("!=", bit, integer_of(0))
                half = len(parts) // 2
                pairs = list(zip(parts[:half], parts[half:], strict=True))
                kept = [builder.select(upper, high, low) for low, high in pairs]
                sent = [builder.select(upper, low, high) for low, high in pairs]
            parts = [
                add(context, builder, element, mine,
                     _exchanged(context, builder, element, other, step))
                for mine, other in zip(kept, sent, strict=True)
            ]  # fmt: skip
            step //= 2
        return context.make_tuple(builder, result, parts)

    return result(values, types.int64, width, lanes, apart), codegen


@intrinsic
def fold(typingctx, sums, rows):
    known = literal_of(rows)
    if known is None:
        return None
    element = sums.dtype
    width = sums.count // known[0]
    result = types.UniTuple(element, known[0])

    def codegen(context, builder, signature, arguments):
        values = items_of(builder, arguments[0], sums.count)
        folded = []
        for row in range(known[0]):
            part = values[row * width : (row + 1) * width]
            while len(part) > 1:
                half = len(part) // 2
                part = [
                    add(context, builder, element, part[k], part[k + half]) for k in range(half)
                ]
            folded.append(part[0])
        return context.make_tuple(builder, result, folded)

    return result(sums, rows), codegen


@intrinsic
def fold_pieces(typingctx, sums, width):
    known = literal_of(width)
    if known is None:
        return None
    element = sums.dtype
    result = types.UniTuple(element, known[0])

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        while len(parts) > known[0]:
            half = len(parts) // 2
            parts = [
                add(context, builder, element, low, high)
                for low, high in zip(parts[:half], parts[half:], strict=True)
            ]
        return context.make_tuple(builder, result, parts)

    return result(sums, width), codegen


@intrinsic
def pieces_of(typingctx, sums, first, count, width):
    known = literal_of(first, count, width)
    if known is None:
        return None
    first_, count_, width_ = known
    result = types.UniTuple(sums.dtype, count_ * width_)

    def codegen(context, builder, signature, arguments):
        parts = items_of(builder, arguments[0], sums.count)
        own = parts[first_ * width_ : (first_ + count_) * width_]
        return context.make_tuple(builder, result, own)

    return result(sums, first, count, width), codegen


@intrinsic
def add_each(typingctx, left, right):
    def codegen(context, builder, signature, arguments):
        both = [items_of(builder, values, left.count) for values in arguments]
        parts = [
            add(context, builder, left.dtype, one, other) for one, other in zip(*both, strict=True)
        ]
        return context.make_tuple(builder, left, parts)

    return left(left, left), codegen
