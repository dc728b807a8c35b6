"""A record of the calls that were computed: which backend and which kernel really ran.

A correct result does not show that the kernel under test computed it; a trace does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from gemv.core import memo


class Call(NamedTuple):
    """One computed call.

    Attributes
    ----------
    backend : str
        ``"cuda"``, ``"simulator"`` or ``"host"``.
    kernel : str
        Name of the kernel that ran; SciPy's routine name for the host backend.
    knobs : dict
        Compile-time constants of the kernel.
    geometry : Geometry or None
        Grid, block and scratch; None for the host backend.
    coefficients : str
        Where the kernel read alpha and beta.
    comparison : Comparison or None
        For a call on host arrays that went to the faster of host and GPU, what was expected of
        both: see :class:`gemv.selection.host_or_gpu.Comparison`. None for all other calls.
    """

    backend: str
    kernel: str
    knobs: dict[str, Any]
    geometry: Any
    coefficients: str
    comparison: Any = None


_calls: ContextVar[tuple[list[Call], ...]] = ContextVar("gemv_trace", default=())
_comparison: ContextVar[Any] = ContextVar("gemv_comparison", default=None)
#: How many traces are open, in any thread, where machine code reads it.
OPEN = np.zeros(1, np.int64)
_lock = threading.Lock()
#: A function that gives the lists of all open traces; an empty tuple while there is none.
open_traces = _calls.get


@contextmanager
def trace() -> Iterator[list[Call]]:
    """Collect a :class:`Call` for every call computed inside the ``with`` block.

    A call that returns at once (an empty shape, nothing to add) computes nothing and leaves none.

    Yields
    ------
    list of Call
        Grows while the block runs.
    """
    calls: list[Call] = []
    _count(1)
    token = _calls.set((*_calls.get(), calls))
    try:
        yield calls
    finally:
        _calls.reset(token)
        _count(-1)


def _count(change: int) -> None:
    with _lock:
        OPEN[0] += change


@contextmanager
def silent() -> Iterator[None]:
    """Keep the launches inside the ``with`` block out of all traces: they are parts of one call."""
    token = _calls.set(())
    try:
        yield
    finally:
        _calls.reset(token)


@contextmanager
def compared(comparison: Any) -> Iterator[None]:
    """Let the calls inside the ``with`` block be recorded with this comparison."""
    token = _comparison.set(comparison)
    try:
        yield
    finally:
        _comparison.reset(token)


def record(**call: Any) -> None:
    """Append a call to every open trace."""
    for calls in _calls.get():
        calls.append(Call(**call, comparison=_comparison.get()))


def _renew_lock() -> None:
    """Make a new lock in a forked process, where the traces of other threads are no longer open."""
    global _lock
    _lock = threading.Lock()
    OPEN[0] = len(_calls.get())


memo.on_forget(lambda: None, _renew_lock)
