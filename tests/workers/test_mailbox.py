"""What a worker has heard from others: who is missing, and who has ended its solver."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from gemv.distributed.mailbox import Mailbox, Product
from gemv.distributed.outcome import Stopped


def test_mailboxes_say_who_is_missing():
    box = Mailbox(0.05)
    box.opened("a")
    with pytest.raises(Stopped, match="did not start within 0.05 s on b, c"):
        box.wait_for_all("cab")
    told = Product(1, 0, [])
    box.put("a", told)
    assert box.collect("a", 1) == {"a": told}
    with pytest.raises(Stopped, match="nothing was heard of worker a for 0.05 s"):
        box.collect("a", 1)  # a message is given out once, and forgotten
    box.heard("b")
    with pytest.raises(Stopped, match="nothing was heard of worker a for 0.05 s"):
        box.collect("ab", 2)  # though b can be heard
    box.finished("a", 1)
    with pytest.raises(Stopped, match="worker a ended its solver before product 2"):
        box.collect("a", 2)
    box.closed("a")  # as whoever has finished does
    box.stop("the first reason", ["d"])
    box.stop("another one", ["e"])
    with pytest.raises(Stopped, match="the first reason"):
        box.collect("a", 1)


def test_a_mailbox_is_deserted_until_its_solve_begins():
    """Nobody fills it and nobody has waited at it, so it may go."""
    box = Mailbox(0.05)
    assert box.deserted
    box.opened("a")
    assert not box.deserted
    box.finished("a", 0)
    box.closed("a")
    assert box.deserted
    box.used = True
    assert not box.deserted


def test_a_mailbox_that_has_stopped_a_solve_is_forgotten_at_once():
    """And the vectors in it: no cycle of references waits for the collector."""
    box = Mailbox(0.2)
    box.opened("b")
    box.put("b", Product(2, 0, []))
    box.stop("enough", [])
    forgotten = weakref.ref(box)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(Stopped):
            box.collect(["b"], 1)
        del box
        assert forgotten() is None
    finally:
        gc.enable()
