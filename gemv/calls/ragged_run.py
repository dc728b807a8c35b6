"""Lists of products of different sizes: a checked call is computed, and its results handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import host
from gemv.arrays.adopt import on_device
from gemv.calls import ragged_tables
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.calls.ragged import Product, of_item
from gemv.calls.ragged_tables import Launches, Packed
from gemv.calls.result import make_y, new_vector, note_written
from gemv.core.batch import aligned_step
from gemv.core.dtypes import PREFIXES, dtype_name
from gemv.core.narrow import cast
from gemv.core.operand import Operand, part_of, where
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.engines.host import announce, run

_BYTE = np.dtype(np.uint8)


def execute(product: Product, stream: Any) -> list[Any]:
    """Compute a call; y of each item, or the new ones."""
    if product.matrices.on_host:
        return in_host_memory(product, stream)
    if not product.matrices.a:
        return []
    if engines_backend.backend() == "host":
        raise _needs_engine(product)
    return on_engine(product, stream, None)


# Host memory ------------------------------------------------------------------------------------


def in_host_memory(product: Product, stream: Any, matrices: Sequence[Operand] | None = None) -> Any:
    """Compute with vectors in host memory; `matrices` are copies of A that are on the device."""
    own, routine = product.matrices, product.matrices.routine
    if stream is not None:
        raise ValueError(
            f"{routine}: stream only applies to device arrays: with host arrays the call waits for"
            " its result"
        )
    computed = product.computed
    by_host = engines_backend.backend() == "host"
    if by_host and computed:
        _refuse_sums(product)
        if engines_backend.chosen() is None:
            announce(engines_backend.probe()[1], stacklevel=4)
    results = [_host_result(product, k) for k in range(len(own.a))]
    given = [
        y.origin
        if product.in_place[k] and y is not None and y.exporter.is_array(y.origin)
        else a.exporter.from_numpy(a.origin, results[k])
        for k, (a, y) in enumerate(zip(own.a, product.y, strict=True))
    ]
    for k in computed:
        y = product.y[k]
        if product.in_place[k] and y is not None:
            note_written(y)
    if by_host:
        for k in computed:
            results[k][...] = _by_blas(product, k, results[k])
    elif computed:
        for k, values in zip(computed, _sent(product, computed, results, matrices), strict=True):
            results[k][...] = values
    return given


def _host_result(product: Product, k: int) -> np.ndarray:
    """The array that a result is written into: y itself, or a new one with its values."""
    y, dtype = product.y[k], product.matrices.precision.y
    if y is None:
        return np.zeros(product.matrices.problems[k].rows, dtype)
    if product.in_place[k]:
        return np.asarray(y.owner)
    return np.array(cast(np.asarray(y.owner), dtype))


def _by_blas(product: Product, k: int, old: np.ndarray) -> np.ndarray:
    """An item by SciPy's BLAS, the way of a single call."""
    own, problem = product.matrices, product.matrices.problems[k]
    number = own.precision.sums
    a = cast(host.host_view(own.a[k], problem.dtype), number)
    x = cast(host.host_copy(product.x[k], problem.dtype), number)
    routine = PREFIXES[number] + "gemv"
    start = cast(np.ascontiguousarray(old), number)
    total = run(routine, problem.trans, product.alphas[k], a, x, product.betas[k], start)
    return cast(total, own.precision.y)


def _refuse_sums(product: Product) -> None:
    """Refuse sums that SciPy's BLAS has not."""
    precision = product.matrices.precision
    if precision.sums not in PREFIXES:
        accumulate = product.matrices.problems[0].accumulate
        raise ValueError(
            f"{product.matrices.routine}: accumulate={accumulate!r} in"
            f" {dtype_name(precision.data)} needs a GPU or the simulator, but the backend is host,"
            " where SciPy's BLAS has nothing like it"
        )


def _needs_engine(product: Product) -> TypeError:
    a = product.matrices.a[0]
    return TypeError(
        f"{of_item(product.matrices.routine, 0)}: a is {where(a)}, but the backend is host, which"
        ' takes host arrays only; call gemv.use_backend("cuda") or copy the arrays to the host'
    )


class _Flat(NamedTuple):
    """Arrays one behind the other, each as aligned as the first."""

    values: np.ndarray
    starts: list[int]


def _flat(arrays: Sequence[np.ndarray], dtype: np.dtype) -> _Flat:
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += aligned_step(array.size)
    values = np.zeros(max(end, 1), dtype)
    for start, array in zip(starts, arrays, strict=True):
        values[start : start + array.size] = array.ravel(order="K")
    return _Flat(values, starts)


def _sent(
    product: Product, computed: list[int], results: list[np.ndarray],
    matrices: Sequence[Operand] | None,
) -> list[np.ndarray]:  # fmt: skip
    """The results of products whose operands are copied to the device, each kind by one copy."""
    own, engine = product.matrices, engines_backend.engine()
    data, y_dtype = own.precision.data, own.precision.y
    problems = [own.problems[k] for k in computed]
    with engine.session() as session:
        if matrices is None:
            flat = _flat([host.host_copy(own.a[k], data) for k in computed], data)
            there = session.send("a", flat.values, data)
            a = [
                part_of(there, start, own.a[k].shape, own.a[k].strides)
                for k, start in zip(computed, flat.starts, strict=True)
            ]
        else:
            a = [matrices[k] for k in computed]
        flat = _flat([host.host_copy(product.x[k], data) for k in computed], data)
        there = session.send("x", flat.values, data)
        x = [
            part_of(there, start, (problem.cols,), (1,))
            for problem, start in zip(problems, flat.starts, strict=True)
        ]
        flat = _flat([results[k] for k in computed], y_dtype)
        if any(product.betas[k] != 0 for k in computed):
            flat_y = session.send("y", flat.values, y_dtype)
        else:
            flat_y = session.blank("y", flat.values.size, y_dtype)
        y = [
            part_of(flat_y, start, (problem.rows,), (1,))
            for problem, start in zip(problems, flat.starts, strict=True)
        ]
        problems = [problem._replace(incx=1, incy=1) for problem in problems]
        launches, changing = _tables(engine, product, computed, problems, a, x, y)
        constants = session.send("tables", launches.constants.bytes, _BYTE)
        memory = session.send("factors", changing.bytes, _BYTE)
        ragged_tables.run(engine, launches, constants, changing, memory, x, y, None)
        values = session.receive(flat_y, None)
    return [
        values[start : start + problem.rows]
        for problem, start in zip(problems, flat.starts, strict=True)
    ]


def _tables(
    engine: Any, product: Product, computed: Sequence[int], problems: Sequence[Problem],
    a: list[Operand], x: list[Operand], y: list[Operand],
) -> tuple[Launches, Packed]:  # fmt: skip
    """The launches for items at these places, and what the tables hold of them."""
    placed = [
        problem.at(own_a.pointer, own_x.pointer)
        for problem, own_a, own_x in zip(problems, a, x, strict=True)
    ]
    launches = ragged_tables.planned(engine, product.matrices.routine, placed, a, x, y)
    ragged_tables.load(engine, launches)
    alphas, betas = ([each[k] for k in computed] for each in (product.alphas, product.betas))
    return launches, ragged_tables.variables(launches, x, y, alphas, betas)


# Device memory ----------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A product of device arrays that is ready: its launches with their tables on the device.

    Attributes
    ----------
    product : Product
    launches : Launches or None
        None where nothing is computed.
    constants, memory : Operand
        The tables, and what varies from call to call.
    changing : Packed
    x, y : list of Operand
        Of the items that are computed.
    """

    product: Product
    launches: Launches | None
    constants: Any = None
    memory: Any = None
    changing: Any = None
    x: Sequence[Operand] = ()
    y: Sequence[Operand] = ()

    def launch(self, engine: Any, order: Order) -> None:
        """Enqueue all launches on the stream of `order`."""
        if self.launches is not None:
            ragged_tables.run(
                engine, self.launches, self.constants, self.changing, self.memory, self.x, self.y,
                order.stream,
            )  # fmt: skip


def on_engine(product: Product, stream: Any, matrices: Sequence[Operand] | None) -> list[Any]:
    """Compute with device arrays: enqueue, and hand out y of each item."""
    engine = engines_backend.engine()
    own = product.matrices
    with engine.on(own.device):
        product = _plain(product)
        order = order_of(product, engine, stream)
        if order.capture_here() is not None:
            raise RuntimeError(
                f"{own.routine}: the stream is being captured, where sizes and addresses of the"
                " items cannot be copied to the device: make a plan of a gemv.Batch before, and"
                " call the plan"
            )
        made, y = _targets(product, engine, order)
        prepared = prepare(product, y, engine, order)
        order.before()
        upload(prepared, engine, order)
        _fill(product, made, y, engine, order)
        prepared.launch(engine, order)
        order.after()
        results = _handed_out(product, made, engine, order)
    return results


def _plain(product: Product) -> Product:
    """The product with vectors that are as they lie in memory: lazy ones are written out."""
    x = [
        on_device(own.exporter.resolved(own.origin, False), engines_backend.HOME)
        if own.conj or own.neg
        else own
        for own in product.x
    ]
    return product._replace(x=x)


def order_of(product: Product, engine: Any, stream: Any) -> Order:
    """The stream of the call: that of the first A that has elements, or the one passed."""
    own = product.matrices
    first = next((k for k, a in enumerate(own.a) if a.device is not None), 0)
    operands = [
        (name, operand)
        for k in range(len(own.a))
        for name, operand in (("a", own.a[k]), ("x", product.x[k]), ("y", product.y[k]))
        if operand is not None and k != first
    ]
    return Order(_call(product, first), engine, stream, operands)


def _call(product: Product, k: int) -> Call:
    """An item as a single call, for what asks for one."""
    own, y = product.matrices, product.y[k]
    return Call(
        routine=own.routine, blas_name="", problem=own.problems[k], alpha=product.alphas[k],
        beta=product.betas[k], a=own.a[k], x=product.x[k], y=y, y_object=None, offx=0, offy=0,
        incy=1, in_place=product.in_place[k], nothing=None, homes=("pointer", "pointer"),
        owner=None,
    )  # fmt: skip


class _Made(NamedTuple):
    """New memory for the results that are not written in place."""

    vector: Any
    starts: list[int]


def _targets(product: Product, engine: Any, order: Order) -> tuple[_Made | None, list[Operand]]:
    """Where each result goes: its y, or a part of one new vector."""
    own = product.matrices
    starts, end = [], 0
    for k, problem in enumerate(own.problems):
        starts.append(end)
        end += 0 if product.in_place[k] else aligned_step(problem.rows)
    made = None
    if not all(product.in_place):
        call = _call(product, next((k for k, a in enumerate(own.a) if a.device is not None), 0))
        whole = call.problem._replace(rows=max(end, 1))
        made = _Made(make_y(call._replace(y=None, problem=whole), engine, order), starts)
    targets = []
    for k, problem in enumerate(own.problems):
        y = product.y[k]
        if product.in_place[k] and y is not None:
            targets.append(y)
        else:
            assert made is not None
            targets.append(part_of(made.vector.operand, starts[k], (problem.rows,), (1,)))
    return made, targets


def prepare(product: Product, y: Sequence[Operand], engine: Any, order: Order) -> Prepared:
    """Select kernels, and make memory for the tables; nothing is enqueued."""
    computed = product.computed
    if not computed:
        return Prepared(product, None)
    own = product.matrices
    a, x, y = ([each[k] for k in computed] for each in (own.a, product.x, y))
    problems = [own.problems[k] for k in computed]
    launches, changing = _tables(engine, product, computed, problems, a, x, y)
    first = _call(product, computed[0])
    constants, memory = (
        new_vector(first, engine, order, packed.bytes.size, _BYTE)[1]
        for packed in (launches.constants, changing)
    )
    return Prepared(product, launches, constants, memory, changing, x, y)


def upload(prepared: Prepared, engine: Any, order: Order) -> None:
    """Enqueue the copies of the tables."""
    if prepared.launches is not None:
        engine.upload(prepared.launches.constants.bytes, prepared.constants, order.stream)
        engine.upload(prepared.changing.bytes, prepared.memory, order.stream)


def _fill(
    product: Product, made: _Made | None, y: Sequence[Operand], engine: Any, order: Order
) -> None:
    """Enqueue the first values of new results: copies of the y that were passed, or zeros."""
    if made is None:
        return
    computed = set(product.computed)
    needed = [
        k
        for k, in_place in enumerate(product.in_place)
        if not in_place and (k not in computed or product.betas[k] != 0)
    ]
    if any(product.y[k] is None for k in needed):
        made.vector.fill(engine, order.stream)
    for k in needed:
        own = product.y[k]
        if own is not None and own.shape[0]:
            if own.conj or own.neg:
                own = on_device(own.exporter.resolved(own.origin, False), engines_backend.HOME)
            engine.copy(own, y[k], order.stream)


def _handed_out(product: Product, made: _Made | None, engine: Any, order: Order) -> list[Any]:
    computed = set(product.computed)
    whole = None if made is None else made.vector.finish(engine, order.stream)
    results = []
    for k, problem in enumerate(product.matrices.problems):
        y = product.y[k]
        if product.in_place[k] and y is not None:
            if k in computed:
                note_written(y)
            results.append(y.origin)
        else:
            assert made is not None and whole is not None
            start = made.starts[k]
            results.append(whole[start : start + problem.rows])
    return results
