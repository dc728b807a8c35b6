"""alpha and beta in constant memory: slots, who owns them, and when they may be written again.

A constant symbol belongs to a loaded module, and every kernel function is a module of its own
here. So each function has a symbol of :data:`gemv.kernels.spec.SLOTS` slots, each for one alpha and
one beta. The functions of one kernel share a :class:`SlotTable`, which writes the same slot of all
their symbols. One table for the whole GPU would need all kernels in one module, recompiled whenever
one of them is asked for in another precision.

These rules keep two calls apart, whatever their streams and threads:

* A slot has one owner at a time: a call, for as long as it enqueues, or a :class:`Coefficients`.
* The last work on a slot leaves an event there, and the next write waits for it on its own stream.
  Slots are reused oldest first, so the event has mostly come by then.
* A write is never captured into a graph: replayed, it would bring old values back. A captured
  launch needs a slot that stays its own, and a :class:`Coefficients` owns one.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from gemv.core.rules import coefficient, number
from gemv.core.values import shown
from gemv.engines.slots import Slot, SlotTable


def homes_of(routine: str, coefficients: Any, on_device: tuple[bool, bool]) -> tuple[str, str]:
    """Where a call wants alpha and beta; the home of device arrays is ``"pointer"``.

    Parameters
    ----------
    routine : str
        For error texts.
    coefficients : {None, "arguments", "constant", "pointer"} or Coefficients
    on_device : (bool, bool)
        Whether alpha, and whether beta, is a device array.
    """
    known = ("arguments", "constant", "pointer")
    if coefficients is None:
        home = "arguments"
    elif isinstance(coefficients, Coefficients):
        home = "constant"
        if all(on_device):
            raise ValueError(
                f"{routine}: alpha and beta are device arrays, so nothing is left for the"
                " Coefficients to hold"
            )
    elif isinstance(coefficients, str) and coefficients in known:
        home = coefficients
    elif isinstance(coefficients, str):
        raise ValueError(
            f"{routine}: no coefficients={shown(coefficients)}; known: {', '.join(known)},"
            " or a gemv.Coefficients"
        )
    else:
        raise TypeError(
            f"{routine}: coefficients must be one of {', '.join(known)}, or a gemv.Coefficients,"
            f" got {type(coefficients).__name__}"
        )
    if home == "pointer" and not all(on_device):
        raise ValueError(
            f"{routine}: coefficients='pointer' needs alpha and beta as device arrays of shape ()"
        )
    alpha, beta = ("pointer" if there else home for there in on_device)
    return alpha, beta


class Lease:
    """A slot for one call: written now, and read by what is enqueued until :meth:`done`.

    The slot is that of `owner`; without an owner, one that is given back by :meth:`done`.
    """

    __slots__ = ("_owner", "_slot", "_stream", "_table", "slot")

    def __init__(
        self, table: SlotTable, alpha: Any, beta: Any, stream: int, owner: Coefficients | None
    ) -> None:
        capturing = table.memory.capturing(stream)
        if capturing and owner is None:
            raise RuntimeError(
                "coefficients='constant' cannot be captured into a graph: the write of alpha and"
                " beta would not be part of it, and the slot would be given to somebody else;"
                " pass coefficients=gemv.Coefficients(), whose slot is the graph's own"
            )
        self._table, self._stream, self._owner = table, stream, owner
        if owner is None:
            slot = table.take()
        else:
            owner._lock.acquire()
            try:
                slot = owner._slot_of(table)
            except BaseException:
                owner._lock.release()
                raise
        self._slot, self.slot = slot, slot.index
        try:
            if capturing:
                table.write_now(slot, alpha, beta)
                self._stream = -1  # no event, which would become part of the graph
            else:
                table.write(slot, alpha, beta, stream)
        except BaseException:
            self._end()
            raise
        if owner is not None:
            owner._values = (alpha, beta)

    def done(self) -> None:
        """End the lease: all launches that read the slot are enqueued."""
        try:
            if self._stream != -1:
                self._table.mark(self._slot, self._stream)
        finally:
            self._end()

    def _end(self) -> None:
        if self._owner is None:
            self._table.give(self._slot)
        else:
            self._owner._lock.release()


class Coefficients:
    """An alpha and a beta in constant memory that belong to their user.

    Pass it as ``coefficients=`` to a call. The call writes its alpha and beta to a slot that
    nobody else uses; a launch that is captured into a CUDA graph reads the slot whenever the graph
    is replayed, and :meth:`set` between two replays changes what it finds there.

    The object must live as long as a graph that was captured with it. It may be used for several
    calls, from any thread and on any stream: they share the two numbers, so calls that are to
    differ in them at the same time need an object each. Calls outside of a graph wait for each
    other as far as they have to; the order of :meth:`set` and of a replay is that of the stream
    they are both enqueued on.

    Parameters
    ----------
    alpha, beta : number, optional
        What :attr:`alpha` and :attr:`beta` say before the first call.

    Examples
    --------
    >>> import gemv
    >>> place = gemv.Coefficients()
    >>> gemv.gemv(2.0, [[1.0, 2.0]], [3.0, 4.0], coefficients=place)
    array([22.])
    >>> place.alpha, place.beta
    (2.0, 0.0)
    >>> place.close()
    """

    def __init__(self, alpha: Any = 1.0, beta: Any = 0.0) -> None:
        self._lock = threading.RLock()
        self._held: dict[SlotTable, Slot] = {}
        self._values: tuple[Any, Any] = (
            number("Coefficients", "alpha", alpha), number("Coefficients", "beta", beta)
        )  # fmt: skip
        self._closed = False
        self._finalizer = weakref.finalize(self, _give_back, self._held)
        self._finalizer.atexit = False

    @property
    def alpha(self) -> Any:
        """The alpha that was last written."""
        return _plain(self._values[0])

    @property
    def beta(self) -> Any:
        """The beta that was last written."""
        return _plain(self._values[1])

    def set(self, alpha: Any, beta: Any = 0, stream: Any = None) -> None:
        """Write new values, ordered on `stream`: before what is enqueued there from now on.

        Parameters
        ----------
        alpha, beta : number
            As in the calls that this object was passed to.
        stream : stream, optional
            The one that graphs are replayed on; the default stream if left out. On GPUs other
            than the stream's, their default streams.

        Raises
        ------
        RuntimeError
            If `stream` is being captured: a write in a graph would bring back these values at
            every replay. Also if the object is closed.
        TypeError, ValueError
            If a value is no number, or not one of the precision computed in.
        """
        alpha = number("Coefficients.set", "alpha", alpha)
        beta = number("Coefficients.set", "beta", beta)
        with self._lock:
            self._check_open()
            converted = {
                table: (
                    coefficient("Coefficients.set", "alpha", alpha, table.dtype),
                    coefficient("Coefficients.set", "beta", beta, table.dtype),
                )
                for table in self._held
            }
            if converted:
                handles = {}
                for table in converted:
                    handle = table.memory.handle(stream)
                    # A stream orders the work of its GPU; another GPU has its default stream.
                    if table.memory.device_of(handle) not in (None, table.memory.device):
                        handle = table.memory.handle(None)
                    handles[table] = handle
                for table, its_handle in handles.items():
                    with table.memory.current():
                        capturing = table.memory.capturing(its_handle)
                    if capturing:
                        raise RuntimeError(
                            "Coefficients.set cannot be captured into a graph: call it before a"
                            " replay, not while the stream is captured"
                        )
                for table, values in converted.items():
                    slot = self._held[table]
                    with table.memory.current():
                        table.write(slot, *values, handles[table])
                        table.mark(slot, handles[table])
            self._values = (alpha, beta)

    def note(self, alpha: Any, beta: Any) -> None:
        """Remember the values of a call on the host, which needs no slot.

        Parameters
        ----------
        alpha, beta : number
            The values.
        """
        with self._lock:
            self._check_open()
            self._values = (alpha, beta)

    def close(self) -> None:
        """Give the slots back. No graph that was captured with the object may run any more."""
        with self._lock:
            self._closed = True
            self._finalizer()

    def __enter__(self) -> Coefficients:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "gemv.Coefficients can be neither pickled nor copied: their slots are in this process's"
            " GPU memory"
        )

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Coefficients(alpha={self.alpha!r}, beta={self.beta!r}{state})"

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("these Coefficients are closed")

    def _slot_of(self, table: SlotTable) -> Slot:
        self._check_open()
        slot = self._held.get(table)
        if slot is None:
            slot = self._held[table] = table.take()
        return slot


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _give_back(held: dict[SlotTable, Slot]) -> None:
    while held:
        table, slot = held.popitem()
        table.give(slot)
