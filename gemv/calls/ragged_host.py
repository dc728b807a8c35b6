"""Lists of products of different sizes whose vectors are in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays import host
from gemv.calls import faster, ragged_known, ragged_tables
from gemv.calls.ragged import Matrices, Product
from gemv.calls.result import note_written
from gemv.core import trace
from gemv.core.batch import aligned_step
from gemv.core.dtypes import PREFIXES, dtype_name
from gemv.core.narrow import cast
from gemv.core.operand import Operand, part_of
from gemv.core.rules import of_item, value_error
from gemv.engines import backend as engines_backend
from gemv.engines.host import announce, record
from gemv.engines.host import product as scipy_product
from gemv.engines.leading import MAX_SIDE

_BYTE = np.dtype(np.uint8)


def in_host_memory(
    product: Product,
    stream: Any,
    matrices: Sequence[Operand] | None = None,
    together: bool = False,
) -> list[Any]:
    """Compute with vectors in host memory; y of each item, or the new ones.

    `matrices` are copies of A that are on the device. `together` means one new y for all items, one
    behind the other, in a list.
    """
    own = product.matrices
    check_stream(own, stream)
    computed = product.computed
    found = faster.comparison_of_list(product) if matrices is None else None
    by_host = matrices is None and faster.on_host(found)
    if by_host and computed and found is None:
        refuse_on_host(product)
        announce()
    whole = None
    if together:
        starts = np.cumsum([0, *(problem.rows for problem in own.problems)]).tolist()
        whole = np.zeros(starts[-1], own.precision.y)
        results = [whole[first:end] for first, end in zip(starts, starts[1:], strict=False)]
    else:
        results = [_host_result(product, k) for k in range(len(own.a))]
    for k in computed:
        y = product.y[k]
        if product.in_place[k] and y is not None:
            note_written(y)
    with trace.compared(found):
        if by_host and computed:
            _by_blas(product, computed, results)
        elif computed:
            sent = _sent(product, computed, results, matrices)
            for k, values in zip(computed, sent, strict=True):
                results[k].reshape(-1)[...] = values
    # Handed out only now: JAX may copy the values that are there.
    if whole is not None:
        return [own.a[0].exporter.from_numpy(own.a[0].origin, whole)]
    return [_given(product, k, results[k]) for k in range(len(own.a))]


def check_stream(matrices: Matrices, stream: Any) -> None:
    """Refuse a stream for arrays in host memory."""
    if stream is not None:
        raise ValueError(
            f"{matrices.routine}: stream only applies to device arrays: with host arrays the call"
            " waits for its result"
        )


def _host_result(product: Product, k: int) -> np.ndarray:
    """The array that a result is written into: y itself, or a new one with its values."""
    y, dtype = product.y[k], product.matrices.precision.y
    if y is None:
        return np.zeros(product.matrices.problems[k].rows, dtype)
    if product.in_place[k]:
        return np.asarray(y.owner)
    return np.array(cast(np.asarray(y.owner), dtype))


def _given(product: Product, k: int, result: np.ndarray) -> Any:
    """What the caller gets: y itself if it is overwritten, else an array of A's library."""
    a, y = product.matrices.a[k], product.y[k]
    if product.in_place[k] and y is not None and y.exporter.is_array(y.origin):
        return y.origin
    return a.exporter.from_numpy(a.origin, result)


def _by_blas(product: Product, computed: list[int], results: list[np.ndarray]) -> None:
    """Each item by SciPy's BLAS, the way of a single call."""
    from scipy.linalg import blas

    own = product.matrices
    data, number = own.precision.data, own.precision.sums
    routine = PREFIXES[number] + "gemv"
    gemv = getattr(blas, routine)
    for k in computed:
        a = cast(host.host_view(own.a[k], data), number)
        x = cast(host.host_copy(product.x[k], data), number)
        alpha, beta = number.type(product.alphas[k]), number.type(product.betas[k])
        flat = results[k].reshape(-1)  # a y of one column is one as well
        old = None if beta == 0 else np.array(cast(flat, number))
        total = scipy_product(gemv, own.problems[k].trans, alpha, a, x, beta, old)
        flat[...] = cast(total, own.precision.y)
    record(routine)


def refuse_on_host(product: Product) -> None:
    """Refuse what SciPy's BLAS has not."""
    own, precision = product.matrices, product.matrices.precision
    for k in product.computed:
        if max(own.a[k].shape) > MAX_SIDE:
            raise value_error(
                of_item(own.routine, k),
                "a",
                f"SciPy's BLAS takes at most {MAX_SIDE} rows and columns, got {own.a[k].shape}",
            )
    if precision.sums not in PREFIXES:
        accumulate = product.matrices.problems[0].accumulate
        raise ValueError(
            f"{product.matrices.routine}: accumulate={accumulate!r} in"
            f" {dtype_name(precision.data)} needs a GPU or the simulator, but the backend is host,"
            " where SciPy's BLAS has nothing like it"
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
        find = ragged_known.groups
        launches = ragged_tables.planned(engine, own.routine, problems, a, x, y, find)
        alphas, betas = ([each[k] for k in computed] for each in (product.alphas, product.betas))
        changing = ragged_tables.variables(launches, x, y, alphas, betas)
        constants = session.send("tables", launches.constants.bytes, _BYTE)
        memory = session.send("factors", changing.bytes, _BYTE)
        bound = ragged_tables.bound(launches, constants, changing, memory, x, y)
        ragged_tables.run(engine, bound, None)
        values = session.receive(flat_y, None)
    return [
        values[start : start + problem.rows]
        for problem, start in zip(problems, flat.starts, strict=True)
    ]
