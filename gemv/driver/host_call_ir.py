"""The machine code of :mod:`gemv.driver.host_call`, written as LLVM's intermediate representation.

Nothing in it depends on the process, so that it can be kept on disk: what it calls and compares
with is in the array of objects that it gets as its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from gemv.driver.block import UNUSUAL
from gemv.driver.host_words import (
    ABSENT,
    ALIGNED,
    ARGUMENTS,
    BASE,
    CONTIGUOUS,
    DATA,
    DTYPE,
    EXACT,
    FIXED,
    FLAGS,
    HEAD,
    LENGTHS,
    LETTERS,
    MAX_SIDE,
    OBJECTS,
    RANK,
    STRIDES,
    TRANS,
    WORDS,
    WRITEABLE,
)
from gemv.driver.machine_writer import DOUBLE, FLOAT, WORD, Writer, new_module

#: Bytes of A from which on other threads of Python run while BLAS reads it.
_UNLOCKED_BYTES = 2**18


class _Writer(Writer):
    """A function whose first argument is the array of objects."""

    def object(self, name: str) -> Any:
        return self.load(self.field(self.arguments[0], DATA), OBJECTS.index(name))

    def number(self, name: str) -> Any:
        """One of the numbers; one of a letter's is found with :meth:`of_kind`."""
        return self.load(self.field(self.object("words"), DATA), WORDS.index(name))

    def of_kind(self, kind: Any, first: str) -> Any:
        """The word or object at the place of `first`, for the letter with number `kind`."""
        if first in WORDS:
            place, array = WORDS.index(first), self.object("words")
        else:
            place, array = OBJECTS.index(first), self.arguments[0]
        return self.load(self.at(self.field(array, DATA), kind), place)

    def run(self, name: str, *arguments: Any, result: Any = WORD) -> Any:
        return self.call(self.number(name), *arguments, result=result)

    def field(self, array: Any, place: int) -> Any:
        """What NumPy keeps of an array."""
        return self.load(self.builder.add(array, self.word(HEAD)), place)

    def half(self, word: Any) -> Any:
        return self.builder.and_(word, self.word(0xFFFFFFFF))

    def type_of(self, thing: Any) -> Any:
        return self.load(self.builder.add(thing, self.word(HEAD - 8)))

    def is_object(self, thing: Any, name: str) -> Any:
        return self.same(thing, self.object(name))

    def has(self, flags: Any, wanted: int) -> Any:
        return self.same(self.builder.and_(flags, self.word(wanted)), wanted)

    def any(self, conditions: Sequence[Any]) -> Any:
        first, *rest = conditions
        for each in rest:
            first = self.builder.or_(first, each)
        return first

    def pick(self, condition: Any, yes: Any, no: Any) -> Any:
        return self.builder.select(condition, self.word(yes), self.word(no))

    def place_of(self, thing: Any, names: Sequence[str]) -> Any:
        """Which of these objects it is, or UNUSUAL."""
        found = self.word(UNUSUAL)
        for place, name in enumerate(names):
            found = self.pick(self.is_object(thing, name), place, found)
        return found


def _write_within(module: ir.Module) -> Writer:
    """``within(objects, array)``: 0 for an array within memory that is NumPy's, else UNUSUAL.

    A view reaches beyond memory only if that is not NumPy's own.
    """
    f = _Writer(module, "within", 2)
    base = f.field(f.arguments[1], BASE)
    with f.builder.if_then(f.same(base, 0)):
        f.give(0)
    f.require(f.is_object(f.type_of(base), "ndarray"))
    f.require(f.same(f.field(base, BASE), 0))
    f.give(0)
    return f


def _write_factor(module: ir.Module) -> Writer:
    """``factor(objects, number, complex, parts)``: real and imaginary part as doubles.

    0 for a number whose type needs no check, else UNUSUAL.
    """
    f = _Writer(module, "factor", 4)
    objects, number, is_complex, parts = f.arguments
    b = f.builder
    kind = f.type_of(number)
    two = f.any([f.is_object(kind, "complex"), f.is_object(kind, "complex128")])
    with b.if_then(two):
        f.require(f.same(is_complex, 1))
        f.store(parts, 0, f.run("PyComplex_RealAsDouble", number, result=DOUBLE))
        f.store(parts, 1, f.run("PyComplex_ImagAsDouble", number, result=DOUBLE))
        f.give(0)
    whole = f.is_object(kind, "int")
    f.require(f.any([whole, f.is_object(kind, "float"), f.is_object(kind, "float64")]))
    value = f.run("PyFloat_AsDouble", number, result=DOUBLE)
    with b.if_then(whole):
        with b.if_then(b.fcmp_ordered("==", value, ir.Constant(DOUBLE, -1.0)), likely=False):
            failed = b.not_(f.same(f.run("PyErr_Occurred"), 0))
            with b.if_then(failed):
                f.run("PyErr_Clear", result=ir.VoidType())
                f.give(UNUSUAL)
        for sign, limit in (("<", EXACT), (">", -EXACT)):
            f.require(b.fcmp_ordered(sign, value, ir.Constant(DOUBLE, float(limit))))
    f.store(parts, 0, value)
    f.store(parts, 1, ir.Constant(DOUBLE, 0.0))
    f.give(0)
    return f


def _write_pack(module: ir.Module) -> Writer:
    """``pack(parts, single)``: as float32 in place, if single."""
    f = Writer(module, "pack", 2)
    parts, single = f.arguments
    b = f.builder
    with b.if_then(f.same(single, 1)):
        for place in range(2):
            value = b.bitcast(f.load(parts, place), DOUBLE)
            where = b.inttoptr(b.add(parts, f.word(4 * place)), FLOAT.as_pointer())
            b.store(b.fptrunc(value, FLOAT), where)
    f.give(0)
    return f


def _write_start(module: ir.Module, within: Writer) -> Writer:
    """``start(objects, y, a, x, a_bytes, x_bytes, overwrite, rows, dtype, size)``.

    The vector that BLAS adds to, as a new reference: zeros, a copy of y, or y itself.
    """
    f = _Writer(module, "start", 10)
    objects, y, a, x, a_bytes, x_bytes, overwrite, rows, dtype, size = f.arguments
    b = f.builder
    in_place = b.and_(overwrite, f.word(1))  # 0, 1, False, True
    with b.if_then(f.is_object(y, "None")):
        lengths = b.alloca(WORD)
        b.store(rows, lengths)
        f.run("Py_IncRef", dtype, result=ir.VoidType())  # which the next one takes
        f.give(f.run("PyArray_Zeros", 1, b.ptrtoint(lengths, WORD), dtype, 0))
    f.require(f.is_object(f.type_of(y), "ndarray"))
    f.require(f.same(f.half(f.field(y, RANK)), 1))
    f.require(f.same(f.field(y, DTYPE), dtype))
    f.require(f.same(f.load(f.field(y, LENGTHS)), rows))
    f.require(f.same(f.own(within, objects, y), 0))
    with b.if_then(f.same(in_place, 0)):
        f.give(f.run("PyArray_NewCopy", y, 0))
    f.require(f.has(f.field(y, FLAGS), CONTIGUOUS | ALIGNED | WRITEABLE))
    first = f.field(y, DATA)
    end = b.add(first, b.mul(rows, size))
    for array, nbytes in ((a, a_bytes), (x, x_bytes)):
        start = f.field(array, DATA)
        before, behind = b.not_(f.less(start, end)), b.not_(f.less(first, b.add(start, nbytes)))
        f.require(b.or_(before, behind))
    f.run("Py_IncRef", y, result=ir.VoidType())
    f.give(y)
    return f


def _write_product(module: ir.Module) -> Writer:
    """``product(objects, arguments)``: y as a new reference, 0 for an exception, or UNUSUAL."""
    within, factor, pack = _write_within(module), _write_factor(module), _write_pack(module)
    start = _write_start(module, within)
    f = _Writer(module, "product", 2)
    objects, arguments = f.arguments
    b = f.builder
    given = {name: f.load(arguments, place) for place, name in enumerate(ARGUMENTS)}
    a, x, y = given["a"], given["x"], given["y"]
    for name, value in FIXED.items():
        f.require(f.is_object(given[name], f"trans {value}"))
    for name in ABSENT:
        f.require(f.is_object(given[name], "None"))
    f.require(f.same(f.load(f.number("traces")), 0))

    # The arrays: of NumPy's own type, of one dtype and of fitting lengths.
    f.require(f.is_object(f.type_of(a), "ndarray"))
    f.require(f.is_object(f.type_of(x), "ndarray"))
    f.require(f.same(f.half(f.field(a, RANK)), 2))
    f.require(f.same(f.half(f.field(x, RANK)), 1))
    dtype = f.field(a, DTYPE)
    f.require(f.same(f.field(x, DTYPE), dtype))
    kind = f.place_of(dtype, [f"dtype {letter}" for letter in LETTERS])
    f.require(f.less(UNUSUAL, kind))
    named = f.same(given["routine"], f.of_kind(kind, f"name {LETTERS[0]}"))
    f.require(f.any([f.is_object(given["routine"], "gemv"), named]))
    is_complex = b.lshr(kind, f.word(1))
    single = b.xor(b.and_(kind, f.word(1)), f.word(1))
    size = b.shl(f.word(4), b.lshr(b.add(kind, f.word(1)), f.word(1)))  # 4, 8, 8, 16
    trans = f.place_of(given["trans"], [f"trans {value}" for value in TRANS])
    f.require(f.less(UNUSUAL, trans))
    trans = b.urem(trans, f.word(3))
    # The conjugate of real numbers is themselves.
    trans = f.pick(b.and_(f.same(trans, 2), f.same(is_complex, 0)), 1, trans)
    lengths, strides = f.field(a, LENGTHS), f.field(a, STRIDES)
    m, n = f.load(lengths), f.load(lengths, 1)
    down, along = f.load(strides), f.load(strides, 1)
    plain = f.same(trans, 0)
    f.require(f.same(f.load(f.field(x, LENGTHS)), f.pick(plain, n, m)))
    for side in (m, n):
        f.require(f.less(0, side))
        f.require(f.less(side, MAX_SIDE + 1))
    nbytes = b.mul(b.mul(m, n), size)
    f.require(b.not_(f.less(f.number("most"), nbytes)))
    f.require(f.has(f.field(a, FLAGS), ALIGNED))
    f.require(f.has(f.field(x, FLAGS), ALIGNED | CONTIGUOUS))
    for array in (a, x):
        f.require(f.same(f.own(within, objects, array), 0))

    # Its lines are what BLAS takes as columns: A's columns or, for the transpose, its rows.
    by_columns = f.same(down, size)
    apart = f.pick(by_columns, along, down)
    most_apart = b.mul(size, f.word(MAX_SIDE))
    lines, length = f.pick(by_columns, n, m), f.pick(by_columns, m, n)
    one = f.same(lines, 1)
    f.require(b.or_(by_columns, f.same(along, size)))
    fits = b.and_(f.less(b.sub(b.mul(length, size), f.word(1)), apart), f.less(apart, most_apart))
    f.require(b.or_(one, fits))
    whole = b.sdiv(apart, size)
    f.require(b.or_(one, f.same(b.mul(whole, size), apart)))
    leading = f.pick(one, length, whole)
    # BLAS conjugates no matrix that it does not transpose.
    f.require(b.or_(by_columns, b.not_(f.same(trans, 2))))
    turned = f.pick(by_columns, trans, b.xor(trans, f.word(1)))

    # alpha, beta and the vector that is written.
    factors = b.alloca(WORD, size=4)
    alpha = b.ptrtoint(factors, WORD)
    beta = f.at(alpha, 2)
    for where, name in ((alpha, "alpha"), (beta, "beta")):
        f.require(f.same(f.own(factor, objects, given[name], is_complex, where), 0))
    zero, unit = ir.Constant(DOUBLE, 0.0), ir.Constant(DOUBLE, 1.0)

    def equal(where: Any, value: Any) -> Any:
        real, imaginary = (b.bitcast(f.load(where, place), DOUBLE) for place in range(2))
        return b.and_(b.fcmp_ordered("==", real, value), b.fcmp_ordered("==", imaginary, zero))

    without = f.is_object(y, "None")
    nothing = b.and_(equal(alpha, zero), equal(beta, unit))
    f.require(b.select(without, equal(beta, zero), b.not_(nothing)))
    ways = ["trans 0", "trans 1", "False", "True"]
    overwrite = f.place_of(given["overwrite_y"], ways)
    f.require(f.less(UNUSUAL, overwrite))
    rows, cols = f.pick(plain, m, n), f.pick(plain, n, m)
    a_bytes = b.add(b.mul(b.sub(lines, f.word(1)), apart), b.mul(length, size))
    x_bytes = b.mul(cols, size)
    target = f.own(start, objects, y, a, x, a_bytes, x_bytes, overwrite, rows, dtype, size)
    f.require(f.less(UNUSUAL, target))
    with b.if_then(f.same(target, 0), likely=False):
        f.give(0)
    for where in (alpha, beta):
        f.own(pack, where, single)

    # BLAS takes everything by address.
    passed = b.alloca(WORD, size=5)
    first = b.ptrtoint(passed, WORD)
    to_blas = f.pick(f.same(turned, 1), ord("T"), ord("C"))
    f.store(first, 0, f.pick(f.same(turned, 0), ord("N"), to_blas))
    for place, value in enumerate((length, lines, leading, 1), start=1):
        f.store(first, place, value)
    letter, in_m, in_n, in_leading, in_one = (f.at(first, place) for place in range(5))
    values = (
        letter, in_m, in_n, alpha, f.field(a, DATA), in_leading, f.field(x, DATA), in_one, beta,
        f.field(target, DATA), in_one,
    )  # fmt: skip
    blas = f.of_kind(kind, f"{LETTERS[0]}gemv")
    with b.if_else(f.less(nbytes, _UNLOCKED_BYTES)) as (small, large):
        with small:
            f.call(blas, *values, result=ir.VoidType())
        with large:
            thread = f.run("PyEval_SaveThread")
            f.call(blas, *values, result=ir.VoidType())
            f.run("PyEval_RestoreThread", thread, result=ir.VoidType())
    f.give(target)
    return f


def module() -> ir.Module:
    """``host_call(objects, arguments, count)``, which the interpreter calls."""
    module = new_module()
    product = _write_product(module)
    f = _Writer(module, "host_call", 3)
    objects, arguments, count = f.arguments
    b = f.builder
    with b.if_then(f.same(count, len(ARGUMENTS)), likely=True):
        made = f.own(product, objects, arguments)
        with b.if_then(b.not_(f.same(made, UNUSUAL)), likely=True):
            f.give(made)
    f.give(f.run("PyObject_Vectorcall", f.object("further"), arguments, count, 0))
    return module
