"""The launch of a call: without the interpreter's lock, or by :mod:`gemv.driver.deputy` with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from gemv.driver import deputy, turn_ir
from gemv.driver.block import VALUES
from gemv.driver.deputy import ASKED, SLOT
from gemv.driver.machine_writer import INT, WORD, Writer

#: The way to set which signals a thread gets.
_SIG_SETMASK = 2
#: What ``ask`` answers where the thread has to launch by itself; no status of the driver's.
_BY_ITSELF = -2
#: The handle that every thread has for a default stream of its own.
_PER_THREAD = 2
#: Looks at a word between two looks at the clock.
_LOOKS = 16
_HALF = 0xFFFFFFFF


def write_submit(module: ir.Module, launch: Writer) -> Writer:
    """``submit(block, values, stream)``: launch; the status. The caller has the lock."""
    now = turn_ir.write_now(module)
    alone = turn_ir.write_alone(module, launch, now)
    _write_serve(module, launch, now)
    give_way = _write_give_way(module, launch, now)
    ask = _write_ask(module, _write_rouse(module, now), now)
    f = Writer(module, "submit", 3)
    b, state = f.builder, f.entry("deputy")
    no_deputy = b.or_(f.same(f.entry("pthread_create"), 0), f.same(f.entry("clock"), 0))
    with b.if_then(b.or_(no_deputy, f.same(f.entry("context"), 0))):
        f.give(f.own(alone, *f.arguments))
    thread = f.call("PyThreadState_Get")
    last, before, long_before = (
        f.load(state, place) for place in (deputy.LAST, deputy.BEFORE, deputy.LONG_BEFORE)
    )
    with b.if_then(b.not_(f.same(last, thread))):
        f.store_published(f.at(state, deputy.LAST), thread)
        f.store(state, deputy.BEFORE, last)
        f.store(state, deputy.IN_A_ROW, 0)
        with b.if_then(b.not_(f.same(before, thread))):
            f.store(state, deputy.LONG_BEFORE, before)
            is_fourth = b.not_(b.or_(f.same(long_before, thread), f.same(long_before, 0)))
            with b.if_then(is_fourth):
                f.store(state, deputy.MANY, deputy.CALLS_OF_MANY)
    many = f.load(state, deputy.MANY)
    with b.if_then(f.same(many, 0), likely=True):
        f.give(f.own(alone, *f.arguments))
    f.store(state, deputy.MANY, b.sub(many, f.word(1)))
    row = b.add(f.load(state, deputy.IN_A_ROW), f.word(1))
    f.store(state, deputy.IN_A_ROW, row)
    with b.if_then(f.less(deputy.MOST_IN_A_ROW, row)):
        f.store(state, deputy.IN_A_ROW, 0)
        f.give(f.own(give_way, *f.arguments))
    status = f.own(ask, *f.arguments)
    with b.if_then(b.not_(f.same(status, _BY_ITSELF)), likely=True):
        f.give(status)
    f.give(f.own(alone, *f.arguments))
    return f


def _write_give_way(module: ir.Module, launch: Writer, now: Writer) -> Writer:
    """``give_way(block, values, stream)``: launch like ``alone``, and let another thread call."""
    f = Writer(module, "give_way", 3)
    state = f.entry("deputy")
    thread = f.call("PyEval_SaveThread")
    status = f.own(launch, *f.arguments)
    start = f.own(now)
    with _Watch(f) as watch:
        last = f.load_published(f.at(state, deputy.LAST))
        watch.until(f.builder.not_(f.same(last, thread)))
        watch.at_times(lambda: watch.until(_after(f, now, start, deputy.YIELD_NS)))
    f.call("PyEval_RestoreThread", thread, result=ir.VoidType())
    f.give(status)
    return f


def _write_ask(module: ir.Module, rouse: Writer, now: Writer) -> Writer:
    """``ask(block, values, stream)``: the status of the deputy's launch, or _BY_ITSELF."""
    f = Writer(module, "ask", 3)
    block, values, stream = f.arguments
    b, state, answer = f.builder, f.entry("deputy"), f.frame()
    slot = f.at(state, SLOT)

    def by_itself_if(condition: Any) -> None:
        with b.if_then(condition, likely=False):
            f.give(_BY_ITSELF)

    found = f.load_published(slot)
    with b.if_then(f.less(found, deputy.READY), likely=False):
        f.own(rouse, found)
        f.give(_BY_ITSELF)
    by_itself_if(b.not_(f.same(found, deputy.READY)))
    skipped = f.load(state, deputy.SKIPPED)
    with b.if_then(f.less(0, skipped), likely=False):
        f.store(state, deputy.SKIPPED, b.sub(skipped, f.word(1)))
        f.give(_BY_ITSELF)
    by_itself_if(f.same(stream, _PER_THREAD))
    f.store(answer, 1, 0)
    by_itself_if(b.not_(f.same(f.call("is_capturing", stream, f.at(answer, 1), result=INT), 0)))
    by_itself_if(b.not_(f.same(b.and_(f.load(answer, 1), f.word(_HALF)), 0)))
    by_itself_if(b.not_(f.same(f.call("context", answer, result=INT), 0)))
    context = f.load(answer)
    by_itself_if(f.same(context, 0))
    # It may have gone to sleep meanwhile.
    by_itself_if(b.not_(f.swap(slot, deputy.READY, deputy.TAKEN)))
    for place, word in enumerate((block, values, stream, context)):
        f.store(state, ASKED + place, word)
    f.store_published(slot, deputy.POSTED)
    start = f.own(now)
    late = b.alloca(WORD)
    b.store(f.word(0), late)
    with _Watch(f) as watch:
        watch.until(f.same(f.load_published(slot), deputy.DONE))

        def give_up() -> None:
            over = _after(f, now, start, f.load(state, deputy.SPAN))
            b.store(b.zext(over, WORD), late)
            watch.until(over)

        watch.at_times(give_up)
    further = f.load(state, deputy.NEXT_SKIPPED)
    with b.if_then(f.same(b.load(late), 0), likely=True):
        f.store(state, deputy.NEXT_SKIPPED, b.lshr(further, f.word(1)))
        status = f.load(state, deputy.STATUS)
        f.store_published(slot, deputy.READY)
        f.give(status)
    twice = b.add(b.shl(further, f.word(1)), f.word(1))
    more = b.and_(twice, f.word(deputy.MOST_SKIPPED))
    f.store(state, deputy.NEXT_SKIPPED, more)
    f.store(state, deputy.SKIPPED, more)
    thread = f.call("PyEval_SaveThread")
    f.store(answer, 0, 0)
    f.store(answer, 1, deputy.PAUSE_NS)
    with _Watch(f) as watch:
        watch.until(f.same(f.load_published(slot), deputy.DONE))
        f.call("nanosleep", answer, 0, result=INT)
    status = f.load(state, deputy.STATUS)
    f.store_published(slot, deputy.READY)
    f.call("PyEval_RestoreThread", thread, result=ir.VoidType())
    f.give(status)
    return f


def _write_rouse(module: ir.Module, now: Writer) -> Writer:
    """``rouse(found)``: have a deputy soon, if many calls come one soon after the other."""
    f = Writer(module, "rouse", 1)
    (found,) = f.arguments
    b, state, place = f.builder, f.entry("deputy"), f.frame()
    slot, time = f.at(state, SLOT), f.own(now)
    soon = f.less(b.sub(time, f.load(state, deputy.WHEN)), f.load(state, deputy.NEAR))
    f.store(state, deputy.WHEN, time)
    count = b.select(soon, b.add(f.load(state, deputy.SOON), f.word(1)), f.word(0))
    f.store(state, deputy.SOON, count)
    with b.if_then(f.less(count, deputy.WAKING_CALLS)):
        f.give(0)
    f.store(state, deputy.SOON, 0)
    semaphore = f.at(state, deputy.SEMAPHORE)
    with b.if_then(f.same(found, deputy.ASLEEP)):
        with b.if_then(f.swap(slot, deputy.ASLEEP, deputy.WAKING)):
            f.call("sem_post", semaphore, result=INT)
        f.give(0)
    with b.if_then(f.same(found, deputy.NONE)):
        f.store_published(slot, deputy.WAKING)
        f.call("sem_init", semaphore, 0, 0, result=INT)
        made = f.call("pthread_create", place, 0, f.entry("serve"), state, result=INT)
        with b.if_else(f.same(made, 0)) as (begun, refused):
            with begun:
                f.call("pthread_detach", f.load(place), result=INT)
            with refused:
                f.store_published(slot, deputy.NEVER)
    f.give(0)
    return f


def _write_serve(module: ir.Module, launch: Writer, now: Writer) -> None:
    """``serve(state)``: what the deputy does, without an end."""
    f = Writer(module, "serve", 1)
    (state,) = f.arguments
    b, values = f.builder, f.frame()
    slot, since, status = f.at(state, SLOT), b.alloca(WORD), b.alloca(WORD)
    # Signals are for threads of Python's.
    f.call("pthread_sigmask", _SIG_SETMASK, f.at(state, deputy.SIGNALS), 0, result=INT)
    f.store_published(slot, deputy.READY)
    b.store(f.own(now), since)

    def sleep() -> None:
        idle = f.less(f.load(state, deputy.IDLE), b.sub(f.own(now), b.load(since)))
        with b.if_then(idle), b.if_then(f.swap(slot, deputy.READY, deputy.ASLEEP)):
            with _Watch(f) as waiting:
                f.call("sem_wait", f.at(state, deputy.SEMAPHORE), result=INT)
                # It may end for other reasons.
                waiting.until(b.not_(f.same(f.load_published(slot), deputy.ASLEEP)))
            f.store_published(slot, deputy.READY)
            b.store(f.own(now), since)

    with _Watch(f) as watch:
        with b.if_then(f.same(f.load_published(slot), deputy.POSTED)):
            # The caller's stack is in another processor's cache: the launch writes to its own.
            asked = f.load(state, ASKED + 1)
            for place in range(VALUES):
                f.store(values, place, f.load(asked, place))
            context = f.load(state, ASKED + 3)
            b.store(f.call("set_context", context, result=INT), status)
            with b.if_then(f.same(b.load(status), 0), likely=True):
                block, stream = f.load(state, ASKED), f.load(state, ASKED + 2)
                b.store(f.own(launch, block, values, stream), status)
            f.store(state, deputy.STATUS, b.load(status))
            f.store_published(slot, deputy.DONE)
            b.store(f.own(now), since)
        watch.at_times(sleep)
    f.give(0)


def _after(f: Writer, now: Writer, start: Any, span: Any) -> Any:
    """Whether more time has passed since then."""
    return f.less(span, f.builder.sub(f.own(now), start))


class _Watch:
    """``with _Watch(f) as watch``: the body again and again, with a rest in between."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        f, b = writer.function, writer.builder
        self._body, self._after = f.append_basic_block(), f.append_basic_block()
        self._looks = b.alloca(WORD)
        b.store(writer.word(0), self._looks)

    def __enter__(self) -> _Watch:
        builder = self._writer.builder
        builder.branch(self._body)
        builder.position_at_end(self._body)
        return self

    def until(self, condition: Any) -> None:
        """Leave the loop if this holds."""
        builder = self._writer.builder
        further = self._writer.function.append_basic_block()
        builder.cbranch(condition, self._after, further)
        builder.position_at_end(further)

    def at_times(self, write: Callable[[], None]) -> None:
        """What is only done in some of the rounds."""
        f, b = self._writer, self._writer.builder
        looks = b.add(b.load(self._looks), f.word(1))
        b.store(looks, self._looks)
        with b.if_then(f.same(b.and_(looks, f.word(_LOOKS - 1)), 0), likely=False):
            write()

    def __exit__(self, *error: object) -> None:
        builder = self._writer.builder
        self._writer.rest()
        builder.branch(self._body)
        builder.position_at_end(self._after)
