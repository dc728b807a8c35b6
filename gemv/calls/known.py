"""The call that has been made before: from metadata to the driver in the fewest steps.

The first call of a kind goes the long way: it is adopted, checked, selected and compiled. What came
out is remembered under everything that it depended on: dtypes, shapes, strides, options, alignment
and device. The next call of that kind only reads this metadata, looks it up, compares addresses
and launches. Whatever is unusual, an error above all, goes the long way again, so that there is one
place for every rule and every text.

The functions below repeat each other: a function call costs as much as reading a tensor's
metadata, and there is no time for either to be done twice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.calls import memory_check
from gemv.core import memo, trace

#: Remembered calls; beyond, the oldest is forgotten.
MAX_KNOWN = 4096

#: Types of alpha and beta that need no check, by the kind of dtype.
_REAL = frozenset((float, int, np.float64, np.float32))
_COMPLEX = _REAL | frozenset((complex, np.complex128, np.complex64))

#: The defaults of options, to be recognised by identity: 1.0 and True are equal to 1.
ZERO, ONE = 0, 1

#: What a key has in place of the routine where sums are wide.
WIDE = {f"{letter}gemv": f"{letter}gemv, wide" for letter in ("", *"sdcz")}

REMEMBERED: dict[tuple, Known] = {}
#: What the operands of calls with a tensor look like, by routine, options and ``id(a)``. Only a
#: guess where to look: everything is compared, so another tensor of that id does no harm.
EXPECTATIONS: dict[tuple, Any] = {}
#: Reentrant: garbage that is collected while it is held may make calls of its own.
_lock = threading.RLock()
#: The public routines by name, for operators of other libraries that call them again.
ROUTINES: dict[str, Callable[..., Any]] = {}
#: Plans that launch without asking anybody.
bound: Any = weakref.WeakSet()


class Miss:
    """The call has to go the long way; what comes out is remembered under `key`, if not None."""

    __slots__ = ("key",)

    def __init__(self, key: tuple | None) -> None:
        self.key = key


UNUSUAL = Miss(None)


class Known:
    """A checked, selected, compiled and packed call: a block of :mod:`gemv.driver.machine`."""

    __slots__ = (
        "address",
        "block",
        "choice",
        "complex",
        "device",
        "engine",
        "functions",
        "machine",
        "needs",
        "numbers",
        "plain",
        "scratch_bytes",
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
        self.numbers = _COMPLEX if self.complex else _REAL
        geometry, precision = choice.geometry, choice.spec.precision
        itemsize, y_itemsize = precision.data.itemsize, precision.y.itemsize
        self.scratch_bytes = geometry.scratch * precision.sums.itemsize
        #: Whether there is scratch memory to be shared.
        self.needs = bool(self.scratch_bytes or geometry.counters)
        #: Whether the block, addresses, alpha and beta are all that a launch needs.
        self.plain = not (self.needs or self.complex)
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
        """Launch on a stream with these addresses and factors; the driver's status."""
        if self.plain:
            return self.machine.enqueue(self.address, stream, a, x, y, alpha, beta)
        values: tuple = (alpha, beta)
        if self.complex:
            values = (alpha.real, alpha.imag, beta.real, beta.imag)
        enqueue = self.machine.enqueue_complex if self.complex else self.machine.enqueue
        if not self.needs:
            return enqueue(self.address, stream, a, x, y, *values)
        from gemv.driver import capture

        if capture.capture_of(stream) is not None:
            return -1  # the long way knows where a graph's scratch memory is
        geometry = self.choice.geometry
        workspace = self.engine.workspace(geometry, self.device, stream)
        with workspace.lock:
            extra = workspace.reserve(self.scratch_bytes, geometry.counters, stream, geometry.posts)
            return enqueue(self.address, stream, a, x, y, *values, *extra)

    def record(self) -> None:
        """Leave a trace of a call, if somebody looks."""
        choice = self.choice
        trace.record(
            backend="cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )


def _span(itemsize: int, *axes: tuple[int, int], start: int = 0) -> tuple[int, int]:
    """First and last byte that an operand touches, from its pointer on."""
    low = high = start
    for count, stride in axes:
        reach = (count - 1) * stride * itemsize
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + itemsize


def expect_again(hint: tuple, made: Any, key: tuple, known: Known) -> None:
    """Keep what the operands of a remembered call look like, unless it was forgotten by now."""
    with _lock:
        if REMEMBERED.get(key) is not known:
            return
        if len(EXPECTATIONS) >= MAX_KNOWN:
            EXPECTATIONS.clear()
        EXPECTATIONS[hint] = made


def options_of(offx: Any, incx: Any, offy: Any, incy: Any, trans: Any) -> tuple | None:
    """The options as a part of the key; None for what has to be checked.

    Only true ints: 1.0 and True are equal to 1 as keys, and one of them is an error.
    """
    if type(offx) is type(incx) is type(offy) is type(incy) is int and type(trans) in (int, str):
        return offx, incx, offy, incy, trans
    return None


def remember(key: tuple, since: int, engine: Any, choice: Any, call: Any) -> None:
    """Keep what a call found out, if the next one of its kind can be made from that alone.

    Not if calls were forgotten `since` then: what it found out may no longer be so.
    """
    if not packable(engine, choice, call) or (
        call.y is None and (call.offy or abs(call.incy) != 1)
    ):
        return
    known = Known(engine, choice, call.problem, call.problem.rows)
    with _lock:
        if since != memo.generation():
            return
        REMEMBERED[key] = known
        while len(REMEMBERED) > MAX_KNOWN:
            del REMEMBERED[next(iter(REMEMBERED))]


def packable(engine: Any, choice: Any, call: Any) -> bool:
    """Whether a call is made of addresses, sizes and two numbers, and of nothing else."""
    lazy = any(o.conj or o.neg for o in (call.a, call.x, call.y) if o is not None)
    return (
        engine.name == "cuda"
        and not memory_check.FULL
        and call.homes == ("arguments", "arguments")
        and choice.kernel.x_home(choice.knobs) == "pointer"
        and not lazy
    )


def stream_of(operand: Any) -> Callable[[], int] | None:
    """A function that tells the stream its library works on now; None where there is no such."""
    import sys

    device = operand.device
    if operand.kind == "torch":
        torch = sys.modules["torch"]
        raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return None if raw_stream is None else lambda: raw_stream(device)
    if operand.kind == "cupy":
        current_stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda: current_stream(device).ptr
    if operand.kind == "numba" and operand.stream is None:
        from gemv.engines.backend import engine

        stream = engine().numba_stream
        return lambda: stream
    return None


def bind_plan(plan: Any, since: int, *what: Any) -> None:
    """Let a plan launch without asking, unless calls were forgotten `since` then."""
    with _lock:
        if since == memo.generation():
            plan._bind(*what)
            bound.add(plan)


def forget() -> None:
    """Forget all calls."""
    with _lock:
        for plan in list(bound):
            plan._unbind()
        bound.clear()
        REMEMBERED.clear()
        EXPECTATIONS.clear()


def _renew_lock() -> None:
    """A lock for a forked process, where another thread may have held the old one."""
    global _lock
    _lock = threading.RLock()


memo.on_forget(forget, _renew_lock)


def is_same_stream(stream: Any, handle: int) -> bool:
    from gemv.driver.streams import stream_handle

    try:
        return stream_handle(stream) == handle
    except TypeError:
        return False


def ask_current_device() -> int:
    from gemv.driver.devices import current_device

    return current_device()


def machine_in_use() -> Any:
    from gemv.engines.backend import engine

    return engine().machine
