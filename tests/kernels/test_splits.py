"""Splits of the columns, and lanes of columns of a few rows: thin matrices."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from helpers import forced
from helpers.lists import forced as forced_in_lists
from helpers.lists import run_together
from helpers.problems import Case, random_array
from helpers.selection import problem_of
from numba import cuda

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import MAX_GRID_Y, Device, ceil_div
from gemv.engines import backend
from gemv.kernels import get
from gemv.kernels.grids import split_evenly
from gemv.kernels.wide_tiles import lanes_and_pieces_of
from gemv.selection import batches
from gemv.selection.select import select
from gemv.streaming import cut

H200 = Device("NVIDIA H200", (9, 0), 132)


def splits_of(cols, step, wanted, tiles=1):
    """The number of splits and the columns of each."""
    geometry = split_evenly(problem_of("dot", 1, cols), tiles, (32, 1, 1), step, wanted)
    assert geometry.launches[0].grid == (tiles, geometry.sizes["splits"], 1)
    return geometry.sizes["splits"], geometry.sizes["cols_per_split"]


def simulate_multiprocessors(monkeypatch):
    """So few that small matrices have more passes than blocks; a GPU has its own number."""
    if backend.engine().name != "simulator":
        pytest.skip("only the simulator has as many multiprocessors as a test wants")
    monkeypatch.setattr("gemv.engines.simulator.DEVICE", Device("simulator", (0, 0), 16))


# How columns are split --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cols, step, wanted, tiles, expected",
    [
        # more passes than blocks: eight each, as even as may be
        (100_000, 100, 132, 1, (125, 800)),
        (13_250, 100, 132, 1, (67, 200)),  # a little more than a pass for each: two
        (13_200, 100, 132, 1, (132, 100)),
        (13_150, 100, 132, 1, (132, 100)),  # fewer: a single one, and the last one is not full
        (8_010, 100, 132, 1, (81, 100)),
        (6_500, 100, 132, 3, (65, 100)),
        (6_500, 100, 20, 1, (17, 400)),  # no more blocks than are wanted
        (200, 100, 132, 1, (2, 100)),
        (199, 100, 132, 1, (1, 200)),  # too few to be split
        (10_000, 100, 1, 1, (1, 10_000)),
    ],
)  # fmt: skip
def test_splits_by_hand(cols, step, wanted, tiles, expected):
    assert splits_of(cols, step, wanted, tiles) == expected


def test_splits_cover_all_columns_and_none_is_empty():
    rng, single = random.Random(3), 0
    for _ in range(4000):
        step = 8 * rng.randrange(1, 200)
        cols, tiles = rng.randrange(1, rng.choice((30, 300)) * step), rng.choice((1, 3, 30, 200))
        wanted = rng.choice((0, 1, 2, 33, 132, 528, 1 << 20))
        splits, share = splits_of(cols, step, wanted, tiles)
        assert (splits - 1) * share < cols <= splits * share
        assert splits <= min(max(wanted, 1), MAX_GRID_Y) and share % step == 0
        if 2 * step <= cols <= wanted * step:  # no more passes than blocks
            single += 1
            assert share == step
    assert single > 100


#: Kernels and constants whose splits are a single pass on 16 multiprocessors; rows and columns of
#: op(A), and the columns of a pass. Rows and columns begin at odd elements where `pad` is not 0.
SINGLE = [
    ("vector_rows", 3, 300, "s", "N", 0, 128,
     {"LANES": 8, "ROWS": 2, "VECTORS": 4, "THREADS_PER_BLOCK": 32}),
    ("vector_rows", 1, 1301, "h", "N", 1, 512,
     {"LANES": 16, "ROWS": 1, "VECTORS": 4, "THREADS_PER_BLOCK": 32}),
    ("phased_rows", 2, 203, "s", "N", 1, 64,
     {"LANES": 4, "ROWS": 2, "VECTORS": 4, "THREADS_PER_BLOCK": 32}),
    ("phased_rows", 1, 131, "c", "C", 1, 32,
     {"LANES": 4, "ROWS": 1, "VECTORS": 4, "THREADS_PER_BLOCK": 32}),
    ("vector_columns", 5, 601, "s", "N", 3, 256,
     {"LANES": 2, "PIECES": 1, "COLUMNS": 8, "THREADS_PER_BLOCK": 64, "ACROSS": 1}),
    ("vector_columns", 2, 301, "z", "C", 0, 128,
     {"LANES": 2, "PIECES": 1, "COLUMNS": 8, "THREADS_PER_BLOCK": 32, "ACROSS": 1}),
    ("phased_columns", 5, 611, "s", "N", 2, 256,
     {"LANES": 2, "PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 128}),
    ("phased_columns", 9, 1205, "h", "T", 0, 512,
     {"LANES": 2, "PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 256}),
]  # fmt: skip


def orders():
    """Orders in which blocks and threads run; on a GPU there is one, which is not chosen."""
    if backend.engine().name != "simulator":
        return []
    from gemv.language.simulator.scheduler import Schedule, scheduled

    return [scheduled(each) for each in (Schedule("reversed", late=True), Schedule("random", 1))]


@pytest.mark.parametrize("name, rows, cols, dtype, op, pad, step, knobs", SINGLE)
def test_splits_of_a_single_pass(name, rows, cols, dtype, op, pad, step, knobs, monkeypatch):
    simulate_multiprocessors(monkeypatch)
    knobs = {**knobs, "BLOCKS_PER_SM": 1, "MIN_BLOCKS": 1}
    m, n = (rows, cols) if op == "N" else (cols, rows)
    along = get(name).accepts(problem_of("dot", rows, cols, dtype)) is None
    order = "C" if along == (op == "N") else "F"
    case = Case(m, n, dtype, order, op, pad=pad, alpha=2, beta=-1)
    sizes = select(case.problem.at(16, 16), backend.engine().device(), name, knobs).geometry.sizes
    assert sizes["splits"] > 1 and sizes["cols_per_split"] == step
    found = {case.check(name, knobs).tobytes()}
    for order in orders():
        with order:
            found.add(case.run(name, knobs).tobytes())
    assert len(found) == 1


# Lanes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "letter, rows, lanes, expected",
    [
        # loads of one element, four of which stand for one of 16 bytes
        ("h", 1, 1, (1, 1)), ("h", 2, 1, (2, 1)), ("h", 3, 1, (4, 1)), ("h", 40, 1, (4, 1)),
        ("s", 1, 1, (1, 1)), ("s", 2, 1, (2, 1)), ("s", 5, 1, (4, 1)), ("s", 3, 2, (4, 1)),
        ("s", 5, 2, (8, 1)), ("s", 16, 16, (16, 1)), ("s", 17, 16, (16, 2)), ("s", 33, 16, (16, 4)),
        ("d", 1, 1, (1, 1)), ("d", 2, 1, (2, 1)), ("d", 9, 8, (8, 2)), ("d", 7, 8, (8, 1)),
        ("z", 1, 1, (1, 1)), ("z", 100, 4, (4, 1)),
    ],
)  # fmt: skip
def test_lanes_are_no_more_than_rows_need(letter, rows, lanes, expected):
    size = DTYPES[letter].itemsize
    problem = problem_of("axpy", rows, 5000, letter).at(size, size)
    assert problem.widths[0] == 1
    assert lanes_and_pieces_of(problem, {"LANES": lanes, "PIECES": 1}) == expected
    kernel = get("vector_columns")
    spec = kernel.spec(problem, {"LANES": lanes, "PIECES": 1})
    assert spec.narrow == expected[0] * expected[1] // lanes


THIN = list(itertools.product((1, 2, 3, 5, 9, 20, 70), (40_000, 300_007), "shzb", (0, 1)))


def test_several_vectors_have_the_lanes_and_splits_of_one():
    narrow, split = set(), 0
    for rows, cols, letter, odd in THIN:
        at = 256 + odd * DTYPES[letter].itemsize
        problem = problem_of("axpy", rows, cols, letter).at(at, 256)
        single = select(problem, H200)
        batch = Batch((3,), ((0,), (cols,), (rows,), (0,), (0,)))
        several = batches.select_batch(problem, batch, H200)
        if several.kernel.name == "several_columns":
            assert several.spec.narrow == single.spec.narrow
            for name in ("splits", "cols_per_split"):
                assert several.geometry.sizes[name] == single.geometry.sizes[name]
            narrow.add(single.spec.narrow)
            split += several.geometry.sizes["splits"] > 1
    assert narrow >= {1, 2, 4} and split > 10


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_vectors_of_a_few_rows_have_the_bits_of_each_alone(rows, monkeypatch):
    """Loads of one element, splits, and numbers of x in shared memory or not."""
    simulate_multiprocessors(monkeypatch)
    alone = {"LANES": 1, "PIECES": 1, "COLUMNS": 8, "THREADS_PER_BLOCK": 32, "ACROSS": 1,
             "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 1}  # fmt: skip
    rng, cols = np.random.default_rng(rows), 700
    down = cuda.to_device(random_array(rng, (cols, rows + 1), np.float32))[:, 1:]  # columns of A
    x = cuda.to_device(random_array(rng, (3, cols), np.float32))
    found = []
    usual = batches.SEVERAL
    for together in ({"LOADS": 2, "COUNT": 2}, {"LOADS": 2, "COUNT": 4, "STAGED": 1}, None):
        with monkeypatch.context() as patch:
            if together is None:
                patch.setattr(batches, "SEVERAL", {})
                forced.alone(patch, "vector_columns", alone)
            else:
                forced.together(patch, "vector_columns", alone, "several_columns", together)
            with gemv.trace() as calls:
                found.append(gemv.vecmat(x, down).copy_to_host().tobytes())
            assert {call.kernel for call in calls} == {
                "several_columns" if together else "vector_columns"
            }
    assert batches.SEVERAL is usual and len(set(found)) == 1


@pytest.mark.parametrize("in_lists", [False, True])
def test_items_of_a_few_rows_have_the_bits_of_the_single_product(in_lists, monkeypatch):
    """Items with as many lanes share a launch; a kernel for lists takes all of them."""
    knobs = {"LANES": 1, "PIECES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 32, "ACROSS": 1,
             "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0}  # fmt: skip
    cases = [
        Case(rows, cols, "s", "F", pad=2 - rows % 2, shift=1, seed=cols)
        for rows, cols in itertools.product((1, 2, 3, 5, 6), (70, 101))
    ]
    expected = [case.check("vector_columns", knobs) for case in cases]
    forced_in_lists(monkeypatch, "vector_columns", knobs, in_lists)
    groups, found = run_together(cases)
    for case, single, together in zip(cases, expected, found, strict=True):
        assert together.tobytes() == single.tobytes(), case
    if not in_lists:
        assert {group.choice.spec.narrow for group in groups} == {1, 2, 4}


def test_a_part_of_the_rows_has_the_tiles_of_all():
    """A panel of few rows has the lanes of the whole, so its blocks cover as many rows."""
    for lanes, tile in ((1, 4), (16, 64)):
        problem = problem_of("axpy", 66, 9000, "s").at(4, 4)
        knobs = {"LANES": lanes, "PIECES": 1, "THREADS_PER_BLOCK": 64}
        choice = select(problem, H200, "vector_columns", knobs)
        assert choice.spec.narrow == 4 and cut.tile_rows(choice, problem) == tile
        for rows in (1, 2, 63, 66):
            panel = cut.Panel(0, rows, 0, 9000, 0, 1, 80)
            part = cut.part_of(problem, panel)
            own = cut.choice_for(choice, problem, panel, part, H200, "rows")
            assert own.geometry.launches[0].grid[0] == ceil_div(rows, tile)
