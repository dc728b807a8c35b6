"""The short way of JAX's arrays: a product that was made before becomes a call of XLA's.

The long way hands memory over by DLPack, both ways, which takes 0.4 ms. A compiled function of
JAX's takes some microseconds, and ends in the same kernel with the same bits
(:mod:`gemv.calls.jax_handlers`). ``op(A)*x`` is a function of A and x. Other numbers, a y, and the
items of a batch come with a ticket, which stands for alpha and beta in host memory
(:mod:`gemv.calls.jax_tickets`). An alpha or a beta that is an array on the GPU is read there
(:mod:`gemv.calls.jax_numbers`).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from gemv.arrays.base import element_type
from gemv.calls.remembered import (
    COMPLEX_NUMBERS,
    ONE,
    REAL_NUMBERS,
    UNUSUAL,
    WIDE,
    ZERO,
    LongWay,
    ShortWay,
)
from gemv.core import memo, trace
from gemv.core.dtypes import Precision
from gemv.core.rules import transposition
from gemv.driver import tickets

#: By routine, avals, shardings and `trans`.
_known: dict[tuple, _Known] = {}
memo.on_forget(_known.clear)
_MOST = 1024
#: Types of `trans`; True is equal to 1 as well.
_CODES = (int, str)
_WIDE = frozenset(WIDE.values())
#: Functions whose products are batches, of one item too, and what `trans` would be in gemv.
_OF_BATCHES = {"matvec": 0, "vecmat": 1}


class _Known:
    """Calls of one kind, and the compiled functions that make them again."""

    __slots__ = (
        "_array", "_avals", "_blended", "_factors", "_sharding", "kinds", "plain", "with_ticket",
    )  # fmt: skip

    def __init__(self, array: Any, routine: str, a: Any, sharding: Any, trans: int) -> None:
        from gemv.calls import jax_calls, jax_numbers, jax_tickets

        accumulate = "wide" if routine in _WIDE else "plain"
        dtype = element_type(np.dtype(a.dtype))
        is_complex = dtype.kind == "c"
        code = trans if is_complex else min(trans, 1)
        batch = routine in _OF_BATCHES or len(a.shape) > 2
        #: None for a batch, and where a product under ``jit`` conjugates x and y, by which zeros
        #: lose their sign.
        self.plain = (
            None
            if batch or (is_complex and trans == 2)
            else jax_calls.at_once(1, 0, trans, accumulate, None, None, False)
        )
        self._blended = None if batch else jax_numbers.compiled(code, accumulate)
        name = routine if routine in _OF_BATCHES else "gemv"
        ticketed = jax_tickets.compiled(name, code, accumulate)
        #: Types of alpha and beta that need no check.
        self.kinds = COMPLEX_NUMBERS if is_complex else REAL_NUMBERS
        self._array, self._sharding = array, sharding
        #: Those of numbers that the kernel reads where they lie.
        self._avals: set[Any] = set()
        self._factors = Precision.of(dtype).factors
        #: ``with_ticket(alpha, beta, a, x, *old)`` with numbers of these types; None if there is
        #: no ticket.
        self.with_ticket = functools.partial(
            jax_tickets.tickets_for(sharding).call, tickets.writer(self._factors), ticketed
        )

    def in_memory(self, alpha: Any, beta: Any, a: Any, x: Any, *old: Any) -> Any:
        """The same where alpha or beta is an array on the GPU.

        A number beside it is put there by XLA for this call, which takes longer than the call.
        """
        if self._blended is None:
            return None
        first = self._number(alpha)
        if first is None:
            return None
        if not old:  # beta is 0 and no argument
            return self._blended(a, x, first)
        second = self._number(beta)
        return None if second is None else self._blended(a, x, first, second, *old)

    def _number(self, value: Any) -> Any:
        """A number where the kernel reads it; None for one that has to be looked at."""
        if type(value) in self.kinds:
            with np.errstate(over="ignore"):  # it becomes infinite, as on the long way
                return self._factors.type(value)
        if type(value) is not self._array:
            return None
        # JAX has one aval for all arrays that are alike, and a comparison of shardings takes long.
        if value.aval not in self._avals:
            if value.shape != () or value.dtype != self._factors:
                return None
            self._avals.add(value.aval)
        sharding = value.sharding
        return value if sharding is self._sharding or sharding == self._sharding else None


def _can_be_kept(key: tuple, trans: int) -> bool:
    """Whether calls with a key are whole products: nothing empty, no part of a longer vector."""
    from gemv.calls.jax_tickets import shape_of_result

    routine, _, a, x, _, _, *y = key
    batch = routine in _OF_BATCHES or len(a.shape) > 2
    cols = a.shape[-2 if trans else -1]
    if x.shape[-1:] != (cols,) or (not batch and x.shape != (cols,)):
        return False
    shape = shape_of_result(trans, a, x)
    return 0 not in (*shape, *a.shape) and (not y or y[0].shape == shape)


def short_ways(engine: Any) -> dict[type, ShortWay]:
    """The function by the type of A; JAX has been imported, and an array of it is on a GPU."""
    jax: Any = sys.modules["jax"]
    with jax.ensure_compile_time_eval():  # the caller may be inside of what JAX traces
        array = type(jax.device_put(np.zeros(0, np.float32)))
    tracing = trace.open_traces
    get = _known.get

    def long_way(key: tuple) -> LongWay:
        """Go the long way, and keep functions for calls of this kind once it was gone."""
        generation = memo.generation()

        def keep(known: Any, made: Any) -> None:
            routine, given, a, _, sharding, *_ = key
            trans = _OF_BATCHES.get(routine)
            trans = transposition(routine, given) if trans is None else trans
            if _can_be_kept(key, trans):
                found = _Known(array, routine, a, sharding, trans)
                if generation == memo.generation():
                    if len(_known) >= _MOST:
                        _known.clear()
                    _known[key] = found

        return LongWay(None, keep)

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        if (
            type(x) is not array
            or kernel is not None or stream is not None or coefficients is not None
            or offx is not ZERO or incx is not ONE or offy is not ZERO or incy is not ONE
            or (overwrite_y is not ZERO and overwrite_y is not ONE)
            or type(trans) not in _CODES or tracing()
        ):  # fmt: skip
            return UNUSUAL
        try:
            # Of one aval and on one device; the rest is the same for all of JAX's arrays.
            if y is None:
                key: tuple = routine, trans, a.aval, x.aval, a.sharding, x.sharding
            elif type(y) is array:
                key = routine, trans, a.aval, x.aval, a.sharding, x.sharding, y.aval, y.sharding
            else:
                return UNUSUAL
            known = get(key)
            if known is None or alpha is None:  # None: asked ahead, by the first call
                return long_way(key)
            kinds = known.kinds
            is_number = type(alpha) in kinds
            if is_number and alpha == 0:
                return UNUSUAL  # A and x are not read
            if y is None:
                if type(beta) not in kinds or beta != 0:
                    return UNUSUAL
                if not is_number:
                    result = known.in_memory(alpha, 0, a, x)
                elif alpha == 1 and known.plain is not None:
                    result = known.plain(a, x)
                else:
                    result = known.with_ticket(alpha, 0, a, x)
            elif is_number and type(beta) in kinds:
                result = known.with_ticket(alpha, beta, a, x, y)
            else:
                result = known.in_memory(alpha, beta, a, x, y)
            # Inside of what JAX traces it has been recorded, and has no values.
            return result if type(result) is array else UNUSUAL
        except (RuntimeError, ValueError, OverflowError):  # a deleted array, an int beyond floats
            return UNUSUAL

    return {array: call}
