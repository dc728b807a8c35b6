"""Kernels whose blocks find their item in tables: the bits of the single product for each."""

import dataclasses

import numpy as np
import pytest
from helpers.lists import forced, run_together
from helpers.problems import ALL_ROWS, Case, knobs_for_tests, tile_of

import gemv
from gemv.core.geometry import Geometry, Launch
from gemv.engines import backend
from gemv.kernels import get
from gemv.kernels.tables import BY_BLOCK, BY_GRID, columns, geometry_by_block, geometry_by_grid
from gemv.selection import ragged

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

#: How memory runs for each kernel: order and op of its items.
DOT, AXPY = [("C", "N"), ("F", "T")], [("F", "N"), ("C", "T")]
KERNELS = {
    "last_block": (DOT + AXPY, BY_BLOCK),
    "vector_rows": (DOT, BY_BLOCK),
    "vector_columns": (AXPY, BY_BLOCK),
    "long_columns": (AXPY, BY_BLOCK),
    "phased_rows": (DOT, BY_BLOCK),
    "phased_columns": (AXPY, BY_GRID),
    "short_columns": (AXPY, BY_GRID),
    "cluster_rows": (DOT, BY_BLOCK),
    "cluster_columns": (AXPY, BY_BLOCK),
    "small_items": (DOT + AXPY, BY_GRID),
    "small_matrix": (DOT + AXPY, BY_BLOCK),
}


def cases_of(name, dtype, **rest):
    """Items around the size of a tile, with the scalars, gaps and increments that they may have."""
    kernel = get(name)
    tile_rows, tile_cols = tile_of(kernel)
    ways, _ = KERNELS[name]
    rows = [1, tile_rows - 1, tile_rows, tile_rows + 1, 2 * tile_rows + 3]
    if name in ("small_items", "small_matrix", "short_columns"):
        rows = [1, 4, 7, 8, 12]
    cols = [1, 3, min(tile_cols, 24) + 1, 8, 5]
    scalars = [(1.0, 0.0), (0.5, 2.0), (0.0, 0.5), (2.0, 1.0), (1.0, 0.0)]
    for k, (m, n, (alpha, beta)) in enumerate(zip(rows, cols, scalars, strict=True)):
        order, op = ways[k % len(ways)]
        sides = (max(m, 1), n) if op == "N" else (n, max(m, 1))
        # Most have lines of whole vectors; short_columns takes columns without gaps.
        pad = 0 if name in ("small_items", "small_matrix", "short_columns") else (7, 5, 7, 8, 3)[k]
        yield Case(
            *sides, dtype, order, op, pad, incx=(1, -1, 1, 1, 3)[k], incy=(1, -2, 1, 3, 1)[k],
            alpha=alpha, beta=beta, seed=k, **rest,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", "sdczhb" if ALL_ROWS else "sz")
@pytest.mark.parametrize("name", list(KERNELS))
def test_each_item_has_the_bits_of_the_single_product(name, dtype, monkeypatch):
    kernel, knobs = get(name), knobs_for_tests(get(name))
    if backend.engine().device().lacks(kernel.capability):
        pytest.skip(f"{name}: {backend.engine().device().lacks(kernel.capability)}")
    cases = []
    for case in cases_of(name, dtype):
        if kernel.accepts(case.problem.at(0, 0)) is None:
            cases.append(case)
    assert len(cases) >= 3, "the kernel refuses most of them"
    # On a GPU items get constants by their sizes, so that of these sizes each may have its own.
    cases.append(dataclasses.replace(cases[-1], seed=17))
    expected = []
    for case in cases:
        own = knobs
        if kernel.constants_of is not None:
            own = {**(knobs or {}), **kernel.constants_of(case.problem)}
        expected.append(case.check(name, own))
    forced(monkeypatch, name, knobs)
    groups, found = run_together(cases)
    for case, single, together in zip(cases, expected, found, strict=True):
        assert together.tobytes() == single.tobytes(), case
    assert {group.choice.kernel.name for group in groups} == {name}
    by = {group.choice.spec.table for group in groups}
    assert KERNELS[name][1] in by
    assert len(groups) < len(cases), "items share launches"
    if KERNELS[name][1] == BY_BLOCK and knobs is not None:
        assert len(groups) < len(cases) - 1, "those of different sizes as well"


@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "last_block"])
def test_items_whose_columns_are_split_share_scratch_memory(name, monkeypatch):
    kernel = get(name)
    knobs = dict(kernel.small_knobs)
    if "BLOCKS_PER_SM" in knobs:
        knobs["BLOCKS_PER_SM"] = 64
    else:
        knobs["MAX_BLOCKS"] = 1 << 10
    order, op = KERNELS[name][0][0]
    # All are compiled alike. Two have one grid and different rows; others more splits, or tiles.
    sizes = [(5, 200), (6, 200), (3, 400), (41, 200)]
    cases = [
        Case(m, n, "s", order, op, pad=-m % 8 if order == "F" else 0, seed=m) for m, n in sizes
    ]
    expected = [case.check(name, knobs) for case in cases]
    forced(monkeypatch, name, knobs)
    groups, found = run_together(cases)
    assert sorted(group.items for group in groups) == [[0, 1], [2], [3]]
    (shared,) = (group for group in groups if len(group.items) == 2)
    geometry = shared.choice.geometry
    for word, count in (("scratch", geometry.scratch), ("counters", geometry.counters)):
        first, second = shared.table[:, shared.words.index(word)]
        assert 0 == first < second < count, "each has a part of its own"
    for single, together in zip(expected, found, strict=True):
        assert together.tobytes() == single.tobytes()


@pytest.mark.parametrize("dtype", "sz")
def test_few_rows_of_any_distance_keep_their_phases(dtype, monkeypatch):
    # Fewer phases than lines of this distance would have, and blocks of one row.
    knobs = {**get("phased_rows").small_knobs, "LANES": 32, "THREADS_PER_BLOCK": 32, "ROWS": 1}
    forced(monkeypatch, "phased_rows", knobs)
    sizes = [(1, 41, 2), (1, 41, 2), (3, 41, 4), (2, 33, 2), (1, 40, 1)]
    cases = [Case(m, n, dtype, pad=pad, seed=k) for k, (m, n, pad) in enumerate(sizes)]
    groups, found = run_together(cases)
    assert len(groups) < len(cases)
    for case, after in zip(cases, found, strict=True):
        assert after.tobytes() == case.check("phased_rows", knobs).tobytes()


@pytest.mark.parametrize("name", ["vector_columns", "long_columns", "cluster_columns"])
def test_few_rows_behind_others_are_read_from_their_own_memory(name, monkeypatch):
    knobs = knobs_for_tests(get(name))
    forced(monkeypatch, name, knobs)
    # Lines of 16 bytes, in which the rows of the second item fill no vector.
    cases = [Case(m, n, "s", "F", pad=pad, seed=n) for m, n, pad in ((9, 8, 3), (2, 7, 2))]
    _, found = run_together(cases)
    for case, after in zip(cases, found, strict=True):
        assert after.tobytes() == case.check(name, knobs).tobytes()


def test_items_of_many_grids_take_one_launch_without_idle_blocks(monkeypatch):
    knobs = dict(get("vector_rows").small_knobs)
    forced(monkeypatch, "vector_rows", knobs)
    cases = [Case(m, n, "s", seed=m) for m, n in ((1, 40), (70, 40), (9, 24), (33, 8))]
    groups, found = run_together(cases)
    assert len(groups) == 1
    (group,) = groups
    rows = group.choice.kernel.repeats(cases[0].problem, group.choice.knobs)[1]
    needed = [-(-case.rows // rows) for case in cases]
    assert group.choice.geometry.launches[0].grid == (sum(needed), 1, 1)
    assert np.bincount(group.blocks).tolist() == needed
    for case, after in zip(cases, found, strict=True):
        assert after.tobytes() == case.run("vector_rows", knobs).tobytes()


def test_a_launch_takes_as_many_rows_as_can_be_counted(monkeypatch):
    kernel = get("vector_rows")
    knobs = dict(kernel.small_knobs)
    forced(monkeypatch, "vector_rows", knobs)
    cases = [Case(m, 8, "s", seed=m) for m in (20, 16, 21, 3)]
    _, rows = kernel.repeats(cases[0].problem, kernel.in_tables(cases[0].problem, knobs))
    monkeypatch.setattr(ragged, "MOST_ROWS", rows + 20)
    groups, found = run_together(cases)
    assert [group.items for group in groups] == [[0, 1], [2, 3]]
    for case, after in zip(cases, found, strict=True):
        assert after.tobytes() == case.run("vector_rows", knobs).tobytes()


def test_a_launch_takes_as_many_items_of_one_grid_as_a_grid_has_places(monkeypatch):
    monkeypatch.setattr(ragged, "MOST_ITEMS", 2)
    forced(monkeypatch, "small_items", None)
    cases = [Case(5, 4, "s", seed=k) for k in range(5)]
    groups, found = run_together(cases)
    assert [len(group.items) for group in groups] == [2, 2, 1]
    assert {group.choice.spec.table for group in groups} == {BY_GRID}
    small = get("small_items")
    knobs = {**small.knobs, **small.constants_of(cases[0].problem)}
    for case, after in zip(cases, found, strict=True):
        assert after.tobytes() == case.run("small_items", knobs).tobytes()


def test_addresses_that_are_no_whole_elements_apart_have_launches_of_their_own():
    # A complex number may begin at the multiples of its real part; loads of one element may do.
    case = Case(40, 36, "z").problem._replace(col_stride=2, row_stride=80)
    places = [(0, 0, 0), (0, 8, 0), (0, 0, 0), (0, 0, 8)]
    found = ragged.groups([case] * 4, places, backend.engine().device())
    assert sorted(group.items for group in found) == [[0, 2], [1], [3]]


def test_columns_are_the_parameters_that_items_have_of_their_own():
    def kernel(rows, cols, alpha_pointer, a, row_stride, x, incx, beta_pointer, y, incy, scratch):
        pass

    def combine(rows, splits, scratch, y, counters):
        pass

    own = ("rows", "cols", "a", "row_stride", "incx", "incy", "scratch")
    assert columns([kernel], BY_GRID) == own
    shifted = ("rows", "cols", "a", "a_shift", "row_stride", "incx", "y_shift", "incy", "scratch")
    assert columns([kernel], BY_BLOCK) == shifted
    assert columns([kernel, combine], BY_GRID) == (*own, "splits", "counters")


def test_launches_of_tables():
    one = Geometry((Launch((3, 2, 1), (32, 1, 1)),), {"splits": 2}, 10, 3, True)
    other = one._replace(scratch=6)
    both = geometry_by_grid([one, other])
    assert both.launches[0].grid == (3, 2, 2) and (both.scratch, both.counters) == (16, 6)
    assert both.posts and not both.sizes
    listed = geometry_by_block(one, 7)
    assert listed.launches[0].grid == (7, 2, 1) and not listed.sizes


@pytest.mark.skipif(
    backend.backend() == "cuda", reason="only the simulator has schedules that can be chosen"
)
@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "small_items", "small_matrix"])
def test_no_order_of_threads_and_blocks_changes_a_bit(name, monkeypatch):
    from gemv.language.simulator.scheduler import Schedule, scheduled

    cases = list(cases_of(name, "s"))
    forced(monkeypatch, name, knobs_for_tests(get(name)))
    _, expected = run_together(cases)
    for schedule in (Schedule("reversed", late=True), *(Schedule("random", k) for k in range(3))):
        with scheduled(schedule):
            _, found = run_together(cases)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
