"""x in every home, in the kernel ``where_x_lives``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measure.constants_code import DIRECT, VECTOR_CODE, Codes, finder
from benchmarks.measure.constants_records import (
    CHECKED_ROWS,
    LANES,
    LENGTH_OF_LANES,
    SINGLE,
    VectorRow,
)
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
from gemv.kernels.t06_where_x_lives import KERNEL as WHERE_X_LIVES
from gemv.measure.clock import Clock
from gemv.measure.inputs import ALPHA, as_buffer, make_problem, random_array
from gemv.measure.plain import Enqueue, launcher
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import Choice, select

#: Lengths of x; 64 KB of float32 is the last one, and 8160 fill the parameters of a kernel.
LENGTHS = (16, 64, 256, 1024, 4096, 8160, 16384)
LENGTHS_SIMULATED = (5, 33)
#: Elements of A: in L2, and far past it.
ELEMENTS = {"L2": 1 << 23, "memory": 1 << 27}
#: Lengths for which the loop over the columns is unrolled as well.
UNROLLED = (16, 64)
#: Bytes of the parameter for x by value: the next one that x fits into.
VALUE_BYTES = (256, 4096, 32640)

#: Source of A, its elements, n, order, lanes, unrolled.
VectorCase = tuple[str, int, int, str, int, bool]


def _vector_cases(simulated: bool) -> Iterable[VectorCase]:
    """What is measured where nothing else is asked for."""
    if simulated:
        for n in LENGTHS_SIMULATED:
            yield "L2", 7 * n, n, "F", 1, False
            yield "L2", 7 * n, n, "C", 32, False
        yield "L2", 7 * n, n, "F", 1, True
        return
    for source, elements in ELEMENTS.items():
        for n in LENGTHS:
            yield source, elements, n, "F", 1, False
            yield source, elements, n, "C", 32, False
    for lanes in LANES[:-1]:
        yield "L2", ELEMENTS["L2"], LENGTH_OF_LANES, "C", lanes, False
    for n in UNROLLED:
        yield "L2", ELEMENTS["L2"], n, "F", 1, True


def vector(
    clock: Clock | None,
    report: Callable[[str], None] = lambda what: None,
    cases: Iterable[VectorCase] | None = None,
    homes: Iterable[str] = X_HOMES,
    codes: Codes | None = None,
) -> Iterable[VectorRow]:
    """x in every home, in float32; the matrix of each source is one buffer for all shapes."""
    engine = engines_backend.engine()
    simulated = clock is None
    homes = tuple(homes)
    cases = list(_vector_cases(simulated) if cases is None else cases)
    rng = np.random.default_rng(4)
    buffers: dict[str, list[Any]] = {}
    hosts: dict[str, np.ndarray] = {}
    alpha, beta = SINGLE.type(ALPHA), SINGLE.type(0)
    for source, elements, n, order, lanes, unrolled in cases:
        if source not in buffers:
            most = max(case[1] for case in cases if case[0] == source)
            hosts[source] = random_array(rng, (most,), SINGLE)
            # One buffer past the L2 is read front to back: its start is gone when it is over.
            buffers[source] = [as_buffer(engine.to_device(hosts[source]))]
        m = elements // n
        report(f"x of {n}, A of {m} rows from {source}")
        problem = make_problem(m, n, SINGLE, order, "N")
        x = random_array(rng, (n,), SINGLE)
        device_x = as_buffer(engine.to_device(x))
        flat = hosts[source][: m * n]
        a = flat.reshape(m, n) if order == "C" else flat.reshape(n, m).T
        (buffer,) = buffers[source]
        if simulated:
            buffer = replace(buffer, owner=np.asarray(buffer.owner)[: m * n])
        few = min(m, CHECKED_ROWS)
        exact, magnitude = reference(alpha, a[:few], x, beta, np.zeros(few, SINGLE))
        for home in homes:
            if unrolled and home == "shared":
                continue  # its loop is over tiles
            row = VectorRow(home, lanes, order, source, m, n, unrolled)
            row.refused = WHERE_X_LIVES.accepts(problem)
            knobs = {"X_HOME": X_HOMES.index(home), "LANES_PER_ROW": lanes}
            knobs |= {"VALUE_BYTES": next((b for b in VALUE_BYTES if 4 * n <= b), VALUE_BYTES[-1])}
            knobs |= {"COLS": n if unrolled else 0}
            if simulated:
                knobs |= {"THREADS_PER_BLOCK": 32}
            try:
                choice = select(problem, engine.device(), WHERE_X_LIVES.name, knobs)
            except ValueError as refusal:
                row.refused = str(refusal)
                yield row
                continue
            y = as_buffer(engine.zeros(m, SINGLE))
            engine.run(choice, problem, alpha, buffer, device_x, beta, y)
            got = engine.to_host(y.owner)[:few]
            row.error = error_in_bounds(got, exact, magnitude, n, alpha)
            if clock is not None:
                launch = _launch_alone(engine, choice, problem, alpha, buffer, x, device_x, beta, y)
                row.time_s = clock.time([launch])
                row.gb_per_s = problem.bytes_moved(True) / row.time_s / 1e9
                binary = engine.load(choice, engine.device())[0].binary
                if codes is not None:
                    direct = [DIRECT] if unrolled else []
                    codes.later(row, binary.cubin, finder(*direct, *VECTOR_CODE[home]))
            yield row


def _launch_alone(
    engine: Any,
    choice: Choice,
    problem: Problem,
    alpha: Any,
    a: Any,
    x: np.ndarray,
    device_x: Any,
    beta: Any,
    y: Any,
) -> Enqueue:
    """The launch alone: x has been brought to its home by a whole call before."""
    functions = engine.load(choice, engine.device())
    home = choice.kernel.x_home(choice.knobs)
    values = {
        "rows": problem.rows, "cols": problem.cols, "alpha": alpha, "a": a.pointer,
        "row_stride": problem.row_stride, "col_stride": problem.col_stride,
        "x": x if home == "value" else device_x.pointer, "incx": 1, "beta": beta,
        "y": y.pointer, "incy": 1,
    }  # fmt: skip
    (launch,) = choice.geometry.launches
    return launcher(engine, functions[0], launch.grid, launch.block, values)
