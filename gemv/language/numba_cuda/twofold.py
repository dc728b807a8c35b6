"""Sums of two numbers for a GPU: Numba types, operators, and the instructions behind them.

:mod:`gemv.language.twofold` explains the arithmetic.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic, overload, overload_method

from gemv.language.numba_cuda.twofold_types import SUMS, ExactType, TwofoldType

_FLOAT, _DOUBLE, _WORD = ir.FloatType(), ir.DoubleType(), ir.IntType(32)


def _instruction(builder, text, *arguments):
    """One PTX instruction that names its rounding, so that nothing fuses or reorders it."""
    kind = arguments[0].type
    suffix, letter = ("f64", "d") if kind == _DOUBLE else ("f32", "f")
    names = ", ".join(f"${k}" for k in range(len(arguments) + 1))
    function = ir.FunctionType(kind, [kind] * len(arguments))
    constraints = ",".join([f"={letter}"] + [letter] * len(arguments))
    asm = ir.InlineAsm(function, f"{text}.{suffix} {names};", constraints)
    return builder.call(asm, list(arguments))


def _plus(builder, a, b):
    return _instruction(builder, "add.rn", a, b)


def _minus(builder, a, b):
    return _instruction(builder, "sub.rn", a, b)


def _negative(builder, a):
    return _instruction(builder, "neg", a)


def _fma(builder, a, b, c):
    return _instruction(builder, "fma.rn", a, b, c)


def _two_sum(builder, a, b):
    """``a + b`` rounded, and the error of that."""
    total = _plus(builder, a, b)
    other = _minus(builder, total, a)
    left = _minus(builder, a, _minus(builder, total, other))
    return total, _plus(builder, left, _minus(builder, b, other))


def _two_product(builder, a, b):
    """``a * b`` rounded, and the error of that."""
    high = _instruction(builder, "mul.rn", a, b)
    return high, _fma(builder, a, b, _negative(builder, high))


def _added(builder, left, right):
    """The sum of two sums of two, each given as (high, low)."""
    high, error = _two_sum(builder, left[0], right[0])
    low = _plus(builder, left[1], right[1])
    return high, _plus(builder, low, error)


def _product_added(builder, total, a, b):
    """``total + a*b`` for a sum of two, given as (high, low), and two numbers."""
    high, error = _two_product(builder, a, b)
    return _added(builder, total, (high, error))


def _scaled(builder, factor, pair):
    """``factor * pair`` for a number and a sum of two, given as (high, low)."""
    high, error = _two_product(builder, factor, pair[0])
    return high, _fma(builder, factor, pair[1], error)


def _parts(builder, value, count):
    """The first `count` members of a struct."""
    return [builder.extract_value(value, k) for k in range(count)]


def _pairs(builder, kind, value):
    """The sums of two in `value`, as (high, low): one, or two if it is complex."""
    parts = _parts(builder, value, 2 * kind.parts)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _made(context, builder, kind, parts):
    """A struct of type `kind` from its members."""
    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for k, part in enumerate(parts):
        value = builder.insert_value(value, part, k)
    return value


def _of_pairs(context, builder, kind, pairs):
    """A sum of type `kind` from its sums of two, given as (high, low)."""
    return _made(context, builder, kind, [part for pair in pairs for part in pair])


def product_added(context, builder, kind, total, value, factor, conjugate):
    """``total + op(value)*factor`` for a sum of two and exact numbers."""
    pairs = _pairs(builder, kind, total)
    a, b = (_parts(builder, each, kind.parts) for each in (value, factor))
    if kind.parts == 1:
        pairs = [_product_added(builder, pairs[0], a[0], b[0])]
    else:
        imag = _negative(builder, a[1]) if conjugate else a[1]
        real = _product_added(builder, pairs[0], a[0], b[0])
        real = _product_added(builder, real, _negative(builder, imag), b[1])
        other = _product_added(builder, pairs[1], a[0], b[1])
        other = _product_added(builder, other, imag, b[0])
        pairs = [real, other]
    return _of_pairs(context, builder, kind, pairs)


def added(context, builder, kind, left, right):
    """``left + right`` for sums of two."""
    pairs = zip(_pairs(builder, kind, left), _pairs(builder, kind, right), strict=True)
    return _of_pairs(context, builder, kind, [_added(builder, *each) for each in pairs])


def exchanged(context, builder, kind, value, exchange):
    """A sum of two whose real numbers went through ``exchange(number)`` one by one."""
    parts = [exchange(part) for part in _parts(builder, value, 2 * kind.parts)]
    return _made(context, builder, kind, parts)


def _nothing(number):
    return ir.Constant(number.type, 0.0)


def _finite(builder, number):
    # inf - inf and NaN - NaN are NaN, which is equal to nothing.
    return builder.fcmp_ordered("==", _minus(builder, number, number), _nothing(number))


def _rounded(builder, pair):
    """The number that a sum of two, (high, low), is rounded to; `high` if that is not finite."""
    total = _plus(builder, *pair)
    # Where low is zero, high is the result: the sum would lose the sign of a zero.
    lost = builder.fcmp_unordered("!=", pair[1], _nothing(pair[1]))
    return builder.select(builder.and_(_finite(builder, total), lost), total, pair[0])


def _rounded_to_odd(builder, pair):
    """A sum of two float32 as one whose last bit is set if anything was cut off.

    Rounding to nearest a second time, to a number of 16 bits, is then right; after a first rounding
    to nearest it could be wrong at a tie.
    """
    total, error = _two_sum(builder, *pair)
    bits = builder.bitcast(total, _WORD)
    even = builder.icmp_unsigned("==", builder.and_(bits, _word(1)), _word(0))
    cut = builder.fcmp_ordered("!=", error, _nothing(error))  # false for a NaN
    away = builder.xor(
        builder.fcmp_ordered("<", total, _nothing(total)),
        builder.fcmp_ordered(">", error, _nothing(error)),
    )
    step = builder.select(away, _word(1), _word(-1))
    moved = builder.bitcast(builder.add(bits, step), _FLOAT)
    total = builder.select(builder.and_(even, cut), moved, total)
    return builder.select(_finite(builder, total), total, pair[0])


def _word(value):
    return ir.Constant(_WORD, value)


def from_loaded(context, builder, kind, value):
    """An exact number or a sum of two, whichever `kind` is, from a plain number."""
    reals = [value]
    if kind.parts == 2:
        number = context.make_complex(builder, kind.plain, value)
        reals = [number.real, number.imag]
    if isinstance(kind, ExactType):
        return _made(context, builder, kind, reals)
    return _of_pairs(context, builder, kind, [(real, _nothing(real)) for real in reals])


def to_stored(context, builder, kind, value, narrow):
    """The plain number that a sum of two is rounded to.

    If it is to be rounded again, to a `narrow` number of 16 bits, its last bit is prepared for
    that.
    """
    pairs = _pairs(builder, kind, value)
    if narrow:
        return _rounded_to_odd(builder, pairs[0])
    reals = [_rounded(builder, pair) for pair in pairs]
    if kind.parts == 1:
        return reals[0]
    number = context.make_complex(builder, kind.plain)
    number.real, number.imag = reals
    return number._getvalue()


@intrinsic
def _multiplied(typingctx, a, b):
    """``a * b`` for two exact numbers: a sum of two, without any error."""
    kind = next(each for each in SUMS.values() if each.plain == a.plain)

    def codegen(context, builder, signature, arguments):
        p, q = (_parts(builder, each, kind.parts) for each in arguments)
        pairs = [_two_product(builder, p[0], q[0])]
        if kind.parts == 2:
            pairs[0] = _product_added(builder, pairs[0], _negative(builder, p[1]), q[1])
            other = _two_product(builder, p[0], q[1])
            pairs.append(_product_added(builder, other, p[1], q[0]))
        return _of_pairs(context, builder, kind, pairs)

    return kind(a, b), codegen


def multiplied(context, builder, kind, factor, total):
    """``factor * total`` for a plain number and a sum of two."""
    pairs = _pairs(builder, kind, total)
    if kind.parts == 1:
        return _of_pairs(context, builder, kind, [_scaled(builder, factor, pairs[0])])
    number = context.make_complex(builder, kind.plain, factor)
    minus = _negative(builder, number.imag)
    real = _added(
        builder,
        _scaled(builder, number.real, pairs[0]),
        _scaled(builder, minus, pairs[1]),
    )
    imag = _added(
        builder,
        _scaled(builder, number.real, pairs[1]),
        _scaled(builder, number.imag, pairs[0]),
    )
    return _of_pairs(context, builder, kind, [real, imag])


def plus_zero_of(context, builder, kind, value):
    """A sum of two in which a zero is positive: it is rounded to `high` where `low` is zero."""
    pairs = _pairs(builder, kind, value)
    pairs = [(_plus(builder, high, _nothing(high)), low) for high, low in pairs]
    return _of_pairs(context, builder, kind, pairs)


def rounded_product(builder, a, b):
    """``a * b`` for two real numbers, which nothing fuses with a sum."""
    return _instruction(builder, "mul.rn", a, b)


@intrinsic
def _product(typingctx, left, right):
    """``left * right`` for two sums of two."""

    def product(builder, a, b):
        high, error = _two_product(builder, a[0], b[0])
        error = _fma(builder, a[1], b[0], error)
        return high, _fma(builder, a[0], b[1], error)

    def codegen(context, builder, signature, arguments):
        a, b = (_pairs(builder, left, each) for each in arguments)
        if left.parts == 1:
            return _of_pairs(context, builder, left, [product(builder, a[0], b[0])])
        minus = [_negative(builder, part) for part in a[1]]
        real = _added(builder, product(builder, a[0], b[0]), product(builder, minus, b[1]))
        imag = _added(builder, product(builder, a[0], b[1]), product(builder, a[1], b[0]))
        return _of_pairs(context, builder, left, [real, imag])

    return left(left, right), codegen


@intrinsic
def _is_number(typingctx, value, number):
    """``value == number`` for a sum of two and a plain number."""

    def codegen(context, builder, signature, arguments):
        wanted = arguments[1]
        if value.real != types.float64:
            wanted = builder.fptrunc(wanted, _FLOAT)  # the compiler folds it: it is a constant
        result = ir.Constant(ir.IntType(1), 1)
        nothing = _nothing(wanted)
        for high, low in _pairs(builder, value, arguments[0]):
            result = builder.and_(result, builder.fcmp_ordered("==", high, wanted))
            result = builder.and_(result, builder.fcmp_ordered("==", low, nothing))
            wanted = nothing
        return result

    return types.boolean(value, types.float64), codegen


@intrinsic
def _sum(typingctx, left, right):
    def codegen(context, builder, signature, arguments):
        return added(context, builder, left, *arguments)

    return left(left, right), codegen


@intrinsic
def _conjugated(typingctx, value):
    def codegen(context, builder, signature, arguments):
        parts = _parts(builder, arguments[0], value.parts)
        parts[1:] = [_negative(builder, part) for part in parts[1:]]
        return _made(context, builder, value, parts)

    return value(value), codegen


@overload(operator.mul)
def _mul(left, right):
    if isinstance(left, ExactType) and isinstance(right, ExactType):
        return lambda left, right: _multiplied(left, right)
    if isinstance(left, TwofoldType) and isinstance(right, TwofoldType):
        return lambda left, right: _product(left, right)
    return None


@overload(operator.eq)
def _eq(left, right):
    if isinstance(left, TwofoldType) and isinstance(right, types.Number):
        return lambda left, right: _is_number(left, right)
    return None


@overload(operator.add)
@overload(operator.iadd)
def _add(left, right):
    if isinstance(left, TwofoldType) and isinstance(right, TwofoldType):
        return lambda left, right: _sum(left, right)
    return None


@overload_method(ExactType, "conjugate")
def _conjugate(value):
    return lambda value: _conjugated(value)
