"""Batches, several vectors, lists and shards when the GPU fails: no memory, no device, Ctrl-C.

The simulator stands in for the driver: each of its allocations, or each of its launches, fails in
turn. Whatever fails, the error comes through, nothing stays locked, and the same call is right
afterwards. test_load does the same to single products, and to a real GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.families import CALLS, host, plan_of_a_batch
from helpers.interrupts import Interrupting

import gemv
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.selection import batches
from gemv.selection.select import select
from gemv.shards import cut

pytestmark = pytest.mark.skipif(
    gemv.backend() != "simulator", reason="the simulator stands in for the driver"
)

#: More allocations and launches than any of the calls has.
MANY = 40


class NoMemory(MemoryError, RuntimeError):
    """As :class:`gemv.driver.libcuda.OutOfMemory`, which needs the driver's bindings."""


class Lost(RuntimeError):
    """What the driver says of each call once a context has ended."""


@pytest.fixture(params=CALLS)
def made(request, monkeypatch):
    """Makes a call, what it gives, and an array that it overwrites with what was in there."""
    monkeypatch.setattr(batches, "MOST_ITEMS", 3)

    def with_small_knobs(problem, device, kernel=None, **other):
        knobs = dict(REGISTRY[kernel].small_knobs) if kernel else None
        return select(problem, device, kernel=kernel, knobs=knobs, **other)

    monkeypatch.setattr(cut, "select", with_small_knobs)
    return CALLS[request.param]


class Counted:
    """Functions of the engine that fail at one of their calls, or from one on."""

    def __init__(self, monkeypatch, functions, error):
        self.calls, self.fails, self.lasts = 0, None, False
        for owner, name in functions:
            right = getattr(owner, name)

            def counted(*arguments, right=right, **options):
                self.calls += 1
                late = self.fails is not None and self.calls > self.fails
                if self.calls == self.fails or (self.lasts and late):
                    raise error("it fails here")
                return right(*arguments, **options)

            monkeypatch.setattr(owner, name, counted)

    def fail(self, at, lasts=False):
        self.calls, self.fails, self.lasts = 0, at, lasts

    def work(self):
        self.calls, self.fails = 0, None


def allocations():
    from gemv.engines import simulator
    from gemv.shards.simulated import SimulatedPlace

    engine = type(backend.engine())
    yield from ((engine, name) for name in ("zeros", "matrix", "vectors"))
    yield from ((simulator.SimulatedSession, name) for name in ("send", "blank", "shared"))
    yield from ((SimulatedPlace, name) for name in ("vector", "sums"))


def launches():
    """What is enqueued: launches, and copies of the tables of lists."""
    return [(type(backend.engine()), name) for name in ("run", "upload")]


def test_no_memory(made, monkeypatch):
    """Each allocation of a first call fails in turn."""
    counted = Counted(monkeypatch, allocations(), NoMemory)
    for at in range(1, MANY):
        counted.work()
        call, expected, written = made()
        counted.fail(at)
        try:
            found = call()
        except MemoryError:
            if written is not None:
                assert np.array_equal(*written), "out was written to before memory ran out"
            counted.work()
            found = call()  # what failed has left nothing half done
        assert np.array_equal(host(found), expected)
        if counted.fails is not None:
            break
    assert counted.calls == at - 1, "an allocation that failed was passed over"
    # A plan of a batch has its memory from the caller.
    assert at > 1 or made is plan_of_a_batch


def test_an_interrupt_between_two_launches(made, monkeypatch):
    """Of a first call, and of the calls that remember what it found out."""
    call, expected, _ = made()
    counted = Counted(monkeypatch, launches(), KeyboardInterrupt)
    assert np.array_equal(host(call()), expected)
    count = counted.calls
    assert count
    for at in range(1, count + 1):
        call, _, _ = made()
        counted.fail(at)
        with pytest.raises(KeyboardInterrupt):
            call()
        counted.work()
        assert np.array_equal(host(call()), expected)
    for at in range(1, counted.calls + 1):
        counted.fail(at)
        with pytest.raises(KeyboardInterrupt):
            call()
        counted.work()
        assert np.array_equal(host(call()), expected)


def test_a_device_that_is_lost(made, monkeypatch):
    call, expected, _ = made()
    counted = Counted(monkeypatch, launches(), Lost)
    counted.fail(1, lasts=True)
    for _ in range(3):  # nobody waits for a lock that the call before has kept
        with pytest.raises(Lost, match="it fails here"):
            call()
    counted.work()
    assert np.array_equal(host(call()), expected)


#: Moments at which each call is interrupted.
MOMENTS = 6


def test_an_interrupt_at_any_moment(made):
    """Before and behind launches, too: the next call is right, and nothing is left locked."""
    call, expected, _ = made()
    interrupting = Interrupting()
    for _ in range(2):  # the second call remembers what the first one found out
        assert np.array_equal(host(interrupting.run(call)), expected)
    for at in np.linspace(1, interrupting.begun, MOMENTS, dtype=int):
        with pytest.raises(KeyboardInterrupt):
            interrupting.run(call, at)
        assert np.array_equal(host(call()), expected), at
