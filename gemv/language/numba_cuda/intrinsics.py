"""Device functions for integers, constant memory, single loads and atomics, as instructions."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import cuda
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.language.numba_cuda.registers import WHOLE_LINES

#: PTX register class and suffix of the types that move in one instruction.
_PTX = {
    types.float32: ("f", "f32", ir.FloatType()),
    types.float64: ("d", "f64", ir.DoubleType()),
    types.uint32: ("r", "u32", ir.IntType(32)),
}


def device(function):
    return cuda.jit(device=True)(function)


def inlined(function):
    return cuda.jit(device=True, forceinline=True)(function)


def constant_array(name, dtype, size):
    """The symbol is in constant bank 3."""
    element = numba.from_dtype(np.dtype(dtype))

    @intrinsic
    def load(typingctx, index):
        def codegen(context, builder, signature, arguments):
            module = builder.module
            try:
                symbol = module.get_global(name)
            except KeyError:
                array = ir.ArrayType(context.get_data_type(element), size)
                symbol = ir.GlobalVariable(module, array, name, addrspace=4)
                # Not marked constant: the compiler would believe in the zeros.
                symbol.initializer = ir.Constant(array, None)
                symbol.align = 16  # a pair of neighbours moves in one instruction
            zero = ir.Constant(ir.IntType(64), 0)
            return builder.load(builder.gep(symbol, [zero, arguments[0]]))

        return element(types.int64), codegen

    return load


def _parts(context, builder, element, load, step):
    """An element, from ``load(kind, offset)``: one load, or two if it is complex.

    `step` is the offset of the imaginary part.
    """
    if not isinstance(element, types.Complex):
        return load(_PTX[element], 0)
    number = context.make_complex(builder, element)
    number.real = load(_PTX[element.underlying_float], 0)
    number.imag = load(_PTX[element.underlying_float], step)
    return number._getvalue()


@intrinsic
def read_only_load(typingctx, pointer, index):
    """``ld.global.nc``."""
    element = pointer.dtype

    def codegen(context, builder, signature, arguments):
        address = _element(builder, arguments[0], arguments[1])

        def load(kind, offset):
            letter, suffix, llvm = kind
            asm = ir.InlineAsm(
                ir.FunctionType(llvm, [address.type]),
                f"ld.global.nc.{suffix} $0, [$1+{offset}];",
                f"={letter},l",
            )
            return builder.call(asm, [address])

        return _parts(context, builder, element, load, _real_bytes(element))

    return element(pointer, types.int64), codegen


#: Stands in PTX for the name of the parameter that holds an array by value.
PARAMETER = "GEMV_ARRAY_PARAMETER"


@intrinsic
def parameter_load(typingctx, pointer, index):
    """``ld.param`` from constant bank 0; `pointer` only tells the type.

    Numba passes an array by value only as a tuple, and reaches an item with a variable index
    through a switch of as many branches. PTX can index a parameter, so
    :func:`gemv.language.numba_cuda.ptx.x_by_value` declares it in the PTX.
    """
    element = pointer.dtype

    def codegen(context, builder, signature, arguments):
        size = ir.Constant(ir.IntType(64), element.bitwidth // 8)
        offset = builder.mul(arguments[1], size)

        def load(kind, more):
            letter, suffix, llvm = kind
            asm = ir.InlineAsm(
                ir.FunctionType(llvm, [offset.type]),
                "{ .reg .b64 %at; mov.b64 %at, " + PARAMETER + "; add.s64 %at, %at, $1;"
                f" ld.param.{suffix} $0, [%at+{more}]; }}",
                f"={letter},l",
            )
            return builder.call(asm, [offset])

        return _parts(context, builder, element, load, _real_bytes(element))

    return element(pointer, types.int64), codegen


def _real_bytes(element):
    """Bytes of an element, or of its real part if it is complex."""
    return element.bitwidth // (16 if isinstance(element, types.Complex) else 8)


def _element(builder, pointer, index):
    return builder.gep(pointer, [index])


def _atomic(builder, operation, element_type, address, value):
    """One ``atom.global`` instruction. Its order is relaxed: fences are up to the caller."""
    letter, suffix, llvm = _PTX[element_type]
    function = ir.FunctionType(llvm, [address.type, llvm])
    # "memory" keeps the compiler from moving other loads and stores across it.
    text = f"atom.global.{operation}.{suffix} $0, [$1], $2;"
    asm = ir.InlineAsm(function, text, f"={letter},l,{letter},~{{memory}}", side_effect=True)
    return builder.call(asm, [address, value])


@intrinsic
def atomic_add(typingctx, pointer, index, value):
    """`pointer` points to global memory; nothing is returned."""
    element = pointer.dtype
    signature = types.void(pointer, types.int64, element)

    def codegen(context, builder, signature, arguments):
        address = _element(builder, arguments[0], arguments[1])
        if isinstance(element, types.Complex):
            number = context.make_complex(builder, element, arguments[2])
            real = element.underlying_float
            first = builder.bitcast(address, _PTX[real][2].as_pointer())
            one = ir.Constant(ir.IntType(32), 1)
            _atomic(builder, "add", real, first, number.real)
            _atomic(builder, "add", real, builder.gep(first, [one]), number.imag)
        else:
            _atomic(builder, "add", element, address, arguments[2])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def atomic_inc(typingctx, pointer, index, limit):
    """`pointer` points to global memory."""
    signature = types.uint32(pointer, types.int64, types.uint32)

    def codegen(context, builder, signature, arguments):
        address = _element(builder, arguments[0], arguments[1])
        return _atomic(builder, "inc", types.uint32, address, arguments[2])

    return signature, codegen


@intrinsic
def short(typingctx, number):
    if not isinstance(number, types.Integer):
        return None

    def codegen(context, builder, signature, arguments):
        (value,) = arguments
        if number.bitwidth > 32:
            value = builder.trunc(value, ir.IntType(32))
        return builder.zext(value, ir.IntType(64))

    return types.int64(number), codegen


@intrinsic
def natural(typingctx, number):
    if not isinstance(number, types.Integer):
        return None

    def codegen(context, builder, signature, arguments):
        (value,) = arguments
        if number.bitwidth < 64:
            return builder.zext(value, ir.IntType(64))
        return builder.and_(value, ir.Constant(value.type, 2**63 - 1))

    return types.int64(number), codegen


@intrinsic
def rolled(typingctx):
    """An empty piece of inline assembly that claims to change memory.

    The compiler copies the body of a loop if it can compute the number of turns beforehand, and
    divides for that if the step is no constant. It does not copy a body that has such a side
    effect.
    """

    def codegen(context, builder, signature, arguments):
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(nothing, "", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), codegen


def _known(name, number):
    """The value of a constant divisor; None as long as Numba has not offered it as a literal."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    if number.literal_value < 1:
        raise ValueError(f"{name}: a divisor must be 1 or more, got {number.literal_value}")
    return number.literal_value


def _remainder(builder, value, size):
    """``value % size`` as Python defines it: never negative."""
    if size & (size - 1) == 0:
        return builder.and_(value, ir.Constant(value.type, size - 1))
    rest = builder.srem(value, ir.Constant(value.type, size))
    negative = builder.icmp_signed("<", rest, ir.Constant(value.type, 0))
    return builder.select(negative, builder.add(rest, ir.Constant(value.type, size)), rest)


@intrinsic
def rounded_down(typingctx, number, multiple):
    size = _known("rounded_down", multiple)
    if size is None:
        return None

    def codegen(context, builder, signature, arguments):
        value = arguments[0]
        return builder.sub(value, _remainder(builder, value, size))

    return types.int64(types.int64, multiple), codegen


@intrinsic
def quotient(typingctx, number, divisor):
    size = _known("quotient", divisor)
    if size is None:
        return None

    def codegen(context, builder, signature, arguments):
        value = arguments[0]
        if size & (size - 1) == 0:
            return builder.ashr(value, ir.Constant(value.type, size.bit_length() - 1))
        whole = builder.sub(value, _remainder(builder, value, size))
        return builder.sdiv(whole, ir.Constant(value.type, size))

    return types.int64(types.int64, divisor), codegen


@intrinsic
def vector_load(typingctx, pointer, index, count):
    """``ld.global.nc.L1::no_allocate``."""
    if not isinstance(count, types.IntegerLiteral):
        return None  # Numba asks again with the literal
    element = pointer.dtype
    lanes = count.literal_value
    signature = types.UniTuple(element, lanes)(pointer, types.int64, count)

    def codegen(context, builder, signature, arguments):
        letter, suffix, llvm = _PTX[element]
        address = _element(builder, arguments[0], arguments[1])
        result = ir.LiteralStructType([llvm] * lanes)
        function = ir.FunctionType(result, [address.type])
        registers = ", ".join(f"${i}" for i in range(lanes))
        load = f"ld.global.nc.L1::no_allocate{WHOLE_LINES}.v{lanes}.{suffix}"
        text = f"{load} {{{registers}}}, [${lanes}];"
        asm = ir.InlineAsm(function, text, ",".join([f"={letter}"] * lanes) + ",l")
        loaded = builder.call(asm, [address])
        values = [builder.extract_value(loaded, i) for i in range(lanes)]
        return context.make_tuple(builder, signature.return_type, values)

    return signature, codegen
