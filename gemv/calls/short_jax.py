"""The short way of JAX's arrays: a product that was made before becomes a call of XLA's.

The long way hands memory over by DLPack, both ways, which takes 0.4 ms. A compiled function of
JAX's takes some microseconds, and ends in the same kernel with the same bits
(:mod:`gemv.calls.jax_handlers`). ``op(A)*x`` is a function of A and x; with another alpha, or a y,
the numbers are arrays on the GPU (:mod:`gemv.calls.jax_numbers`), which are kept for the next call.
"""

from __future__ import annotations

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

#: By routine, avals, shardings and `trans`.
_known: dict[tuple, _Known] = {}
memo.on_forget(_known.clear)
_MOST = 1024
#: How many numbers are kept on the GPU for calls of one kind.
MOST_NUMBERS = 64
#: Types of `trans`; True is equal to 1 as well.
_CODES = (int, str)
_WIDE = frozenset(WIDE.values())


class _Known:
    """Calls of one kind: the compiled functions, and numbers that lie on the GPU."""

    __slots__ = ("_factors", "_jax", "_numbers", "_sharding", "blended", "kinds", "plain")

    def __init__(self, jax: Any, routine: str, dtype: Any, sharding: Any, trans: int) -> None:
        from gemv.calls import jax_calls, jax_numbers

        accumulate = "wide" if routine in _WIDE else "plain"
        dtype = element_type(np.dtype(dtype))
        is_complex = dtype.kind == "c"
        #: None where a product under ``jit`` conjugates x and y, by which zeros lose their sign.
        self.plain = (
            None
            if is_complex and trans == 2
            else jax_calls.at_once(1, 0, trans, accumulate, None, None, False)
        )
        self.blended = jax_numbers.compiled(trans if is_complex else min(trans, 1), accumulate)
        #: Types of alpha and beta that need no check.
        self.kinds = COMPLEX_NUMBERS if is_complex else REAL_NUMBERS
        self._jax, self._sharding = jax, sharding
        self._factors = Precision.of(dtype).factors
        #: By value; None for one that came once.
        self._numbers: dict[Any, Any] = {}

    def number(self, value: Any) -> Any:
        """A number where the kernel reads it; None for one that has to be looked at."""
        kind = type(value)
        if kind not in self.kinds:
            there = (
                isinstance(value, self._jax.Array)
                and value.shape == ()
                and value.dtype == self._factors
                and value.sharding == self._sharding
            )
            return value if there else None
        found = self._numbers.get(value)
        return self._met(value) if found is None else found

    def _met(self, value: Any) -> Any:
        """A number that is not on the GPU; it is put there if it comes for the second time.

        A copy of its own takes several times as long as one that XLA makes for a call.
        """
        with np.errstate(over="ignore"):  # it becomes infinite, as on the long way
            try:
                number = self._factors.type(value)
            except OverflowError:  # an int
                return None
        if len(self._numbers) >= MOST_NUMBERS:
            self._numbers.clear()
        if value in self._numbers:
            with self._jax.ensure_compile_time_eval():  # the caller may be inside of a trace
                number = self._jax.device_put(number, self._sharding)
            if number.dtype != self._factors:
                return None  # JAX has no numbers of 64 bits by now
            self._numbers[value] = number
        else:
            self._numbers[value] = None
        return number


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
            routine, trans, a, x, sharding, _, *y = key
            trans = transposition(routine, trans)
            rows, cols = a.shape[::-1] if trans else a.shape
            if x.shape != (cols,) or not (rows and cols) or (y and y[0].shape != (rows,)):
                return  # a part of a longer vector, or nothing to add up
            found = _Known(jax, routine, a.dtype, sharding, trans)
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
            if type(alpha) in kinds:
                if alpha == 0:
                    return UNUSUAL  # A and x are not read
                if y is None and alpha == 1 and known.plain is not None:
                    if type(beta) not in kinds or beta != 0:
                        return UNUSUAL
                    result = known.plain(a, x)
                    # Inside of what JAX traces it has been recorded, and has no values.
                    return result if type(result) is array else UNUSUAL
            first = known.number(alpha)
            if first is None:
                return UNUSUAL
            if y is None:
                if type(beta) not in kinds or beta != 0:
                    return UNUSUAL
                result = known.blended(a, x, first)
            else:
                second = known.number(beta)
                if second is None:
                    return UNUSUAL
                result = known.blended(a, x, first, second, y)
            return result if type(result) is array else UNUSUAL
        except RuntimeError:  # an array that has been deleted
            return UNUSUAL

    return {array: call}
