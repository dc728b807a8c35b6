"""Products of JAX's arrays with numbers that come by a ticket, as calls of XLA's.

To put a number on the GPU for a call takes longer than the call. So the program for all numbers
has an array on the GPU in their place, a ticket, which stands for words of host memory that the
handler reads: see :mod:`gemv.driver.tickets`. As the programs of :mod:`gemv.calls.jax_numbers` it
has no derivatives.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gemv.calls.jax_operators import TARGET, register_for
from gemv.calls.jax_ticketed import written
from gemv.driver.tickets import is_taken, leave, line_of

_product = Primitive(f"{TARGET}_with_a_ticket")
#: Where y stands among the arguments; XLA copies it to the result before it calls us.
_Y = 3


@functools.lru_cache(maxsize=64)
def compiled(routine: str, trans: int, accumulate: str) -> Any:
    """A compiled function of a, x and a ticket, or of a, x, a ticket and y.

    `routine` is ``"gemv"``, with one matrix or a batch, ``"matvec"`` or ``"vecmat"``.
    """
    options = {"routine": routine, "trans": trans, "accumulate": accumulate}
    return jax.jit(functools.partial(_product.bind, **options))


def shape_of_result(trans: int, a: Any, x: Any) -> tuple[int, ...]:
    """For `a` and `x` that fit together."""
    leading = np.broadcast_shapes(a.shape[:-2], x.shape[:-1])
    return (*leading, a.shape[-1 if trans else -2])


@_product.def_abstract_eval
def _abstract(a: Any, x: Any, ticket: Any, *old: Any, trans: int, **_: Any) -> Any:
    shape = shape_of_result(trans, a, x)
    return (old[0] if old else x).update(shape=shape, weak_type=False)


def _lowered(
    context: Any, a: Any, x: Any, ticket: Any, *old: Any, routine: str, trans: int, accumulate: str
) -> Any:
    register_for(context)
    of_a, of_x, *_ = context.avals_in
    call = written(routine, trans, accumulate, of_a.shape, of_x.shape)
    lowering = jax.ffi.ffi_lowering(TARGET, operand_output_aliases={_Y: 0} if old else None)
    return lowering(context, a, x, ticket, *old, call=call)


mlir.register_lowering(_product, _lowered)


class Tickets:
    """The tickets for arrays of one sharding, which is that of one device.

    Each is used by one call at a time: calls that XLA has not begun yet have one each.
    """

    def __init__(self, sharding: Any) -> None:
        self._sharding = sharding
        #: An array and its line, the one that was used the longest ago first. Its methods are
        #: atomic, so a thread has what it takes out to itself.
        self._free: deque[tuple[Any, int]] = deque()

    def call(
        self, write: Callable[[int, Any, Any], None], function: Any, alpha: Any, beta: Any,
        a: Any, x: Any, *old: Any,
    ) -> Any:  # fmt: skip
        """Call a function of :func:`compiled` with alpha and beta.

        None where all tickets are taken.

        Parameters
        ----------
        write : callable
            That of :func:`gemv.driver.tickets.writer` for the dtype of alpha and beta.
        """
        free = self._free
        try:
            ticket = free.popleft()
            if is_taken(ticket[1]):  # XLA has not come to its call yet
                free.append(ticket)
                ticket = self._another()
        except IndexError:
            ticket = self._another()
        if ticket is None:
            return None
        array, line = ticket
        try:
            write(line, alpha, beta)
            result = function(a, x, array, *old)
        except (ValueError, RuntimeError):  # no float, or an array that has been deleted
            leave(line)
            free.append(ticket)
            raise
        # After an interrupt XLA may have the ticket, and nobody else gets it.
        if type(result) is not type(array):  # it was recorded, and is never computed
            leave(line)
        free.append(ticket)
        return result

    def _another(self) -> Any:
        """A new ticket and its line; None if there are too many."""
        with jax.ensure_compile_time_eval():  # the caller may be inside of a trace
            array = jax.device_put(np.int32(0), self._sharding)
        line = line_of(array.unsafe_buffer_pointer())
        return None if line is None else (array, line)


@functools.lru_cache(maxsize=64)
def tickets_for(sharding: Any) -> Tickets:
    return Tickets(sharding)
