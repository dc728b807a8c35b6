"""Plans of batches: checked once, and launched as often as wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gemv.arrays.adopt import adopt
from gemv.calls import item_launches, items, memory_check, routines
from gemv.calls.batched import Items
from gemv.calls.bind import Call
from gemv.calls.item_launches import Launches
from gemv.calls.order import Order
from gemv.calls.plan import Plan
from gemv.calls.remembered import COMPLEX_NUMBERS, REAL_NUMBERS
from gemv.calls.result import note_written
from gemv.core import memo
from gemv.core.rules import coefficient, type_error
from gemv.engines import backend as engines_backend
from gemv.engines.host import known_kernel
from gemv.selection.select import Choice


class _Ready(NamedTuple):
    """A batch whose launches are known: all of a call but alpha, beta and the stream.

    Attributes
    ----------
    generation : int
        That of the settings from which it follows: see :func:`gemv.core.memo.generation`.
    numbers : frozenset of type
        Types of alpha and beta that need no check but that of their range.
    parts : list of (Choice, tuple)
        Kernels and the operands of their items, alpha and beta left out.
    """

    generation: int
    engine: Any
    call: Call
    launches: Launches
    numbers: frozenset[type]
    parts: list[tuple[Choice, tuple[Any, ...]]]

    def launch(self, alpha: Any, beta: Any, stream: Any) -> None:
        """Enqueue all parts, in order."""
        call, engine = self.call, self.engine
        factors = call.problem.precision.factors
        alpha = coefficient(call.routine, "alpha", alpha, factors)
        beta = coefficient(call.routine, "beta", beta, factors)
        if alpha == 0 and beta == 1:
            return
        with engine.on(call.device):
            order = Order(call, engine, stream)
            order.before()
            for choice, (a, x, y, *_) in self.parts:
                item_launches.run(
                    engine, self.launches.problem, choice, (a, x, y, alpha, beta), order.stream
                )
            order.after()
        assert call.y is not None
        note_written(call.y)


class BoundBatch:
    """What a plan of a batch calls: launches that are ready, or a call that is checked again.

    Parameters
    ----------
    check : callable
        ``check(alpha, beta, x, y)`` binds and checks a call.
    x, y : device array
        Those for which launches are ready.
    kernel : str or None
    stream : stream or None
        As of :func:`gemv.gemv`; a call may name another stream.
    """

    def __init__(
        self, check: Callable[..., Items], x: Any, y: Any, kernel: str | None, stream: Any = None
    ) -> None:
        self._check, self._x, self._y = check, x, y
        self._kernel, self._stream = kernel, stream
        self._ready = self._prepared()

    def __call__(self, alpha: Any, beta: Any, x: Any, y: Any, stream: Any = None) -> Any:
        """Compute into `y`, or into a new array where it is None; and return that."""
        stream = self._stream if stream is None else stream
        own_x, own_y = self._x, self._y
        ready = self._ready
        if ready is not None and x is own_x and y is own_y and y is not None:
            if type(alpha) in ready.numbers and type(beta) in ready.numbers:
                if ready.generation != memo.generation():
                    ready = self._prepared()
                if ready is not None:
                    self._ready = ready
                    ready.launch(alpha, beta, stream)
                    return y
        return items.execute(self._check(alpha, beta, x, y), self._kernel, stream)

    def _prepared(self) -> _Ready | None:
        """The launches for numbers alpha and beta, loaded; None where each call has to be checked.

        That is so where nothing is computed or y is new, and for a lazy negative, whose sign
        belongs to alpha. It is so as well where each call has to read the arrays: to compare their
        memory with the driver's, or for the stream that one of them names by then.
        """
        generation = memo.generation()
        checked = self._check(2, 0, self._x, self._y)
        call = checked.call
        if engines_backend.backend() == "host" or checked.nothing or 0 in call.a.shape:
            return None
        engine = engines_backend.engine()
        with engine.on(call.device):
            launches = item_launches.planned(engine, call, checked.batch, self._kernel)
            item_launches.load(engine, launches)
        if call.y is None or not call.in_place or call.a.neg != call.x.neg:
            return None
        if memory_check.FULL or any(o.stream is not None for o in (call.a, call.x, call.y)):
            return None
        numbers = COMPLEX_NUMBERS if call.problem.dtype.kind == "c" else REAL_NUMBERS
        parts = list(item_launches.operands(launches, call, call.y))
        return _Ready(generation, engine, call, launches, numbers, parts)


def make(
    routine: str, a: Any, x: Any, y: Any, options: tuple, kernel: str | None, stream: Any,
    accumulate: Any, out_dtype: Any, peer: Any,
) -> Plan:  # fmt: skip
    """What :func:`gemv.plan` makes for a batch.

    A plan of one product with other vectors takes a remembered call, which a batch has not: there
    all is checked again.
    """
    if adopt(routine, "a", a, None, engines_backend.HOME, batch=True).on_host:
        raise type_error(
            routine, "a", "a is in host memory, from where it would be moved in every call"
        )
    if x is None:
        raise type_error(routine, "x", "a plan of a batch is bound to its x, which is None")
    if kernel is not None:
        known_kernel(routine, kernel)
    if peer:
        raise ValueError(f"{routine}: peer is for a matrix of two dimensions, not for a batch")

    def check(alpha: Any, beta: Any, x: Any, y: Any) -> Items:
        arguments = (alpha, a, x, beta, y, *options, 0 if y is None else 1)
        return routines.bind(routine, arguments, accumulate, out_dtype)

    return Plan(BoundBatch(check, x, y, kernel, stream), a, x, y, options)
