"""Runs the products of a batch in the simulator and writes down what their launch touches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from watch import Record, at_line, noting

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.engines.simulator import SimulatorEngine
from gemv.measure.inputs import ALPHA, BETA, make_problem, random_array
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.batches import select_batch
from gemv.selection.parts import aligned

#: The GPU whose constants the kernels get.
GPU = Device("NVIDIA H200", (9, 0), 132)


def watch_items(
    m: int,
    n: int,
    items: int,
    *,
    order: str = "C",
    shares_matrix: bool = False,
    kernel: str | None = None,
) -> Record:
    """Run the launch that computes `items` float32 products of random matrices of m rows.

    With `shares_matrix` there is one matrix, and as many vectors. `kernel` is the name of the
    kernel for one item; by default that of the batch is selected. A wrong result is an
    AssertionError.
    """
    dtype = DTYPES["s"]
    rng = np.random.default_rng(m * 1000 + n)
    matrices = 1 if shares_matrix else items
    flat = at_line(random_array(rng, (matrices * m * n,), dtype))
    x = at_line(random_array(rng, (items * n,), dtype))
    y = random_array(rng, (items * m,), dtype)
    alpha, beta = dtype.type(ALPHA), dtype.type(BETA)
    shape = (matrices, m, n) if order == "C" else (matrices, n, m)
    a = flat.reshape(shape) if order == "C" else flat.reshape(shape).transpose(0, 2, 1)
    exact, magnitude = np.empty((2, items, m))
    for item in range(items):
        exact[item], magnitude[item] = reference(
            alpha, a[item % matrices], x.reshape(items, n)[item], beta, y.reshape(items, m)[item]
        )

    batch = Batch((items,), ((0 if shares_matrix else m * n,), (n,), (m,), (0,), (0,)))
    at = (array.__array_interface__["data"][0] for array in (flat, x))
    problem = aligned(make_problem(m, n, dtype, order, "N").at(*at), batch)
    choice = select_batch(problem, batch, GPU, kernel)
    record = Record(choice.kernel, problem, choice.geometry)
    operands = [SimpleNamespace(owner=array, pointer=0) for array in (flat, x, y)]
    with noting(record):
        SimulatorEngine().run(choice, problem, alpha, operands[0], operands[1], beta, operands[2])
    record.got, record.expected = y, exact.reshape(-1)
    for one, right, bound in zip(y, exact.flat, magnitude.flat, strict=True):
        got = np.array([one]), np.array([right]), np.array([bound])
        record.errors.append(error_in_bounds(*got, n, alpha))
    if wrong := record.first_wrong():
        raise AssertionError(f"{choice.kernel.name}, {items} items of {m} x {n}: {wrong}")
    return record
