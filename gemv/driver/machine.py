"""The last step of a call in machine code: fill in the parameters and ask the driver.

Packing parameters with ``struct`` and calling the driver through ctypes takes Python half as long
as the driver takes for the launch. LLVM, which Numba brings along, compiles functions for the host
as well, and one with the signature of a built-in function (``METH_FASTCALL``) is called by the
interpreter like its own: it gets the objects as they are, and asks Python's C functions for their
values.

A call lies packed in a :class:`Block`, which never changes: what is new in a launch is written to
the stack of its thread, so any number of threads may launch one block. The interpreter's lock is
released while the driver works, as every library does: the driver may have to wait until a queue
has room, perhaps for a callback on the host that needs the lock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir

from gemv.driver.block import (
    ALIGNMENTS,
    BLOCK,
    CURRENT_STREAM,
    DESCRIBE,
    EXPECTATION_WORDS,
    OPERAND_WORDS,
    OPERANDS,
    PLACES,
    SPANS,
)
from gemv.driver.machine_ir import (
    INT,
    WORD,
    Writer,
    addresses,
    python,
    words,
    write_describe,
    write_matches,
    write_real,
    write_submit,
)


class Machine(NamedTuple):
    """The compiled functions."""

    #: ``enqueue(block, stream, a, x, y, alpha, beta, scratch, counters)``: the driver's status, or
    #: :data:`UNUSUAL` for a number that its precision would make infinite.
    enqueue: Callable[..., int]
    #: ``enqueue_complex``: the same with real and imaginary parts of alpha and beta.
    enqueue_complex: Callable[..., int]
    #: ``enqueue_tensors(expectation, a, x, y, stream, alpha, beta)``: the same for tensors of an
    #: exporter, on the stream that it works on if `stream` is None, and :data:`UNUSUAL` if they are
    #: not as expected; see :mod:`gemv.driver.exchange`.
    enqueue_tensors: Callable[..., int]
    #: ``describe(function, tensor, target)``: an address, or -1.
    describe: Callable[..., int]
    #: ``allocate(pool, stream, nbytes)``: an address, or 0.
    allocate: Callable[..., int]
    #: ``give_back(address, stream, device)``: 0 if the memory is freed in the order of a stream of
    #: the current device; not if that would break a capture.
    give_back: Callable[..., int]


class Driver(NamedTuple):
    """Addresses of the driver's functions."""

    launch: int
    allocate: int
    free: int
    is_capturing: int
    current_device: int


@functools.cache
def machine(driver: Driver) -> Machine:
    """The compiled functions, which call the driver at these addresses."""
    return _compile(driver)


class Expectation:
    """What the operands of a remembered call look like, as machine code compares it."""

    __slots__ = ("address", "known", "misses", "seen", "words")

    def __init__(self, known: Any, block: int, functions: tuple[int, int]) -> None:
        self.known = known
        self.misses = 0
        #: Weak references to tensors that were looked at more closely, by ``id``.
        self.seen: dict[int, tuple] = {}
        self.words = np.zeros(EXPECTATION_WORDS, np.int64)
        self.address = self.words.ctypes.data
        self.words[:OPERANDS] = *functions, block
        self.words[SPANS:] = known.spans

    def describe(self, machine: Machine, place: int, tensor: Any) -> bool:
        """Expect a tensor like this one; False if it cannot be described."""
        at = self.address + 8 * (OPERANDS + OPERAND_WORDS * place)
        pointer = machine.describe(int(self.words[DESCRIBE]), tensor, at)
        if pointer < 0:
            return False
        self.words[ALIGNMENTS + place] = pointer & 15
        return True


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x0080


def _keep(thing: Any) -> None:
    """Let something live as long as the process: functions are called until its very end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _builtin(name: str, address: int) -> Callable[..., Any]:
    """A built-in function of the interpreter, made of machine code."""
    definition = _MethodDef(name.encode(), address, _FASTCALL, None)
    _keep(definition)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.c_void_p, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.byref(definition), None, None)


def _write_enqueue(module: ir.Module, name: str, real: Writer, submit: Writer) -> Writer:
    """The launch of a block at addresses, with two numbers or the four parts of complex ones."""
    parts = 2 if name.endswith("complex") else 1
    f = Writer(module, f"{name}words", 2)
    arguments, count = f.arguments
    b = f.builder
    values = f.frame()
    block, stream, a, x, y = (words(f, arguments, place) for place in range(5))
    addresses(f, block, values, a, x, y)
    for number, first in enumerate((PLACES["alpha"], PLACES["beta"])):
        for part in range(parts):
            obj = f.load(arguments, 5 + parts * number + part)
            f.require(f.same(f.own(real, block, f.at(values, first + part), obj), 0))
    extra = 5 + 2 * parts
    with b.if_then(f.less(f.word(extra), count)):
        f.store(values, PLACES["scratch"], words(f, arguments, extra))
        f.store(values, PLACES["counters"], words(f, arguments, extra + 1))
    f.give(f.own(submit, block, values, stream))
    return _wrap(module, name, f)


def _write_enqueue_tensors(
    module: ir.Module, real: Writer, submit: Writer, matches: Writer
) -> Writer:
    """The launch of an expectation's block on three tensors, if they are as expected."""
    f = Writer(module, "enqueue_tensors_words", 2)
    arguments, _ = f.arguments
    b = f.builder
    values = f.frame()
    scratch = f.at(values, 9)
    expected = words(f, arguments, 0)
    found = []
    for place in range(3):
        a_tensor = f.own(
            matches, f.load(expected, DESCRIBE), f.load(arguments, 1 + place),
            f.at(expected, OPERANDS + OPERAND_WORDS * place),
            f.load(expected, ALIGNMENTS + place), scratch,
        )  # fmt: skip
        f.require(f.less(f.word(-1), a_tensor))
        found.append(a_tensor)
    a, x, y = found
    spans = [f.load(expected, SPANS + k) for k in range(6)]
    low, high = b.add(y, spans[0]), b.add(y, spans[1])
    for other, first, last in ((x, *spans[2:4]), (a, *spans[4:6])):
        overlap = b.and_(f.less(low, b.add(other, last)), f.less(b.add(other, first), high))
        f.require(b.not_(overlap))
    block = f.load(expected, BLOCK)
    addresses(f, block, values, a, x, y)
    for place, number in ((5, "alpha"), (6, "beta")):
        at = f.at(values, PLACES[number])
        f.require(f.same(f.own(real, block, at, f.load(arguments, place)), 0))
    handle = b.alloca(WORD)
    stream = f.load(arguments, 4)
    with b.if_else(f.same(stream, id(None))) as (current, named):
        with current:
            device = f.load(expected, OPERANDS)
            kind, index = b.and_(device, f.word(0xFFFFFFFF)), b.lshr(device, f.word(32))
            ask = f.load(expected, CURRENT_STREAM)
            f.require(f.same(f.call(ask, kind, index, scratch, result=INT), 0), clear=True)
            b.store(f.load(scratch), handle)
        with named:
            b.store(words(f, arguments, 4), handle)
    f.give(f.own(submit, block, values, b.load(handle)))
    return _wrap(module, "enqueue_tensors", f)


def _wrap(module: ir.Module, name: str, words: Writer) -> Writer:
    """The function that the interpreter calls: arguments in an array, an int object back."""
    f = Writer(module, name, 3)
    _, arguments, count = f.arguments
    f.give(f.call(python("PyLong_FromLongLong"), f.own(words, arguments, count)))
    return f


def _write_allocate(module: ir.Module, allocate: int) -> None:
    f = Writer(module, "allocate_words", 2)
    arguments, _ = f.arguments
    pool, stream, nbytes = (words(f, arguments, place) for place in range(3))
    address = f.frame()
    f.store(address, 0, 0)
    f.call(allocate, address, nbytes, pool, stream, result=INT)
    f.give(f.load(address))
    _wrap(module, "allocate", f)


def _write_give_back(module: ir.Module, driver: Driver) -> None:
    f = Writer(module, "give_back_words", 2)
    arguments, _ = f.arguments
    b = f.builder
    address, stream, device = (words(f, arguments, place) for place in range(3))
    answer = f.frame()
    # Only to ask does no harm, whatever is being captured.
    f.require(f.same(f.call(driver.is_capturing, stream, answer, result=INT), 0))
    f.require(f.same(f.call(driver.current_device, answer, result=INT), 0))
    current = b.and_(f.load(answer), f.word(0xFFFFFFFF))
    f.require(f.same(current, device))
    f.give(f.call(driver.free, address, stream, result=INT))
    _wrap(module, "give_back", f)


def _compile(driver: Driver) -> Machine:
    module = ir.Module("gemv")
    real, submit = write_real(module), write_submit(module, driver.launch)
    matches = write_matches(module)
    _write_enqueue(module, "enqueue", real, submit)
    _write_enqueue(module, "enqueue_complex", real, submit)
    _write_enqueue_tensors(module, real, submit, matches)
    write_describe(module)
    _write_allocate(module, driver.allocate)
    _write_give_back(module, driver)

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    engine = binding.create_mcjit_compiler(parsed, target.create_target_machine(opt=2))
    engine.finalize_object()
    _keep(engine)
    return Machine(*(_builtin(name, engine.get_function_address(name)) for name in Machine._fields))
