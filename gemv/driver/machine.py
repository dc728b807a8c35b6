"""The last step of a call in machine code: fill in the parameters and ask the driver.

Packing parameters with ``struct`` and calling the driver through ctypes takes Python half as long
as the driver takes for the launch. LLVM, which Numba brings along, compiles functions for the host
as well, and one with the signature of a built-in function (``METH_FASTCALL``) is called by the
interpreter like its own: it gets the objects as they are, and asks Python's C functions for their
values.

A call lies packed in a :class:`Block`, which never changes: what is new in a launch is written to
the stack of its thread, so any number of threads may launch one block. The interpreter's lock is
released while the driver works, as every library does: the driver may have to wait until a queue
has room, perhaps for a callback on the host that needs the lock. When it is worth asking for the
lock again is in :mod:`gemv.driver.turn`. Where many threads call, :mod:`gemv.driver.deputy`
launches for them, and they keep the lock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemv.driver import deputy, known_frames, turn
from gemv.driver import image as images
from gemv.driver.block import (
    ALIGNMENTS,
    DESCRIBE,
    ENTRIES,
    EXPECTATION_WORDS,
    OPERAND_WORDS,
    OPERANDS,
    PYTHON_ENTRIES,
    SPANS,
    TABLE,
    TABLE_AT,
    WITH_OLD_Y,
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
    #: not as expected; see :mod:`gemv.driver.exchange`. With an old y behind beta the launch reads
    #: that and writes y, where the expectation has a block for it.
    enqueue_tensors: Callable[..., int]
    #: ``describe(function, tensor, target)``: an address, or -1.
    describe: Callable[..., int]
    #: ``allocate(pool, stream, nbytes)``: an address, or 0.
    allocate: Callable[..., int]
    #: ``give_back(address, stream, device)``: 0 if the memory is freed in the order of a stream of
    #: the current device; not if that would break a capture.
    give_back: Callable[..., int]
    #: ``publish(place, address)``: write an address where threads read it without a lock.
    publish: Callable[..., int]
    #: The address of what XLA calls with a frame: see :mod:`gemv.driver.handler_ir`.
    handler: int


class Driver(NamedTuple):
    """Addresses of the driver's functions."""

    launch: int
    allocate: int
    free: int
    is_capturing: int
    current_device: int
    #: Which context is current, and how to make it so in another thread; 0 if nothing is to be
    #: launched in another thread.
    context: int = 0
    set_context: int = 0
    #: Which stream has a handle, as of :func:`gemv.driver.streams.identity`; 0 if no call of XLA's
    #: is bound to a stream.
    stream_id: int = 0


def _compiled_now(compiled: Callable[[], bytes]) -> bytes:
    return compiled()


@functools.cache
def machine(
    driver: Driver, kept: Callable[[Callable[[], bytes]], bytes] = _compiled_now
) -> Machine:
    """The functions, which call the driver at these addresses.

    Parameters
    ----------
    driver : Driver
    kept : callable
        ``kept(compiled)`` gives the bytes of the image: those that another process has left, or
        those that ``compiled()`` makes. Only the second needs LLVM.
    """
    address_of = _from_image(driver, kept) if images.is_possible() else None
    if address_of is None:
        from gemv.driver import machine_ir

        engine, address_of = machine_ir.in_place()
        _keep(engine)
        table = ctypes.CFUNCTYPE(ctypes.c_size_t)(address_of(TABLE_AT))()
        _fill(table, driver, address_of("serve"))
    functions: dict[str, Any] = {
        name: _builtin(name, address_of(name)) for name in Machine._fields if name != "handler"
    }
    return Machine(**functions, handler=address_of("handler"))


def _from_image(
    driver: Driver, kept: Callable[[Callable[[], bytes]], bytes]
) -> Callable[[str], int] | None:
    """The address of each function of the image; None where there can be no image.

    Memory may not be allowed to become executable, or LLVM makes an object that
    :func:`gemv.driver.image.link` cannot link.
    """

    def compiled() -> bytes:
        from gemv.driver import machine_ir

        return images.link(machine_ir.object_file()).pack()

    try:
        image = images.Image.unpack(kept(compiled))
        memory, start = images.mapped(image)
        _fill(start + image.symbols[TABLE], driver, start + image.symbols["serve"])
        images.make_executable(memory, start)
    except (OSError, ValueError):  # ValueError: an LLVM that relocates otherwise
        return None
    _keep(memory)
    return lambda name: start + image.symbols[name]


def _fill(table: int, driver: Driver, serve: int) -> None:
    """Write to the table what the machine code calls."""
    addresses = driver._asdict() | {name: _python(name) for name in PYTHON_ENTRIES}
    addresses["None"], addresses["frames"] = id(None), known_frames.STATE.ctypes.data
    addresses |= deputy.system()
    addresses["turn"], addresses["clock"] = turn.STATE.ctypes.data, turn.clock()
    addresses["deputy"], addresses["serve"] = deputy.STATE.ctypes.data, serve
    _keep(turn.STATE)  # of threads that launch while the interpreter ends
    _keep(deputy.STATE)
    words = (ctypes.c_size_t * len(ENTRIES)).from_address(table)
    words[:] = [addresses[name] for name in ENTRIES]


def _python(name: str) -> int:
    """The address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class Expectation:
    """What the operands of a remembered call look like, as machine code compares it."""

    __slots__ = ("_blocks", "address", "fresh", "known", "misses", "seen", "with_old_y", "words")

    def __init__(self, known: Any, block: int, functions: tuple[int, int]) -> None:
        self.known = known
        self.misses = 0
        #: Weak references to tensors that were looked at more closely, by ``id``.
        self.seen: dict[int, tuple] = {}
        self.words = np.zeros(EXPECTATION_WORDS, np.int64)
        self.address = self.words.ctypes.data
        self.words[:OPERANDS] = *functions, block
        self.words[SPANS:WITH_OLD_Y] = known.spans
        #: What makes a new y; it is the exporter's.
        self.fresh: Any = None
        #: The block for an old y beside the new one, None, or False where there can be none.
        self.with_old_y: Any = None
        #: That block, which must live as long as its address is in a word.
        self._blocks: dict[int, Any] = {}

    def expect_old_y(self, block: Any) -> None:
        """Expect calls with an old y as well, which this block reads beside the new one."""
        # Of two threads, both take the block of the first: a third one may be launching it.
        block = self._blocks.setdefault(WITH_OLD_Y, block)
        self.words[WITH_OLD_Y] = block.address
        self.with_old_y = block  # last: other threads go by it

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
