"""Calls that were made before: what is kept of one, so that the next takes the fewest steps.

The first call of a kind goes the long way: its arrays are adopted, its arguments checked, a kernel
is selected and compiled. The outcome is kept as a :class:`RememberedCall`, under a key of
everything that decides it: routine, dtypes, shapes, strides, options, alignment and device. The
next call of that kind reads the same metadata, looks the key up, compares addresses and launches:
the short way, which is one file for each library, ``short_torch.py`` for instance. Whatever is
unusual, an error above all, goes the long way again, so that each rule and each text has one place.

The short ways repeat each other and the key on purpose. A call of a Python function costs as much
as reading a tensor's metadata, and the whole short way takes about 2 us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.calls import memory_check
from gemv.core import memo, trace

#: How many calls are remembered; beyond, the oldest is forgotten.
MAX_REMEMBERED = 4096

#: Types of alpha and beta that need no check, by the kind of dtype.
REAL_NUMBERS = frozenset((float, int, np.float64, np.float32))
COMPLEX_NUMBERS = REAL_NUMBERS | frozenset((complex, np.complex128, np.complex64))

#: The defaults of options, compared by identity: 1.0 and True are equal to 1.
ZERO, ONE = 0, 1

#: What stands for the routine in the key of a call with ``accumulate="wide"``.
WIDE = {f"{letter}gemv": f"{letter}gemv, wide" for letter in ("", *"sdcz")}

#: A function that makes a call again from its metadata alone, or answers a :class:`LongWay`.
ShortWay = Callable[..., Any]

remembered_calls: dict[tuple, RememberedCall] = {}
#: What the three tensors of a call look like, by routine, options and ``id(a)``. This only tells
#: where to look: every field is compared, so another tensor with that id does no harm.
expectations: dict[tuple, Any] = {}
#: The public routines by name, for operators of other libraries that call them again.
public_routines: dict[str, Callable[..., Any]] = {}
#: Reentrant: garbage that is collected while it is held may make calls of its own.
_lock = threading.RLock()


class LongWay:
    """A short way's answer where the call has to be checked.

    Attributes
    ----------
    key : tuple or None
        What the call is remembered under once it was made; None for one that is not remembered.
    expect : callable or None
        Called as ``expect(remembered_call, y)`` then, with the y that was computed. Where the key
        is None the call is kept by this function alone, and there is no remembered call.
    """

    __slots__ = ("expect", "key")

    def __init__(self, key: tuple | None, expect: Callable[[Any, Any], None] | None = None) -> None:
        self.key = key
        self.expect = expect


#: The answer for a call that is not remembered: unusual types or options, or an error.
UNUSUAL = LongWay(None)


class RememberedCall:
    """A call that was checked, selected, compiled and packed into a :class:`Block`."""

    __slots__ = (
        "address",
        "block",
        "choice",
        "complex",
        "device",
        "engine",
        "functions",
        "machine",
        "numbers",
        "plain",
        "scratch_bytes",
        "shares_scratch",
        "sizes",
        "spans",
        "y_length",
    )

    def __init__(self, engine: Any, choice: Any, problem: Any, y_length: int) -> None:
        self.engine, self.choice = engine, choice
        self.machine = engine.machine
        self.device = engine.device()
        self.functions = engine.load(choice, self.device)
        self.y_length = y_length
        self.complex = problem.dtype.kind == "c"
        #: Types of alpha and beta that need no check.
        self.numbers = COMPLEX_NUMBERS if self.complex else REAL_NUMBERS
        geometry, precision = choice.geometry, choice.spec.precision
        itemsize, y_itemsize = precision.data.itemsize, precision.y.itemsize
        self.scratch_bytes = geometry.scratch * precision.sums.itemsize
        #: Whether its blocks share scratch memory or counters.
        self.shares_scratch = bool(self.scratch_bytes or geometry.counters)
        self.plain = is_plain(choice)
        self.sizes = problem.arguments(geometry)
        x_start, y_start = problem.x_offset * itemsize, problem.y_offset * y_itemsize
        self.block = engine.block(choice, self.functions, self.sizes, x_start, y_start)
        self.address = self.block.address
        #: The bytes that y, x and A span, from their addresses on.
        self.spans = (
            *_span(y_itemsize, (problem.rows, problem.incy), start=y_start),
            *_span(itemsize, (problem.cols, problem.incx), start=x_start),
            *_span(
                itemsize, (problem.rows, problem.row_stride), (problem.cols, problem.col_stride)
            ),
        )

    def launch(self, stream: int, a: int, x: int, y: int, alpha: Any, beta: Any) -> int:
        """Launch on a stream with these addresses and factors; the driver's status.

        -1 stands for a call that has to go the long way.
        """
        if self.plain:
            return self.machine.enqueue(self.address, stream, a, x, y, alpha, beta)
        values: tuple = (alpha, beta)
        if self.complex:
            values = (alpha.real, alpha.imag, beta.real, beta.imag)
        enqueue = self.machine.enqueue_complex if self.complex else self.machine.enqueue
        if not self.shares_scratch:
            return enqueue(self.address, stream, a, x, y, *values)
        from gemv.driver import capture
        from gemv.driver.libcuda import CudaError

        try:
            if capture.capture_of(stream) is not None:
                return -1  # the long way takes scratch memory that the graph owns
        except CudaError:
            return -1  # no GPU is current in this thread: the long way makes it so
        geometry = self.choice.geometry
        workspace = self.engine.workspace(geometry, self.device, stream)
        with workspace.lock:
            extra = workspace.reserve(self.scratch_bytes, geometry.counters, stream, geometry.posts)
            return enqueue(self.address, stream, a, x, y, *values, *extra)

    def record(self) -> None:
        """Add the call to the open traces."""
        choice = self.choice
        trace.record(
            backend="cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )


def _span(itemsize: int, *axes: tuple[int, int], start: int = 0) -> tuple[int, int]:
    """The first byte that an operand touches and the end of the last, relative to its pointer."""
    low = high = start
    for count, stride in axes:
        reach = (count - 1) * stride * itemsize
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + itemsize


def keep_expectation(hint: tuple, expectation: Any, key: tuple, call: RememberedCall) -> None:
    """Keep what the tensors of a remembered call look like, unless it was forgotten by now."""
    with _lock:
        if remembered_calls.get(key) is not call:
            return
        if len(expectations) >= MAX_REMEMBERED:
            expectations.clear()
        expectations[hint] = expectation


def options_of(offx: Any, incx: Any, offy: Any, incy: Any, trans: Any) -> tuple | None:
    """The options as a part of the key; None for options that have to be checked.

    Only ints are taken: 1.0 and True are equal to 1 as keys, and 1.0 is an error.
    """
    if type(offx) is type(incx) is type(offy) is type(incy) is int and type(trans) in (int, str):
        return offx, incx, offy, incy, trans
    return None


def remember(
    key: tuple, generation: int, engine: Any, choice: Any, call: Any
) -> RememberedCall | None:
    """Keep a call under `key`, if the next one of its kind can be made from its metadata alone.

    It is not kept if calls were forgotten after `generation`, as it may follow from old settings.
    """
    if not packable(engine, choice, call) or (
        call.y is None and (call.offy or abs(call.incy) != 1)
    ):
        return None
    made = RememberedCall(engine, choice, call.problem, call.problem.rows)
    with _lock:
        if generation != memo.generation():
            return None
        remembered_calls[key] = made
        while len(remembered_calls) > MAX_REMEMBERED:
            del remembered_calls[next(iter(remembered_calls))]
    return made


def is_plain(choice: Any) -> bool:
    """Whether a launch needs nothing but a block, addresses of a, x and y, alpha and beta."""
    geometry = choice.geometry
    shares = geometry.scratch or geometry.counters
    return not (shares or choice.spec.dtype.kind == "c")


def packable(engine: Any, choice: Any, call: Any) -> bool:
    """Whether a launch follows from addresses, sizes and two numbers alone."""
    lazy = any(o.conj or o.neg for o in (call.a, call.x, call.y) if o is not None)
    return (
        engine.name == "cuda"
        and not memory_check.FULL
        and call.homes == ("arguments", "arguments")
        and choice.kernel.x_home(choice.knobs) == "pointer"
        and not lazy
    )


def forget() -> None:
    """Forget all calls."""
    with _lock:
        remembered_calls.clear()
        expectations.clear()


def _renew_lock() -> None:
    """Make a new lock in a forked process, where another thread may have held the old one."""
    global _lock
    _lock = threading.RLock()


memo.on_forget(forget, _renew_lock)


def is_same_stream(stream: Any, handle: int) -> bool:
    """Whether a stream that the caller named is the one with this handle."""
    from gemv.driver.streams import stream_handle

    try:
        return stream_handle(stream) == handle
    except TypeError:
        return False
