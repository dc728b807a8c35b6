"""What a worker has heard from the others that take part in a solve.

The event loop of the worker fills a mailbox, and the thread that computes waits at it. Every wait
has a limit: a worker of which nothing is heard for so long counts as lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from gemv.distributed.outcome import Stopped


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
        self._changed = threading.Condition()
        self._heard: dict[str, float] = {}
        #: Messages by the number of the product, and by the sender's address.
        self._messages: dict[int, dict[str, Any]] = {}
        self._stopped: Stopped | None = None
        #: Senders that have said that their solver has returned.
        self._finished: dict[str, int] = {}

    # For the event loop ---------------------------------------------------------------------------

    @property
    def deserted(self) -> bool:
        """Whether nobody fills it and nobody has waited at it."""
        return not self.used and not self._connected

    def opened(self, sender: str) -> None:
        """Note that the connection of `sender` has begun."""
        self._connected.add(sender)
        self.heard(sender)

    def heard(self, sender: str) -> None:
        """Note that `sender` is there."""
        with self._changed:
            self._heard[sender] = time.monotonic()
            self._changed.notify_all()

    def put(self, sender: str, count: int, message: Any) -> None:
        """Keep the message of `sender` for the product `count`."""
        with self._changed:
            self._heard[sender] = time.monotonic()
            self._messages.setdefault(count, {})[sender] = message
            self._changed.notify_all()

    def finished(self, sender: str, count: int) -> None:
        """Note that the solver of `sender` has returned after `count` products."""
        with self._changed:
            self._finished[sender] = count
            self._changed.notify_all()

    def stop(self, reason: str, workers: Iterable[str]) -> None:
        """Let whoever waits leave the solve; the first reason is the one that counts."""
        with self._changed:
            if self._stopped is None:
                self._stopped = Stopped(reason, tuple(workers))
            self._changed.notify_all()

    def closed(self, sender: str) -> None:
        """Note that the connection of `sender` has ended."""
        self._connected.discard(sender)
        with self._changed:
            expected = sender in self._finished
        if not expected:
            self.stop(f"worker {sender} is gone", [sender])

    # For the thread that computes -----------------------------------------------------------------

    def wait_for_all(self, senders: Iterable[str]) -> None:
        """Return once each of `senders` has been heard.

        Raises
        ------
        Stopped
            With the names of those that have not been heard in time, or if the solve has ended.
        """
        wanted = set(senders)
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped is not None or wanted <= self._heard.keys(), self.patience
            )
            if self._stopped is not None:
                raise self._stopped
            missing = sorted(wanted - self._heard.keys())
        if missing:
            raise Stopped(
                f"the solver did not start within {self.patience:g} s on {', '.join(missing)}",
                tuple(missing),
                started=False,
            )

    def collect(self, senders: Iterable[str], count: int) -> dict[str, Any]:
        """The messages of all `senders` for the product `count`, by the sender.

        Raises
        ------
        Stopped
            If one of them has died, has been silent for too long or has finished before.
        """
        wanted = set(senders)
        with self._changed:
            while True:
                if self._stopped is not None:
                    raise self._stopped
                found = self._messages.get(count, {})
                missing = wanted - found.keys()
                if not missing:
                    return self._messages.pop(count, {})
                early = sorted(sender for sender in missing if sender in self._finished)
                if early:
                    raise Stopped(_diverged(early, count), tuple(early))
                now = time.monotonic()
                left = min(self._heard[sender] for sender in missing) + self.patience - now
                if left <= 0:
                    silent = sorted(s for s in missing if self._heard[s] + self.patience <= now)
                    raise Stopped(
                        f"nothing was heard of worker {', '.join(silent)} for {self.patience:g} s",
                        tuple(silent),
                    )
                self._changed.wait(left)


def _diverged(workers: list[str], count: int) -> str:
    return (
        f"worker {', '.join(workers)} ended its solver before product {count}, and others did not:"
        " their results differ, as those of unlike processors or versions of BLAS do"
    )
