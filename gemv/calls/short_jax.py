"""The short way of JAX's arrays: a plain product that was made before becomes a call of XLA's.

The long way hands memory over by DLPack, both ways, which takes 0.4 ms. A compiled function of
JAX's takes some microseconds, and ends in the same kernel with the same bits
(:mod:`gemv.calls.jax_handlers`). It has no y to overwrite and would multiply by alpha afterwards,
so only ``op(A)*x`` goes this way.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gemv.calls.remembered import ONE, UNUSUAL, WIDE, ZERO, LongWay, ShortWay
from gemv.core import memo, trace
from gemv.core.rules import transposition

#: Compiled functions by routine, avals, shardings and `trans`.
_compiled: dict[tuple, Any] = {}
memo.on_forget(_compiled.clear)
_MOST = 1024
#: Types of an alpha that may be 1, and of `trans`; True is equal to 1 as well.
_NUMBERS, _CODES = (int, float), (int, str)
_WIDE = frozenset(WIDE.values())


def short_ways(engine: Any) -> dict[type, ShortWay]:
    """The function by the type of A; JAX has been imported, and an array of it is on a GPU."""
    from gemv.calls import jax_calls

    jax: Any = sys.modules["jax"]
    with jax.ensure_compile_time_eval():  # the caller may be inside of what JAX traces
        array = type(jax.device_put(np.zeros(0, np.float32)))
    tracing = trace.open_traces

    def long_way(key: tuple) -> LongWay:
        """Go the long way, and keep a function for calls of this kind once it was gone."""
        generation = memo.generation()

        def keep(known: Any, y: Any) -> None:
            routine, a, x, _, _, trans = key
            trans = transposition(routine, trans)
            if x.shape != (a.shape[0 if trans else 1],) or not (a.size and x.size):
                return  # a part of a longer x, or nothing to add up
            accumulate = "wide" if routine in _WIDE else "plain"
            compiled = jax_calls.at_once(1, 0, trans, accumulate, None, None, False)
            if generation == memo.generation():
                if len(_compiled) >= _MOST:
                    _compiled.clear()
                _compiled[key] = compiled

        return LongWay(None, keep)

    def call(
        routine: str, alpha: Any, a: Any, x: Any, beta: Any, y: Any,
        offx: Any, incx: Any, offy: Any, incy: Any, trans: Any, overwrite_y: Any,
        kernel: Any, stream: Any, coefficients: Any,
    ) -> Any:  # fmt: skip
        if (
            type(x) is not array or y is not None
            or kernel is not None or stream is not None or coefficients is not None
            or offx is not ZERO or incx is not ONE or offy is not ZERO or incy is not ONE
            or overwrite_y is not ZERO or type(trans) not in _CODES or tracing()
        ):  # fmt: skip
            return UNUSUAL
        if alpha is None:  # asked ahead, by the first call
            ahead = True
        elif type(alpha) in _NUMBERS and alpha == 1 and type(beta) in _NUMBERS and beta == 0:
            ahead = False
        else:
            return UNUSUAL
        try:
            # Of one aval and on one device; the rest is the same for all of JAX's arrays.
            key = routine, a.aval, x.aval, a.sharding, x.sharding, trans
            compiled = _compiled.get(key)
            if compiled is not None and not ahead:
                result = compiled(a, x)
                # Inside of what JAX traces it has been recorded, and has no values.
                return result if type(result) is array else UNUSUAL
        except RuntimeError:  # an array that has been deleted
            return UNUSUAL
        return long_way(key)

    return {array: call}
