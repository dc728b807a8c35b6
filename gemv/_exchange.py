"""Metadata of three tensors at once, through the C function that a DLPack exporter offers.

Exporters of DLPack 1.3 have ``__dlpack_c_exchange_api__``, a table of C functions. One of them
describes a tensor without a capsule, a copy or a wait, in some 20 ns; the attributes of a tensor
cost Python 2 us for a call's three. The comparison with what a remembered call expects is compiled
by Numba for the host, since nothing but machine code can use such a function at its price.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

#: Where the function stands in the table: after the version, an older table and three functions.
_DESCRIBE = 5
#: Words that describe an operand: device, rank and dtype, two lengths and two strides.
_WORDS = 6
#: Then the alignments, and what y, x and A span from their addresses on.
_LENGTH = 3 * _WORDS + 3 + 6


class Expectation:
    """What the operands of a remembered call look like, as machine code compares it."""

    __slots__ = ("address", "known", "misses", "words")

    def __init__(self, known: Any) -> None:
        self.known = known
        self.misses = 0
        self.words = np.zeros(_LENGTH, np.int64)
        self.address = self.words.ctypes.data


class Exchange:
    """The compiled functions, for one exporter's type."""

    def __init__(self, exporter: type) -> None:
        table = _table(exporter)
        self.function = table[_DESCRIBE]
        if not self.function:
            raise RuntimeError("this exporter describes no tensors")
        self._describe, self._match = _compiled()
        clear = ctypes.cast(ctypes.pythonapi.PyErr_Clear, ctypes.c_void_p).value
        # One thread at a time is in the compiled function: it holds the interpreter's lock.
        self._scratch = np.zeros(24, np.int64)
        self.constants = (self.function, clear, self._scratch.ctypes.data)

    @property
    def match(self) -> Callable[..., tuple[int, int, int]]:
        """``match(*constants, id(a), id(x), id(y), address)``: their addresses, or -1 first."""
        return self._match

    def expect(self, known: Any, a: Any, x: Any, y: Any) -> Expectation | None:
        """The expectation that these three fulfil; None where one cannot be described."""
        made = Expectation(known)
        for place, operand in enumerate((a, x, y)):
            at = made.address + 8 * _WORDS * place
            pointer = self._describe(*self.constants, id(operand), at)
            if pointer < 0:
                return None
            made.words[3 * _WORDS + place] = pointer & 15
        made.words[3 * _WORDS + 3 :] = known.spans
        return made


def _table(exporter: type) -> Any:
    """The exporter's table of functions, as words; an error for a version that is not known."""
    capsule = exporter.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(address).value
    if major != 1:
        raise RuntimeError(f"DLPack's exchange functions of version {major}, not 1")
    return (ctypes.c_size_t * 7).from_address(address)


_functions: tuple[Any, Any] | None = None


def _compiled() -> tuple[Any, Any]:
    """Machine code, the same for every exporter."""
    global _functions
    if _functions is None:
        _functions = _compile()
    return _functions


def _compile() -> tuple[Any, Any]:
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    word = ir.IntType(64)

    @intrinsic
    def load(context, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], word.as_pointer()))

        return types.int64(types.int64), generate

    @intrinsic
    def store(context, address, value):
        def generate(context, builder, signature, arguments):
            place = builder.inttoptr(arguments[0], word.as_pointer())
            builder.store(arguments[1], place)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    @intrinsic
    def call(context, function, tensor, target):
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.IntType(32), [word, word]).as_pointer()
            function = builder.inttoptr(arguments[0], kind)
            return builder.sext(builder.call(function, arguments[1:]), word)

        return types.int64(types.int64, types.int64, types.int64), generate

    @intrinsic
    def run(context, function):
        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.VoidType(), []).as_pointer()
            builder.call(builder.inttoptr(arguments[0], kind), [])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    integer = types.int64

    # The places are those of DLPack's tensor: data, device, rank and dtype, lengths, strides and
    # an offset in bytes.
    @njit(integer(integer, integer, integer, integer, integer))
    def describe(function, clear, scratch, tensor, target):
        if call(function, tensor, scratch) != 0:
            run(clear)  # the exporter's exception: the long way finds a better text
            return -1
        rank = load(scratch + 16) & 0xFFFFFFFF
        if rank > 2:
            return -1
        store(target, load(scratch + 8))
        store(target + 8, load(scratch + 16))
        for axis in range(rank):
            store(target + 16 + 16 * axis, load(load(scratch + 24) + 8 * axis))
            store(target + 24 + 16 * axis, load(load(scratch + 32) + 8 * axis))
        return load(scratch) + load(scratch + 40)

    @njit(integer(integer, integer, integer, integer, integer, integer))
    def pointer(function, clear, scratch, tensor, expected, alignment):
        if call(function, tensor, scratch) != 0:
            run(clear)
            return -1
        if load(scratch + 8) != load(expected) or load(scratch + 16) != load(expected + 8):
            return -1
        rank = load(scratch + 16) & 0xFFFFFFFF
        lengths, strides = load(scratch + 24), load(scratch + 32)
        for axis in range(rank):
            if load(lengths + 8 * axis) != load(expected + 16 + 16 * axis):
                return -1
            if load(strides + 8 * axis) != load(expected + 24 + 16 * axis):
                return -1
        address = load(scratch) + load(scratch + 40)
        # A tensor whose memory was freed has address 0.
        return address if address != 0 and address & 15 == load(alignment) else -1

    size = 8 * _WORDS
    tail = 3 * size

    @njit(types.UniTuple(integer, 3)(*[integer] * 7))
    def match(function, clear, scratch, a, x, y, expected):
        a_at = pointer(function, clear, scratch, a, expected, expected + tail)
        if a_at < 0:
            return -1, -1, -1
        x_at = pointer(function, clear, scratch, x, expected + size, expected + tail + 8)
        if x_at < 0:
            return -1, -1, -1
        y_at = pointer(function, clear, scratch, y, expected + 2 * size, expected + tail + 16)
        if y_at < 0:
            return -1, -1, -1
        spans = expected + tail + 24
        low, high = y_at + load(spans), y_at + load(spans + 8)
        if low < x_at + load(spans + 24) and x_at + load(spans + 16) < high:
            return -1, -1, -1
        if low < a_at + load(spans + 40) and a_at + load(spans + 32) < high:
            return -1, -1, -1
        return a_at, x_at, y_at

    return describe, match
