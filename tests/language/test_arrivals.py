"""Sums that blocks leave for each other in words that say whether they are there."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import ALL_ROWS, Case

from gemv.core.geometry import Geometry, Launch
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel
from gemv.selection.select import select

ON_SIMULATOR = pytest.mark.skipif(
    backend.backend() != "simulator", reason="asks the simulator's memory"
)
SPLITS, ROWS = 37, 5


def relay(left=0):
    """A kernel whose blocks post elements of A; the last to begin takes them, all but `left`."""

    def build(spec):
        from numba import cuda

        from gemv.language import atomic_inc, post, take

        zero, AS_IT_IS = spec.zero, spec.accumulate == "plain"

        def relay(rows, splits, reads, a, row_stride, col_stride, x, y, incy, scratch, counters):
            last = cuda.shared.array(1, np.uint32)
            r = cuda.threadIdx.x
            split = cuda.blockIdx.y
            if r == 0:
                last[0] = atomic_inc(counters, 0, splits - 1)
            cuda.syncthreads()
            if r < rows:
                element = a[r * row_stride + split * col_stride]
                if AS_IT_IS:  # as arithmetic need not leave the bits of a NaN
                    post(scratch, split * rows + r, element)
                else:
                    post(scratch, split * rows + r, zero + element * x[0])
                if last[0] == splits - 1:
                    total = zero
                    for k in range(0, reads, 4):
                        for part in take(zero, scratch, k * rows + r, rows, 4, reads - k):
                            total += part
                    y[r * incy] = total

        return (relay,)

    def geometry(problem, device, knobs):
        splits = problem.cols
        sizes = {"splits": splits, "reads": splits - left}
        launches = (Launch((1, splits, 1), (32, 1, 1)),)
        return Geometry(launches, sizes, splits * problem.rows, 1, posts=True)

    return Kernel("relay", 99, build, geometry, lambda knobs: (1, 1), "A relay.")


@pytest.fixture
def case(monkeypatch, request):
    dtype, accumulate, *left = request.param
    monkeypatch.setitem(REGISTRY, "relay", relay(*left))
    return Case(ROWS, SPLITS, dtype, accumulate=accumulate)


KINDS = [(dtype, accumulate) for accumulate in ("plain", "wide") for dtype in "hsdczb"]
BY_KIND = {"argnames": "case", "ids": "-".join, "indirect": True}


@pytest.mark.parametrize(argvalues=KINDS, **BY_KIND)
def test_what_is_posted_is_taken(case):
    case.x[0] = cast(np.ones(1), case.element)[0]
    exact = case.a
    if case.element.kind != "c":
        exact = cast(exact, np.dtype(np.float64))
    for _ in range(3):  # on a GPU, memory is what the one before has left
        after = case.y_of(case.run("relay"))
        if case.element.kind != "c":
            after = cast(after, np.dtype(np.float64))
        size = {2: 2e-2}.get(case.element.itemsize, 1e-5)
        assert np.allclose(after, exact.sum(axis=1), rtol=size, atol=size)


@pytest.mark.parametrize(argvalues=[(dtype, "plain") for dtype in "sdcz"], **BY_KIND)
def test_a_nan_of_ones_arrives_as_a_nan(case):
    """Nobody would see that it is there, and wait for ever."""
    case.a[1, 3:4].view(np.uint8)[...] = 0xFF
    if case.element.kind == "c":
        case.a[2, 5] = complex(1.0, case.a.real[1, 3])
    after = case.y_of(case.run("relay"))
    assert np.isnan(after[1])
    assert np.isfinite(after[[0, 3, 4]]).all()
    if case.element.kind == "c":
        assert np.isfinite(after[2].real) and np.isnan(after[2].imag)


@ON_SIMULATOR
@pytest.mark.parametrize("case", [("s", "plain", 1)], ids=["one-less"], indirect=True)
def test_a_sum_that_nobody_takes_is_found(case):
    from gemv.language.simulator.thread import SimulatorError

    with pytest.raises(SimulatorError, match="relay: sums that nobody took are left"):
        case.run("relay")


@ON_SIMULATOR
def test_two_sums_in_one_place_are_found():
    from gemv.language.simulator.atomics import post
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import launch
    from gemv.language.simulator.thread import SimulatorError

    def kernel(scratch):
        post(scratch, 0, 1.0)

    empty = np.full(1, 0xFF, np.uint8).repeat(8).view(np.float64)
    with pytest.raises(SimulatorError, match=r"post: nobody has taken what is in parts\[0\]"):
        launch(kernel, 2, 1, [pointer_to(empty, name="parts")])


@ON_SIMULATOR
@pytest.mark.parametrize("order", ["forward", "reversed", "random"])
def test_who_waits_for_a_block_that_has_not_begun_is_found(order):
    """A block takes what the next one posts; nothing says that this one runs."""
    from gemv.language.simulator.atomics import post, take_one
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import Schedule, launch
    from gemv.language.simulator.thread import SimulatorError

    def kernel(n, scratch):
        from numba import cuda

        post(scratch, cuda.blockIdx.x, 1.0)
        take_one(scratch, (cuda.blockIdx.x + 1) % n)

    empty = np.full(8 * 9, 0xFF, np.uint8).view(np.float64)
    arguments = [9, pointer_to(empty, name="parts")]
    with pytest.raises(SimulatorError, match="the kernel spins"):
        launch(kernel, 9, 1, arguments, Schedule(order, max_switches=2000))


#: Constants with which a short sum has more splits than its finishing threads ask for at a time.
MANY = {
    "vector_rows": {"LANES": 1, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32},
    "phased_rows": {"LANES": 1, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32},
    "vector_columns": {"LANES": 2, "PIECES": 2, "COLUMNS": 1, "THREADS_PER_BLOCK": 32},
    "phased_columns": {"LANES": 32, "PIECES": 1, "COLUMNS": 1, "THREADS_PER_BLOCK": 128},
    "short_columns": {"VECTORS": 1, "THREADS_PER_BLOCK": 128},
}


#: Each kernel with two of these in turn, or with all of them if all rows are asked for.
KINDS = [("s", "plain"), ("c", "plain"), ("s", "wide")]


@pytest.mark.parametrize("name, dtype, accumulate", [
    (name, *kind)
    for k, name in enumerate(k.name for k in REGISTRY.values() if k.splits_apart and k.wide)
    for kind in (KINDS if ALL_ROWS else (KINDS * 2)[k % 3 :][:2])
])  # fmt: skip
def test_more_splits_than_are_asked_for_at_a_time(name, dtype, accumulate):
    """4 in each lane of a warp, or 8 in each of up to 4 threads a row; then they ask again."""
    knobs = {**MANY[name], "BLOCKS_PER_SM": 2000, "MIN_BLOCKS": 1}
    rows = 60 if name == "short_columns" else 3  # of which it has more threads a row
    case = Case(rows, 700, dtype, "F" if name.endswith("columns") else "C", accumulate=accumulate)
    choice = select(case.problem.at(256, 256), backend.engine().device(), name, knobs)
    assert choice.geometry.sizes["splits"] > (40 if name.endswith("columns") else 4 * 32)
    case.check(name, knobs)
