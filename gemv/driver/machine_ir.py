"""What the machine code of the last step is written with: words, loops, conversions."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir

from gemv.driver.block import (
    ATTRIBUTES,
    CODES,
    CONFIG,
    COUNT,
    FRAME,
    FUNCTION,
    HEAD,
    MAX_PARAMETERS,
    PARAMETERS,
    PLACES,
    REAL,
    STEP,
    UNUSUAL,
    X_START,
    Y_START,
)


def python(name: str) -> int:
    """The address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


WORD, _DOUBLE, _FLOAT, INT = ir.IntType(64), ir.DoubleType(), ir.FloatType(), ir.IntType(32)


class Writer:
    """Writes one function: words in, a word out, and words for addresses too."""

    def __init__(self, module: ir.Module, name: str, arguments: int) -> None:
        self.function = ir.Function(module, ir.FunctionType(WORD, [WORD] * arguments), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args

    def word(self, value: Any) -> Any:
        return ir.Constant(WORD, value) if isinstance(value, int) else value

    def at(self, address: Any, place: Any = 0) -> Any:
        """The address of a word so many words further on."""
        if isinstance(place, int):
            return self.builder.add(address, self.word(8 * place)) if place else address
        return self.builder.add(address, self.builder.shl(place, self.word(3)))

    def load(self, address: Any, place: Any = 0) -> Any:
        where = self.builder.inttoptr(self.at(address, place), WORD.as_pointer())
        return self.builder.load(where)

    def store(self, address: Any, place: Any, value: Any) -> None:
        value = self.word(value)
        where = self.builder.inttoptr(self.at(address, place), value.type.as_pointer())
        self.builder.store(value, where)

    def call(self, function: Any, *arguments: Any, result: Any = WORD) -> Any:
        """Call a C function by its address; an int comes back as a word."""
        kind = ir.FunctionType(result, [WORD] * len(arguments)).as_pointer()
        pointer = self.builder.inttoptr(self.word(function), kind)
        answer = self.builder.call(pointer, [self.word(each) for each in arguments])
        return self.builder.sext(answer, WORD) if result is INT else answer

    def own(self, function: Writer, *arguments: Any) -> Any:
        """Call a function that was written before."""
        return self.builder.call(function.function, [self.word(each) for each in arguments])

    def same(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("==", left, self.word(right))

    def less(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("<", left, self.word(right))

    def frame(self) -> Any:
        """Words on the stack."""
        words = self.builder.alloca(ir.ArrayType(WORD, FRAME))
        return self.builder.ptrtoint(words, WORD)

    def repeat(self, count: Any) -> Any:
        """``with repeat(count) as k``: the body for ``0 <= k < count``; there is one time at least.

        What is required in it leaves the function, as everywhere.
        """
        return _Loop(self, count)

    def require(self, condition: Any, clear: bool = False) -> None:
        """Return :data:`UNUSUAL` unless this holds, and forget Python's exception if there is."""
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            if clear:
                self.call(python("PyErr_Clear"), result=ir.VoidType())
            self.builder.ret(self.word(UNUSUAL))

    def give(self, value: Any) -> None:
        self.builder.ret(self.word(value))


class _Loop:
    def __init__(self, writer: Writer, count: Any) -> None:
        self.writer, self.count = writer, count

    def __enter__(self) -> Any:
        builder = self.writer.builder
        before = builder.block
        self.body = self.writer.function.append_basic_block()
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.k = builder.phi(WORD)
        self.k.add_incoming(self.writer.word(0), before)
        return self.k

    def __exit__(self, *error: object) -> None:
        builder = self.writer.builder
        following = builder.add(self.k, self.writer.word(1))
        self.k.add_incoming(following, builder.block)
        after = self.writer.function.append_basic_block()
        builder.cbranch(self.writer.less(following, self.count), self.body, after)
        builder.position_at_end(after)


def write_real(module: ir.Module) -> Writer:
    """``real(block, place, object)``: put a number where the kernel finds it, as it wants it."""
    f = Writer(module, "real", 3)
    block, place, obj = f.arguments
    b = f.builder
    value = f.call(python("PyFloat_AsDouble"), obj, result=_DOUBLE)
    with b.if_then(b.fcmp_ordered("==", value, ir.Constant(_DOUBLE, -1.0)), likely=False):
        f.require(f.same(f.call(python("PyErr_Occurred")), 0), clear=True)
    with b.if_else(f.same(f.load(block, REAL), 8)) as (double, single):
        with double:
            f.store(place, 0, value)
        with single:
            short = b.fptrunc(value, _FLOAT)
            f.store(place, 0, short)
            # The long way has a word to say about a number that becomes infinite.
            back, infinity = b.fpext(short, _DOUBLE), float("inf")
            changed = b.fcmp_unordered("!=", back, value)
            for limit in (infinity, -infinity):
                b_limit = b.fcmp_ordered("==", back, ir.Constant(_DOUBLE, limit))
                f.require(b.not_(b.and_(changed, b_limit)))
    f.give(0)
    return f


def write_submit(module: ir.Module, launch: int) -> Writer:
    """``submit(block, values, stream)``: launch with the values on the stack; the status."""
    f = Writer(module, "submit", 3)
    block, values, stream = f.arguments
    b = f.builder
    pointers, config = f.at(values, 9), f.at(values, 9 + MAX_PARAMETERS)
    status = b.alloca(WORD)
    b.store(f.word(0), status)
    thread = f.call(python("PyEval_SaveThread"))
    with f.repeat(f.load(block, COUNT)) as number:
        here = f.at(block, b.add(b.mul(number, f.word(STEP)), f.word(HEAD)))
        with f.repeat(f.load(here, PARAMETERS)) as k:
            code = f.load(f.at(here, k), CODES)
            dynamic = f.less(code, 16)
            f.store(f.at(pointers, k), 0, b.select(dynamic, f.at(values, code), code))
        for k in range(4):
            f.store(config, k, f.load(here, CONFIG + k))
        f.store(config, 4, stream)
        f.store(config, 5, f.load(here, ATTRIBUTES))
        f.store(config, 6, f.load(here, ATTRIBUTES + 1))
        # The second of two is not worth a try where the first one failed.
        with b.if_then(f.same(b.load(status), 0)):
            function = f.load(here, FUNCTION)
            b.store(f.call(launch, config, function, pointers, 0, result=INT), status)
    f.call(python("PyEval_RestoreThread"), thread, result=ir.VoidType())
    f.give(b.load(status))
    return f


def write_matches(module: ir.Module) -> Writer:
    """``matches(describe, tensor, expected, alignment, scratch)``: its address, or UNUSUAL.

    The places are those of DLPack's tensor: data, device, rank and dtype, lengths, strides and an
    offset in bytes.
    """
    f = Writer(module, "matches", 5)
    describe, tensor, expected, alignment, scratch = f.arguments
    b = f.builder
    # The exporter's exception is dropped: the long way finds a better text.
    f.require(f.same(f.call(describe, tensor, scratch, result=INT), 0), clear=True)
    f.require(f.same(f.load(scratch, 1), f.load(expected, 0)))
    f.require(f.same(f.load(scratch, 2), f.load(expected, 1)))
    lengths, strides = f.load(scratch, 3), f.load(scratch, 4)
    with f.repeat(b.and_(f.load(scratch, 2), f.word(0xFFFFFFFF))) as axis:
        place = f.at(f.at(expected, axis), axis)
        f.require(f.same(f.load(f.at(lengths, axis)), f.load(place, 2)))
        f.require(f.same(f.load(f.at(strides, axis)), f.load(place, 3)))
    address = b.add(f.load(scratch), f.load(scratch, 5))
    f.require(f.less(f.word(0), address))  # a tensor whose memory was freed has address 0
    f.require(f.same(b.and_(address, f.word(15)), alignment))
    f.give(address)
    return f


def write_describe(module: ir.Module) -> Writer:
    """``describe(self, (describe, tensor, target), count)``: what matches compares later."""
    f = Writer(module, "describe", 3)
    arguments = f.arguments[1]
    b = f.builder
    function, tensor = words(f, arguments, 0), f.load(arguments, 1)
    target = words(f, arguments, 2)
    scratch = f.frame()
    result = b.alloca(WORD)
    b.store(f.word(UNUSUAL), result)
    failed = f.call(function, tensor, scratch, result=INT)
    with b.if_else(f.same(failed, 0)) as (described, not_described):
        with described:
            rank = b.and_(f.load(scratch, 2), f.word(0xFFFFFFFF))
            few = b.and_(f.less(rank, 3), f.less(f.word(0), rank))
            with b.if_then(few):
                f.store(target, 0, f.load(scratch, 1))
                f.store(target, 1, f.load(scratch, 2))
                lengths, strides = f.load(scratch, 3), f.load(scratch, 4)
                with f.repeat(rank) as axis:
                    place = f.at(f.at(target, axis), axis)
                    f.store(place, 2, f.load(f.at(lengths, axis)))
                    f.store(place, 3, f.load(f.at(strides, axis)))
                b.store(b.add(f.load(scratch), f.load(scratch, 5)), result)
        with not_described:
            f.call(python("PyErr_Clear"), result=ir.VoidType())
    f.give(f.call(python("PyLong_FromLongLong"), b.load(result)))
    return f


def words(f: Writer, arguments: Any, place: int) -> Any:
    """An argument that is an int of Python's."""
    return f.call(python("PyLong_AsUnsignedLongLongMask"), f.load(arguments, place))


def addresses(f: Writer, block: Any, values: Any, a: Any, x: Any, y: Any) -> None:
    f.store(values, PLACES["a"], a)
    f.store(values, PLACES["x"], f.builder.add(x, f.load(block, X_START)))
    f.store(values, PLACES["y"], f.builder.add(y, f.load(block, Y_START)))
