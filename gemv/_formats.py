"""Pointers to numbers that lie in memory in another format than they are computed in.

``pointer[index]`` of such a pointer is a load and a conversion, and an assignment to it a rounding
to nearest even and a store, so a kernel is one source for every format. Conversions happen in
registers. :mod:`gemv._vectors` takes the loads of many neighbours from here. Only the compiler
imports this; the simulator's pointers convert by themselves.
"""

from __future__ import annotations

import operator

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cuda.extending import lower_builtin, models, register_model

from gemv._problem import BFLOAT16

_HALF, _WORD, _DOUBLE_WORD = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()

#: Names of the formats that two numbers share a 32-bit word in.
_NARROW = ("float16", "bfloat16")


class ConvertingPointer(types.CPointer):
    """A pointer to numbers of a `storage` format that are `number` once they are loaded."""

    def __init__(self, storage: str, number: types.Type) -> None:
        super().__init__(number)
        self.storage = storage
        self.name = f"{storage}:{number}*"

    @property
    def key(self) -> tuple:
        return self.storage, self.dtype


@register_model(ConvertingPointer)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _HALF.as_pointer())


def pointer_type(dtype: np.dtype, number: np.dtype) -> types.CPointer:
    """The type of a pointer to numbers of `dtype` that are computed with as `number`."""
    if dtype == number:
        return types.CPointer(numba.from_dtype(dtype))
    name = "bfloat16" if dtype == BFLOAT16 else dtype.name
    return ConvertingPointer(name, numba.from_dtype(number))


def is_narrow(pointer: types.CPointer) -> bool:
    """Whether elements have 16 bits."""
    return getattr(pointer, "storage", "") in _NARROW


def stored_bytes(pointer: types.CPointer) -> int:
    """Bytes from one element in memory to the next."""
    return 2 if is_narrow(pointer) else pointer.dtype.bitwidth // 8


def _asm(builder, result, text, constraints, *arguments):
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(ir.InlineAsm(function, text, constraints), list(arguments))


def decoded(builder, pointer, bits):
    """The number that 16 bits stand for."""
    if pointer.storage == "float16":
        return _asm(builder, _FLOAT, "cvt.f32.f16 $0, $1;", "=f,h", bits)
    word = builder.shl(builder.zext(bits, _WORD), ir.Constant(_WORD, 16))
    return builder.bitcast(word, _FLOAT)


def decoded_pair(builder, pointer, word):
    """The two numbers in 32 bits, the one at the lower address first."""
    if pointer.storage == "float16":
        text = "{ .reg .b16 %l, %h; mov.b32 {%l, %h}, $2; cvt.f32.f16 $0, %l; cvt.f32.f16 $1, %h; }"
        pair = ir.LiteralStructType([_FLOAT, _FLOAT])
        both = _asm(builder, pair, text, "=f,=f,r", word)
        return [builder.extract_value(both, 0), builder.extract_value(both, 1)]
    low = builder.shl(word, ir.Constant(_WORD, 16))
    high = builder.and_(word, ir.Constant(_WORD, 0xFFFF0000))
    return [builder.bitcast(low, _FLOAT), builder.bitcast(high, _FLOAT)]


def encoded(builder, pointer, value):
    """16 bits for a number, rounded to nearest even; what is too large becomes infinite."""
    if pointer.storage == "float16":
        return _asm(builder, _HALF, "cvt.rn.f16.f32 $0, $1;", "=h,f", value)
    # By integers, because the instruction for it came with compute capability 8.0.
    sixteen = ir.Constant(_WORD, 16)
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(_WORD, 1))
    rounded = builder.add(builder.add(bits, ir.Constant(_WORD, 0x7FFF)), odd)
    # The carry would make an infinity of a NaN, or a zero.
    quiet = builder.or_(bits, ir.Constant(_WORD, 0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.lshr(builder.select(is_nan, quiet, rounded), sixteen), _HALF)


def load_number(context, builder, pointer, address):
    """The number at an address, by an ordinary load."""
    if isinstance(pointer, ConvertingPointer):
        return decoded(builder, pointer, builder.load(address))
    return context.unpack_value(builder, pointer.dtype, address)


@lower_builtin(operator.getitem, ConvertingPointer, types.Integer)
def _getitem(context, builder, signature, arguments):
    base, index = arguments
    return load_number(context, builder, signature.args[0], builder.gep(base, [index]))


@lower_builtin(operator.setitem, ConvertingPointer, types.Integer, types.Any)
def _setitem(context, builder, signature, arguments):
    base, index, value = arguments
    builder.store(encoded(builder, signature.args[0], value), builder.gep(base, [index]))
    return context.get_dummy_value()
