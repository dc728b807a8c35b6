"""Plans: calls that are bound to their arrays, checked and packed once, and launched many times."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from gemv.arrays.adopt import adopt
from gemv.calls import short
from gemv.calls.bind import Call, bind, check_places, common_dtype, result_dtype
from gemv.calls.execute import placed, selected
from gemv.calls.remembered import LongWay, RememberedCall, ShortWay, packable
from gemv.calls.short import short_ways
from gemv.core import memo
from gemv.core.operand import Operand
from gemv.core.rules import (
    accumulation,
    check_arguments,
    flag,
    integer,
    transposition,
    type_error,
    y_length,
)
from gemv.core.trace import open_traces
from gemv.engines import backend as engines_backend
from gemv.engines.host import known_kernel

#: Plans that launch without a look at their arrays.
bound_plans: weakref.WeakSet[Plan] = weakref.WeakSet()
#: Reentrant: garbage that is collected while it is held may make calls of its own.
_lock = threading.RLock()


def _bound(name: str) -> property:
    """A read-only property: the array's address may be part of a packed launch."""

    def read(plan: Any) -> Any:
        return getattr(plan, f"_{name}")

    def refuse(plan: Any, *value: Any) -> None:
        raise AttributeError(
            f"a plan stays bound to its {name}: make another plan, or pass other vectors as the"
            " plan is called"
        )

    return property(read, refuse, refuse, f"The {name} that the plan is bound to; read-only.")


class Plan:
    """A product that is made again and again; :func:`gemv.plan` makes one.

    Calling it computes ``y := alpha*op(a)*x + beta*y``. It keeps references to the arrays that it
    is bound to. They must not change their shape, strides or memory while the plan is used: with
    both vectors bound, nothing of them is read again.

    Any number of threads may call one plan, each on a stream of its own; it has no state that a
    call changes.
    """

    __slots__ = (
        "__weakref__",
        "_a",
        "_addresses",
        "_elsewhere",
        "_general",
        "_known",
        "_launch",
        "_numbers",
        "_options",
        "_short_way",
        "_stream",
        "_written",
        "_x",
        "_y",
    )

    a = _bound("a")
    x = _bound("x")
    y = _bound("y")

    def __init__(self, general: Callable[..., Any], a: Any, x: Any, y: Any, options: tuple) -> None:
        self._general = general
        self._options = options
        self._short_way: ShortWay | None = None
        self._launch: Callable[..., int] | None = None
        self._addresses = (0, 0, 0)
        self._known: Any = None
        self._numbers: frozenset[type] = frozenset()
        self._elsewhere: Callable[[], bool] | None = None
        self._stream: Callable[[], int] = int
        self._written: Callable[[Any], None] | None = None
        self._a = a
        self._x = x
        self._y = y

    def _try_first(self, short_way: ShortWay | None) -> None:
        """Use this short way where vectors are passed."""
        self._short_way = short_way

    def _bind(
        self,
        known: RememberedCall,
        stream: Callable[[], int],
        addresses: tuple[int, int, int],
        written: Callable[[Any], None] | None,
    ) -> None:
        """Launch `known` from now on, on the stream that ``stream()`` names, and look at no array.

        ``written(y)`` tells the library that y was overwritten.
        """
        self._known, self._stream, self._addresses = known, stream, addresses
        self._numbers, self._written = known.numbers, written
        if known.engine.several:
            index, current = known.device.index, known.engine.current_device
            self._elsewhere = lambda: current() != index
        self._launch = known.launch
        if known.plain:
            self._launch = partial(known.machine.enqueue, known.address)

    def _unbind(self) -> None:
        """Check everything again in each call from now on: a setting has changed."""
        self._launch = None

    def __call__(
        self, alpha: Any = 1, beta: Any = 0, x: Any = None, y: Any = None, *, stream: Any = None
    ) -> Any:
        """Compute with these factors and, where they are given, with other vectors.

        Parameters
        ----------
        alpha, beta : number
            Factors of the product and of y; they cost nothing to change.
        x, y : device array, optional
            In place of those that the plan is bound to. A y that is passed is overwritten.
        stream : stream, optional
            As in :func:`gemv.gemv`.

        Returns
        -------
        y : device array
            The y passed, else the one bound, overwritten; a new one where there is neither.
        """
        launch = self._launch  # another thread may unbind the plan meanwhile
        if (
            launch is not None
            and x is None
            and y is None
            and stream is None
            and (self._elsewhere is None or not self._elsewhere())
        ):
            numbers = self._numbers
            if type(alpha) in numbers and type(beta) in numbers and not (alpha == 0 and beta == 1):
                a_at, x_at, y_at = self._addresses
                if not launch(self._stream(), a_at, x_at, y_at, alpha, beta):
                    if self._written is not None:
                        self._written(self._y)
                    if open_traces():
                        self._known.record()
                    return self._y
        if x is None:
            x = self._x
        if y is None:
            y = self._y
        if self._short_way is not None and stream is None and x is not None:
            overwrite = 0 if y is None else 1
            result = self._short_way(
                "gemv", alpha, self._a, x, beta, y, *self._options, overwrite, None, None, None
            )
            if type(result) is not LongWay:
                return result
        return self._general(alpha, beta, x, y, stream)

    def __reduce__(self) -> Any:
        # A copy would keep addresses, and nobody would tell it that a setting has changed.
        raise TypeError(
            "a gemv.Plan can be neither pickled nor copied: it holds addresses of this process's"
            " GPU memory. Make another one with gemv.plan where it is needed"
        )

    def __repr__(self) -> str:
        bound = [name for name in ("x", "y") if getattr(self, name) is not None]
        return f"<gemv.Plan, bound to {', '.join(['a', *bound])}>"


def bind_plan(plan: Plan, generation: int, *arguments: Any) -> None:
    """``plan._bind(*arguments)``, unless a setting has changed since `generation`."""
    with _lock:
        if generation == memo.generation():
            plan._bind(*arguments)
            bound_plans.add(plan)


def _unbind_all() -> None:
    """Let every plan check its next call again."""
    with _lock:
        for plan in list(bound_plans):
            plan._unbind()
        bound_plans.clear()


def _renew_lock() -> None:
    """Make a new lock in a forked process, where another thread may have held the old one."""
    global _lock
    _lock = threading.RLock()


memo.on_forget(_unbind_all, _renew_lock)


def make(
    gemv: Callable[..., Any],
    a: Any,
    x: Any,
    y: Any,
    options: tuple[Any, Any, Any, Any, Any],
    kernel: str | None,
    stream: Any,
    accumulate: Any,
    out_dtype: Any,
    peer: Any,
) -> Plan:
    """What :func:`gemv.plan` makes.

    Parameters
    ----------
    gemv : callable
        The public routine, for calls that the plan does not launch itself.
    options : tuple
        The arguments offx, incx, offy, incy and trans.
    """
    operand = adopt("plan", "a", a, None, engines_backend.HOME)
    if operand.on_host:
        raise type_error(
            "plan", "a", "a is in host memory, from where it would be moved in every call"
        )

    def general(alpha: Any, beta: Any, x: Any, y: Any, stream_now: Any) -> Any:
        if x is None:
            raise type_error("plan", "x", "the plan is bound to no x, so each call has to pass one")
        return gemv(
            alpha, a, x, beta, y, *options, 0 if y is None else 1,
            kernel=kernel, stream=stream if stream_now is None else stream_now,
            accumulate=accumulate, out_dtype=out_dtype, peer=peer,
        )  # fmt: skip

    plan = Plan(general, a, x, y, options)
    call, generation = None, memo.generation()
    if x is not None:
        call = bind(
            "plan", None, 2, a, x, 0, y, *options, 0 if y is None else 1, coefficients=None,
            accumulate=accumulate, out_dtype=out_dtype, peer=peer,
        )  # fmt: skip
    else:
        _check_without_x(operand, y, options, accumulate, out_dtype, peer)
    if kernel is not None:
        known_kernel("plan", kernel)
    if engines_backend.backend() == "host" or (call is not None and call.nothing is not None):
        return plan
    engine = engines_backend.engine()
    usual = kernel is stream is out_dtype is None and accumulate == "plain" and peer is False
    if engine.name == "cuda" and usual:
        short.prepare(engine, operand.kind)
        plan._try_first(short_ways.get(type(a)))
    if call is None:
        return plan
    with engine.on(call.device):
        choice = selected(call, placed(call), kernel)[0]
        if engine.name != "cuda":
            return plan
        engine.load(choice, engine.device())
        current = None if stream is not None or peer else _current_stream(call, engine)
        if call.y is not None and current is not None and packable(engine, choice, call):
            known = RememberedCall(engine, choice, call.problem, call.problem.rows)
            addresses = (call.a.pointer, call.x.pointer, call.y.pointer)
            written = call.a.exporter.notes_writes
            bind_plan(plan, generation, known, current, addresses, written)
    return plan


def _current_stream(call: Call, engine: Any) -> Callable[[], int] | None:
    """A function that names the one stream of all operands; None where nothing does."""
    operands = [o for o in (call.a, call.x, call.y) if o is not None]
    if len({o.kind for o in operands}) > 1 or any(o.stream is not None for o in operands):
        return None
    library = call.a.exporter
    if library.on_default_stream:
        handle = engine.default_stream()
        return lambda: handle
    ask = library.stream_getter()
    return None if ask is None else partial(ask, call.a.device)


def _check_without_x(
    a: Operand, y: Any, options: tuple, accumulate: Any, out_dtype: Any, peer: Any
) -> None:
    """Check the arguments of a plan that is bound to no x, as if x were long enough."""
    routine = "plan"
    trans = transposition(routine, options[-1])
    names = ("offx", "incx", "offy", "incy")
    offx, incx, offy, incy = map(integer, [routine] * 4, names, options)
    accumulation(routine, accumulate)
    operand_y = None if y is None else adopt(routine, "y", y, None, engines_backend.HOME)
    check_places(routine, a, a, operand_y, 2, 0, flag(routine, "peer", peer))
    dtype = common_dtype(routine, 2, a, a, 0, operand_y)
    y_dtype = result_dtype(routine, dtype, operand_y, out_dtype)
    rows, cols = a.shape if trans == 0 else a.shape[::-1]
    x_len, y_len = (
        max(off + 1, y_length(count, off, inc))
        for count, off, inc in ((cols, offx, incx), (rows, offy, incy))
    )
    if operand_y is not None:
        y_len = operand_y.shape[0]
    check_arguments(
        routine, dtype, a.shape, a.strides, x_len, 1, y_len, 1, offx, incx, offy, incy, trans,
        y_dtype,
    )  # fmt: skip
