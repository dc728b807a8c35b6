"""What a call waits for, and what waits for it: the rules, with an engine that only notes."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from gemv.arrays.base import Library
from gemv.calls import order
from gemv.core.operand import Operand


class Held:
    """Keeps what it is told to hold, with the stream."""

    def __init__(self):
        self.things = []

    def hold(self, things, stream):
        self.things.append((things, stream))


class Engine:
    """Notes each wait as (who waits, for whom, GPU of the one, GPU of the other)."""

    name = "cuda"

    def __init__(self, captured=()):
        self.waits, self.held, self.captured = [], Held(), dict(captured)
        self.identities = {}

    def default_stream(self):
        return 0

    def wait(self, waiting, other, waiting_device=None, other_device=None):
        self.waits.append((waiting, other, waiting_device, other_device))

    def capture_of(self, stream):
        return self.captured.get(stream)

    def runs_by_itself(self, stream):
        return stream != 0

    def identity(self, stream):
        assert stream not in self.captured, "that would end the capture"
        return self.identities.get(stream, stream)

    def behind(self, stream):
        self.told_behind = [*getattr(self, "told_behind", ()), stream]
        return 1000 + stream

    @contextmanager
    def on(self, device):
        yield


class Plain(Library):
    """A library whose arrays name their streams, and whose allocator need not be told."""

    name = "plain"
    held_until_done = ordered_by_export = on_default_stream = False

    def current_stream(self, device):
        return None

    def record(self, obj, behind, device):
        return False


class Told(Plain):
    """A library whose allocator asks for a stream as memory is given back."""

    def __init__(self):
        self.used = []

    def record(self, obj, behind, device):
        self.used.append((obj, behind(), device))
        return True


def operand(name, stream=None, device=0, exporter=None):
    return Operand(
        "plain", np.dtype("f"), (1,), (1,), 4096, False, name, stream=stream, device=device,
        origin=name, exporter=exporter or Plain(),
    )  # fmt: skip


def call_of(a, x, y=None):
    return SimpleNamespace(
        routine="gemv", a=a, x=x, y=y, alpha=1.0, beta=0.0, device=a.device,
    )  # fmt: skip


@pytest.fixture
def ordered(monkeypatch):
    """``ordered(call, stream, engine)``: what the engine noted before and after a call."""
    monkeypatch.setattr(order, "handle_of", lambda routine, stream: stream)

    def run(call, stream=None, engine=None):
        engine = engine or Engine()
        made = order.Order(call, engine, stream)
        made.before()
        before, engine.waits = engine.waits, []
        made.after()
        return made, before, engine.waits, engine.held.things

    return run


def test_a_call_on_one_stream_waits_for_nothing(ordered):
    made, *noted = ordered(call_of(operand("a", 7), operand("x", 7)))
    assert made.stream == 7 and made.plain and noted == [[], [], []]


def test_streams_of_operands_are_joined_on_both_sides(ordered):
    made, before, after, held = ordered(call_of(operand("a", 7), operand("x", 9)))
    assert made.stream == 7 and not made.plain
    assert before == [(7, 9, 0, 0)], "the call waits for x"
    assert after == [(9, 7, 0, 0)], "later work on x waits for the call"
    assert held == []


def test_the_legacy_default_stream_has_one_name(ordered):
    """Interfaces call it 1, because 0 stands for none."""
    made, *noted = ordered(call_of(operand("a", 1), operand("x", 1)))
    assert made.stream == 0 and noted == [[], [], []]


def test_work_on_another_gpu_is_waited_for_whatever_its_stream_is_called(ordered):
    made, before, after, _ = ordered(call_of(operand("a", 7, 0), operand("x", 7, 1)))
    assert made.peers() == {1}
    assert before == [(7, 7, 0, 1)] and after == [(7, 7, 1, 0)]
    made, before, *_ = ordered(call_of(operand("a", 7, 0), operand("x", None, 1)))
    assert before == [(7, 0, 0, 1)], "its default stream, where nothing names one"


def test_a_named_stream_keeps_the_memory_of_others_alive(ordered):
    """The caller cannot know that another stream must not give x away before the call is done."""
    call = call_of(operand("a", 5), operand("x", 9), operand("y", 5))
    made, before, after, held = ordered(call, stream=5)
    assert made.stream == 5 and before == [(5, 9, 0, 0)]
    assert after == [] and held == [(["x"], 5)]


def test_an_allocator_is_told_of_a_stream_that_is_there_when_it_asks(ordered):
    """The caller's may be destroyed by then, and another one have its handle."""
    engine, library = Engine(), Told()
    call = call_of(operand("a", 5), *(operand(name, 9, exporter=library) for name in "xy"))
    _, _, after, held = ordered(call, stream=5, engine=engine)
    assert library.used == [("x", 1005, 0), ("y", 1005, 0)] and after == held == []
    assert engine.told_behind == [5], "once for all of them"


class OnStreams(Plain):
    """A library that makes new memory on its current stream."""

    current = 7

    def current_stream(self, device):
        return self.current


@pytest.mark.parametrize("named", [False, True])
def test_memory_that_stays_is_kept_for_calls_on_other_streams(named, monkeypatch):
    """Its library gives it out again at once, in the order of the stream that it was made on."""
    monkeypatch.setattr(order, "handle_of", lambda routine, stream: stream)
    library, engine = OnStreams(), Engine()
    engine.identities[7] = 70
    a, table = (operand(name, exporter=library) for name in ("a", "table"))

    def call(made_on=None):
        stream = library.current if named else None
        made = order.Order(call_of(a, a), engine, stream)
        made.stays(table, made_on)
        made.before()
        made.after()
        held, engine.held.things = engine.held.things, []
        assert engine.waits == [], "no stream waits for that"
        return held

    made_on = order.Order(call_of(a, a), engine, None).made_on(table)
    assert call(made_on) == []
    library.current = 9
    assert call(made_on) == [(["table"], 9)] and call(None) == []
    library.current = 7
    assert call(made_on) == []
    engine.identities[7] = 71  # it was destroyed, and this is another one
    assert call(made_on) == [(["table"], 7)]
    engine.captured[7] = SimpleNamespace(identity=1)
    assert call(made_on) == [], "a graph holds nothing"
    assert order.Order(call_of(a, a), engine, None).made_on(operand("b", device=None)) is None
    assert order.Order(call_of(a, a), engine, None).made_on(operand("b")) is None


def test_a_captured_stream_is_not_joined_with_one_that_is_not(ordered):
    graph = SimpleNamespace(identity=1)
    call = call_of(operand("a", 7), operand("x", 9))
    with pytest.raises(ValueError, match="stream 0x7 of this call is being captured .* 0x9 of x"):
        ordered(call, engine=Engine({7: graph}))
    with pytest.raises(ValueError, match="stream 0x9 of x is being captured .* 0x7 of this call"):
        ordered(call, engine=Engine({9: graph}))
    _, before, after, _ = ordered(call, engine=Engine({7: graph, 9: graph}))
    assert before == [(7, 9, 0, 0)] and after == [(9, 7, 0, 0)]
