"""The formula for constants of ``vector_columns`` in batches, against counts by hand."""

from __future__ import annotations

import math

import pytest

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.kernels import columns_of_items, get
from gemv.kernels.columns_of_items import CANDIDATES, Columns, possible, squared_time
from gemv.measure.inputs import make_problem
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)


def item(letter, m, n, line=None, at=0):
    """A matrix down its columns, `line` elements apart."""
    return make_problem(m, n, DTYPES[letter], "F", "N", (1, line or m)).at(at, 0)


def test_counts_by_hand():
    problem = item("s", 128, 64)
    assert problem.widths[0] == 4
    found = squared_time(problem, lanes=4, threads=128, again=1, constants=Columns(4, 2, 2, 2))
    # Tiles of 4 * 2 lanes * 2 pieces * 4 rows; 32 groups with 4 columns each take 64 in one pass.
    tiles, passes, sums = 2, 1, 8
    # 72 registers, as 64.8 are wanted and 128 may be had: 3 blocks of 256 threads.
    blocks = 65536 // (72 * 256)
    of_bytes = (128 * 4 + 32) * 64 / 22500
    waits = tiles * (0.6 + passes * 1.1 + 0.125 * sums) / blocks
    issue = tiles * 8 * (passes * 4 * 2 * (0.0006 + 0.001 * 4) + 0.000125 * 2 * 4)
    assert found == pytest.approx(of_bytes**2 + waits**2 + issue**2, rel=1e-12)


def test_registers_that_are_missing_cost_time(monkeypatch):
    problem, constants = item("z", 64, 64), Columns(8, 1, 2, 8)
    found = squared_time(problem, 4, 256, 1, constants)
    monkeypatch.setattr(columns_of_items, "SPILLED", 0.0)
    free = squared_time(problem, 4, 256, 1, constants)
    # 8 blocks of 256 threads leave 32 registers for a thread, which wants 94.4.
    wanted = 32 + 0.75 * 8 * 2 * 4 + 0.2 * 8 * 4 + 2 * 4
    assert found == pytest.approx(free * (1 + 0.9 * (wanted / 32 - 1)) ** 2, rel=1e-12)
    monkeypatch.undo()
    few = Columns(8, 1, 2, 2)  # 128 registers
    assert squared_time(problem, 4, 256, 1, few) < found


def test_rows_behind_the_last_one_cost_time():
    """132 rows take three tiles of 64, and 128 rows two."""
    constants = Columns(4, 1, 4, 2)
    full = squared_time(item("s", 128, 100), 4, 128, 1, constants)
    less = squared_time(item("s", 132, 100), 4, 128, 1, constants)
    assert less > 1.5 * full


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("threads", [32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize(
    "letter, line, can_widen", [("s", 129, True), ("s", 132, False), ("z", 129, True)]
)
def test_what_is_compared_fits_a_multiprocessor(lanes, threads, letter, line, can_widen):
    problem = item(letter, 129, 100, line)
    assert columns_of_items.can_widen(problem) == can_widen
    found = list(possible(problem, lanes, threads))
    assert found
    # Many rows of a thread are for loads of a single number of up to 8 bytes.
    assert any(each.PIECES == 8 for each in found) == (letter == "s" and line == 129)
    for each in found:
        block = threads * each.ACROSS
        assert block <= 1024 and block * each.MIN_BLOCKS <= max(1024, block)
        assert each.ACROSS == 1 or (can_widen and lanes * each.ACROSS <= 16 and block <= 512)


@pytest.mark.parametrize("letter", "sdczhb")
def test_chosen_constants_are_accepted_and_keep_what_sums_depend_on(letter):
    kernel, taken, chosen = get("vector_columns"), 0, set()
    for m in (33, 64, 100, 129, 256, 333, 500):
        for n in (34, 64, 129, 400):
            for at in (0, 1):
                problem = item(letter, m, n, at=at * DTYPES[letter].itemsize)
                single = select(problem, H200, "vector_columns")
                knobs = kernel.in_batches(problem, single.knobs)
                geometry = kernel.geometry(problem, H200, knobs)
                for name in ("LANES", "THREADS_PER_BLOCK"):
                    assert knobs[name] == single.knobs[name]
                assert knobs["BLOCKS_PER_SM"] == 0 and not geometry.scratch
                taken += 1
                chosen.add(tuple(knobs[name] for name in Columns._fields))
    assert taken == 56 and len(chosen) > 3


def test_the_choice_has_the_least_time():
    for m, n in ((129, 129), (300, 40), (64, 500)):
        problem = item("d", m, n)
        best = columns_of_items.best_for_items(problem, 4, 256, 1)
        assert columns_of_items.can_widen(problem)
        least = min(squared_time(problem, 4, 256, 1, each) for each in possible(problem, 4, 256))
        assert squared_time(problem, 4, 256, 1, Columns(**best)) == least < math.inf
    assert {each.ACROSS for each in CANDIDATES} == {1, 2, 4}


@pytest.mark.parametrize("letter", "shbz")
@pytest.mark.parametrize("accumulate", ["plain", "wide"])
def test_sums_have_room_in_shared_memory(letter, accumulate):
    for lanes, threads in ((64, 1024), (32, 1024), (256, 1024), (32, 512), (4, 128)):
        for at in (0, 1):
            problem = item(letter, 512, 300, at=at * DTYPES[letter].itemsize)
            problem = problem._replace(accumulate=accumulate)
            again = 16 // (problem.widths[0] * DTYPES[letter].itemsize) if at else 1
            made = Columns(**columns_of_items.best_for_items(problem, lanes, threads, again))
            rows = lanes * made.ACROSS * problem.widths[0] * made.PIECES * again
            slots = min(threads // lanes, threads * made.ACROSS // 32)
            room = slots * rows * problem.precision.sums.itemsize
            assert room <= 48 << 10 or made == columns_of_items.SMALLEST
