"""A batch of XLA's on a GPU: mostly one launch for all items, as :func:`gemv.matvec` has it.

``vmap`` of a product is one call of XLA's, whose options have the lengths of A and x. Its launches
are selected for the first call of a kind. Where there is one, machine code makes it from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gemv.calls import batched, item_launches, jax_again, jax_handlers
from gemv.calls.jax_frames import Array, Frame
from gemv.calls.jax_handlers import MAX_REMEMBERED, refuse_on_host
from gemv.calls.remembered import RememberedCall, packable
from gemv.core import memo, trace
from gemv.core.dtypes import DTYPES
from gemv.core.operand import Operand, array_at
from gemv.engines import backend as engines_backend


class Launch(NamedTuple):
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


_remembered: dict[tuple, list[Launch]] = {}
memo.on_forget(_remembered.clear)


def on_gpu(frame: Frame) -> None:
    """Enqueue a batch on XLA's stream."""
    generation = memo.generation()
    refuse_on_host()
    (a, x), (y,) = frame.arguments, frame.results
    if 0 in y.shape:
        return
    call = frame.attributes["call"]
    alpha, trans, accumulate, kernel = jax_handlers.read(call, DTYPES[y.letter].kind == "c")
    stream, engine = frame.stream(), engines_backend.engine()
    device = engine.device_of(a.address)

    def select() -> list[Launch]:
        if kernel is None:
            return together(engine, "gemv", trans, accumulate, a, x, y)
        return _one_by_one(engine, trans, accumulate, kernel, a, x, y)

    with engine.on(device):
        launches = remembered(device, call, (a, x, y), select)
        for each in launches:
            run(engine, device, stream, each, (a, x, y), alpha, type(alpha)(0))
        known = launches[0].known
        if len(launches) == 1 and known is not None:
            jax_again.remember(engine, known, generation, device or 0, stream, frame, alpha)


def remembered(
    device: int | None, call: str, arrays: tuple[Array, ...], select: Callable[[], list[Launch]]
) -> list[Launch]:
    """The launches of a call, in order: those of the last call like it, or selected now."""
    a, _, y = arrays
    key = device, call, a.letter, y.letter, *(each.address & 15 for each in arrays)
    found = _remembered.get(key)
    if found is None:
        generation = memo.generation()
        found = select()
        if generation == memo.generation():
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = found
    return found


def together(
    engine: Any, routine: str, trans: int, accumulate: str, a: Array, x: Array, y: Array
) -> list[Launch]:
    """The launches of a batch, each of which computes many items."""
    a_operand, x_operand, y_operand = (_operand(each) for each in (a, x, y))
    items = batched.bind_operands(
        routine, a_operand, x_operand, None, None, 1, 0, (0, 1, 0, 1), trans, True, accumulate,
        None if y.letter == a.letter else y_operand.dtype, gufunc=routine != "gemv",
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
        found.append(Launch(choice, planned.problem, bare, starts, known))
    return found


def alone(
    engine: Any, trans: int, accumulate: str, kernel: str | None, a: Array, x: Array, y: Array,
    starts: tuple[int, int, int],
) -> Launch:  # fmt: skip
    """The launch of the only item, or of that whose operands have these starts."""
    a_at, x_at, y_at = (
        array.address + start for array, start in zip((a, x, y), starts, strict=True)
    )
    choice, operands, problem, known = jax_handlers.selected(
        engine, a, y, a.shape[-2:], (a_at, x_at, y_at), trans, accumulate, kernel,
        ("arguments", "arguments"),
    )  # fmt: skip
    return Launch(choice, problem, operands, starts, known)


def _one_by_one(
    engine: Any, trans: int, accumulate: str, kernel: str, a: Array, x: Array, y: Array
) -> list[Launch]:
    """A launch for each item: a kernel that is asked for by name may compute no batches."""
    steps = (
        _bytes(a.letter, a.shape[-2:]) if len(a.shape) == 3 else 0,
        _bytes(x.letter, x.shape[-1:]), _bytes(y.letter, y.shape[-1:]),
    )  # fmt: skip
    by_alignment: dict[tuple, Launch] = {}
    found = []
    for item in range(y.shape[0]):
        a_start, x_start, y_start = (item * step for step in steps)
        aligned = a_start & 15, x_start & 15, y_start & 15
        launch = by_alignment.get(aligned)
        if launch is None:
            launch = by_alignment[aligned] = alone(
                engine, trans, accumulate, kernel, a, x, y, (a_start, x_start, y_start)
            )
        found.append(launch._replace(starts=(a_start, x_start, y_start)))
    return found


def run(
    engine: Any, device: int | None, stream: int, launch: Launch, arrays: tuple, alpha: Any,
    beta: Any,
) -> None:  # fmt: skip
    """Enqueue one launch of a call with these A, x and y."""
    a_at, x_at, y_at = (
        array.address + start for array, start in zip(arrays, launch.starts, strict=True)
    )
    known = launch.known
    if known is not None and not known.launch(stream, a_at, x_at, y_at, alpha, beta):
        if trace.open_traces():
            known.record()
        return
    simulated = engine.in_host_memory()
    a, x, y = (
        operand._replace(
            pointer=at, device=device, owner=_in_host_memory(operand, at) if simulated else None
        )
        for operand, at in zip(launch.operands, (a_at, x_at, y_at), strict=True)
    )
    engine.run(launch.choice, launch.problem, alpha, a, x, beta, y, stream=stream)


def _in_host_memory(operand: Operand, address: int) -> Any:
    dtype = operand.dtype
    strides = tuple(step * dtype.itemsize for step in operand.strides)
    return array_at(address, operand.shape, strides, dtype.str, False).view(dtype)


def _operand(array: Array) -> Operand:
    """An array of XLA's, without a GPU: all of a call are on the same one."""
    dtype, shape = DTYPES[array.letter], array.shape
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return Operand("jax", dtype, shape, strides, array.address, False, None)


def _bytes(letter: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[letter].itemsize
