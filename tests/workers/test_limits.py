"""Neighbours where a socket, a descriptor or a place in a queue is refused."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from gemv.distributed import neighbours
from gemv.distributed.mailbox import Mailbox, Product
from gemv.distributed.neighbours import Capacity, Neighbours
from gemv.distributed.outcome import Stopped

resource = pytest.importorskip("resource", reason="the system has no such limits")
pytestmark = pytest.mark.skipif(
    not neighbours.is_possible(), reason="the system has no such sockets"
)


@pytest.fixture
def pair():
    """Two workers that know each other's doors, of which none has reached the other."""
    boxes = Mailbox(0.3), Mailbox(0.3)
    sides = [Neighbours(name, box, Capacity(1, 9)) for name, box in zip("ab", boxes, strict=True)]
    for box, name, side in zip(boxes, "ba", sides[::-1], strict=True):
        box.opened(name, side.door)
    yield sides
    for side, box in zip(sides, boxes, strict=True):
        side.close()
        box.close()


@contextlib.contextmanager
def no_more_files():
    """The numbers of files that are open stay in use; no other one is given out."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("when", ["at the door", "with the memory"])
def test_a_neighbour_that_cannot_be_admitted_ends_the_solve(pair, monkeypatch, when):
    """It has been told that it was reached, so nothing else would ever come from it."""
    a, b = pair
    assert a.reach({"b": b.door}) == []
    a.tell(Product(1, 0, [((0, 0), np.ones(3))]))
    box, receive = b._mailbox, socket.recv_fds
    with contextlib.ExitStack() as stack, pytest.raises(OSError, match="Too many open files"):
        if when == "at the door":
            stack.enter_context(no_more_files())
        else:

            def recv_fds(*arguments):
                with no_more_files():
                    return receive(*arguments)

            monkeypatch.setattr(socket, "recv_fds", recv_fds)
        box.collect(["a"], 1)


def test_whoever_has_no_more_files_tells_otherwise(pair):
    a, b = pair
    with no_more_files():
        assert a.reach({"b": b.door}) == ["b"]


def test_a_queue_at_a_door_keeps_nobody_waiting(pair):
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind("\0gemv-test-queue")
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting.setblocking(False)
                waiting.connect("\0gemv-test-queue")
        found = []
        thread = threading.Thread(
            target=lambda: found.extend(pair[0].reach({"c": "gemv-test-queue"}))
        )
        thread.start()
        thread.join(5)
        assert found == ["c"]


def test_a_socket_that_may_have_no_name_is_not_waited_at(monkeypatch):
    """Some security modules refuse it. A socket that never listens can always be read."""

    class Refused(socket.socket):
        def bind(self, name):
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(
        neighbours, "_socket", lambda: Refused(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    box = Mailbox(0.5)
    side = Neighbours("a", box, Capacity(1, 9))
    assert side.door == "" and side.reach({"b": "gemv-b"}) == ["b"]
    before = time.thread_time()
    with pytest.raises(Stopped, match="did not start"):
        box.wait_for_all(["b"])
    assert time.thread_time() - before < 0.1
    side.close()
    box.close()
