"""Vectors from worker to worker: the scheduler takes no part in it.

Each worker opens one of Dask's connections to each of the others. Neighbours, which are on the same
machine, tell their results by memory that they share (:mod:`gemv.distributed.neighbours`); to all
others they go over that connection, one message each way in a product.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import distributed
import numpy as np
from distributed.comm import connect
from distributed.protocol import to_serialize

from gemv.distributed.mailbox import Mailbox, Place, Product
from gemv.distributed.neighbours import Capacity, Neighbours
from gemv.distributed.outcome import Stopped

#: The name of the plugin, and of the operation that a worker asks another one for.
PLUGIN = "gemv_exchange"

#: The topic of the events that tell how far a solver is.
TOPIC = "gemv"

#: Bytes from which on a copy costs more than the frames in which Dask sends an array without one.
_LONG = 65536

#: Why a solve ends whose client is gone; nobody reads it.
_UNWANTED = "nobody waits for the result any more"

#: Signs of life that a worker gives while another one waits for `patience`.
_BEATS = 8


class Exchanges(distributed.WorkerPlugin):
    """Lets a worker take part in solves: it keeps a mailbox for each."""

    name = PLUGIN
    idempotent = True

    def setup(self, worker: distributed.Worker) -> None:
        """Called by Dask on every worker, also on those that join later.

        Parameters
        ----------
        worker : distributed.Worker
        """
        self._mailboxes: dict[str, Mailbox] = {}
        #: The loop and the thread that computes make mailboxes, and throw them away.
        self._lock = threading.Lock()
        #: By the key of the task in which a solve runs here; they go with the mailboxes.
        self._of_tasks: weakref.WeakValueDictionary[Any, Mailbox] = weakref.WeakValueDictionary()
        self._worker = worker
        worker.handlers[PLUGIN] = self.listen

    def teardown(self, worker: distributed.Worker) -> None:
        """Called by Dask where a worker closes: it waits for its tasks, so they end.

        Parameters
        ----------
        worker : distributed.Worker
        """
        for mailbox in list(self._mailboxes.values()):
            mailbox.stop(f"worker {worker.address} closes", [worker.address])

    def mailbox(self, solve: str, patience: float, task: Any = None) -> Mailbox:
        """The mailbox of a solve; the first that asks, from here or from elsewhere, makes it.

        Parameters
        ----------
        solve : str
        patience : float
            As of :class:`Mailbox`.
        task : str, optional
            The key of the task in which the solve begins here. It ends as soon as nobody wants the
            result of the task: the client has given up, or is gone. Dask lets such a task run on.

        Returns
        -------
        Mailbox
        """
        with self._lock:
            mailbox = self._mailboxes.get(solve)
            if mailbox is None:
                mailbox = self._mailboxes[solve] = Mailbox(patience)
            if task is not None:
                mailbox.used = True
                self._of_tasks[task] = mailbox
        known = self._worker.state.tasks.get(task)
        if known is not None and known.state == "cancelled":  # before this call
            mailbox.stop(_UNWANTED, ())
        return mailbox

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        """Called by Dask on each change in the state of a task.

        Parameters
        ----------
        key : str
        start, finish : str
            The states.
        **more
        """
        mailbox = self._of_tasks.get(key)
        if mailbox is not None and finish == "released":
            mailbox.stop(_UNWANTED, ())

    def remove(self, solve: str) -> None:
        """Forget a solve.

        Parameters
        ----------
        solve : str
        """
        mailbox = self._mailboxes.pop(solve, None)
        if mailbox is not None:
            mailbox.close()

    async def listen(self, comm: Any, solve: str, sender: str, door: str, patience: float) -> None:
        """Fill a mailbox from a connection until it ends: Dask calls this for each.

        Parameters
        ----------
        comm : distributed.comm.Comm
        solve, sender, door : str
        patience : float
        """
        mailbox = self.mailbox(solve, patience)
        mailbox.opened(sender, door)
        try:
            while True:
                message = await comm.read()
                kind = message["kind"]
                if kind == "product":
                    mailbox.put(sender, _unpacked(message))
                elif kind == "beat":
                    mailbox.heard(sender)
                elif kind == "finished":
                    mailbox.finished(sender, message["count"])
                else:
                    mailbox.stop(message["reason"], message["workers"], message["started"])
        except OSError:  # as Dask's CommClosedError is
            mailbox.closed(sender)
            with self._lock:
                if mailbox.deserted:
                    self.remove(solve)


class Exchange:
    """The connections of one worker to the others, for one solve.

    Parameters
    ----------
    solve : str
        A name that no other solve has.
    here : str
        The address of this worker.
    addresses : sequence of str
        Those of all workers that take part.
    patience : float
        Seconds to wait for a worker that is silent.
    capacity : Capacity
        Of this worker's part of a product.
    """

    def __init__(
        self,
        solve: str,
        here: str,
        addresses: Sequence[str],
        patience: float,
        capacity: Capacity,
    ) -> None:
        self._worker = distributed.get_worker()
        plugin = self._worker.plugins[PLUGIN]
        assert isinstance(plugin, Exchanges)
        self._plugin = plugin
        self._mailbox = plugin.mailbox(solve, patience, self._worker.get_current_task())
        self._neighbours = Neighbours(here, self._mailbox, capacity)
        self._loop = self._worker.loop.asyncio_loop
        self._solve, self._here, self._patience = solve, here, patience
        self._peers = [each for each in addresses if each != here]
        #: Those that are told over Dask's connections.
        self._far: list[str] = []
        self._comms: dict[str, Any] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._beats: list[asyncio.Task] = []
        self._count = 0
        # One worker speaks for all.
        self._reports = here == addresses[0]
        self._begun = self._reported = time.monotonic()

    def start(self) -> None:
        """Connect to the others, and return when all are there.

        Raises
        ------
        Stopped
            If some are not there in time.
        """
        connecting = asyncio.run_coroutine_threadsafe(self._connect(), self._loop)
        try:
            doors = self._mailbox.wait_for_all(self._peers)
            connecting.result(self._patience)  # at once: all of them are there
            self._far = self._neighbours.reach(doors)
        except TimeoutError:
            raise Stopped(
                f"worker {self._here} could not connect to all others within {self._patience:g} s",
                (self._here,),
                started=False,
            ) from None
        finally:
            connecting.cancel()

    def all_gather(
        self, parts: list[tuple[Place, np.ndarray]], digest: int
    ) -> list[tuple[Place, np.ndarray]]:
        """What all workers have passed to this call, the own `parts` among them.

        Parameters
        ----------
        parts : list of ((int, int), numpy.ndarray)
            At least one, all of one dtype.
        digest : int
            Of the vector that was multiplied, which is the same everywhere if all goes well.

        Returns
        -------
        list of ((int, int), numpy.ndarray)
            In no order that means anything. The vectors hold until the next call.

        Raises
        ------
        Stopped
            If a worker is gone, or has multiplied another vector.
        """
        self._count += 1
        self._report()
        product = Product(self._count, digest, parts)
        self._neighbours.tell(product)
        if self._far:
            telling = self._tell(_packed(product), self._far)
            asyncio.run_coroutine_threadsafe(telling, self._loop)
        heard = self._mailbox.collect(self._peers, self._count)
        others = sorted(sender for sender, told in heard.items() if told.digest != digest)
        if others:
            raise Stopped(
                f"worker {', '.join(others)} and worker {self._here} multiply different vectors in"
                f" product {self._count}: their results differ, as those of unlike processors or"
                " versions of BLAS do",
                (*others, self._here),
            )
        return [*parts, *(part for told in heard.values() for part in told.parts)]

    def finish(self) -> None:
        """Tell the others that the solver has returned here."""
        message = {"kind": "finished", "count": self._count}
        self._call(self._tell(message, self._peers), self._patience)

    def give_up(self, reason: str, workers: Iterable[str], started: bool = True) -> None:
        """Tell the others why the solve ends here, so that it ends everywhere.

        Parameters
        ----------
        reason : str
        workers : iterable of str
            Those that are to blame.
        started : bool, optional
            Whether all workers had begun.
        """
        message = {"kind": "stop", "reason": reason, "workers": list(workers), "started": started}
        self._call(self._tell(message, self._peers), self._patience)

    def close(self) -> None:
        """End the connections, also if the event loop has ended before."""
        try:
            self._call(self._close(), self._patience)
        finally:
            self._neighbours.close()
            self._plugin.remove(self._solve)

    def _report(self) -> None:
        """Log how far the solver is, as an event of Dask's, about once a second."""
        now = time.monotonic()
        if self._reports and now - self._reported >= 1:
            self._reported = now
            event = {"solve": self._solve, "products": self._count, "seconds": now - self._begun}
            self._worker.log_event(TOPIC, event)

    # On the event loop ----------------------------------------------------------------------------

    def _call(self, coroutine: Any, limit: float) -> None:
        """Run on the worker's event loop, from the thread that computes."""
        done = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            done.result(limit)
        except TimeoutError:
            done.cancel()  # whoever does not listen will be missed by the others as well

    async def _connect(self) -> None:
        await asyncio.gather(*map(self._connect_to, self._peers))
        self._beats = [asyncio.create_task(self._beat(peer)) for peer in self._comms]

    async def _connect_to(self, peer: str) -> None:
        options = self._worker.security.get_connection_args("worker")
        hello = {
            "op": PLUGIN,
            "reply": False,
            "solve": self._solve,
            "sender": self._here,
            "door": self._neighbours.door,
            "patience": self._patience,
        }
        try:
            comm = await connect(peer, timeout=self._patience, **options)
        except OSError:
            return  # who is not there does not say hello either
        self._comms[peer], self._locks[peer] = comm, asyncio.Lock()
        await self._send(peer, hello)

    async def _tell(self, message: dict[str, Any], peers: list[str]) -> None:
        there = [peer for peer in peers if peer in self._comms]
        await asyncio.gather(*(self._send(peer, message) for peer in there))

    async def _send(self, peer: str, message: dict[str, Any]) -> None:
        try:
            async with self._locks[peer]:
                await self._comms[peer].write(message)
        except OSError:
            self._mailbox.closed(peer)
        except Exception as error:  # as where memory is short: the peer would wait for ever
            reason = f"worker {self._here} could not send to worker {peer}: {error!r}"
            self._mailbox.stop(reason, [self._here])

    async def _beat(self, peer: str) -> None:
        while True:
            await asyncio.sleep(self._patience / _BEATS)
            await self._send(peer, {"kind": "beat"})

    async def _close(self) -> None:
        for beat in self._beats:
            beat.cancel()
        await asyncio.gather(*(comm.close() for comm in self._comms.values()))


def _packed(product: Product) -> dict[str, Any]:
    """As a message of Dask's."""
    vectors = [vector for _, vector in product.parts]
    return {
        "kind": "product",
        "count": product.number,
        "digest": product.digest,
        "where": [place for place, _ in product.parts],
        "vectors": [
            each.tobytes() if each.nbytes < _LONG else to_serialize(each) for each in vectors
        ],
        "dtype": vectors[0].dtype.str,
    }


def _unpacked(message: dict[str, Any]) -> Product:
    dtype = message["dtype"]
    parts = [
        ((block, position), np.frombuffer(each, dtype) if isinstance(each, bytes) else each)
        for (block, position), each in zip(message["where"], message["vectors"], strict=True)
    ]
    return Product(message["count"], message["digest"], parts)
