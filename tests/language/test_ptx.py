"""What the code for a GPU computes, without one: kernels and device functions, run from their PTX."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ptx
from helpers.problems import Case

from gemv.core.dtypes import dtype_name
from gemv.core.geometry import Device
from gemv.core.narrow import cast
from gemv.kernels import REGISTRY
from gemv.measure.reference import reference

#: Few multiprocessors, so that few blocks share a row.
DEVICE = Device("any", (9, 0), 1)
#: Kernels with constants of their own as other tests compile them; rows and columns of op(A) that
#: have several tiles or splits, a full pass, a remainder, and a line that fills no vector.
KERNELS = [
    ("vector_rows", "z", 2, 4103),
    ("vector_rows", "h", 1, 16403),
    ("vector_columns", "c", 37, 2067),
    ("vector_columns", "d", 18, 2067),
    ("long_columns", "b", 2069, 5),
    ("long_columns", "c", 1027, 3),
    ("phased_rows", "s", 6, 8219),
    ("phased_rows", "b", 3, 2075),
    ("phased_columns", "c", 70, 300),
    ("short_columns", "c", 3, 5003),
    ("short_columns", "z", 2, 2600),
    ("cluster_rows", "s", 2, 16501),
    ("cluster_columns", "c", 9, 901),
]


def integers(case):
    """Small whole numbers in place of the case's, so that no sum is rounded before the last step."""
    rng = np.random.default_rng(7)
    for view in (case.a, case.x, case.y_of(case.y_buffer)):
        values = rng.integers(-2, 3, view.shape).astype(float)
        if case.element.kind == "c":
            values = values + 1j * rng.integers(-2, 3, view.shape)
        view[...] = cast(values, view.dtype)


def run(case, kernel, function, geometry):
    """The buffers of y, of posted sums and of counters after a launch."""
    problem, sums = case.problem, case.problem.precision.sums
    buffers = [case.a_buffer, case.x_buffer, case.y_buffer]
    buffers.append(np.full(geometry.scratch * sums.itemsize, 0xFF, np.uint8))
    buffers.append(np.zeros(geometry.counters, np.uint32))
    sizes = problem.arguments(geometry)
    size = case.element.itemsize
    places = {
        "a": ("buffer", 0, case.shift * size), "x": ("buffer", 1, case.x_offset * size),
        "y": ("buffer", 2, case.y_offset * size), "scratch": ("buffer", 3, 0),
        "counters": ("buffer", 4, 0), "alpha": case.alpha, "beta": case.beta,
    }  # fmt: skip
    values = [(places | sizes)[name] for name in function["arguments"]]
    values = [complex(v) if isinstance(v, np.complexfloating) else v for v in values]
    (launch,) = geometry.launches
    after = ptx.launch(
        ptx.Program(function["ptx"]), launch.grid, launch.block[:2], values, buffers
    )
    assert after[0] == case.a_buffer.tobytes() and after[1] == case.x_buffer.tobytes()
    return after[2:]


@pytest.mark.parametrize("name, letter, rows, cols", KERNELS)
def test_a_kernel_computes(name, letter, rows, cols, compiler):
    """Exactly the integers that it should, and nothing beside y."""
    kernel = REGISTRY[name]
    rows_run = "rows" in name
    op = "C" if letter in "cz" else "N"
    m, n = (cols, rows) if op == "C" else (rows, cols)
    line = cols if rows_run else rows
    width = 16 // Case(1, 1, letter).element.itemsize
    # Lines at any address, near each other, or at multiples of 16 bytes.
    pad = {"phased": 1, "short": 0}.get(name.split("_")[0], -line % width)
    order = "C" if rows_run == (op == "N") else "F"
    scale, old = (2 - 1j, 1 + 1j) if letter in "cz" else (2, -1)
    case = Case(m, n, letter, order, op, pad, alpha=scale, beta=old, shift=kernel.phased + 0)
    integers(case)
    problem = case.problem.at(16 + case.shift * case.element.itemsize, 16)
    if kernel.phased:
        problem = case.problem.at(case.element.itemsize, 16)
    assert kernel.accepts(problem) is None
    (function,) = compiler(kernel, dtype_name(case.element))
    geometry = kernel.geometry(problem, DEVICE, kernel.knobs)
    assert geometry.launches[0].grid[1] > 1 or geometry.launches[0].grid[0] > 1
    after, scratch, counters = run(case, kernel, function, geometry)
    assert set(scratch) <= {0xFF} and set(counters) <= {0}, "the next launch would find them"

    y = case.y_of(case.y_buffer).copy()
    exact, _ = reference(case.alpha, case.op_a, case.x, case.beta, y)
    buffer = np.frombuffer(after, case.y_element).copy()
    np.testing.assert_array_equal(
        cast(case.y_of(buffer), np.dtype("D")), cast(cast(exact, case.y_element), np.dtype("D"))
    )
    case.y_of(buffer)[...] = y
    assert buffer.tobytes() == case.y_buffer.tobytes()
