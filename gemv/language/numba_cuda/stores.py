"""Stores of numbers and of whole vectors, converted to the dtype of the memory."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.language.numba_cuda.formats import (
    encoded,
    encoded_pair,
    is_narrow,
    loaded_type,
    narrowed,
    new_of,
    store_number,
    stored_bytes,
)
from gemv.language.numba_cuda.registers import KINDS, integer_of, items_of, literal_of, real_of

#: Stores of y, which is written once: its lines leave the L2 cache first. Single elements of two
#: bytes are stored in the plain way; they took longer with the other.
_PASS, _STAY = "st.global.cs", "st.global"


def _store(context, builder, pointer, address, values):
    """Store neighbouring elements `values` at `address`, by as few stores as possible."""
    most = LOAD_BYTES // stored_bytes(pointer)
    for first in range(0, len(values), most):
        place = builder.gep(address, [integer_of(first)]) if first else address
        kind, parts = _stored(context, builder, pointer, values[first : first + most])
        _pass_on(builder, place, kind, parts)


def _pass_on(builder, address, kind, parts, offset=0):
    """Store registers of type `kind` by one instruction, `offset` bytes behind `address`."""
    letter, suffix, llvm = KINDS[kind]
    names = ", ".join(f"${n + 1}" for n in range(len(parts)))
    many = len(parts) > 1
    text = f"{_PASS}.v{len(parts)}.{suffix} [$0], {{{names}}};"
    way = _STAY if kind == types.uint16 else _PASS
    asm = ir.InlineAsm(
        ir.FunctionType(ir.VoidType(), [address.type] + [llvm] * len(parts)),
        text if many else f"{way}.{suffix} [$0+{offset}], $1;",
        ",".join(["l"] + [letter] * len(parts)) + ",~{memory}", side_effect=True,
    )  # fmt: skip
    builder.call(asm, [address, *parts])


def _stored(context, builder, pointer, values):
    """The type of the registers that a store takes for `values`, and these registers."""
    values = [narrowed(context, builder, pointer, value) for value in values]
    if is_narrow(pointer):
        if pointer.storage == "bfloat16" and len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            return types.uint32, [encoded_pair(builder, *pair) for pair in pairs]
        bits = [encoded(builder, pointer, value) for value in values]
        if len(bits) == 1:
            return types.uint16, bits
        word, sixteen = ir.IntType(32), ir.Constant(ir.IntType(32), 16)
        return types.uint32, [
            builder.or_(builder.zext(low, word), builder.shl(builder.zext(high, word), sixteen))
            for low, high in zip(bits[::2], bits[1::2], strict=True)
        ]
    element = loaded_type(pointer)
    if not isinstance(element, types.Complex):
        return element, values
    numbers = [context.make_complex(builder, element, value) for value in values]
    return real_of(element), [part for each in numbers for part in (each.real, each.imag)]


@intrinsic
def store_vectors(typingctx, pointer, index, step, values, width):
    known = literal_of(width)
    if known is None:
        return None
    width_ = known[0]

    def codegen(context, builder, signature, arguments):
        at, step, values_ = arguments[1:4]
        to, base = new_of(builder, pointer, arguments[0])
        items = items_of(builder, values_, values.count)
        for k in range(values.count // width_):
            at = builder.add(at, step) if k else at
            vector = items[k * width_ : (k + 1) * width_]
            _store(context, builder, to, builder.gep(base, [at]), vector)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64, values, width), codegen


@intrinsic
def store(typingctx, pointer, index, value):
    def codegen(context, builder, signature, arguments):
        _, at, number = arguments
        to, base = new_of(builder, pointer, arguments[0])
        number = context.cast(builder, number, signature.args[2], pointer.dtype)
        address = builder.gep(base, [at])
        if is_narrow(to):  # as _STAY says; the compiler knows an ordinary store
            store_number(context, builder, to, address, number)
        else:  # a complex number is aligned like its real part, so it takes two stores
            kind, parts = _stored(context, builder, to, [number])
            for k, part in enumerate(parts):
                _pass_on(builder, address, kind, [part], k * kind.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, value), codegen
