"""Tiles of A in registers: tuples of numbers as the compiler sees them."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

KINDS = {
    types.float32: ("f", "f32", ir.FloatType()),
    types.float64: ("d", "f64", ir.DoubleType()),
    types.uint16: ("h", "u16", ir.IntType(16)),
    types.uint32: ("r", "u32", ir.IntType(32)),
}

#: Zero, as PTX writes it for each class of registers.
_NOTHING = {"f": "0f00000000", "d": "0d0000000000000000", "h": "0", "r": "0"}


def literal_of(*numbers):
    """Their values, or None while Numba has not yet offered them as literals."""
    if all(isinstance(number, types.IntegerLiteral) for number in numbers):
        return tuple(number.literal_value for number in numbers)
    return None


def real_of(element):
    return element.underlying_float if isinstance(element, types.Complex) else element


def registers_of(builder, kind, address, count, instruction, present=None):
    """`count` registers by one load instruction, or zeros and none where `present` is 0."""
    letter, suffix, llvm = KINDS[kind]
    registers = [f"${k}" for k in range(count)]
    many = f".v{count}" if count > 1 else ""
    target = f"{{{', '.join(registers)}}}" if count > 1 else "$0"
    text = f"{instruction}{many}.{suffix} {target}, [${count}];"
    inputs, kinds, output = [address], "l", "="
    if present is not None:
        output = "=&"
        inputs, kinds = [address, builder.zext(present, ir.IntType(32))], "l,r"
        zeros = " ".join(f"mov.{suffix} {each}, {_NOTHING[letter]};" for each in registers)
        text = f"{{ .reg .pred p; setp.ne.u32 p, ${count + 1}, 0; {zeros} @p {text} }}"
    result = llvm if count == 1 else ir.LiteralStructType([llvm] * count)
    function = ir.FunctionType(result, [each.type for each in inputs])
    asm = ir.InlineAsm(function, text, ",".join([f"{output}{letter}"] * count + [kinds]))
    loaded = builder.call(asm, inputs)
    return [loaded] if count == 1 else [builder.extract_value(loaded, k) for k in range(count)]


def complex_of(context, builder, element, real, imag):
    number = context.make_complex(builder, element)
    number.real, number.imag = real, imag
    return number._getvalue()


def integer_of(value):
    return ir.Constant(ir.IntType(64), value)


def present_at(builder, k, valid=None):
    """Whether number `k` is one of the first `valid`; None, for yes, without such a limit."""
    return None if valid is None else builder.icmp_signed("<", integer_of(k), valid)


@intrinsic
def zeros(typingctx, zero, count):
    """A tuple of `count` zeros, to sum in."""
    known = literal_of(count)
    if known is None:
        return None
    result = types.UniTuple(zero, known[0])

    def codegen(context, builder, signature, arguments):
        return context.make_tuple(builder, result, [arguments[0]] * known[0])

    return result(zero, count), codegen


def items_of(builder, value, count):
    return [builder.extract_value(value, k) for k in range(count)]


@intrinsic
def put_pieces(typingctx, shared, row, column, values, distance, width):
    """Store pieces of `width` neighbours, `distance` apart, into a row of a shared array."""
    known = literal_of(width)
    if known is None:
        return None
    width_ = known[0]

    def codegen(context, builder, signature, arguments):
        array, row, column, values_, distance = arguments[:5]
        view = context.make_array(shared)(context, builder, array)
        for at, value in enumerate(items_of(builder, values_, values.count)):
            piece, lane = divmod(at, width_)
            place = builder.add(column, builder.mul(integer_of(piece), distance))
            place = builder.add(place, integer_of(lane))
            address = cgutils.get_item_pointer(
                context, builder, shared, view, [row, place], wraparound=False
            )
            context.pack_value(builder, shared.dtype, value, address)
        return context.get_dummy_value()

    sizes = types.int64, types.int64, values, types.int64
    return types.void(shared, *sizes, width), codegen
