"""What XLA calls for a product whose alpha and beta come by a ticket: one item, or a whole batch.

Its arguments are A, x, the ticket and perhaps the old y, in whose memory XLA wants the result. The
lengths of A and x stand among the options, so that machine code need not compare them one by one. A
batch is computed as :func:`gemv.matvec` and its kin compute it, mostly by one launch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gemv.calls import jax_again, jax_batches, jax_handlers
from gemv.calls.jax_batches import Launch
from gemv.calls.jax_frames import Array, Frame
from gemv.calls.jax_handlers import MAX_REMEMBERED, ROUTINE, in_memory, refuse_on_host
from gemv.core import memo
from gemv.core.dtypes import DTYPES, Precision
from gemv.driver import tickets
from gemv.engines import backend as engines_backend
from gemv.engines import host

#: How the options of a call begin whose numbers come by a ticket, and those of a batch without one.
_BEGINNING = '["ticket",'
_BATCH = f'["{jax_handlers.BATCH}",'


class _Options(NamedTuple):
    routine: str
    trans: int
    accumulate: str


def written(
    routine: str, trans: int, accumulate: str, a_shape: tuple[int, ...], x_shape: tuple[int, ...]
) -> str:
    """The options of a call as its only attribute; they begin as no other options do."""
    return json.dumps(["ticket", routine, trans, accumulate, a_shape, x_shape])


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def _read(call: str) -> _Options:
    return _Options(*json.loads(call)[1:4])


@contextmanager
def _numbers(frame: Frame) -> Iterator[tuple[Any, Any]]:
    """alpha and beta of a call; the ticket is free once the block has ended."""
    a, ticket = frame.arguments[0], frame.arguments[2]
    line = tickets.known_line(ticket.address)
    try:
        yield tickets.read(line, Precision.of(DTYPES[a.letter]).factors)
    finally:
        tickets.leave(line)


def on_host(frame: Frame) -> None:
    """Compute a call in host memory, with a ticket or without one."""
    if not frame.attributes["call"].startswith(_BEGINNING):
        return jax_handlers.on_host(frame)
    a, x, _, *old = frame.arguments
    routine, trans, accumulate = _read(frame.attributes["call"])
    matrices, vectors, y = (in_memory(each) for each in (a, x, *frame.results))
    with _numbers(frame) as (alpha, beta):
        matrices = np.broadcast_to(matrices, (*y.shape[:-1], *a.shape[-2:]))
        vectors = np.broadcast_to(vectors, (*y.shape[:-1], x.shape[-1]))
        before = in_memory(old[0]) if old and beta != 0 else None
        for place in np.ndindex(y.shape[:-1]):
            vector = vectors[place]
            if routine == "vecmat" and vector.dtype.kind == "c":
                vector = vector.conj()
            y[place] = host.compute(
                ROUTINE, trans, alpha, matrices[place], vector, beta,
                None if before is None else before[place], accumulate, y.dtype,
            )  # fmt: skip


def on_gpu(frame: Frame) -> None:
    """Enqueue a call on XLA's stream, with a ticket or without one."""
    options = frame.attributes["call"]
    if options.startswith(_BATCH):
        return jax_batches.on_gpu(frame)
    if not options.startswith(_BEGINNING):
        return jax_handlers.on_gpu(frame)
    generation = memo.generation()
    with _numbers(frame) as (alpha, beta):
        refuse_on_host()
        (a, x, _, *old), (y,) = frame.arguments, frame.results
        if old and old[0].address != y.address:
            raise RuntimeError("XLA has the result in another place than the old y")
        stream, engine = frame.stream(), engines_backend.engine()
        device = engine.device_of(a.address)
        with engine.on(device):
            made = jax_batches.remembered(
                device, options, (a, x, y), lambda: _selected(engine, _read(options), a, x, y)
            )
            for each in made:
                jax_batches.run(engine, device, stream, each, (a, x, y), alpha, beta)
            known = made[0].known
            if len(made) == 1 and known is not None:
                jax_again.remember(engine, known, generation, device or 0, stream, frame, None)


def _selected(engine: Any, options: _Options, a: Array, x: Array, y: Array) -> list[Launch]:
    """The launches of a call, in order."""
    routine, trans, accumulate = options
    if routine == "gemv" and len(a.shape) == 2:
        return [jax_batches.alone(engine, trans, accumulate, None, a, x, y, (0, 0, 0))]
    return jax_batches.together(engine, routine, trans, accumulate, a, x, y)
