"""``alpha*op(A)*x + beta*y`` with alpha and beta in memory, as one call of XLA's.

A number that is a part of a program makes another program, which takes XLA some 20 ms. Here alpha
and beta are arrays without a dimension, and the kernel reads them where they lie: one program for
all numbers, and the roundings of :func:`gemv.gemv`. Calls outside of ``jit`` are made of it. It has
no derivatives: what JAX transforms is a product, and arithmetic of JAX's around it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gemv.arrays.base import element_type
from gemv.calls import jax_handlers
from gemv.calls.jax_operators import TARGET, register_for
from gemv.core.dtypes import Precision

_update = Primitive(f"{TARGET}_of_numbers")
#: Where y stands among the arguments; XLA copies it to the result before it calls us.
_Y = 4


@functools.lru_cache(maxsize=64)
def compiled(trans: int, accumulate: str) -> Any:
    """A compiled function of a, x and alpha, or of a, x, alpha, beta and y.

    alpha and beta have the dtype of :attr:`gemv.core.dtypes.Precision.factors`.
    """
    return jax.jit(functools.partial(_update.bind, trans=trans, accumulate=accumulate))


@_update.def_abstract_eval
def _abstract(a: Any, x: Any, *rest: Any, trans: int, accumulate: str) -> Any:
    factors = Precision.of(element_type(np.dtype(a.dtype))).factors
    if any(number.shape or number.dtype != factors for number in rest[:2]):
        # As where JAX was told after A was made that it has no numbers of 64 bits.
        raise RuntimeError(f"alpha and beta have to be numbers of {factors}")
    like = rest[2] if len(rest) == 3 else x
    return like.update(shape=(a.shape[1 if trans else 0],), weak_type=False)


def _lowered(context: Any, a: Any, x: Any, *rest: Any, trans: int, accumulate: str) -> Any:
    register_for(context)
    call = jax_handlers.written_without_numbers(len(rest), trans, accumulate)
    aliases = {_Y: 0} if len(rest) == 3 else None
    lowering = jax.ffi.ffi_lowering(TARGET, operand_output_aliases=aliases)
    return lowering(context, a, x, *rest, call=call)


mlir.register_lowering(_update, _lowered)
