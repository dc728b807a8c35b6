"""The sums of splits lie in scratch memory where the kernel says, which shards and panels read."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import family_cases
from helpers.selection import problem_of

import gemv
from gemv.arrays.adopt import on_device
from gemv.core.batch import Batch, aligned_step
from gemv.core.geometry import LOAD_BYTES
from gemv.core.splits import Lines, SumsOfSplits, row_by_row, split_by_split
from gemv.engines import backend
from gemv.kernels import REGISTRY, get
from gemv.selection import batches
from gemv.selection.select import select

SINGLE = [name for name, kernel in REGISTRY.items() if kernel.splits_apart]
ROWS = {**family_cases.ROWS, "LANES": 8, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 8}
COLUMNS = {**family_cases.COLUMNS, "BLOCKS_PER_SM": 8}
STAGED = {"LANES": 8, "PARTS": 2, "TURNS": 1, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 2,
          "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 8, "OF_ROWS": 1,
          "OF_VECTORS": 1, "OF_THREADS": 64}  # fmt: skip
#: Kernels for several vectors: rows and columns, constants of the kernel for one and of this one.
SEVERAL = {
    "several_rows": (5, 421, ROWS, {"PARTS": 2, "ROWS": 2, "COUNT": 2}),
    "several_staged_rows": (5, 424, ROWS, STAGED),
    "several_columns": (9, 150, COLUMNS, {"LOADS": 2, "COUNT": 2}),
}
VECTORS = 3


def test_steps_by_hand():
    by_split = SumsOfSplits(split_by_split, 3, 4)
    assert [by_split.first(split) for split in range(4)] == [0, 3, 6, 9]
    assert by_split.size(2) == 6 and by_split.size(4) == 12
    assert by_split.lines(1, 2) == Lines(3, 2, 3, 3), "without gaps"
    by_row = SumsOfSplits(row_by_row, 3, 4)
    assert [by_row.first(split) for split in range(4)] == [0, 1, 2, 3]
    assert by_row.size(2) == 10 and by_row.size(4) == 12
    assert by_row.lines(1, 2) == Lines(1, 3, 2, 4)


def sums_left(choice, problem, vectors):
    """What all blocks but those of the last split leave in scratch memory, and what is right."""
    if backend.engine().name != "simulator":
        pytest.skip("on a GPU nobody looks into the scratch memory of a launch")
    from gemv.engines.simulator import SimulatedShared

    engine, geometry, dtype = backend.engine(), choice.geometry, problem.dtype
    rows, cols, splits = problem.rows, problem.cols, geometry.sizes["splits"]
    assert splits > 2
    rng = np.random.default_rng(cols)
    a = rng.integers(-4, 5, (rows, cols)).astype(dtype)
    x = rng.integers(-4, 5, (vectors, geometry.sizes.get("x_step", cols))).astype(dtype)
    stored = np.zeros(a.size + LOAD_BYTES, dtype)
    first = -stored.ctypes.data % LOAD_BYTES // dtype.itemsize
    stored = stored[first : first + a.size]
    stored[:] = (a if problem.access == "dot" else a.T).ravel()
    x_memory = engine.to_device(x.ravel())
    y_memory = engine.to_device(np.full(vectors * rows, np.nan, dtype))

    shared = SimulatedShared(engine, geometry, choice.spec.precision.sums)
    (launch,) = geometry.launches
    across, _, turns = launch.grid
    some = geometry._replace(
        launches=(launch._replace(grid=(across, splits - 1, turns)),),
        sizes={**geometry.sizes, **shared.at(0)}, scratch=0, counters=0,
    )  # fmt: skip
    matrix, given, y = (on_device(each, engine) for each in (stored, x_memory, y_memory))
    engine.run(choice._replace(geometry=some), problem, 1, matrix, given, 0, y)

    step = geometry.sizes["cols_per_split"]
    right = [
        (x[:, start : start + step] @ a[:, start : start + step].T).ravel()
        for start in range(0, (splits - 1) * step, step)
    ]
    return shared, np.array(right)


def check(choice, problem, vectors):
    shared, right = sums_left(choice, problem, vectors)
    sums = SumsOfSplits(
        choice.kernel.steps_of_sums, vectors * problem.rows, choice.geometry.sizes["splits"]
    )
    assert choice.geometry.scratch == sums.size(sums.splits)
    for split, expected in enumerate(right):
        found = shared.sums(sums.lines(split, 1), None).owner
        assert found.tobytes() == expected.tobytes(), split
    two = shared.sums(sums.lines(0, 2), None).owner
    assert np.array_equal(two if len(two) == 2 else two.T, right[:2])
    last = shared.sums(sums.lines(sums.splits - 1, 1), None).owner
    assert np.isnan(last).all(), "of blocks that have not run"


@pytest.mark.parametrize("name", SINGLE)
def test_one_vector(name):
    rows, cols = 5, 421
    kernel = REGISTRY[name]
    accesses = [
        access
        for access in ("dot", "axpy")
        if kernel.accepts(problem_of(access, rows, cols)) is None
    ]
    for access in accesses:
        problem = problem_of(access, rows, cols).at(0, 0)
        knobs = dict(kernel.small_knobs)
        if "BLOCKS_PER_SM" in knobs:
            knobs["BLOCKS_PER_SM"] = 8 * (problem.phases if kernel.phased else 1)
        check(select(problem, backend.engine().device(), kernel=name, knobs=knobs), problem, 1)
    assert accesses


@pytest.mark.parametrize("name", SEVERAL)
def test_several_vectors(name, monkeypatch):
    rows, cols, alone, constants = SEVERAL[name]
    assert get(name).steps_of_sums is (split_by_split if name.endswith("columns") else row_by_row)
    family_cases.choose(name, alone, constants, monkeypatch)
    problem = problem_of("axpy" if name.endswith("columns") else "dot", rows, cols).at(0, 0)
    steps = ((0,), (aligned_step(cols),), (rows,), (0,), (0,))
    choice = batches.select_batch(problem, Batch((VECTORS,), steps), backend.engine().device())
    assert choice.kernel.name == name
    check(choice, problem, VECTORS)
    gemv.use_alignment(True)
