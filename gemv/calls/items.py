"""Batches: the items of a checked batch are computed, and y is handed out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gemv.calls.batched import Items, contiguous
from gemv.calls.bind import Call
from gemv.calls.execute import check_stream, refuse_on_host
from gemv.calls.order import Order
from gemv.calls.result import make_y, note_written
from gemv.core.batch import OPERANDS, Batch, broadcast_strides
from gemv.core.dtypes import PREFIXES
from gemv.core.narrow import cast
from gemv.core.operand import RANK, Operand, part_of
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.engines.host import announce, known_kernel, product, record


def execute(items: Items, kernel: str | None, stream: Any) -> Any:
    """Compute a batch; y, or the new array."""
    call = items.call
    check_stream(call, stream)
    if kernel is not None:
        known_kernel(call.routine, kernel)
    if call.on_host:
        return _host_arrays(items, kernel)
    return _device_arrays(items, kernel, stream)


# Host arrays ------------------------------------------------------------------------------------


def _host_arrays(items: Items, kernel: str | None) -> Any:
    call = items.call
    on_engine = engines_backend.backend() != "host"
    if not on_engine and not items.nothing:
        refuse_on_host(call, kernel)
        if engines_backend.chosen() is None:
            announce(engines_backend.probe()[1], stacklevel=4)
    y, y_dtype = call.y, call.problem.y_dtype
    result = _host_result(items)
    if y is not None and call.in_place and y.exporter.is_array(y.origin):
        given = y.origin
    else:
        given = call.a.exporter.from_numpy(call.a.origin, result)
    if items.nothing:
        return given
    if y is not None and call.in_place:
        note_written(y)
    used = _used(result, call)
    if on_engine:
        used[...] = _on_engine(items, kernel, used)
        return given
    number = call.problem.precision.sums  # what SciPy's BLAS computes in
    _by_blas(items, number, used, y_dtype)
    return given


def _host_result(items: Items) -> np.ndarray:
    """The array that the result is written into: y itself, or a new one with its values."""
    call = items.call
    y, dtype = call.y, call.problem.y_dtype
    if y is None:
        return np.zeros(items.shape, dtype)
    array = np.asarray(y.owner)
    if call.in_place:
        return array
    return np.array(np.broadcast_to(cast(array, dtype), items.shape))


def _used(y: np.ndarray, call: Call) -> np.ndarray:
    """The elements of y that a product overwrites, in its order."""
    return _stepped(y, call.offy, call.incy, call.problem.rows)


def _stepped(vectors: np.ndarray, off: int, inc: int, count: int) -> np.ndarray:
    """A view of `count` elements of each vector, as BLAS finds them by offset and increment."""
    step = abs(inc) if count > 1 else 1
    used = vectors[..., off : off + (count - 1) * step + 1 : step]
    return used if inc > 0 else used[..., ::-1]


def _host_values(operand: Operand, dtype: np.dtype) -> np.ndarray:
    return cast(np.asarray(operand.owner), dtype)


def _host_x(call: Call, batch: Batch, dtype: np.dtype) -> np.ndarray:
    """x as a kernel reads it: its elements one behind the other."""
    problem = call.problem
    x = _host_values(call.x, dtype)
    if x.shape[-1] == 0:  # a sum of no products reads no x
        return np.zeros((*x.shape[:-1], problem.cols), dtype)
    stride = call.x.strides[-1] or 1
    inc = problem.incx // stride if problem.cols > 1 else 1
    return _stepped(x, call.offx, inc, problem.cols)


def _by_blas(items: Items, number: np.dtype, used: np.ndarray, y_dtype: np.dtype) -> None:
    """Each item by SciPy's BLAS, the way of a single call."""
    from scipy.linalg import blas

    call, batch = items.call, items.batch
    problem = call.problem
    routine = PREFIXES[number] + "gemv"
    gemv = getattr(blas, routine)
    a = _host_values(call.a, number)
    if a.shape[-1] * a.shape[-2] == 0:
        side = (problem.rows, problem.cols) if problem.trans == 0 else (problem.cols, problem.rows)
        a = np.zeros((*a.shape[:-2], *side), number)
    x = _host_x(call, batch, number)
    a = np.broadcast_to(a, (*batch.shape, *a.shape[-2:]))
    x = np.broadcast_to(x, (*batch.shape, x.shape[-1]))
    alpha, beta = (
        np.broadcast_to(
            _host_values(each, number) if isinstance(each, Operand) else np.asarray(each, number),
            batch.shape,
        )
        for each in (call.alpha, call.beta)
    )
    for place in np.ndindex(batch.shape):
        vector = np.ascontiguousarray(x[place])
        if batch.conjugate_x:
            vector = np.conj(vector)
        old = None if beta[place] == 0 else cast(np.ascontiguousarray(used[place]), number)
        total = product(gemv, problem.trans, alpha[place], a[place], vector, beta[place], old)
        used[place] = cast(total, y_dtype)
    record(routine)


def _on_engine(items: Items, kernel: str | None, used: np.ndarray) -> np.ndarray:
    """The elements of y after a batch whose operands are copied to the device."""
    call, batch = items.call, items.batch
    problem, engine = call.problem, engines_backend.engine()
    dtype, factors = problem.dtype, problem.precision.factors
    numbers = [not isinstance(each, Operand) for each in (call.alpha, call.beta)]
    reads_y = not numbers[1] or call.beta != 0
    with engine.session() as session:

        def send(name: str, values: np.ndarray, rank: int, own: np.dtype) -> Operand:
            values = _compact(values, rank, own)
            flat = values.ravel(order="K")
            strides = tuple(step // values.itemsize for step in values.strides)
            return part_of(session.send(name, flat, own), 0, values.shape, strides)

        if call.a.shape[-1] * call.a.shape[-2] == 0:
            a = send("a", np.zeros((1,) * len(call.a.shape), dtype), 2, dtype)
        else:
            a = send("a", _host_values(call.a, dtype), 2, dtype)
        x = send("x", _host_x(call, batch, dtype), 1, dtype)
        alpha, beta = (
            send(name, _host_values(each, factors), 0, factors)
            if isinstance(each, Operand)
            else each
            for name, each in (("alpha", call.alpha), ("beta", call.beta))
        )
        count = batch.items * problem.rows
        if reads_y:
            flat_y = session.send("y", np.ascontiguousarray(used).ravel(), problem.y_dtype)
        else:
            flat_y = session.blank("y", count, problem.y_dtype)
        y_strides = contiguous(batch.shape, problem.rows)
        y = part_of(flat_y, 0, (*batch.shape, problem.rows), (*y_strides, 1))
        strides = (
            *(
                _leading(operand, rank, batch.shape)
                for operand, rank in ((a, 2), (x, 1), (y, 1), (alpha, 0), (beta, 0))
            ),
        )
        row_stride, col_stride = a.strides[-2:] if problem.trans == 0 else a.strides[:-3:-1]
        if problem.row_stride == problem.col_stride == 0:  # no columns: nothing of it is read
            row_stride = col_stride = 0
        problem = problem._replace(
            row_stride=row_stride, col_stride=col_stride, incx=1, incy=1, x_offset=0, y_offset=0
        )
        call = call._replace(problem=problem, a=a, x=x, alpha=alpha, beta=beta)
        batch = Batch(batch.shape, strides, batch.conjugate_x)
        _launch(engine, call, batch, y, kernel, None)
        values = session.receive(flat_y, None)
    return values[:count].reshape(used.shape)


def _compact(values: np.ndarray, rank: int, dtype: np.dtype) -> np.ndarray:
    """A contiguous array of an operand, with what all items share once, in the order of a line."""
    leading = values.ndim - rank
    shared = tuple(
        slice(0, 1) if k < leading and values.strides[k] == 0 and values.shape[k] else slice(None)
        for k in range(values.ndim)
    )
    values = cast(values[shared], dtype)
    if rank == 2 and values.shape[-1] > 1 and values.shape[-2] > 1:
        down, along = map(abs, values.strides[-2:])
        if down < along:
            return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.ascontiguousarray(values).reshape(values.shape)


def _leading(operand: Any, rank: int, wanted: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(operand, Operand):
        return (0,) * len(wanted)
    leading = len(operand.shape) - rank
    return broadcast_strides(operand.shape[:leading], operand.strides[:leading], wanted)


# Device arrays ----------------------------------------------------------------------------------


def _device_arrays(items: Items, kernel: str | None, stream: Any) -> Any:
    call, batch = items.call, items.batch
    if engines_backend.backend() == "host":
        refuse_on_host(call, kernel)
    if items.nothing and call.in_place:
        return call.y_object
    engine = engines_backend.engine()
    with engine.on(call.device):
        order = Order(call, engine, stream)
        if call.in_place and call.y is not None:
            order.before()
            with _memory(order):
                _launch(engine, call, batch, call.y, kernel, order.stream)
            note_written(call.y)
            return call.y_object
        length = items.shape[-1]
        count = math.prod(items.shape)
        whole = call._replace(
            y=None, offy=0, incy=1, problem=call.problem._replace(rows=max(count, 1))
        )
        made = make_y(whole, engine, order)
        order.before()
        with _memory(order):
            if call.y is not None or items.nothing or length != call.problem.rows:
                made.fill(engine, order.stream)
            if call.y is not None:
                _copy_y(engine, call.y, made.operand, items.shape, order.stream)
            if not items.nothing:
                strides = (*contiguous(items.shape[:-1], length), 1)
                target = part_of(made.operand, 0, items.shape, strides)
                _launch(engine, call, batch, target, kernel, order.stream)
        y = made.finish(engine, order.stream)
        return (y if count else y[:0]).reshape(items.shape)


@contextmanager
def _memory(order: Order) -> Iterator[None]:
    """Keep operands until what is enqueued inside the block is done."""
    yield
    order.after()


def _copy_y(engine: Any, y: Operand, target: Operand, shape: tuple[int, ...], stream: int) -> None:
    """Enqueue copies of the y that was passed into the new one, item by item."""
    length = shape[-1]
    strides = broadcast_strides(y.shape[:-1], y.strides[:-1], shape[:-1])
    still = (0,) * len(strides)
    items = Batch(shape[:-1], (still, still, strides, still, still)).collapsed()
    if items.shape == (1,) or items.of("y") == (length * y.strides[-1],):
        n = length * items.items
        if n:
            source = part_of(y, 0, (n,), (y.strides[-1],))
            engine.copy(source, part_of(target, 0, (n,), (1,)), stream)
        return
    for number, (_, (_, _, offset, _, _)) in enumerate(items.parts(len(items.shape), 1)):
        source = part_of(y, offset, (length,), (y.strides[-1],))
        engine.copy(source, part_of(target, number * length, (length,), (1,)), stream)


# Launches ---------------------------------------------------------------------------------------


def _launch(
    engine: Any, call: Call, batch: Batch, y: Operand, kernel: str | None, stream: Any
) -> None:
    """Enqueue the launches of a batch; by far most batches are one."""
    from gemv.selection import batches

    batch = batch.collapsed()
    problem = _placed(call, batch)
    device = engine.device()
    try:
        single = batches.select_item(problem, batch, device, kernel, call.homes)
        if batch.items == 1 and not batch.conjugate_x and single.kernel.of_batch is None:
            parts = [(batch, (0,) * len(OPERANDS), single)]
        else:
            limits = batches.limits(problem, single)
            if len(batch.shape) > limits[0]:
                batch = batch.with_longest_last()
            parts = [
                (part, offsets, batches.select_batch(problem, part, device, kernel, call.homes))
                for part, offsets in batch.parts(*limits)
            ]
    except ValueError as error:
        raise ValueError(f"{call.routine}: {error}") from None
    if engine.name == "cuda":
        for choice in {choice.spec: choice for _, _, choice in parts}.values():
            engine.load(choice, device, stream or 0)  # before anything runs, if it fails
    operands = {"a": call.a, "x": call.x, "y": y, "alpha": call.alpha, "beta": call.beta}
    for part, offsets, choice in parts:
        a, x, own_y, alpha, beta = (
            _part(operand, offset, part, name)
            for (name, operand), offset in zip(operands.items(), offsets, strict=True)
        )
        engine.run(choice, problem, alpha, a, x, beta, own_y, stream=stream)


def _part(operand: Any, offset: int, part: Batch, name: str) -> Any:
    """What the items of a part have of an operand; a number as it is."""
    if not isinstance(operand, Operand):
        return operand
    first = len(operand.shape) - RANK[name]
    shape, strides = operand.shape[first:], operand.strides[first:]
    return part_of(operand, offset, (*part.shape, *shape), (*part.of(name), *strides))


def _placed(call: Call, batch: Batch) -> Problem:
    """The problem of an item, with the alignment that all items share."""
    size = call.problem.dtype.itemsize
    problem = call.problem.at(call.a.pointer, call.x.pointer)
    return problem.aligned(
        math.gcd(problem.a_alignment, *(step * size for step in batch.of("a"))),
        math.gcd(problem.x_alignment, *(step * size for step in batch.of("x"))),
    )
