"""Device functions that Numba does not offer on a bare pointer, as instructions of the GPU."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import cuda
from numba.core import types
from numba.cuda.extending import intrinsic

#: PTX register class and suffix of the types that move in one instruction.
_PTX = {
    types.float32: ("f", "f32", ir.FloatType()),
    types.float64: ("d", "f64", ir.DoubleType()),
    types.uint32: ("r", "u32", ir.IntType(32)),
}


def device(function):
    """Mark a device function, compiled into each kernel that calls it."""
    return cuda.jit(device=True)(function)


def inlined(function):
    """Mark a device function that becomes part of its caller, whatever its size."""
    return cuda.jit(device=True, forceinline=True)(function)


def constant_array(name, dtype, size):
    """``load(index)`` from an array of `size` elements in constant memory (bank 3).

    The array is a symbol called `name` of the module that the kernel is compiled to; the host
    writes it at run time. Numba's own ``cuda.const.array_like`` is another thing: its values
    are fixed when the kernel is compiled.
    """
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
    """An element from one load, or from two when it is complex; `step` finds the second."""
    if not isinstance(element, types.Complex):
        return load(_PTX[element], 0)
    number = context.make_complex(builder, element)
    number.real = load(_PTX[element.underlying_float], 0)
    number.imag = load(_PTX[element.underlying_float], step)
    return number._getvalue()


@intrinsic
def read_only_load(typingctx, pointer, index):
    """``pointer[index]`` through the read-only cache, ``ld.global.nc``."""
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
    """``x[index]`` of an array passed by value, as a kernel parameter, in constant bank 0.

    `pointer` only tells the type. Numba can pass an array by value as a tuple, whose elements
    a variable index reaches through a switch of as many branches; PTX can index it, so the
    parameter is declared in the PTX (see :func:`gemv.language.numba_cuda.compile.compile_ptx`).
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
    return element.bitwidth // (16 if isinstance(element, types.Complex) else 8)


def _element(builder, pointer, index):
    return builder.gep(pointer, [index])


def _atomic(builder, operation, element_type, address, value):
    """One ``atom.global`` instruction; relaxed order, so fences stay the caller's business."""
    letter, suffix, llvm = _PTX[element_type]
    function = ir.FunctionType(llvm, [address.type, llvm])
    # "memory" keeps the compiler from moving other loads and stores across it.
    text = f"atom.global.{operation}.{suffix} $0, [$1], $2;"
    asm = ir.InlineAsm(function, text, f"={letter},l,{letter},~{{memory}}", side_effect=True)
    return builder.call(asm, [address, value])


@intrinsic
def atomic_add(typingctx, pointer, index, value):
    """Add to ``pointer[index]`` atomically; a complex value moves as two reals."""
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
    """Old value of ``pointer[index]``, which becomes old + 1, or 0 once old reached `limit`."""
    signature = types.uint32(pointer, types.int64, types.uint32)

    def codegen(context, builder, signature, arguments):
        address = _element(builder, arguments[0], arguments[1])
        return _atomic(builder, "inc", types.uint32, address, arguments[2])

    return signature, codegen


@intrinsic
def natural(typingctx, number):
    """An integer that is not negative, and of which the compiler knows that.

    Python divides downwards, processors towards zero. So for a number that may be negative, and
    to the compiler ``threadIdx.x`` is one, ``//`` and ``%`` by a power of two are a dozen
    instructions of 64 bits; for one that is not they are a shift and a mask of 32.
    """
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
    """Keeps the compiler from making copies of the loop that this stands in.

    The compiler copies the body of a loop if it can work out before how often that will run;
    where the step is no constant it divides for that. This is an empty piece of assembly, of
    which the compiler has to believe that it changes memory. Nothing is executed.
    """

    def codegen(context, builder, signature, arguments):
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(nothing, "", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), codegen


def _known(name, number):
    """The value of a divisor, or None while Numba has not yet offered it as a literal."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    if number.literal_value < 1:
        raise ValueError(f"{name}: a divisor must be 1 or more, got {number.literal_value}")
    return number.literal_value


def _remainder(builder, value, size):
    """What Python's ``%`` gives: not negative."""
    if size & (size - 1) == 0:
        return builder.and_(value, ir.Constant(value.type, size - 1))
    rest = builder.srem(value, ir.Constant(value.type, size))
    negative = builder.icmp_signed("<", rest, ir.Constant(value.type, 0))
    return builder.select(negative, builder.add(rest, ir.Constant(value.type, size)), rest)


@intrinsic
def rounded_down(typingctx, number, multiple):
    """``number // multiple * multiple``, `multiple` a constant; a mask for a power of two."""
    size = _known("rounded_down", multiple)
    if size is None:
        return None

    def codegen(context, builder, signature, arguments):
        value = arguments[0]
        return builder.sub(value, _remainder(builder, value, size))

    return types.int64(types.int64, multiple), codegen


@intrinsic
def quotient(typingctx, number, divisor):
    """``number // divisor``, `divisor` a constant; a shift for a power of two."""
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
    """Load `count` neighbouring elements, ``pointer[index:index + count]``, in one instruction.

    The address must be a multiple of the load's width (8 or 16 bytes). The load goes through
    the read-only path and does not settle in L1, as suits data that is read once.
    """
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
        load = f"ld.global.nc.L1::no_allocate.L2::128B.v{lanes}.{suffix}"
        text = f"{load} {{{registers}}}, [${lanes}];"
        asm = ir.InlineAsm(function, text, ",".join([f"={letter}"] * lanes) + ",l")
        loaded = builder.call(asm, [address])
        values = [builder.extract_value(loaded, i) for i in range(lanes)]
        return context.make_tuple(builder, signature.return_type, values)

    return signature, codegen
