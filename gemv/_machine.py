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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir

#: Parameters that change from launch to launch, by their places on the stack, 8 bytes each. A
#: complex number is two parameters.
PLACES = {
    "a": 0, "x": 1, "y": 2, "alpha": 3, "beta": 5, "scratch": 7, "counters": 8,
}  # fmt: skip
#: More parameters than any kernel has.
MAX_PARAMETERS = 40

#: A launch was not made, for a reason that the long way puts into words.
UNUSUAL = -1

# Words of an expectation: the exporter's functions, the block, device, operands (device, rank and
# dtype, two lengths and two strides each), alignments, and what y, x and A span.
OPERAND_WORDS = 6
_DESCRIBE, _CURRENT_STREAM, _BLOCK, _OPERANDS = 0, 1, 2, 3
_ALIGNMENTS = _OPERANDS + 3 * OPERAND_WORDS
_SPANS = _ALIGNMENTS + 3
EXPECTATION_WORDS = _SPANS + 6

# Words of a block: of all its launches, then of each of them.
_COUNT, _REAL, _X_START, _Y_START, _HEAD = 0, 1, 2, 3, 4
_FUNCTION, _PARAMETERS, _CONFIG, _ATTRIBUTES, _CODES = 0, 1, 2, 6, 8
_STEP = _CODES + MAX_PARAMETERS
#: Of the stack: values, their addresses, the configuration.
_FRAME = 9 + MAX_PARAMETERS + 7


class Function(NamedTuple):
    """One launch of a call: a loaded function and what is fixed about it."""

    handle: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    #: Names of its parameters, in order; those without a place are in the sizes.
    arguments: Sequence[str]
    #: An array of the driver's launch attributes, or None.
    attributes: Any = None


class Block:
    """A call as machine code reads it.

    Parameters
    ----------
    functions : sequence of Function
        Launched one after the other.
    real, parts : int
        Bytes of a real number of alpha and beta, and how many make one of them.
    sizes : dict of str to int
        The parameters that are the same in every launch.
    x_start, y_start : int
        Bytes from the addresses that are passed to the first elements that are used.
    """

    __slots__ = ("_keep", "address", "words")

    def __init__(
        self,
        functions: Sequence[Function],
        real: int,
        parts: int,
        sizes: dict[str, int],
        x_start: int,
        y_start: int,
    ) -> None:
        fixed = {name: place for place, name in enumerate(sizes)}
        start = _HEAD + _STEP * len(functions)
        words = self.words = np.zeros(start + len(sizes), np.int64)
        self.address = words.ctypes.data
        self._keep = [function.attributes for function in functions]
        words[:_HEAD] = len(functions), real, x_start, y_start
        words[start:] = list(sizes.values())
        for number, function in enumerate(functions):
            here = words[_HEAD + _STEP * number :][:_STEP]
            codes: list[int] = []
            for name in function.arguments:
                if name in fixed:
                    codes.append(self.address + 8 * (start + fixed[name]))
                elif name in ("alpha", "beta"):
                    codes += [PLACES[name] + part for part in range(parts)]
                else:
                    codes.append(PLACES[name])
            if len(codes) > MAX_PARAMETERS:
                raise RuntimeError(f"a kernel of {len(codes)} parameters, {MAX_PARAMETERS} at most")
            here[_FUNCTION], here[_PARAMETERS] = function.handle, len(codes)
            config = np.array([*function.grid, *function.block, 0, 0], np.uint32)
            here[_CONFIG : _CONFIG + 4] = config.view(np.int64)
            if function.attributes is not None:
                here[_ATTRIBUTES] = ctypes.addressof(function.attributes)
                here[_ATTRIBUTES + 1] = len(function.attributes)
            here[_CODES : _CODES + len(codes)] = codes


class Machine(NamedTuple):
    """The compiled functions."""

    #: ``enqueue(block, stream, a, x, y, alpha, beta, scratch, counters)``: the driver's status, or
    #: :data:`UNUSUAL` for a number that its precision would make infinite.
    enqueue: Callable[..., int]
    #: ``enqueue_complex``: the same with real and imaginary parts of alpha and beta.
    enqueue_complex: Callable[..., int]
    #: ``enqueue_tensors(expectation, a, x, y, stream, alpha, beta)``: the same for tensors of an
    #: exporter, on the stream that it works on if `stream` is None, and :data:`UNUSUAL` if they are
    #: not as expected; see :mod:`gemv._exchange`.
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
        self.words[:_OPERANDS] = *functions, block
        self.words[_SPANS:] = known.spans

    def describe(self, machine: Machine, place: int, tensor: Any) -> bool:
        """Expect a tensor like this one; False if it cannot be described."""
        at = self.address + 8 * (_OPERANDS + OPERAND_WORDS * place)
        pointer = machine.describe(int(self.words[_DESCRIBE]), tensor, at)
        if pointer < 0:
            return False
        self.words[_ALIGNMENTS + place] = pointer & 15
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


def _python(name: str) -> int:
    """The address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


_WORD, _DOUBLE, _FLOAT, _INT = ir.IntType(64), ir.DoubleType(), ir.FloatType(), ir.IntType(32)


class _Writer:
    """Writes one function: words in, a word out, and words for addresses too."""

    def __init__(self, module: ir.Module, name: str, arguments: int) -> None:
        self.function = ir.Function(module, ir.FunctionType(_WORD, [_WORD] * arguments), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args

    def word(self, value: Any) -> Any:
        return ir.Constant(_WORD, value) if isinstance(value, int) else value

    def at(self, address: Any, place: Any = 0) -> Any:
        """The address of a word so many words further on."""
        if isinstance(place, int):
            return self.builder.add(address, self.word(8 * place)) if place else address
        return self.builder.add(address, self.builder.shl(place, self.word(3)))

    def load(self, address: Any, place: Any = 0) -> Any:
        where = self.builder.inttoptr(self.at(address, place), _WORD.as_pointer())
        return self.builder.load(where)

    def store(self, address: Any, place: Any, value: Any) -> None:
        value = self.word(value)
        where = self.builder.inttoptr(self.at(address, place), value.type.as_pointer())
        self.builder.store(value, where)

    def call(self, function: Any, *arguments: Any, result: Any = _WORD) -> Any:
        """Call a C function by its address; an int comes back as a word."""
        kind = ir.FunctionType(result, [_WORD] * len(arguments)).as_pointer()
        pointer = self.builder.inttoptr(self.word(function), kind)
        answer = self.builder.call(pointer, [self.word(each) for each in arguments])
        return self.builder.sext(answer, _WORD) if result is _INT else answer

    def own(self, function: _Writer, *arguments: Any) -> Any:
        """Call a function that was written before."""
        return self.builder.call(function.function, [self.word(each) for each in arguments])

    def same(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("==", left, self.word(right))

    def less(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("<", left, self.word(right))

    def frame(self) -> Any:
        """Words on the stack."""
        words = self.builder.alloca(ir.ArrayType(_WORD, _FRAME))
        return self.builder.ptrtoint(words, _WORD)

    def repeat(self, count: Any) -> Any:
        """``with repeat(count) as k``: the body for ``0 <= k < count``; there is one time at least.

        What is required in it leaves the function, as everywhere.
        """
        return _Loop(self, count)

    def require(self, condition: Any, clear: bool = False) -> None:
        """Return :data:`UNUSUAL` unless this holds, and forget Python's exception if there is."""
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            if clear:
                self.call(_python("PyErr_Clear"), result=ir.VoidType())
            self.builder.ret(self.word(UNUSUAL))

    def give(self, value: Any) -> None:
        self.builder.ret(self.word(value))


class _Loop:
    def __init__(self, writer: _Writer, count: Any) -> None:
        self.writer, self.count = writer, count

    def __enter__(self) -> Any:
        builder = self.writer.builder
        before = builder.block
        self.body = self.writer.function.append_basic_block()
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.k = builder.phi(_WORD)
        self.k.add_incoming(self.writer.word(0), before)
        return self.k

    def __exit__(self, *error: object) -> None:
        builder = self.writer.builder
        following = builder.add(self.k, self.writer.word(1))
        self.k.add_incoming(following, builder.block)
        after = self.writer.function.append_basic_block()
        builder.cbranch(self.writer.less(following, self.count), self.body, after)
        builder.position_at_end(after)


def _write_real(module: ir.Module) -> _Writer:
    """``real(block, place, object)``: put a number where the kernel finds it, as it wants it."""
    f = _Writer(module, "real", 3)
    block, place, obj = f.arguments
    b = f.builder
    value = f.call(_python("PyFloat_AsDouble"), obj, result=_DOUBLE)
    with b.if_then(b.fcmp_ordered("==", value, ir.Constant(_DOUBLE, -1.0)), likely=False):
        f.require(f.same(f.call(_python("PyErr_Occurred")), 0), clear=True)
    with b.if_else(f.same(f.load(block, _REAL), 8)) as (double, single):
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


def _write_submit(module: ir.Module, launch: int) -> _Writer:
    """``submit(block, values, stream)``: launch with the values on the stack; the status."""
    f = _Writer(module, "submit", 3)
    block, values, stream = f.arguments
    b = f.builder
    pointers, config = f.at(values, 9), f.at(values, 9 + MAX_PARAMETERS)
    status = b.alloca(_WORD)
    b.store(f.word(0), status)
    thread = f.call(_python("PyEval_SaveThread"))
    with f.repeat(f.load(block, _COUNT)) as number:
        here = f.at(block, b.add(b.mul(number, f.word(_STEP)), f.word(_HEAD)))
        with f.repeat(f.load(here, _PARAMETERS)) as k:
            code = f.load(f.at(here, k), _CODES)
            dynamic = f.less(code, 16)
            f.store(f.at(pointers, k), 0, b.select(dynamic, f.at(values, code), code))
        for k in range(4):
            f.store(config, k, f.load(here, _CONFIG + k))
        f.store(config, 4, stream)
        f.store(config, 5, f.load(here, _ATTRIBUTES))
        f.store(config, 6, f.load(here, _ATTRIBUTES + 1))
        # The second of two is not worth a try where the first one failed.
        with b.if_then(f.same(b.load(status), 0)):
            function = f.load(here, _FUNCTION)
            b.store(f.call(launch, config, function, pointers, 0, result=_INT), status)
    f.call(_python("PyEval_RestoreThread"), thread, result=ir.VoidType())
    f.give(b.load(status))
    return f


def _write_matches(module: ir.Module) -> _Writer:
    """``matches(describe, tensor, expected, alignment, scratch)``: its address, or UNUSUAL.

    The places are those of DLPack's tensor: data, device, rank and dtype, lengths, strides and an
    offset in bytes.
    """
    f = _Writer(module, "matches", 5)
    describe, tensor, expected, alignment, scratch = f.arguments
    b = f.builder
    # The exporter's exception is dropped: the long way finds a better text.
    f.require(f.same(f.call(describe, tensor, scratch, result=_INT), 0), clear=True)
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


def _write_describe(module: ir.Module) -> _Writer:
    """``describe(self, (describe, tensor, target), count)``: what matches compares later."""
    f = _Writer(module, "describe", 3)
    arguments = f.arguments[1]
    b = f.builder
    function, tensor = _words(f, arguments, 0), f.load(arguments, 1)
    target = _words(f, arguments, 2)
    scratch = f.frame()
    result = b.alloca(_WORD)
    b.store(f.word(UNUSUAL), result)
    failed = f.call(function, tensor, scratch, result=_INT)
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
            f.call(_python("PyErr_Clear"), result=ir.VoidType())
    f.give(f.call(_python("PyLong_FromLongLong"), b.load(result)))
    return f


def _words(f: _Writer, arguments: Any, place: int) -> Any:
    """An argument that is an int of Python's."""
    return f.call(_python("PyLong_AsUnsignedLongLongMask"), f.load(arguments, place))


def _addresses(f: _Writer, block: Any, values: Any, a: Any, x: Any, y: Any) -> None:
    f.store(values, PLACES["a"], a)
    f.store(values, PLACES["x"], f.builder.add(x, f.load(block, _X_START)))
    f.store(values, PLACES["y"], f.builder.add(y, f.load(block, _Y_START)))


def _write_enqueue(module: ir.Module, name: str, real: _Writer, submit: _Writer) -> _Writer:
    """The launch of a block at addresses, with two numbers or the four parts of complex ones."""
    parts = 2 if name.endswith("complex") else 1
    f = _Writer(module, f"{name}_words", 2)
    arguments, count = f.arguments
    b = f.builder
    values = f.frame()
    block, stream, a, x, y = (_words(f, arguments, place) for place in range(5))
    _addresses(f, block, values, a, x, y)
    for number, first in enumerate((PLACES["alpha"], PLACES["beta"])):
        for part in range(parts):
            obj = f.load(arguments, 5 + parts * number + part)
            f.require(f.same(f.own(real, block, f.at(values, first + part), obj), 0))
    extra = 5 + 2 * parts
    with b.if_then(f.less(f.word(extra), count)):
        f.store(values, PLACES["scratch"], _words(f, arguments, extra))
        f.store(values, PLACES["counters"], _words(f, arguments, extra + 1))
    f.give(f.own(submit, block, values, stream))
    return _wrap(module, name, f)


def _write_enqueue_tensors(
    module: ir.Module, real: _Writer, submit: _Writer, matches: _Writer
) -> _Writer:
    """The launch of an expectation's block on three tensors, if they are as expected."""
    f = _Writer(module, "enqueue_tensors_words", 2)
    arguments, _ = f.arguments
    b = f.builder
    values = f.frame()
    scratch = f.at(values, 9)
    expected = _words(f, arguments, 0)
    found = []
    for place in range(3):
        a_tensor = f.own(
            matches, f.load(expected, _DESCRIBE), f.load(arguments, 1 + place),
            f.at(expected, _OPERANDS + OPERAND_WORDS * place),
            f.load(expected, _ALIGNMENTS + place), scratch,
        )  # fmt: skip
        f.require(f.less(f.word(-1), a_tensor))
        found.append(a_tensor)
    a, x, y = found
    spans = [f.load(expected, _SPANS + k) for k in range(6)]
    low, high = b.add(y, spans[0]), b.add(y, spans[1])
    for other, first, last in ((x, *spans[2:4]), (a, *spans[4:6])):
        overlap = b.and_(f.less(low, b.add(other, last)), f.less(b.add(other, first), high))
        f.require(b.not_(overlap))
    block = f.load(expected, _BLOCK)
    _addresses(f, block, values, a, x, y)
    for place, number in ((5, "alpha"), (6, "beta")):
        at = f.at(values, PLACES[number])
        f.require(f.same(f.own(real, block, at, f.load(arguments, place)), 0))
    handle = b.alloca(_WORD)
    stream = f.load(arguments, 4)
    with b.if_else(f.same(stream, id(None))) as (current, named):
        with current:
            device = f.load(expected, _OPERANDS)
            kind, index = b.and_(device, f.word(0xFFFFFFFF)), b.lshr(device, f.word(32))
            ask = f.load(expected, _CURRENT_STREAM)
            f.require(f.same(f.call(ask, kind, index, scratch, result=_INT), 0), clear=True)
            b.store(f.load(scratch), handle)
        with named:
            b.store(_words(f, arguments, 4), handle)
    f.give(f.own(submit, block, values, b.load(handle)))
    return _wrap(module, "enqueue_tensors", f)


def _wrap(module: ir.Module, name: str, words: _Writer) -> _Writer:
    """The function that the interpreter calls: arguments in an array, an int object back."""
    f = _Writer(module, name, 3)
    _, arguments, count = f.arguments
    f.give(f.call(_python("PyLong_FromLongLong"), f.own(words, arguments, count)))
    return f


def _write_allocate(module: ir.Module, allocate: int) -> None:
    f = _Writer(module, "allocate_words", 2)
    arguments, _ = f.arguments
    pool, stream, nbytes = (_words(f, arguments, place) for place in range(3))
    address = f.frame()
    f.store(address, 0, 0)
    f.call(allocate, address, nbytes, pool, stream, result=_INT)
    f.give(f.load(address))
    _wrap(module, "allocate", f)


def _write_give_back(module: ir.Module, driver: Driver) -> None:
    f = _Writer(module, "give_back_words", 2)
    arguments, _ = f.arguments
    b = f.builder
    address, stream, device = (_words(f, arguments, place) for place in range(3))
    answer = f.frame()
    # Only to ask does no harm, whatever is being captured.
    f.require(f.same(f.call(driver.is_capturing, stream, answer, result=_INT), 0))
    f.require(f.same(f.call(driver.current_device, answer, result=_INT), 0))
    current = b.and_(f.load(answer), f.word(0xFFFFFFFF))
    f.require(f.same(current, device))
    f.give(f.call(driver.free, address, stream, result=_INT))
    _wrap(module, "give_back", f)


def _compile(driver: Driver) -> Machine:
    module = ir.Module("gemv")
    real, submit = _write_real(module), _write_submit(module, driver.launch)
    matches = _write_matches(module)
    _write_enqueue(module, "enqueue", real, submit)
    _write_enqueue(module, "enqueue_complex", real, submit)
    _write_enqueue_tensors(module, real, submit, matches)
    _write_describe(module)
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
