"""A record of the calls made: which backend and kernel really ran.

Tests must not take a correct number for a proof that the kernel under test computed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
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
    """

    backend: str
    kernel: str
    knobs: dict[str, Any]
    geometry: Any
    coefficients: str


_calls: ContextVar[tuple[list[Call], ...]] = ContextVar("gemv_trace", default=())
#: The traces that are open; empty, and so false, while nobody looks.
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
    token = _calls.set((*_calls.get(), calls))
    try:
        yield calls
    finally:
        _calls.reset(token)


@contextmanager
def silent() -> Iterator[None]:
    """Let launches that are parts of one call leave no records of their own."""
    token = _calls.set(())
    try:
        yield
    finally:
        _calls.reset(token)


def record(**call: Any) -> None:
    """Append a call to every open trace; cheap when there is none."""
    for calls in _calls.get():
        calls.append(Call(**call))
