"""Workers of one machine: what they tell by memory that they share, and who is told otherwise."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gemv.distributed import neighbours
from gemv.distributed.mailbox import Mailbox, Product
from gemv.distributed.neighbours import Capacity, Neighbours, capacity_of
from gemv.distributed.outcome import Stopped

pytestmark = pytest.mark.skipif(
    not neighbours.is_possible(), reason="the system has no such sockets"
)

#: Of each worker of the tests.
CAPACITY = Capacity(3, 100)


class Worker:
    """One of some workers, all in this process."""

    def __init__(self, name, capacity=CAPACITY):
        self.mailbox = Mailbox(2.0)
        self.side = Neighbours(name, self.mailbox, capacity)
        self.name = name

    def knows(self, *others):
        for other in others:
            self.mailbox.opened(other.name, other.side.door)
        return self.side.reach(self.mailbox.wait_for_all(other.name for other in others))

    def close(self):
        self.side.close()
        self.mailbox.close()


@pytest.fixture
def workers():
    made = []

    def make(name, *capacity):
        made.append(Worker(name, *capacity))
        return made[-1]

    yield make
    for each in made:
        each.close()


def vectors_of(product):
    return [(place, vector.dtype, vector.tolist()) for place, vector in product.parts]


@pytest.mark.parametrize("dtype", list("fdFD"))
def test_what_is_told_is_heard(workers, dtype):
    a, b, c = (workers(name) for name in ("tcp://a:1", "tcp://b:1", "a name with spaces"))
    assert a.knows(b, c) == b.knows(a, c) == c.knows(a, b) == []
    rng = np.random.default_rng(3)
    for number in range(1, 6):
        told = {}
        for worker in (a, b, c):
            lengths = rng.integers(0, 34, rng.integers(1, 4))
            parts = [
                ((int(rng.integers(10**12)), k), rng.standard_normal(length).astype(dtype))
                for k, length in enumerate(lengths)
            ]
            told[worker.name] = Product(number, int(rng.integers(2**32)), parts)
            worker.side.tell(told[worker.name])
        for worker in (a, b, c):
            others = set(told) - {worker.name}
            heard = worker.mailbox.collect(others, number)
            assert heard.keys() == others
            for sender, product in heard.items():
                assert product[:2] == told[sender][:2]
                assert vectors_of(product) == vectors_of(told[sender])


def test_who_reads_by_itself_is_not_woken(workers):
    """Its next wait would end at once, for nothing."""
    a, b = workers("a"), workers("b")
    assert a.knows(b) == b.knows(a) == []
    for worker in (a, b):
        worker.side.tell(Product(1, 0, [((0, 0), np.ones(3))]))
    a.mailbox.collect(["b"], 1)
    a.mailbox._wait(0)  # whatever else there was at the start
    assert a.mailbox._selector.select(0) == []
    b.side.tell(Product(2, 0, [((0, 0), np.ones(3))]))
    a.mailbox.collect(["b"], 2)
    assert a.mailbox._selector.select(0) == []
    a.mailbox.put("b", Product(3, 0, []))  # by the event loop
    assert len(a.mailbox._selector.select(0)) == 1


def test_vectors_hold_until_the_next_but_one_is_told(workers):
    a, b = workers("a"), workers("b")
    a.knows(b)
    heard = []
    for number in (1, 2):
        a.side.tell(Product(number, 0, [((0, 0), np.full(5, float(number)))]))
        b.mailbox.heard("a")
        heard += b.mailbox.collect(["a"], number).values()
    assert [product.parts[0][1].tolist() for product in heard] == [[1.0] * 5, [2.0] * 5]
    assert not any(product.parts[0][1].flags.writeable for product in heard)


def test_the_most_that_fits_does(workers):
    """All of it, in the widest dtype: nothing is written behind the memory."""
    capacity = capacity_of([(0, 1), (1, 0)], [(7, 9), (8, 30)])
    assert capacity == (2, 30 + 9)
    a, b = workers("a", capacity), workers("b")
    a.knows(b)
    b.mailbox.heard("a")
    for number in (1, 2):
        parts = [((0, 1), np.full(30, 1j * number)), ((1, 0), np.full(9, 2j * number))]
        a.side.tell(Product(number, 0, parts))
    for number in (1, 2):
        (product,) = b.mailbox.collect(["a"], number).values()
        assert [vector.tolist() for _, vector in product.parts] == [
            [1j * number] * 30, [2j * number] * 9
        ]  # fmt: skip


def test_who_has_no_door_is_told_otherwise(workers, monkeypatch):
    a, b = workers("a"), workers("b")
    doors = {"b": b.side.door, "c": "", "d": "gemv-of-another-machine"}
    assert a.side.reach(doors) == ["c", "d"]
    monkeypatch.setattr(neighbours, "is_possible", lambda: False)
    alone = workers("e")
    assert alone.side.door == "" and alone.side.reach(doors) == ["b", "c", "d"]
    alone.side.tell(Product(1, 0, [((0, 0), np.ones(3))]))  # to nobody


def test_where_there_are_no_more_files_there_is_no_door(workers, monkeypatch):
    def refuse(name):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert workers("a").side.door == ""


def test_other_users_are_not_told_and_not_heard(workers, monkeypatch):
    a, b = workers("a"), workers("b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert a.knows(b) == ["b"]
    assert a.side.reach({"b": b.side.door}) == []
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    b.mailbox.opened("a")
    a.side.tell(Product(1, 0, [((0, 0), np.ones(3))]))
    b.mailbox.patience = 0.1
    with pytest.raises(Stopped, match="nothing was heard of worker a"):
        b.mailbox.collect(["a"], 1)


def test_a_product_that_comes_before_the_greeting(workers):
    """The event loop may be slower: the sender has a door all the same."""
    a, b = workers("a"), workers("b")
    a.knows(b)
    a.side.tell(Product(1, 7, [((0, 0), np.ones(3))]))
    thread = threading.Timer(0.2, lambda: b.mailbox.opened("a", a.side.door))
    thread.start()
    doors = b.mailbox.wait_for_all(["a"])
    thread.join()
    assert doors == {"a": a.side.door} and b.side.reach(doors) == []
    assert b.mailbox.collect(["a"], 1)["a"].digest == 7


def test_one_that_is_gone_stops_nobody_by_itself(workers):
    """Dask's connection tells whether it has died or finished; what it told before is heard."""
    a, b = workers("a"), workers("b")
    a.knows(b), b.knows(a)
    a.side.tell(Product(1, 7, [((0, 0), np.ones(3))]))
    a.close()
    b.side.tell(Product(1, 7, [((0, 0), np.ones(3))]))
    b.mailbox.finished("a", 1)  # is read before the ring
    assert b.mailbox.collect(["a"], 1)["a"].digest == 7
    with pytest.raises(Stopped, match="worker a ended its solver before product 2"):
        b.mailbox.collect(["a"], 2)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists open files")
def test_nothing_stays_open(workers):
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        a, b, c = Worker("a"), Worker("b"), Worker("c")
        a.knows(b, c), b.knows(a, c)
        a.side.tell(Product(1, 0, [((0, 0), np.ones(3))]))
        b.mailbox.collect(["a"], 1)  # c has not opened its door
        for each in (a, b, c):
            each.close()
        forgotten = Mailbox(1)
        del forgotten
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    "happens, waits",
    [
        (lambda box: box.opened("a"), lambda box: box.wait_for_all("a")),
        (lambda box: box.put("a", Product(2, 0, [])), lambda box: box.collect("a", 2)),
        (lambda box: box.finished("a", 1), lambda box: box.collect("a", 2)),
        (lambda box: box.stop("enough", []), lambda box: box.collect("a", 2)),
    ],
    ids=["opened", "told", "finished", "stopped"],
)
def test_the_event_loop_wakes_who_waits(happens, waits):
    box, woken = Mailbox(20), []
    if waits.__code__.co_names != ("wait_for_all",):
        box.heard("a")

    def wait():
        with contextlib.suppress(Stopped):
            waits(box)
        woken.append("it is")

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    assert not woken
    happens(box)
    thread.join(10)
    assert woken, "it waits for half of its patience"
    for _ in range(100_000):  # nobody listens to these any more
        box.heard("a")
    box.close()
    box.heard("a")
