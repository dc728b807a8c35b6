"""What a worker has heard from the others that take part in a solve.

The event loop of the worker fills a mailbox, and the thread that computes waits at it. That thread
also reads what comes by sockets of its own, as from neighbours. Every wait has a limit: a worker of
which nothing is heard for so long counts as lost.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gemv.distributed.outcome import Stopped

#: A chunk's place: its number along the rows, and along the columns.
Place = tuple[int, int]


class Product(NamedTuple):
    """What a worker tells the others of a product.

    Attributes
    ----------
    number : int
        Of the product, from 1.
    digest : int
        Of the vector that was multiplied, which is the same everywhere if all goes well.
    parts : list of (place, numpy.ndarray)
        At least one, all of one dtype.
    """

    number: int
    digest: int
    parts: list[tuple[Place, np.ndarray]]


class Mailbox:
    """The messages of the other workers for one solve.

    Parameters
    ----------
    patience : float
        Seconds that a worker may be silent.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        #: Whether the solve has begun here.
        self.used = False
        self._connected: set[str] = set()
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}
        #: The doors of the others: see :mod:`gemv.distributed.neighbours`.
        self._doors: dict[str, str] = {}
        #: By the number of the product, and by the sender's address.
        self._products: dict[int, dict[str, Product]] = {}
        #: What :class:`Stopped` is raised with. It holds no error: one that is raised knows all
        #: vectors of those who called, and would keep them.
        self._stopped: tuple[str, tuple[str, ...], bool] | None = None
        #: Senders that have said that their solver has returned, and after how many products.
        self._finished: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        #: The event loop rings, and wakes the thread that computes.
        self._bell, ear = socket.socketpair()
        for each in (self._bell, ear):
            each.setblocking(False)
        self._selector.register(ear, selectors.EVENT_READ, functools.partial(_listen, ear))
        #: Closes what the mailbox has opened, also where it is only forgotten.
        self.close = weakref.finalize(self, _close, self._lock, self._selector, self._bell, ear)

    # For the event loop ---------------------------------------------------------------------------

    @property
    def deserted(self) -> bool:
        """Whether nobody fills it and nobody has waited at it."""
        return not self.used and not self._connected

    def opened(self, sender: str, door: str = "") -> None:
        """Note that the connection of `sender` has begun, and where its door is."""
        self._connected.add(sender)
        with self._lock:
            self._doors[sender] = door
            # At once: whoever knows the door may ask how long nothing has been heard.
            self._heard[sender] = time.monotonic()
        self._ring()

    def heard(self, sender: str) -> None:
        """Note that `sender` is there."""
        with self._lock:
            self._heard[sender] = time.monotonic()
        self._ring()

    def put(self, sender: str, product: Product) -> None:
        """Keep what `sender` tells of a product, and wake who waits for it."""
        self.keep(sender, product)
        self._ring()

    def finished(self, sender: str, count: int) -> None:
        """Note that the solver of `sender` has returned after `count` products."""
        with self._lock:
            self._finished[sender] = count
        self._ring()

    def stop(self, reason: str, workers: Iterable[str], started: bool = True) -> None:
        """Let whoever waits leave the solve; the first reason is the one that counts.

        Parameters
        ----------
        reason, workers, started
            As of :class:`gemv.distributed.outcome.Interrupted`.
        """
        with self._lock:
            if self._stopped is None:
                self._stopped = reason, tuple(workers), started
        self._ring()

    def closed(self, sender: str) -> None:
        """Note that the connection of `sender` has ended."""
        self._connected.discard(sender)
        with self._lock:
            expected = sender in self._finished
        if not expected:
            self.stop(f"worker {sender} is gone", [sender])

    def _ring(self) -> None:
        # With the lock the bell is not closed meanwhile: its number may then be another file's.
        with self._lock, contextlib.suppress(OSError):  # it rings already, or nobody waits any more
            self._bell.send(b"!")

    # For the thread that computes -----------------------------------------------------------------

    def watch(self, source: socket.socket, read: Callable[[], None]) -> None:
        """While this thread waits, call `read` when `source` can be read."""
        self._selector.register(source, selectors.EVENT_READ, read)

    def unwatch(self, source: socket.socket) -> None:
        """Read no more from `source`."""
        self._selector.unregister(source)

    def keep(self, sender: str, product: Product) -> None:
        """Keep what `sender` tells of a product: this thread has read it, and is awake."""
        with self._lock:
            self._heard[sender] = time.monotonic()
            self._products.setdefault(product.number, {})[sender] = product

    def _wait(self, seconds: float) -> None:
        """Read what comes, which may take so long."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            key.data()

    def wait_for_all(self, senders: Iterable[str]) -> dict[str, str]:
        """Return once the connections of all `senders` are there, and say where their doors are.

        Raises
        ------
        Stopped
            With the names of those that are not there in time, or if the solve has ended.
        """
        wanted, end = set(senders), time.monotonic() + self.patience
        while True:
            with self._lock:
                if self._stopped is not None:
                    raise Stopped(*self._stopped)
                # A neighbour may tell of its first product before its connection is heard.
                missing = sorted(wanted - self._doors.keys())
                if not missing:
                    return {sender: self._doors[sender] for sender in sorted(wanted)}
            left = end - time.monotonic()
            if left <= 0:
                raise Stopped(
                    f"the solver did not start within {self.patience:g} s on {', '.join(missing)}",
                    tuple(missing),
                    started=False,
                )
            self._wait(left)

    def collect(self, senders: Iterable[str], count: int) -> dict[str, Product]:
        """What all `senders` tell of the product `count`, by the sender.

        Raises
        ------
        Stopped
            If one of them has died, has been silent for too long or has finished before.
        """
        wanted = set(senders)
        while True:
            with self._lock:
                if self._stopped is not None:
                    raise Stopped(*self._stopped)
                missing = wanted - self._products.get(count, {}).keys()
                if not missing:
                    return self._products.pop(count, {})
                now, heard = time.monotonic(), dict(self._heard)
                # What it has told before that may not be read yet.
                early = sorted(each for each in missing if self._finished.get(each, count) < count)
            if early:
                raise Stopped(_diverged(early, count), tuple(early))
            left = min(heard[sender] for sender in missing) + self.patience - now
            if left <= 0:
                silent = sorted(each for each in missing if heard[each] + self.patience <= now)
                raise Stopped(
                    f"nothing was heard of worker {', '.join(silent)} for {self.patience:g} s",
                    tuple(silent),
                )
            self._wait(left)


def _listen(ear: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        ear.recv(4096)


def _close(lock: threading.Lock, selector: selectors.BaseSelector, *ends: socket.socket) -> None:
    with lock:
        selector.close()
        for each in ends:
            each.close()


def _diverged(workers: list[str], count: int) -> str:
    return (
        f"worker {', '.join(workers)} ended its solver before product {count}, and others did not:"
        " their results differ, as those of unlike processors or versions of BLAS do"
    )
