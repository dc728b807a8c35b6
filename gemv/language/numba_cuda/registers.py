"""Tuples of numbers as the compiler sees them: one register an item; loads of several registers."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.language.numba_cuda.twofold_types import ExactType, TwofoldType

#: How a load asks for the whole 128 bytes around it. They come to the L2 cache, where other loads
#: find them.
WHOLE_LINES = ".L2::128B"

#: PTX register class, PTX suffix and LLVM type of the numbers that one register holds.
KINDS = {
    types.float32: ("f", "f32", ir.FloatType()),
    types.float64: ("d", "f64", ir.DoubleType()),
    types.uint16: ("h", "u16", ir.IntType(16)),
    types.uint32: ("r", "u32", ir.IntType(32)),
}

#: Zero as PTX writes it, by register class.
_NOTHING = {"f": "0f00000000", "d": "0d0000000000000000", "h": "0", "r": "0"}


def literal_of(*numbers):
    """The values of `numbers`; None as long as Numba has not offered all of them as literals."""
    if all(isinstance(number, types.IntegerLiteral) for number in numbers):
        return tuple(number.literal_value for number in numbers)
    return None


def real_of(element):
    """The real type of a number: its own, or that of its parts if it has several."""
    if isinstance(element, (ExactType, TwofoldType)):
        return element.real
    return element.underlying_float if isinstance(element, types.Complex) else element


def parts_of(element):
    """Real numbers that a number has."""
    if isinstance(element, TwofoldType):
        return 2 * element.parts
    if isinstance(element, ExactType):
        return element.parts
    return 2 if isinstance(element, types.Complex) else 1


def stored_bits(element):
    """Bits of a number in a shared array."""
    return parts_of(element) * real_of(element).bitwidth


def registers_of(builder, kind, address, count, instruction, present=None):
    """`count` registers of type `kind` by one load instruction.

    If `present` is given, the load is predicated: where that bit is 0 the registers are zeros, and
    nothing is loaded.
    """
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
    """A complex number of type `element` from its two parts."""
    number = context.make_complex(builder, element)
    number.real, number.imag = real, imag
    return number._getvalue()


def integer_of(value):
    """A constant of 64 bits."""
    return ir.Constant(ir.IntType(64), value)


def present_at(builder, k, valid=None):
    """The bit ``k < valid``; None, for a load without a predicate, if there is no `valid`."""
    return None if valid is None else builder.icmp_signed("<", integer_of(k), valid)


@intrinsic
def zeros(typingctx, zero, count):
    known = literal_of(count)
    if known is None:
        return None
    result = types.UniTuple(zero, known[0])

    def codegen(context, builder, signature, arguments):
        return context.make_tuple(builder, result, [arguments[0]] * known[0])

    return result(zero, count), codegen


def items_of(builder, value, count):
    """The `count` items of a tuple, as values of LLVM."""
    return [builder.extract_value(value, k) for k in range(count)]


@intrinsic
def kept(typingctx, values):
    """A move in inline assembly with a side effect: no compiler moves it into a loop behind it."""
    if isinstance(values, types.CPointer):

        def moved(context, builder, signature, arguments):
            (pointer,) = arguments
            same = ir.FunctionType(ir.IntType(64), [pointer.type])
            asm = ir.InlineAsm(same, "mov.b64 $0, $1;", "=l,l", side_effect=True)
            return builder.inttoptr(builder.call(asm, [pointer]), pointer.type)

        return values(values), moved
    element = values.dtype

    def settled(builder, real):
        if isinstance(element, types.Integer):
            letter, suffix = "l", "b64"
        else:
            letter, suffix = {32: ("f", "f32"), 64: ("d", "f64")}[real_of(element).bitwidth]
        same = ir.FunctionType(real.type, [real.type])
        text, kinds = f"mov.{suffix} $0, $1;", f"={letter},{letter}"
        return builder.call(ir.InlineAsm(same, text, kinds, side_effect=True), [real])

    def codegen(context, builder, signature, arguments):
        items = []
        for item in items_of(builder, arguments[0], values.count):
            if isinstance(element, types.Complex):
                number = context.make_complex(builder, element, item)
                parts = (settled(builder, part) for part in (number.real, number.imag))
                items.append(complex_of(context, builder, element, *parts))
            else:
                items.append(settled(builder, item))
        return context.make_tuple(builder, values, items)

    return values(values), codegen


def _reals_of(context, builder, element, items):
    """The real numbers that numbers of type `element` consist of."""
    reals: list = []
    for item in items:
        if isinstance(element, types.Complex):
            number = context.make_complex(builder, element, item)
            reals += number.real, number.imag
        elif isinstance(element, types.Float):
            reals.append(item)
        else:
            reals += items_of(builder, item, parts_of(element))
    return reals


def _put_reals(builder, reals, address, kind):
    """Store real numbers by as few stores as possible, at a multiple of what one of them moves."""
    count = min(len(reals), LOAD_BYTES * 8 // kind.bitwidth)
    vector = ir.VectorType(reals[0].type, count)
    start = builder.bitcast(address, vector.as_pointer())
    for first in range(0, len(reals), count):
        unit = ir.Constant(vector, ir.Undefined)
        for place, real in enumerate(reals[first : first + count]):
            unit = builder.insert_element(unit, real, ir.Constant(ir.IntType(32), place))
        own = builder.gep(start, [integer_of(first // count)])
        builder.store(unit, own, align=count * kind.bitwidth // 8)


def _putting(shared, values, width, as_units):
    """Signature and code of stores of pieces: by units of up to 16 bytes, or number by number."""
    known = literal_of(width)
    if known is None:
        return None
    step, element = known[0] if as_units else 1, shared.dtype

    def codegen(context, builder, signature, arguments):
        array, row, column, values_, distance = arguments[:5]
        view = context.make_array(shared)(context, builder, array)
        items = items_of(builder, values_, values.count)
        for first in range(0, values.count, step):
            piece, lane = divmod(first, known[0])
            place = builder.add(column, builder.mul(integer_of(piece), distance))
            place = builder.add(place, integer_of(lane))
            address = cgutils.get_item_pointer(
                context, builder, shared, view, [row, place], wraparound=False
            )
            if as_units:
                reals = _reals_of(context, builder, element, items[first : first + step])
                _put_reals(builder, reals, address, real_of(element))
            else:
                context.pack_value(builder, element, items[first], address)
        return context.get_dummy_value()

    sizes = types.int64, types.int64, values, types.int64
    return types.void(shared, *sizes, width), codegen


@intrinsic
def put_pieces(typingctx, shared, row, column, values, distance, width):
    return _putting(shared, values, width, False)


@intrinsic
def put_units(typingctx, shared, row, column, values, distance, width):
    return _putting(shared, values, width, True)


def _unit_at(context, builder, shared, array, index, count):
    """A pointer to `count` numbers of a shared array as one vector of real numbers."""
    view = context.make_array(shared)(context, builder, array)
    address = cgutils.get_item_pointer(context, builder, shared, view, [index], wraparound=False)
    vector = ir.VectorType(KINDS[real_of(shared.dtype)][2], count * parts_of(shared.dtype))
    return builder.bitcast(address, vector.as_pointer()), vector


@intrinsic
def put_unit(typingctx, shared, index, values, first, count):
    known = literal_of(first, count)
    if known is None:
        return None
    first_, count_ = known

    def codegen(context, builder, signature, arguments):
        array, index = arguments[:2]
        items = items_of(builder, arguments[2], values.count)[first_ : first_ + count_]
        address, _ = _unit_at(context, builder, shared, array, index, count_)
        reals = _reals_of(context, builder, shared.dtype, items)
        _put_reals(builder, reals, address, real_of(shared.dtype))
        return context.get_dummy_value()

    return types.void(shared, types.int64, values, first, count), codegen


def unit_of(context, builder, shared, array, index, count):
    """`count` numbers of a shared array as a list, by one load."""
    address, vector = _unit_at(context, builder, shared, array, index, count)
    unit = builder.load(address, align=vector.count * real_bytes(shared.dtype))
    values = [
        builder.extract_element(unit, ir.Constant(ir.IntType(32), place))
        for place in range(vector.count)
    ]
    parts, kind = parts_of(shared.dtype), context.get_value_type(shared.dtype)
    if isinstance(shared.dtype, (ExactType, types.Complex)):  # a struct of its parts
        numbers = []
        for first in range(0, len(values), parts):
            number = ir.Constant(kind, ir.Undefined)
            for k in range(parts):
                number = builder.insert_value(number, values[first + k], k)
            numbers.append(number)
        return numbers
    return values


@intrinsic
def load_units(typingctx, shared, index, count):
    known = literal_of(count)
    if known is None:
        return None
    count_ = known[0]
    result = types.UniTuple(shared.dtype, count_)

    def codegen(context, builder, signature, arguments):
        array, index = arguments[:2]
        values = unit_of(context, builder, shared, array, index, count_)
        return context.make_tuple(builder, result, values)

    return result(shared, types.int64, count), codegen


def real_bytes(element):
    """Bytes of a number, or of its real part if it is complex."""
    return real_of(element).bitwidth // 8
