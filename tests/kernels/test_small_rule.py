"""Which matrices are small: up to 32 x 32, and up to 64 x 64 where lines are no whole 16 bytes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.small_sums import is_small
from gemv.measure.inputs import make_problem
from gemv.selection import batches, items
from gemv.selection import select as selection

H200 = Device("NVIDIA H200", (9, 0), 132)
SMALL, ITEMS, SEVERAL = (get(name) for name in ("small_matrix", "small_items", "several_small"))


def told(letter, m, n, order="C", op="N", accumulate="plain"):
    problem = make_problem(m, n, DTYPES[letter], order, op)
    return is_small(problem._replace(accumulate=accumulate))


def test_the_rule_by_hand():
    assert told("z", 32, 32) and told("h", 1, 1) and not told("z", 33, 32)
    # Lines of 132, 144 and 140 bytes; those of F are columns.
    assert told("s", 33, 33) and not told("s", 33, 36) and told("s", 33, 35)
    assert told("s", 33, 36, "F") and not told("s", 36, 33, "F")
    assert told("b", 64, 63) and not told("b", 63, 64) and told("b", 63, 64, "F")
    assert told("h", 60, 60) and not told("h", 56, 56) and not told("d", 34, 34)
    assert not told("s", 65, 63) and not told("s", 63, 65) and not told("s", 1, 65)
    # 16 KB of sums: 2048 of float64 and of complex64, 4096 of float32.
    assert told("d", 45, 45) and not told("d", 47, 47) and told("d", 31, 63)
    assert told("c", 45, 45) and not told("c", 47, 47) and told("s", 64, 63)
    # As sums of twice the precision have them, in one number or in two.
    for accumulate in ("wide", "pairs"):
        assert told("s", 45, 45, accumulate=accumulate)
        assert not told("s", 47, 47, accumulate=accumulate)
        assert told("d", 33, 31, accumulate=accumulate)
        assert not told("d", 33, 33, accumulate=accumulate)
    # A single row, or a single column, is one line.
    assert all(told("s", *size, order) for size in ((1, 63), (63, 1)) for order in "CF")
    assert not any(told("s", *size, order) for size in ((1, 64), (64, 1)) for order in "CF")


@pytest.mark.parametrize("letter", "sdczhb")
def test_neither_strides_nor_addresses_decide(letter):
    rng = random.Random(letter)
    seen = set()
    for m, n, order, op in itertools.product((1, 20, 33, 40, 63, 64), (1, 36, 45, 64), "CF", "NT"):
        problem = make_problem(m, n, DTYPES[letter], order, op)
        expected = is_small(problem.at(256, 256))
        seen.add(expected)
        along = (order == "C") == (op == "N")
        for _ in range(4):
            step, gap = rng.choice((1, 2, -3)), rng.choice((0, 1, 5, 32))
            length = problem.cols if along else problem.rows
            apart = rng.choice((1, -1)) * (abs(step) * length + gap)
            row_stride, col_stride = (apart, step) if along else (step, apart)
            moved = problem._replace(row_stride=row_stride, col_stride=col_stride, incx=-2)
            size = problem.dtype.itemsize
            assert is_small(moved.at(size * rng.randint(0, 9), size)) == expected, moved
    assert seen == {False, True}


def test_every_kind_of_call_asks_the_same_rule():
    """A product alone, many of them, several vectors, and one item of a list."""
    counts = {False: 0, True: 0}
    for m, n, letter, order, op in itertools.product(
        (20, 33, 36, 45, 64, 65), (30, 36, 47, 63), "sdczhb", "CF", "NT"
    ):
        for accumulate in ("plain", "wide"):
            problem = make_problem(m, n, DTYPES[letter], order, op).at(256, 256)
            problem = problem._replace(accumulate=accumulate)
            size = problem.rows * problem.cols
            one, many = (
                Batch((count,), ((size,), (problem.cols,), (problem.rows,), (0,), (0,)))
                for count in (1, 100)
            )
            shared = many._replace(strides=((0,), *many.strides[1:]))
            found = {
                selection.select(problem, H200).kernel is SMALL,
                batches.select_batch(problem, one, H200).kernel is SMALL,
                batches.select_batch(problem, many, H200).kernel
                is (ITEMS if accumulate == "plain" else SMALL),
                batches.select_batch(problem, shared, H200).kernel is SEVERAL,
            }
            assert found == {is_small(problem)}, problem
            counts[is_small(problem)] += 1
    assert min(counts.values()) > 100


def test_whole_lines_beyond_32_keep_what_the_formula_chooses(monkeypatch):
    problems = [
        make_problem(m, n, DTYPES[letter], order, "N").at(256, 256)
        for (m, n), letter, order in itertools.product(
            [(40, 40), (64, 64), (33, 64), (64, 33)], "sdczhb", "CF"
        )
    ]
    whole = [problem for problem in problems if not is_small(problem)]
    assert 24 < len(whole) < len(problems)
    usual = [selection.select(problem, H200) for problem in whole]
    monkeypatch.setattr(selection, "is_small", lambda problem: False)
    selection.forget()
    try:
        assert [selection.select(problem, H200) for problem in whole] == usual
    finally:
        selection.forget()


def test_cells_beyond_32_count_the_time_in_a_batch():
    """A problem with odd lines stands for those of its cell that have whole ones."""
    for size, counts in (((32, 32), False), ((33, 33), True), ((36, 36), True)):
        problem = make_problem(*size, DTYPES["s"], "C", "N")
        assert items.counts_in_batches(problem) == counts


def test_a_gpu_with_few_units_for_float64_has_the_same_small_matrices():
    few = Device("any", (7, 5), 30, float64_ratio=32)
    for m, n, letter in itertools.product((33, 45, 47), (31, 33, 45), "sdchb"):
        problem = make_problem(m, n, DTYPES[letter], "C", "N")._replace(accumulate="wide")
        assert is_small(selection.as_computed(problem, few)) == is_small(problem)


def test_what_small_items_refuses():
    with pytest.raises(ValueError, match="36 rows and 36 columns: there must be 1 to 32 of each"):
        selection.select(make_problem(36, 36, DTYPES["s"], "C", "N"), H200, "small_items")
    empty = Problem(DTYPES["s"], 0, 5, 0, 0, 5, False, 5, 1)
    assert "0 rows" in ITEMS.accepts(empty)
    if gemv.backend() == "host":
        return
    with pytest.raises(ValueError, match="up to 64 where lines are no whole 16 bytes"):
        gemv.gemv(1, np.ones((2, 47, 47)), np.ones(47), kernel="small_items")
