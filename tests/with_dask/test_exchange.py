"""One end of the connections of a solve, with peers that do what the tests say."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

from gemv.distributed import exchange as exchanges  # noqa: E402
from gemv.distributed.exchange import PLUGIN, Exchange, Exchanges  # noqa: E402
from gemv.distributed.neighbours import Capacity  # noqa: E402
from gemv.distributed.outcome import Stopped  # noqa: E402


class Comm:
    """A connection: what is written is kept, and what is to be read is there."""

    def __init__(self, messages=()):
        self.written, self.messages = [], list(messages)
        self.closed, self.fails = False, None  # or the error of each write

    async def write(self, message):
        if self.fails:
            raise self.fails
        self.written.append(message)

    async def read(self):
        if not self.messages:
            raise OSError("closed")
        return self.messages.pop(0)

    async def close(self):
        self.closed = True


@pytest.fixture
def worker(monkeypatch):
    """A worker with an event loop, and a connection to whoever it asks for."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    plugin, comms = Exchanges(), {}

    async def connect(peer, **options):
        return comms.setdefault(peer, Comm())

    found = SimpleNamespace(
        plugins={PLUGIN: plugin},
        state=SimpleNamespace(tasks={}),
        get_current_task=lambda: "task of the solve",
        loop=SimpleNamespace(asyncio_loop=loop),
        security=SimpleNamespace(get_connection_args=lambda role: {}),
        comms=comms,
        plugin=plugin,
        handlers={},
    )
    plugin.setup(found)
    monkeypatch.setattr(distributed, "get_worker", lambda: found)
    monkeypatch.setattr(exchanges, "connect", connect)
    yield found
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def begun(worker, patience=0.2):
    """Of two workers, the other one of which has opened its connection."""
    exchange = Exchange("solve", "a", ["a", "b"], patience, Capacity(1, 9))
    worker.plugin.mailbox("solve", patience).opened("b")
    exchange.start()
    return exchange


def test_that_a_solve_has_not_started_is_known_to_all(worker):
    """Whoever hears it from another worker says so as well: the client may hear that one first."""
    exchange = begun(worker)
    exchange.give_up("c is busy", ["c"], False)
    sent = worker.comms["b"].written[-1]
    exchange.close()
    for message in (sent, {**sent, "started": True}):
        box = worker.plugin.mailbox("solve 2", 0.2, "the task")
        asyncio.run(worker.plugin.listen(Comm([message]), "solve 2", "a", "", 0.2))
        with pytest.raises(Stopped, match="c is busy") as told:
            box.wait_for_all(["a"])
        assert told.value.started is message["started"] and told.value.workers == ("c",)
        worker.plugin.remove("solve 2")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_solve_ends_when_nobody_wants_its_result(worker, when):
    """Dask lets the task run on whose client has given up, or was killed."""
    task = worker.get_current_task()
    worker.state.tasks[task] = SimpleNamespace(state="cancelled" if when == "before" else "ready")
    exchange = Exchange("solve", "a", ["a", "b"], 5, Capacity(1, 9))
    if when == "meanwhile":
        worker.plugin.transition(task, "ready", "executing", stimulus_id="x")
        worker.plugin.transition("another task", "executing", "released", stimulus_id="x")
        assert exchange._mailbox._stopped is None
        worker.plugin.transition(task, "executing", "released", stimulus_id="x")
    with pytest.raises(Stopped, match="nobody waits for the result"):
        exchange.start()
    exchange.close()
    del exchange
    _let_go(worker)
    worker.plugin.transition(task, "cancelled", "released", stimulus_id="x")  # it is forgotten
    assert not worker.plugin._of_tasks


def _let_go(worker):
    """Wait until the loop's thread holds nothing of an exchange that is closed.

    Its coroutines end a few turns of the loop after the thread that cancelled them goes on.
    """

    async def all_others_end():
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what was to be called at their ends has been

    asyncio.run_coroutine_threadsafe(all_others_end(), worker.loop.asyncio_loop).result(60)
    gc.collect()


def test_a_worker_that_closes_leaves_the_solve(worker):
    """Dask waits half a minute for the tasks of such a worker."""
    exchange = begun(worker, patience=5)
    worker.plugin.teardown(SimpleNamespace(address="a"))
    with pytest.raises(Stopped, match="worker a closes") as told:
        exchange.all_gather([((0, 0), np.ones(3))], 7)
    assert told.value.workers == ("a",)
    exchange.close()


def test_a_vector_that_cannot_be_sent_ends_the_solve(worker):
    """The peer would wait for it for ever, as signs of life go on."""
    exchange = begun(worker, patience=2)
    worker.comms["b"].fails = MemoryError("too long")
    with pytest.raises(Stopped, match="a could not send to worker b: .*too long"):
        exchange.all_gather([((0, 0), np.ones(3))], 7)
    exchange.close()


def test_a_connection_that_ends_in_its_greeting_is_closed(worker):
    worker.comms["b"] = comm = Comm()
    comm.fails = OSError("closed")
    exchange = Exchange("solve", "a", ["a", "b"], 0.2, Capacity(1, 9))
    with pytest.raises(Stopped, match="worker b is gone"):
        exchange.start()
    exchange.close()
    assert comm.closed


def test_a_worker_that_cannot_connect_says_so(worker, monkeypatch):
    """Though all others have connected to it."""

    async def never(peer, **options):
        await asyncio.sleep(60)

    monkeypatch.setattr(exchanges, "connect", never)
    worker.plugin.mailbox("solve", 0.2).opened("b")
    exchange = Exchange("solve", "a", ["a", "b"], 0.2, Capacity(1, 9))
    with pytest.raises(Stopped, match="worker a could not connect to all others within 0.2 s") as e:
        exchange.start()
    assert not e.value.started and e.value.workers == ("a",)
    exchange.close()


def test_nothing_is_kept_where_the_event_loop_has_ended(worker, monkeypatch):
    """As that of a worker that is closed in a process that goes on."""
    exchange = begun(worker)

    def closed(coroutine, loop):
        coroutine.close()
        raise RuntimeError("Event loop is closed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="loop is closed"):
        patch.setattr(asyncio, "run_coroutine_threadsafe", closed)
        exchange.close()
    assert not worker.plugin._mailboxes and not exchange._mailbox.close.alive
    assert exchange._neighbours._descriptor == -1


def test_a_solve_begins_at_the_mailbox_that_it_was_given(worker):
    """Though the connection that had made it ends at the same time."""
    plugin, box = worker.plugin, None

    class Last(Comm):
        async def read(self):
            nonlocal box
            box = plugin.mailbox("solve", 0.2, "the task")
            raise OSError("closed")

    asyncio.run(plugin.listen(Last(), "solve", "b", "", 0.2))
    assert plugin.mailbox("solve", 0.2) is box and box.close.alive
    plugin.remove("solve")
