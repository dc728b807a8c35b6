"""What XLA calls for a product whose alpha and beta come by a ticket: one item, or a whole batch.

Its arguments are A, x, the ticket and perhaps the old y, in whose memory XLA wants the result. The
lengths of A and x stand among the options, so that machine code need not compare them one by one. A
batch is computed as :func:`gemv.matvec` and its kin compute it, mostly by one launch.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gemv.calls import batched, item_launches, jax_again, jax_handlers
from gemv.calls.jax_frames import Array, Frame
from gemv.calls.jax_handlers import MAX_REMEMBERED, ROUTINE, in_memory, refuse_on_host, selected
from gemv.calls.remembered import RememberedCall, packable
from gemv.core import memo, trace
from gemv.core.dtypes import DTYPES, Precision
from gemv.core.operand import Operand
from gemv.driver import tickets
from gemv.engines import backend as engines_backend
from gemv.engines import host

#: How the options of a call begin whose numbers come by a ticket.
_BEGINNING = '["ticket",'


class _Options(NamedTuple):
    routine: str
    trans: int
    accumulate: str


class _Launch(NamedTuple):
    """One launch of a call: its operands have no addresses.

    Attributes
    ----------
    starts : (int, int, int)
        Bytes from the addresses of A, x and y to those of its first item.
    known : RememberedCall or None
        What it can be launched from again, if that needs no engine.
    """

    choice: Any
    problem: Any
    operands: tuple[Operand, Operand, Operand]
    starts: tuple[int, int, int]
    known: RememberedCall | None


_remembered: dict[tuple, list[_Launch]] = {}
memo.on_forget(_remembered.clear)


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
    if not frame.attributes["call"].startswith(_BEGINNING):
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
            launches = _launches(engine, device, frame.attributes["call"], a, x, y)
            for each in launches:
                _run(engine, device, stream, each, (a, x, y), alpha, beta)
            known = launches[0].known
            if len(launches) == 1 and known is not None:
                jax_again.remember(engine, known, generation, device or 0, stream, frame, None)


def _launches(
    engine: Any, device: int | None, call: str, a: Array, x: Array, y: Array
) -> list[_Launch]:
    """The launches of a call, in order: those of the last call like it, or selected now."""
    arrays = a, x, y
    key = device, call, a.letter, y.letter, *(each.address & 15 for each in arrays)
    found = _remembered.get(key)
    if found is None:
        generation = memo.generation()
        options = _read(call)
        if options.routine == "gemv" and len(a.shape) == 2:
            places = a.address, x.address, y.address
            one = selected(
                engine, a, y, a.shape, places, options.trans, options.accumulate, None,
                ("arguments", "arguments"),
            )  # fmt: skip
            choice, operands, problem, known = one
            found = [_Launch(choice, problem, operands, (0, 0, 0), known)]
        else:
            found = _of_items(engine, options, *arrays)
        if generation == memo.generation():
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = found
    return found


def _of_items(engine: Any, options: _Options, a: Array, x: Array, y: Array) -> list[_Launch]:
    """The launches of a batch."""
    a_operand, x_operand, y_operand = (_operand(each) for each in (a, x, y))
    items = batched.bind_operands(
        options.routine, a_operand, x_operand, None, None, 1, 0, (0, 1, 0, 1), options.trans, True,
        options.accumulate, None if y.letter == a.letter else y_operand.dtype,
        gufunc=options.routine != "gemv",
    )  # fmt: skip
    call = items.call
    planned = item_launches.planned(engine, call, items.batch, None)
    found = []
    for choice, (a_part, x_part, y_part, *_) in item_launches.operands(planned, call, y_operand):
        known = None
        if packable(engine, choice, call):
            known = RememberedCall(engine, choice, planned.problem, call.problem.rows)
        parts = a_part, x_part, y_part
        starts = tuple(
            part.pointer - whole.address for part, whole in zip(parts, (a, x, y), strict=True)
        )
        bare = tuple(part._replace(pointer=0, owner=None) for part in parts)
        found.append(_Launch(choice, planned.problem, bare, starts, known))
    return found


def _operand(array: Array) -> Operand:
    """An array of XLA's, without a GPU: all of a call are on the same one."""
    dtype, shape = DTYPES[array.letter], array.shape
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return Operand("jax", dtype, shape, strides, array.address, False, None)


def _run(
    engine: Any, device: int | None, stream: int, launch: _Launch, arrays: tuple, alpha: Any,
    beta: Any,
) -> None:  # fmt: skip
    a_at, x_at, y_at = (
        array.address + start for array, start in zip(arrays, launch.starts, strict=True)
    )
    known = launch.known
    if known is not None and not known.launch(stream, a_at, x_at, y_at, alpha, beta):
        if trace.open_traces():
            known.record()
        return
    simulated = engine.in_host_memory()
    placed = []
    for operand, at, array in zip(launch.operands, (a_at, x_at, y_at), arrays, strict=True):
        owner = in_memory(Array(array.letter, at, operand.shape)) if simulated else None
        placed.append(operand._replace(pointer=at, device=device, owner=owner))
    a, x, y = placed
    engine.run(launch.choice, launch.problem, alpha, a, x, beta, y, stream=stream)
