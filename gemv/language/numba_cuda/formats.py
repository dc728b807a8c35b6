"""Pointers to elements whose format in memory is not the one that kernels compute with.

``pointer[index]`` of such a pointer is a load and a conversion, an assignment to it a rounding to
nearest even and a store, so a kernel is one source for all formats. Conversions happen in
registers. The loads of whole vectors, in ``loads.py``, use the conversions of this file.
"""

from __future__ import annotations

import operator

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic, lower_builtin, models, register_model

from gemv.core.dtypes import BFLOAT16
from gemv.language.numba_cuda.twofold import from_loaded, to_stored
from gemv.language.numba_cuda.twofold_types import EXACTS, SUMS, ExactType, TwofoldType

_HALF, _WORD, _DOUBLE_WORD = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()

#: Formats with two numbers in a 32-bit word.
_NARROW = ("float16", "bfloat16")
#: The type of an element in a register once it is loaded, by its format in memory.
_LOADED = {
    "float16": types.float32,
    "bfloat16": types.float32,
    "float32": types.float32,
    "complex64": types.complex64,
    "float64": types.float64,
    "complex128": types.complex128,
}
#: LLVM's type of an element in memory.
_STORAGE = {
    "float16": _HALF,
    "bfloat16": _HALF,
    "float32": _FLOAT,
    "complex64": ir.LiteralStructType([_FLOAT, _FLOAT]),
    "float64": _DOUBLE,
    "complex128": ir.LiteralStructType([_DOUBLE, _DOUBLE]),
}


class ConvertingPointer(types.CPointer):
    """A pointer to numbers in the format `storage`, which a kernel computes with as `number`.

    If `conjugates` is set, complex numbers are loaded as their conjugates.
    """

    def __init__(self, storage: str, number: types.Type, conjugates: bool = False) -> None:
        super().__init__(number)
        self.storage = storage
        self.conjugates = conjugates
        self.name = f"{storage}{' conjugated' if conjugates else ''}:{number}*"

    @property
    def key(self) -> tuple:
        return self.storage, self.dtype, self.conjugates


@register_model(ConvertingPointer)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _STORAGE[kind.storage].as_pointer())


class ReadingPointer(types.CPointer):
    """Two pointers to numbers in one format: stores go through the first, loads the second."""

    def __init__(self, pointer: types.CPointer) -> None:
        super().__init__(pointer.dtype)
        self.pointer = pointer
        self.name = f"{pointer.name}, and one to old numbers"

    @property
    def key(self) -> types.Type:
        return self.pointer


@register_model(ReadingPointer)
class _ReadingModel(models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("new", kind.pointer), ("old", kind.pointer)])


def new_of(builder, pointer, value):
    """The type and the address of the pointer that stores go through."""
    if isinstance(pointer, ReadingPointer):
        return pointer.pointer, builder.extract_value(value, 0)
    return pointer, value


def old_of(builder, pointer, value):
    """The type and the address of the pointer that loads go through."""
    if isinstance(pointer, ReadingPointer):
        return pointer.pointer, builder.extract_value(value, 1)
    return pointer, value


def pointer_type(dtype: np.dtype, number: np.dtype, exact: bool = False) -> types.CPointer:
    """The Numba type of a pointer to elements of `dtype` that a kernel computes with as `number`.

    Where a sum is two numbers, elements of A and x are `exact`: see :mod:`gemv.language.twofold`.
    Only where float16 is summed in float64, elements are float32 instead. A product of two float16
    has 22 digits and lies between 2**-48 and 2**32, so float32 holds it exactly; one product is
    then converted to float64, which is slow, and not two factors.
    """
    if exact and dtype == np.float16 and number == np.float64:
        number = np.dtype(np.float32)
    twofold = EXACTS if exact else SUMS
    kind = twofold.get(number) or _plain(number)
    if dtype == number:
        return types.CPointer(kind)
    return ConvertingPointer("bfloat16" if dtype == BFLOAT16 else dtype.name, kind)


def _plain(dtype: np.dtype) -> types.Type:
    return numba.from_dtype(dtype)


def is_narrow(pointer: types.CPointer) -> bool:
    """Whether the elements that `pointer` points to have 16 bits."""
    return getattr(pointer, "storage", "") in _NARROW


def stored_bytes(pointer: types.CPointer) -> int:
    """Bytes of an element in memory."""
    return 2 if is_narrow(pointer) else loaded_type(pointer).bitwidth // 8


def loaded_type(pointer: types.CPointer) -> types.Type:
    """The type of an element in a register: as it is loaded, before :func:`widened`."""
    return _LOADED[pointer.storage] if isinstance(pointer, ConvertingPointer) else pointer.dtype


def _asm(builder, result, text, constraints, *arguments):
    """Call inline PTX that has one result and no side effect."""
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(ir.InlineAsm(function, text, constraints), list(arguments))


def decoded(builder, pointer, bits):
    """The float32 of a float16 or bfloat16, which is given by its 16 bits."""
    if pointer.storage == "float16":
        return _asm(builder, _FLOAT, "cvt.f32.f16 $0, $1;", "=f,h", bits)
    word = builder.shl(builder.zext(bits, _WORD), ir.Constant(_WORD, 16))
    return builder.bitcast(word, _FLOAT)


def decoded_pair(builder, pointer, word):
    """The two float32 of 32 bits in memory; the one at the lower address comes first."""
    if pointer.storage == "float16":
        text = "{ .reg .b16 %l, %h; mov.b32 {%l, %h}, $2; cvt.f32.f16 $0, %l; cvt.f32.f16 $1, %h; }"
        pair = ir.LiteralStructType([_FLOAT, _FLOAT])
        both = _asm(builder, pair, text, "=f,=f,r", word)
        return [builder.extract_value(both, 0), builder.extract_value(both, 1)]
    low = builder.shl(word, ir.Constant(_WORD, 16))
    high = builder.and_(word, ir.Constant(_WORD, 0xFFFF0000))
    return [builder.bitcast(low, _FLOAT), builder.bitcast(high, _FLOAT)]


def encoded(builder, pointer, value):
    """The 16 bits of `value`, rounded to nearest even; what is too large becomes infinite."""
    double = value.type == _DOUBLE
    if pointer.storage == "float16":
        suffix, letter = ("f64", "d") if double else ("f32", "f")
        return _asm(builder, _HALF, f"cvt.rn.f16.{suffix} $0, $1;", f"=h,{letter}", value)
    word = encoded_pair(builder, value, None)
    return builder.trunc(word, _HALF)


#: The instruction that rounds two float32 to bfloat16; the second one goes to the lower half. Where
#: a compute capability lacks it, ``ptx.py`` replaces it.
TO_BFLOAT16 = "cvt.rn.bf16x2.f32"


def encoded_pair(builder, low, high):
    """The 32 bits of two bfloat16; `low` goes to the lower address.

    If `high` is None the upper half is zero.
    """

    def single(value):
        if value.type != _DOUBLE:
            return value
        return builder.bitcast(_rounded_to_odd(builder, value), _FLOAT)

    if high is None:
        return _asm(builder, _WORD, f"{TO_BFLOAT16} $0, 0f00000000, $1;", "=r,f", single(low))
    return _asm(builder, _WORD, f"{TO_BFLOAT16} $0, $1, $2;", "=r,f,f", single(high), single(low))


def _rounded_to_odd(builder, value):
    """`value` as a float32 whose last bit is set if the conversion lost anything.

    Rounding to nearest a second time, to bfloat16, is then right; after a first rounding to nearest
    it could be wrong at a tie.
    """
    single = _asm(builder, _FLOAT, "cvt.rz.f32.f64 $0, $1;", "=f,d", value)
    inexact = builder.fcmp_unordered("une", builder.fpext(single, _DOUBLE), value)
    return builder.or_(builder.bitcast(single, _WORD), builder.zext(inexact, _WORD))


def widened(context, builder, pointer, value):
    """The number that the kernel computes with, from `value` as it was loaded."""
    number = pointer.dtype
    if getattr(pointer, "conjugates", False):
        loaded = context.make_complex(builder, loaded_type(pointer), value)
        # NVVM's dialect knows no other way to negate.
        loaded.imag = builder.fsub(ir.Constant(loaded.imag.type, -0.0), loaded.imag)
        value = loaded._getvalue()
    if number == loaded_type(pointer):
        return value
    if isinstance(number, (ExactType, TwofoldType)):
        return from_loaded(context, builder, number, value)
    if not isinstance(number, types.Complex):
        return builder.fpext(value, _DOUBLE)
    return context.cast(builder, value, loaded_type(pointer), number)


def narrowed(context, builder, pointer, value):
    """`value`, which the kernel computed, rounded to the type that :func:`loaded_type` gives."""
    number = pointer.dtype
    if isinstance(number, TwofoldType):
        return to_stored(context, builder, number, value, is_narrow(pointer))
    if number == loaded_type(pointer) or is_narrow(pointer):
        return value
    if not isinstance(number, types.Complex):
        return builder.fptrunc(value, _FLOAT)
    return context.cast(builder, value, number, loaded_type(pointer))


def load_number(context, builder, pointer, address):
    """The element at `address` as the kernel computes with it, by an ordinary load."""
    if not isinstance(pointer, ConvertingPointer):
        return context.unpack_value(builder, pointer.dtype, address)
    if is_narrow(pointer):
        loaded = decoded(builder, pointer, builder.load(address))
    else:
        loaded = context.unpack_value(builder, loaded_type(pointer), address)
    return widened(context, builder, pointer, loaded)


def store_number(context, builder, pointer, address, value):
    """Store `value`, which the kernel computed, at `address` by an ordinary store."""
    value = narrowed(context, builder, pointer, value)
    if is_narrow(pointer):
        builder.store(encoded(builder, pointer, value), address)
    else:
        context.pack_value(builder, loaded_type(pointer), value, address)


@lower_builtin(operator.getitem, ConvertingPointer, types.Integer)
def _getitem(context, builder, signature, arguments):
    base, index = arguments
    return load_number(context, builder, signature.args[0], builder.gep(base, [index]))


@lower_builtin(operator.setitem, ConvertingPointer, types.Integer, types.Any)
def _setitem(context, builder, signature, arguments):
    base, index, value = arguments
    store_number(context, builder, signature.args[0], builder.gep(base, [index]), value)
    return context.get_dummy_value()


@lower_builtin(operator.getitem, ReadingPointer, types.Integer)
def _getitem_old(context, builder, signature, arguments):
    pointer, base = old_of(builder, signature.args[0], arguments[0])
    return load_number(context, builder, pointer, builder.gep(base, [arguments[1]]))


@lower_builtin(operator.setitem, ReadingPointer, types.Integer, types.Any)
def _setitem_new(context, builder, signature, arguments):
    pointer, base = new_of(builder, signature.args[0], arguments[0])
    store_number(context, builder, pointer, builder.gep(base, [arguments[1]]), arguments[2])
    return context.get_dummy_value()


@intrinsic
def reading(typingctx, pointer, old):
    result = ReadingPointer(pointer)

    def codegen(context, builder, signature, arguments):
        both = context.make_helper(builder, result)
        both.new, both.old = arguments
        return both._getvalue()

    return result(pointer, pointer), codegen


@intrinsic
def moved(typingctx, pointer, count):
    def codegen(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), codegen


@intrinsic
def conjugated(typingctx, pointer):
    result = pointer
    if isinstance(loaded_type(pointer), types.Complex):
        storage = getattr(pointer, "storage", str(pointer.dtype))
        result = ConvertingPointer(storage, pointer.dtype, conjugates=True)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(result))

    return result(pointer), codegen
