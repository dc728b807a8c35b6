"""Who launches where several threads call: with a driver in machine code that tests hold and free.

A launch adds 1 to a word, so that each one is seen to happen, and once.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import native_driver, processes
from helpers.native_driver import (
    ASKED,
    CAPTURING,
    CONTEXT,
    CURRENT,
    HELD,
    LAUNCHES,
    REFUSED,
    STATUS,
    STREAM,
    THREAD,
    WORDS,
)  # fmt: skip

from gemv.driver import deputy, turn
from gemv.driver.deputy import (
    ASLEEP,
    BEFORE,
    CALLS_OF_MANY,
    DONE,
    LAST,
    LONG_BEFORE,
    MANY,
    NEXT_SKIPPED,
    NONE,
    READY,
    SKIPPED,
    SLOT,
    STATE,
)  # fmt: skip

#: Threads that called before, the last one first.
OTHERS = 1, 2, 3
#: As long as a test waits for what has to happen.
PATIENCE_S = 20
#: As long as the deputy may have to wait for a processor.
LONG_NS = 10**10
TIMES = [deputy.SPAN, deputy.IDLE, deputy.NEAR]
OWN_TIMES = deputy.SPAN_NS, deputy.IDLE_NS, deputy.NEAR_NS


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn, "processors", lambda: 2)
        machine, engine = native_driver.made()
    return machine, engine, native_driver.block(), native_driver.block(2)


@pytest.fixture
def driver(made):
    WORDS[:] = 0
    WORDS[CONTEXT] = 77
    STATE[LAST : deputy.SEMAPHORE] = 0
    STATE[TIMES] = LONG_NS
    y = np.zeros(8, np.int64)

    def enqueue(stream=5, launches=1, target=None):
        at = (y if target is None else target).ctypes.data
        return made[0].enqueue(made[1 + launches].address, stream, at, 2, 3, 1.0, 0.0)

    yield SimpleNamespace(enqueue=enqueue, y=y)
    WORDS[HELD] = 0
    STATE[TIMES] = OWN_TIMES
    until(lambda: STATE[SLOT] in (NONE, ASLEEP))


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, STATE[: deputy.SEMAPHORE].tolist()
        time.sleep(0.0005)


def own_thread():
    get = ctypes.CDLL(None).pthread_self
    get.restype = ctypes.c_int64
    return get()


def others_called():
    STATE[[LAST, BEFORE, LONG_BEFORE]] = OTHERS


def by_deputy(driver, **how):
    """A launch that the deputy was asked for, as three other threads have called before."""
    for _ in range(200_000):
        others_called()
        STATE[SKIPPED] = 0
        assert driver.enqueue(**how) == WORDS[STATUS]
        if WORDS[THREAD] != own_thread():
            return
    raise AssertionError(STATE[: deputy.SEMAPHORE].tolist())


def test_a_thread_alone_launches_by_itself(driver):
    before = int(STATE[SLOT])
    for _ in range(500):
        assert driver.enqueue() == 0
        assert WORDS[THREAD] == own_thread()
    assert driver.y[0] == 500 == WORDS[LAUNCHES] and not STATE[MANY] and STATE[SLOT] == before


def test_the_deputy_launches_for_several(driver):
    by_deputy(driver, stream=9)
    assert WORDS[THREAD] != own_thread() and WORDS[STREAM] == 9 and WORDS[CURRENT] == 77
    assert driver.y[0] == WORDS[LAUNCHES]


def test_each_launch_is_in_the_context_of_its_thread(driver):
    for context in (77, 78, 77, 79):
        WORDS[CONTEXT] = context
        by_deputy(driver)
        assert WORDS[CURRENT] == context


@pytest.mark.parametrize("status", [0, 1, 700])
def test_the_status_of_the_driver_comes_back(driver, status):
    WORDS[STATUS] = status
    by_deputy(driver)
    assert driver.enqueue() == status


@pytest.mark.parametrize("status, launches", [(0, 2), (700, 1)])
def test_two_kernels_of_a_call(driver, status, launches):
    by_deputy(driver)
    WORDS[STATUS], before = status, int(WORDS[LAUNCHES])
    for number in range(1, 100):
        assert driver.enqueue(launches=2) == status
        assert WORDS[LAUNCHES] == before + number * launches == driver.y[0]


def test_a_context_that_cannot_be_made_current(driver):
    """The status comes back, and nothing is launched."""
    by_deputy(driver)
    WORDS[REFUSED], answers = 709, []
    before = int(driver.y[0])
    while 709 not in answers:
        others_called()
        STATE[SKIPPED] = 0
        answers.append(driver.enqueue())
    assert driver.y[0] == before + len(answers) - 1


@pytest.mark.parametrize("why", ["captured", "cannot say", "no context", "stream of a thread"])
def test_launches_that_belong_to_their_thread(driver, why):
    by_deputy(driver)
    WORDS[CAPTURING], WORDS[ASKED] = why == "captured", 906 * (why == "cannot say")
    WORDS[CONTEXT] = 0 if why == "no context" else 77
    stream = 2 if why == "stream of a thread" else 5
    for _ in range(300):
        others_called()
        WORDS[THREAD] = 0
        assert driver.enqueue(stream=stream) == 0
        assert WORDS[THREAD] == own_thread()
    assert driver.y[0] == WORDS[LAUNCHES]


def test_a_launch_that_lasts_keeps_no_lock(driver):
    """Another thread has the lock meanwhile, and may be what the launch waits for."""
    by_deputy(driver)
    STATE[deputy.SPAN] = deputy.SPAN_NS
    before = int(driver.y[0])
    for number in range(1, 4):
        others_called()
        STATE[SKIPPED], WORDS[HELD], freed = 0, 1, []

        def free(freed=freed):
            until(lambda: STATE[SLOT] == deputy.POSTED or STATE[SLOT] == ASLEEP)
            time.sleep(0.01)
            freed.append(int(driver.y[0]))
            WORDS[HELD] = 0

        thread = threading.Thread(target=free)
        thread.start()
        assert driver.enqueue() == 0
        thread.join()
        assert freed == [before + number - 1] and driver.y[0] == before + number
    assert STATE[SLOT] in (READY, ASLEEP)


def lasting(driver):
    """A launch that the deputy was asked for and that lasts longer than a thread keeps the lock."""
    for _ in range(100):
        by_deputy(driver)
        others_called()
        STATE[SKIPPED], WORDS[HELD], STATE[deputy.SPAN] = 0, 1, deputy.SPAN_NS
        further, done = int(STATE[NEXT_SKIPPED]), []
        thread = threading.Thread(target=lambda done=done: done.append(driver.enqueue()))
        thread.start()
        time.sleep(0.005)
        WORDS[HELD] = 0
        thread.join()
        STATE[deputy.SPAN] = LONG_NS
        assert done == [0]
        if STATE[SKIPPED]:  # else it was asleep, and the thread launched by itself
            return further
    raise AssertionError(STATE[: deputy.SEMAPHORE].tolist())


def test_launches_after_one_that_lasted_do_not_ask(driver):
    """More and more of them, so that threads that wait for the GPU lose little."""
    for _ in range(3):
        further = lasting(driver)
        assert STATE[NEXT_SKIPPED] == STATE[SKIPPED] == 2 * further + 1
    STATE[NEXT_SKIPPED] = deputy.MOST_SKIPPED
    by_deputy(driver)
    assert STATE[NEXT_SKIPPED] < deputy.MOST_SKIPPED, "a quick one lets fewer go on"


def test_calls_that_do_not_ask_are_counted(driver):
    left = 20
    while left:
        by_deputy(driver)
        others_called()
        STATE[SKIPPED], WORDS[THREAD] = left, 0
        driver.enqueue()
        assert WORDS[THREAD] == own_thread()
        if STATE[SKIPPED] != left:  # else it was asleep, which is another reason
            assert STATE[SKIPPED] == left - 1
            left -= 1


def test_who_waits_keeps_the_slot(driver):
    """Others launch by themselves meanwhile, while the deputy's launch lasts."""
    by_deputy(driver)
    mine = np.zeros(8, np.int64)
    others_called()
    WORDS[HELD], STATE[deputy.SPAN] = 1, deputy.SPAN_NS
    first = threading.Thread(target=lambda: driver.enqueue(target=mine))
    first.start()
    until(lambda: STATE[SLOT] in (deputy.POSTED, ASLEEP))
    others = [threading.Thread(target=driver.enqueue) for _ in range(3)]
    before = int(driver.y[0])
    for thread in others:
        thread.start()
    time.sleep(0.02)
    assert mine[0] == 0 and driver.y[0] == before
    WORDS[HELD] = 0
    for thread in (first, *others):
        thread.join()
    assert mine[0] == 1 and driver.y[0] == before + 3


def test_it_sleeps_when_nobody_asks_and_is_woken(driver):
    for _ in range(5):
        STATE[TIMES] = LONG_NS
        by_deputy(driver)
        STATE[TIMES] = OWN_TIMES
        until(lambda: STATE[SLOT] == ASLEEP)
        time.sleep(2 * deputy.NEAR_NS / 1e9)
        WORDS[THREAD] = 0
        others_called()
        driver.enqueue()
        assert WORDS[THREAD] == own_thread(), "a single call wakes nobody, and waits for nobody"
        assert STATE[SLOT] == ASLEEP


def test_it_is_not_woken_by_calls_that_are_rare(driver):
    """Each call later than NEAR after the one before."""
    by_deputy(driver)
    STATE[[deputy.IDLE, deputy.NEAR]] = deputy.IDLE_NS, 0
    until(lambda: STATE[SLOT] == ASLEEP)
    for _ in range(4 * deputy.WAKING_CALLS):
        others_called()
        driver.enqueue()
        assert STATE[SLOT] == ASLEEP and STATE[deputy.SOON] == 0


def test_times(monkeypatch, driver):
    monkeypatch.setattr(deputy, "STATE", STATE.copy())
    deputy.reset()
    assert deputy.STATE[TIMES].tolist() == list(OWN_TIMES)


def test_threads_count_as_many_for_some_calls(driver):
    others_called()
    for number in range(1, 4):
        driver.enqueue()
        assert STATE[MANY] == CALLS_OF_MANY - number
    STATE[MANY] = 1
    driver.enqueue()
    driver.enqueue()
    assert STATE[MANY] == 0


@pytest.mark.parametrize("place", [LAST, BEFORE, LONG_BEFORE])
def test_three_threads_are_not_many(driver, place):
    """Whichever of them calls: the words have the threads that called, the last one first."""
    driver.enqueue()
    mine, words = int(STATE[LAST]), [LAST, BEFORE, LONG_BEFORE]
    others_called()
    STATE[place] = mine
    others = [other for word, other in zip(words, OTHERS, strict=True) if word != place]
    for _ in range(3):
        driver.enqueue()
        assert STATE[words].tolist() == [mine, *others] and STATE[MANY] == 0


@pytest.mark.parametrize("before", [(0, 0, 0), (1, 0, 0), (1, 2, 0)])
def test_two_or_three_that_have_called_are_not_many(driver, before):
    STATE[[LAST, BEFORE, LONG_BEFORE]] = before
    driver.enqueue()
    assert STATE[[BEFORE, LONG_BEFORE]].tolist() == list(before[:2]) and STATE[MANY] == 0


def test_a_thread_gives_way_after_many_calls_in_a_row(driver):
    others_called()
    STATE[deputy.IN_A_ROW] = 1000  # those of the thread before
    driver.enqueue()
    assert STATE[deputy.IN_A_ROW] == 1
    STATE[deputy.IN_A_ROW] = deputy.MOST_IN_A_ROW - 1
    driver.enqueue()
    assert STATE[deputy.IN_A_ROW] == deputy.MOST_IN_A_ROW
    begun = time.perf_counter_ns()
    driver.enqueue()
    assert time.perf_counter_ns() - begun > deputy.YIELD_NS, "no other thread calls meanwhile"
    assert STATE[deputy.IN_A_ROW] == 0 and WORDS[THREAD] == own_thread()


def test_a_fourth_thread_makes_many(driver):
    others_called()
    driver.enqueue()
    assert STATE[[BEFORE, LONG_BEFORE]].tolist() == [1, 2] and STATE[MANY] == CALLS_OF_MANY - 1


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_each_launch_happens_once(driver, threads):
    ys, wrong, count = np.zeros((threads, 8), np.int64), [], 5000
    STATE[deputy.SPAN] = deputy.SPAN_NS

    def work(k):
        wrong.extend(s for _ in range(count) if (s := driver.enqueue(5 + k, 1 + k % 2, ys[k])))

    running = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong
    assert ys[:, 0].tolist() == [count * (1 + k % 2) for k in range(threads)]
    assert STATE[SLOT] != DONE


@pytest.mark.parametrize("why", ["nobody is to watch", "no function"])
def test_where_there_is_no_deputy(monkeypatch, driver, why):
    """See test_turn.py for when nobody is to watch."""
    monkeypatch.setattr(deputy, "is_worth_watching", lambda: True)
    assert all(deputy.system().values())
    if why == "nobody is to watch":
        monkeypatch.setattr(deputy, "is_worth_watching", lambda: False)
    else:
        monkeypatch.setattr(deputy, "ctypes", SimpleNamespace(CDLL=lambda _: object()))
    assert not any(deputy.system().values())
    monkeypatch.undo()
    monkeypatch.setattr(deputy, "system", lambda: dict.fromkeys(deputy.SYSTEM_ENTRIES, 0))
    machine, engine = native_driver.made()
    block = native_driver.block()
    for _ in range(200):
        others_called()
        assert machine.enqueue(block.address, 5, driver.y.ctypes.data, 2, 3, 1.0, 0.0) == 0
        assert WORDS[THREAD] == own_thread()
    assert engine


REAL = """
import os, sys, threading, time, warnings
import numpy as np
from helpers import native_driver
from gemv.driver import deputy, turn
turn.processors = lambda: 2
machine, engine = native_driver.made()
block = native_driver.block()
native_driver.WORDS[native_driver.CONTEXT] = 77
ys = np.zeros((8, 8), np.int64)
native_driver.keep(block, ys)
def work(k, launches):
    for _ in range(launches):
        machine.enqueue(block.address, 5, ys[k].ctypes.data, 2, 3, 1.0, 0.0)
def together(launches):
    running = [threading.Thread(target=work, args=(k, launches)) for k in range(8)]
    for each in running: each.start()
    for each in running: each.join()
def have_a_deputy():
    # A busy machine may run the threads one after the other, and call late.
    deputy.STATE[deputy.NEAR] = 10**10
    ys[:], rounds = 0, 0
    while deputy.STATE[0] not in (deputy.ASLEEP, deputy.READY):
        together(5000)
        rounds += 1
    return rounds > 0 and (ys[:, 0] == 5000 * rounds).all()
assert have_a_deputy()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_has_no_deputy_of_its_parents():
    """Whatever it is doing at that moment, the child gets one of its own when it needs it."""
    text = """
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    fine = deputy.STATE[0] == deputy.NONE and have_a_deputy()
    os._exit(0 if fine else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ys[:] = 0
together(100)
print((ys[:, 0] == 100).all())
"""
    assert processes.printed_by(REAL + text) == "0\nTrue\n"


def test_python_ends_while_the_deputy_launches():
    text = """
for k in range(4): threading.Thread(target=work, args=(k, 10**9), daemon=True).start()
work(4, 5000)
print("done")
"""
    assert processes.printed_by(REAL + text) == "done\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="only Linux tells of threads")
def test_signals_are_for_threads_of_python():
    """The deputy gets none."""
    text = """
import signal
caught = [signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
blocking = []
for task in os.listdir("/proc/self/task"):
    try:
        with open(f"/proc/self/task/{task}/status") as status:
            (blocked,) = [line.split()[1] for line in status if line.startswith("SigBlk")]
    except (FileNotFoundError, ProcessLookupError):
        continue  # a thread that was joined had not quite ended
    blocking.append(all(int(blocked, 16) >> (number - 1) & 1 for number in caught))
print(sum(blocking) == 1)
"""
    assert processes.printed_by(REAL + text) == "True\n"
