"""When a thread asks for the interpreter's lock again: with a clock that tests move, and for real.

What others do with the turn is written to its words while a launch or a look at the clock lasts.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from helpers import processes

from gemv.driver import block as driver_block
from gemv.driver import machine, turn
from gemv.driver.turn import MOST_WATCHING, NEXT_SKIPPED, OWNER, SKIPPED, STATE, WATCHING

OTHER, ANOTHER = 1, 2
#: Looks at a clock of which each takes a microsecond, until the turn is given up.
ALL_LOOKS = turn.SPAN_NS // 1000


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def enqueuing(launch):
    """A function that launches a block of no parameters by the function at an address."""
    made = machine.machine.__wrapped__(machine.Driver(launch, 0, 0, 0, 0))
    block = driver_block.Block(
        [driver_block.Function(1, (1, 1, 1), (32, 1, 1), ("a",))], 4, 1, {}, 0, 0
    )
    return lambda: made.enqueue(block.address, 0, 1, 2, 3, 1.0, 0.0), (made, block)


class Others:
    """What other threads do meanwhile.

    Attributes
    ----------
    launching, looking : callable
        Called in each launch, and in each look at the clock with the number of looks so far.
    looks : int
    """

    def __init__(self):
        self.step = 1000
        self.reset()

    def reset(self):
        self.launching, self.looking = self.own_it, lambda looks: None
        self.looks, self.ns, self.step = 0, 0, 1000
        STATE[:] = 0

    @staticmethod
    def own_it():
        STATE[OWNER] = OTHER

    def launch(self, *_):
        self.launching()
        return 0

    def clock(self, _, target):
        self.looks += 1
        self.ns += self.step
        time_now = (ctypes.c_int64 * 2).from_address(target)
        time_now[:] = divmod(3_999_990_000 + self.ns, 1_000_000_000)  # seconds change on the way
        self.looking(self.looks)
        return 0


@pytest.fixture(scope="module")
def made():
    others = Others()
    launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(others.launch)
    clock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_void_p)(others.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn, "clock", lambda: address_of(clock))
        enqueue, kept = enqueuing(address_of(launch))
    yield others, enqueue, (kept, launch, clock)
    STATE[:] = 0


@pytest.fixture
def others(made):
    made[0].reset()
    return made[0]


@pytest.fixture
def enqueue(made):
    return made[1]


def own_thread():
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_size_t
    return get()


def test_a_thread_alone_watches_nothing(others, enqueue):
    seen = []
    others.launching = lambda: seen.append(int(STATE[OWNER]))
    for _ in range(50):
        assert enqueue() == 0
        assert STATE[OWNER] == own_thread() and not STATE[WATCHING]
    assert not others.looks
    assert not any(seen), "it is handed on before the launch"


def test_the_turn_of_another_thread_is_not_handed_on(others, enqueue):
    STATE[OWNER], seen = OTHER, []
    others.launching = lambda: seen.append(int(STATE[OWNER]))
    enqueue()
    assert seen == [OTHER]


@pytest.mark.parametrize("looks", [2, 7, ALL_LOOKS])
def test_a_turn_that_is_handed_on_is_taken_at_once(others, enqueue, looks):
    watching = []

    def looking(count):
        watching.append(int(STATE[WATCHING]))
        if count == looks:
            STATE[OWNER] = 0

    others.looking = looking
    enqueue()
    assert others.looks == looks and set(watching) == {1}
    assert STATE[OWNER] == own_thread() and not STATE[WATCHING] and not STATE[SKIPPED]


def test_a_turn_that_stays_where_it_is_is_given_up(others, enqueue):
    """Its owner sleeps, waits for the GPU, or has ended."""
    enqueue()
    assert others.looks == 1 + ALL_LOOKS
    assert STATE[OWNER] == own_thread() and not STATE[WATCHING] and STATE[SKIPPED] == 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_turn_that_is_handed_on_gets_more_time(others, enqueue, ends):
    """But not for ever, if it is always another thread that takes it."""

    def looking(count):
        if count % (ALL_LOOKS - 2) == 0:
            STATE[OWNER] = 0 if count > (4 if ends else 40) * ALL_LOOKS else count

    others.looking = looking
    enqueue()
    most = turn.MOST_NS // 1000
    assert others.looks in (range(4 * ALL_LOOKS, 6 * ALL_LOOKS) if ends else (most + 1,))
    assert bool(STATE[SKIPPED]) is not ends and not STATE[WATCHING]


def test_launches_after_one_that_watched_in_vain_do_not_watch(others, enqueue):
    """More and more of them, so that those whose owner never hands on lose little."""
    others.step, watched = turn.SPAN_NS, []
    for number in range(4000):
        before = others.looks
        enqueue()
        if others.looks > before:
            watched.append(number)
    between = [late - early - 1 for early, late in zip(watched, watched[1:], strict=False)]
    assert between == [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023]


def test_a_turn_that_is_taken_lets_fewer_launches_go_on(others, enqueue):
    STATE[NEXT_SKIPPED] = 15
    others.looking = lambda count: STATE.__setitem__(OWNER, 0)
    for left in (7, 3, 1, 0, 0):
        enqueue()
        assert STATE[NEXT_SKIPPED] == left and not STATE[SKIPPED]


@pytest.mark.parametrize("watching", [0, MOST_WATCHING - 1, MOST_WATCHING, 100])
def test_few_watch_at_once(others, enqueue, watching):
    STATE[WATCHING] = watching
    enqueue()
    assert (others.looks > 0) is (watching < MOST_WATCHING)
    assert STATE[WATCHING] == watching and STATE[OWNER] == own_thread()


@pytest.mark.parametrize("why", ["no lock", "one processor", "no clock"])
def test_where_nobody_watches(monkeypatch, why):
    STATE[:] = 0  # whichever test came before
    monkeypatch.setattr(turn, "processors", lambda: 2)
    assert turn.clock()
    if why == "no lock":
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    elif why == "one processor":
        monkeypatch.setattr(turn, "processors", lambda: 1)
    else:
        monkeypatch.setattr(turn, "ctypes", SimpleNamespace(CDLL=lambda _: object()))
    assert turn.clock() == 0
    launched = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(
        lambda *_: STATE.__setitem__(OWNER, OTHER) or 0
    )
    enqueue, _ = enqueuing(address_of(launched))
    assert enqueue() == 0 and STATE[OWNER] == own_thread()
    assert not STATE[SKIPPED]


def test_the_clock_counts_nanoseconds(monkeypatch):
    found = (ctypes.c_int64 * 2)()
    monkeypatch.setattr(turn, "processors", lambda: 2)
    clock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_void_p)(turn.clock())
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    clock(1, ctypes.addressof(found))
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert before <= found[0] * 10**9 + found[1] <= after


#: Threads for real: the launch is a function of the system's that needs no lock.
REAL = """
import ctypes, os, sys, threading, warnings
from driver.test_turn import STATE, OWNER, SKIPPED, WATCHING, address_of, enqueuing
enqueue, kept = enqueuing(address_of(ctypes.CDLL(None).sched_yield))
"""


def test_threads_that_end_in_between_stop_nobody():
    STATE[:] = 0
    enqueue, _ = enqueuing(address_of(ctypes.CDLL(None).sched_yield))
    counts, barrier = [], threading.Barrier(8)

    def work(launches):
        barrier.wait()
        counts.append(sum(enqueue() == 0 for _ in range(launches)))

    expected = [1, 2, 50, 500, 2000, 2000, 2000, 2000]
    running = [threading.Thread(target=work, args=(launches,)) for launches in expected]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(counts) == expected and not STATE[WATCHING]
    enqueue()
    assert STATE[OWNER] == own_thread()
    STATE[:] = 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_whose_parent_had_threads_that_watch():
    """They are not there, and are counted all the same."""
    text = """
STATE[OWNER], STATE[WATCHING], STATE[SKIPPED] = 1, 4, 5
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    running = [threading.Thread(target=lambda: [enqueue() for _ in range(500)]) for _ in range(3)]
    for thread in running: thread.start()
    for thread in running: thread.join()
    os._exit(0 if STATE[WATCHING] == 4 and enqueue() == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), enqueue())
"""
    assert processes.printed_by(REAL + text) == "0 0\n"


def test_threads_that_launch_while_python_ends():
    text = """
def work():
    while True: enqueue()
for _ in range(4): threading.Thread(target=work, daemon=True).start()
for _ in range(2000): enqueue()
print("done")
"""
    assert processes.printed_by(REAL + text) == "done\n"
