"""A launch without the interpreter's lock, and the turn of :mod:`gemv.driver.turn` after it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gemv.driver import turn
from gemv.driver.machine_writer import INT, WORD, Writer

#: The system's clock that is never set.
_MONOTONIC = 1
_NS_PER_S = 1_000_000_000


def write_alone(module: ir.Module, launch: Writer, now: Writer) -> Writer:
    """``alone(block, values, stream)``: ``launch`` without the interpreter's lock; the status."""
    come_back = _write_come_back(module, now)
    f = Writer(module, "alone", 3)
    b = f.builder
    owner = f.at(f.entry("turn"), turn.OWNER)
    thread = f.call("PyEval_SaveThread")
    # Only now: whoever takes the turn finds the lock free.
    with b.if_then(f.same(f.load_published(owner), thread)):
        f.store_published(owner, 0)
    status = f.own(launch, *f.arguments)
    with b.if_then(b.not_(f.same(f.entry("clock"), 0))):
        f.own(come_back, thread)
    f.call("PyEval_RestoreThread", thread, result=ir.VoidType())
    f.store_published(owner, thread)
    f.give(status)
    return f


def _write_come_back(module: ir.Module, now: Writer) -> Writer:
    """``come_back(thread)``: return when it is worth asking for the interpreter's lock."""
    watch = _write_watch(module, now)
    f = Writer(module, "come_back", 1)
    (thread,) = f.arguments
    b, state = f.builder, f.entry("turn")
    watching, skipped = f.at(state, turn.WATCHING), f.at(state, turn.SKIPPED)
    with b.if_then(f.swap(f.at(state, turn.OWNER), 0, thread), likely=True):
        f.give(0)
    left = f.load_published(skipped)
    with b.if_then(f.less(0, left)):
        f.store_published(skipped, b.sub(left, f.word(1)))
        f.give(0)
    with b.if_then(f.less(f.add(watching, 1), turn.MOST_WATCHING)):
        f.own(watch, thread)
    f.add(watching, -1)
    f.give(0)
    return f


def _write_watch(module: ir.Module, now: Writer) -> Writer:
    """``watch(thread)``: until it has the turn, or until that is not to be expected any more."""
    f = Writer(module, "watch", 1)
    (thread,) = f.arguments
    b, state = f.builder, f.entry("turn")
    owner, skipped = f.at(state, turn.OWNER), f.at(state, turn.SKIPPED)
    further = f.at(state, turn.NEXT_SKIPPED)
    start = f.own(now)
    seen, handed_on = b.alloca(WORD), b.alloca(WORD)
    b.store(f.load_published(owner), seen)
    b.store(start, handed_on)
    look, late = f.function.append_basic_block(), f.function.append_basic_block()
    b.branch(look)
    b.position_at_end(look)
    found = f.load_published(owner)
    with b.if_then(f.same(found, 0)), b.if_then(f.swap(owner, 0, thread)):
        f.store_published(further, b.lshr(f.load_published(further), f.word(1)))
        f.give(0)
    time = f.own(now)
    with b.if_then(b.not_(f.same(found, b.load(seen)))):
        b.store(found, seen)
        b.store(time, handed_on)
    moves = f.less(b.sub(time, b.load(handed_on)), turn.SPAN_NS)
    # The others may hand it on for ever.
    early = f.less(b.sub(time, start), turn.MOST_NS)
    b.cbranch(b.and_(moves, early), look, late)
    b.position_at_end(late)
    twice = b.add(b.shl(f.load_published(further), f.word(1)), f.word(1))
    more = b.and_(twice, f.word(turn.MOST_SKIPPED))
    f.store_published(further, more)
    f.store_published(skipped, more)
    f.give(0)
    return f


def write_now(module: ir.Module) -> Writer:
    """``now()`` in nanoseconds."""
    f = Writer(module, "now", 0)
    place = f.frame()
    f.call("clock", _MONOTONIC, place, result=INT)
    seconds: Any = f.builder.mul(f.load(place), f.word(_NS_PER_S))
    f.give(f.builder.add(seconds, f.load(place, 1)))
    return f
