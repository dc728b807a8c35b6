"""The last step of a call in machine code: fill in the parameters and ask the driver.

Packing parameters with ``struct`` and calling the driver through ctypes takes Python half as long
as the driver takes for the launch. Machine code that the interpreter calls like its own functions
(:mod:`gemv.driver.native`) does both.

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

from gemv.driver import deputy, known_frames, native, turn
from gemv.driver.block import (
    ALIGNMENTS,
    DESCRIBE,
    ENTRIES,
    EXPECTATION_WORDS,
    OPERAND_WORDS,
    OPERANDS,
    PYTHON_ENTRIES,
    SPANS,
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


@functools.cache
def machine(driver: Driver, kept: native.Kept = native.compiled_now) -> Machine:
    """The functions, which call the driver at these addresses.

    Parameters
    ----------
    driver : Driver
    kept : callable
        As for :func:`gemv.driver.native.load`.
    """

    def write() -> Any:
        from gemv.driver import machine_ir

        return machine_ir.module()

    address_of = native.load(write, kept, lambda table, of: _fill(table, driver, of))
    functions: dict[str, Any] = {
        name: native.builtin(name, address_of(name))
        for name in Machine._fields
        if name != "handler"
    }
    return Machine(**functions, handler=address_of("handler"))


def _fill(table: int, driver: Driver, address_of: Callable[[str], int]) -> None:
    """Write to the table what the machine code calls."""
    addresses = driver._asdict() | {name: native.python(name) for name in PYTHON_ENTRIES}
    addresses["None"], addresses["frames"] = id(None), known_frames.STATE.ctypes.data
    addresses |= deputy.system()
    addresses["turn"], addresses["clock"] = turn.STATE.ctypes.data, turn.clock()
    addresses["deputy"], addresses["serve"] = deputy.STATE.ctypes.data, address_of("serve")
    native.keep(turn.STATE)  # of threads that launch while the interpreter ends
    native.keep(deputy.STATE)
    words = (ctypes.c_size_t * len(ENTRIES)).from_address(table)
    words[:] = [addresses[name] for name in ENTRIES]


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
