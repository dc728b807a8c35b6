"""Batches: the items of a checked batch are computed, and y is handed out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gemv.calls import faster, memory_check, short
from gemv.calls.batched import Items, contiguous, over_items
from gemv.calls.bind import Call
from gemv.calls.execute import check_stream, refuse_on_host
from gemv.calls.order import Order
from gemv.calls.result import make_y, note_written
from gemv.core import trace
from gemv.core.batch import Batch, broadcast_strides
from gemv.core.dtypes import PREFIXES
from gemv.core.narrow import cast
from gemv.core.operand import Operand, part_of
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
    call, found, on_host = items.call, None, False
    if not items.nothing:
        found = faster.comparison_of_items(items, kernel)
        on_host = faster.on_host(found)
        if on_host and found is None:
            refuse_on_host(call, kernel)
            announce()
    y, y_dtype = call.y, call.problem.y_dtype
    result = _host_result(items)
    if not items.nothing:
        if y is not None and call.in_place:
            note_written(y)
        used = _used(result, call)
        with trace.compared(found):
            if on_host:
                number = call.problem.precision.sums  # what SciPy's BLAS computes in
                _by_blas(items, number, used, y_dtype)
            else:
                used[...] = _on_engine(items, kernel, used)
    if y is not None and call.in_place and y.exporter.is_array(y.origin):
        return y.origin
    # Only now: JAX may copy the values that are there.
    return call.a.exporter.from_numpy(call.a.origin, result)


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


def _host_x(call: Call) -> np.ndarray:
    """x as a kernel reads it: a view of the elements that belong to a product, in its order."""
    problem = call.problem
    x = np.asarray(call.x.owner)
    if x.shape[-1] == 0:  # a sum of no products reads no x
        return np.zeros((*x.shape[:-1], problem.cols), x.dtype)
    stride = call.x.strides[-1]
    if stride == 0:  # one element stands for all
        return np.broadcast_to(x[..., :1], (*x.shape[:-1], problem.cols))
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
    x = cast(_host_x(call), number)
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
    sources = _sources(items.call)
    there = laid_out(items)
    call, batch = there.call, there.batch
    problem, engine = call.problem, engines_backend.engine()
    reads_y = isinstance(call.beta, Operand) or call.beta != 0
    with engine.session() as session:
        sent: dict[str, Any] = {}
        for name, source in sources.items():
            place = getattr(call, name)
            flat = source.copy(place.dtype).ravel(order="K")
            sent[name] = part_of(
                session.send(name, flat, place.dtype), 0, place.shape, place.strides
            )
        call = call._replace(**sent)
        count = batch.items * problem.rows
        if reads_y:
            flat_y = session.send("y", np.ascontiguousarray(used).ravel(), problem.y_dtype)
        else:
            flat_y = session.blank("y", count, problem.y_dtype)
        y_strides = contiguous(batch.shape, problem.rows)
        y = part_of(flat_y, 0, (*batch.shape, problem.rows), (*y_strides, 1))
        _launch(engine, call, batch, y, kernel, None)
        values = session.receive(flat_y, None)
    return values[:count].reshape(used.shape)


class _Source(NamedTuple):
    """What is copied of an operand in host memory: what all items share once, line by line.

    Attributes
    ----------
    values : numpy.ndarray
        A view of the operand.
    down : bool
        Whether the lines of the copy are the columns.
    """

    values: np.ndarray
    down: bool

    def copy(self, dtype: np.dtype) -> np.ndarray:
        values = cast(self.values, dtype)
        if self.down:
            return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
        return np.ascontiguousarray(values).reshape(values.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Those of the copy, in elements."""
        shape = self.values.shape
        if not self.down:
            return contiguous(shape, 1)
        *outer, down, along = contiguous((*shape[:-2], shape[-1], shape[-2]), 1)
        return (*outer, along, down)


def _source(values: np.ndarray, rank: int) -> _Source:
    leading = values.ndim - rank
    shared = tuple(
        slice(0, 1) if k < leading and values.strides[k] == 0 and values.shape[k] else slice(None)
        for k in range(values.ndim)
    )
    values = values[shared]
    several = rank == 2 and values.shape[-1] > 1 and values.shape[-2] > 1
    return _Source(values, several and abs(values.strides[-2]) < abs(values.strides[-1]))


def _sources(call: Call) -> dict[str, _Source]:
    """What is copied to the device, by the name of the operand."""
    a = np.asarray(call.a.owner)
    if a.shape[-1] * a.shape[-2] == 0:
        a = np.zeros((1,) * a.ndim, a.dtype)
    found = {"a": _source(a, 2), "x": _source(_host_x(call), 1)}
    for name, factor in (("alpha", call.alpha), ("beta", call.beta)):
        if isinstance(factor, Operand):
            found[name] = _source(np.asarray(factor.owner), 0)
    return found


def laid_out(items: Items) -> Items:
    """A batch of host arrays as it will lie on the device, where every operand is aligned.

    Nothing is copied for that.
    """
    call, batch = items.call, items.batch
    dtypes = {"a": call.problem.dtype, "x": call.problem.dtype}
    places = {
        name: getattr(call, name)._replace(
            dtype=dtypes.get(name, call.problem.precision.factors),
            shape=source.values.shape,
            strides=source.strides,
            pointer=0,
        )
        for name, source in _sources(call).items()
    }
    problem, a = call.problem, places["a"]
    row_stride, col_stride = a.strides[-2:] if problem.trans == 0 else a.strides[:-3:-1]
    if problem.row_stride == problem.col_stride == 0:  # no columns: nothing of it is read
        row_stride = col_stride = 0
    problem = problem._replace(
        row_stride=row_stride, col_stride=col_stride, incx=1, incy=1, x_offset=0, y_offset=0
    )
    strides = (
        over_items(a, 2, batch.shape),
        over_items(places["x"], 1, batch.shape),
        contiguous(batch.shape, problem.rows),
        over_items(places.get("alpha"), 0, batch.shape),
        over_items(places.get("beta"), 0, batch.shape),
    )
    batch = Batch(batch.shape, strides, batch.conjugate_x)
    return items._replace(call=call._replace(problem=problem, **places), batch=batch)


# Device arrays ----------------------------------------------------------------------------------


def _device_arrays(items: Items, kernel: str | None, stream: Any) -> Any:
    call, batch = items.call, items.batch
    if engines_backend.backend() == "host":
        refuse_on_host(call, kernel)
    if items.nothing and call.in_place:
        return call.y_object
    engine = engines_backend.engine()
    with engine.on(call.device):
        if engine.name == "cuda":
            short.prepare(engine, call.a.kind)
        order = Order(call, engine, stream)
        if memory_check.FULL and not items.nothing and engine.name == "cuda":
            memory_check.check(call.routine, order.operands, engine.memory_at)
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


def _launch(
    engine: Any, call: Call, batch: Batch, y: Operand, kernel: str | None, stream: Any
) -> None:
    from gemv.calls import item_launches

    launches = item_launches.planned(engine, call, batch, kernel)
    item_launches.load(engine, launches, stream or 0)  # before anything runs, if it fails
    for choice, operands in item_launches.operands(launches, call, y):
        item_launches.run(engine, launches.problem, choice, operands, stream)
