"""Launches that eight vectors share well come first for cells, where they cost little."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.programs import program

from gemv.core.geometry import Device
from gemv.selection import cells, sharing
from gemv.selection.machine import machine
from gemv.selection.ranking import Candidate

pytest.importorskip("sklearn", reason="scikit-learn, the extra 'fit', is not installed")

deciding = program("fit.deciding")
rows = program("fit.rows")
timer = program("fit.timer")

H200 = Device("NVIDIA H200", (9, 0), 132)
SETS = machine(H200).constants


def kind_named(text):
    return next(kind for kind in cells.kinds() if str(kind) == text)


def number_of(kernel, **knobs):
    """The first set of constants of a kernel with these among its own."""
    return next(
        number
        for number, each in enumerate(SETS)
        if each.name == kernel and all(each.knobs[name] == own for name, own in knobs.items())
    )


SHARES_WELL, COSTS_TOO_MUCH = 1.024, 1.026
SHARES_WELL_OF_FEW, COSTS_TOO_MUCH_OF_FEW = 1.049, 1.051
#: Kind, rows and columns, whether others are taken if they cost a little, and by kernels, constants
#: and blocks: the fastest one for a product alone, others.
FAVOURED = {
    "rows": (
        "h dot 8 whole free", (8192, 8192), 1, ("vector_rows", {"LANES": 128}, 0),
        ("vector_rows", {"LANES": 32}, 0), ("vector_rows", {"LANES": 32}, 4),
    ),
    "many rows split": (
        "h dot 8 whole free", (8192, 8192), 0, ("vector_rows", {"LANES": 32}, 4),
        ("vector_rows", {"LANES": 32}, 2), ("vector_rows", {"LANES": 128}, 0),
    ),
    "rows in the cache": (
        "h dot 8 whole free", (2048, 2048), 0, ("vector_rows", {"LANES": 128}, 0),
        ("vector_rows", {"LANES": 32}, 0), ("vector_rows", {"LANES": 32}, 4),
    ),
    "rows that begin anywhere": (
        "h dot 1 free", (8192, 8192), 0, ("vector_rows", {"LANES": 128}, 0),
        ("vector_rows", {"LANES": 32}, 0), ("vector_rows", {"LANES": 32}, 4),
    ),
    "rows of floats": (
        "s dot 4 whole free", (8192, 8192), 0, ("vector_rows", {"LANES": 128}, 0),
        ("vector_rows", {"LANES": 32}, 0), ("vector_rows", {"LANES": 32}, 4),
    ),
    "tall columns": (
        "d axpy 2 whole free", (1 << 20, 64), 1, ("vector_columns", {"LANES": 32}, 0),
        ("long_columns", {}, 0), ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 0),
    ),
    "tall columns of floats": (
        "s axpy 4 whole free", (1 << 20, 64), 0, ("vector_columns", {"LANES": 32}, 0),
        ("long_columns", {}, 0), ("vector_columns", {"LANES": 32}, 1),
    ),
    "columns": (
        "c axpy 2 whole free", (8192, 8192), 1, ("vector_columns", {"LANES": 32}, 0),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 0),
        ("vector_columns", {"LANES": 8, "THREADS_PER_BLOCK": 512}, 0),
    ),
    "wide columns": (
        "d axpy 2 whole free", (64, 1 << 20), 1,
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 256}, 2),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 1),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 2),
    ),
    "columns in the cache": (
        "d axpy 2 whole free", (1024, 2048), 0, ("vector_columns", {"LANES": 32}, 0),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 0), ("long_columns", {}, 0),
    ),
    "columns of short numbers": (
        "h axpy 8 whole free", (8192, 8192), 1,
        ("vector_columns", {"LANES": 32, "THREADS_PER_BLOCK": 256}, 1),
        ("vector_columns", {"LANES": 8, "THREADS_PER_BLOCK": 512}, 0),
        ("vector_columns", {"LANES": 8, "THREADS_PER_BLOCK": 512}, 1),
    ),
    "columns of short numbers, few lanes": (
        "h axpy 8 whole free", (8192, 8192), 0,
        ("vector_columns", {"LANES": 32, "THREADS_PER_BLOCK": 256}, 1),
        ("vector_columns", {"LANES": 4, "THREADS_PER_BLOCK": 512}, 0),
        ("vector_columns", {"LANES": 32, "THREADS_PER_BLOCK": 256}, 2),
    ),
    "few columns' worth of blocks": (
        "h axpy 8 whole free", (4096, 8192), 1,
        ("vector_columns", {"LANES": 8, "THREADS_PER_BLOCK": 512}, 0),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 256}, 2),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 256}, 1),
    ),
    "columns of narrow loads": (
        "d axpy 1 free", (8192, 8192), 0, ("vector_columns", {"LANES": 32}, 0),
        ("vector_columns", {"LANES": 16, "THREADS_PER_BLOCK": 512}, 0), ("long_columns", {}, 0),
    ),
}  # fmt: skip


#: The same of few rows, which may cost more.
FAVOURED_OF_FEW = {
    "64 rows": (
        "h dot 8 whole free", (64, 1 << 20), 1, ("vector_rows", {"LANES": 32}, 4),
        ("vector_rows", {"LANES": 32}, 2), ("vector_rows", {"LANES": 16}, 1),
    ),
    "128 rows": (
        "h dot 8 whole free", (128, 1 << 19), 1, ("vector_rows", {"LANES": 128}, 4),
        ("vector_rows", {"LANES": 32}, 4), ("vector_rows", {"LANES": 32}, 2),
    ),
    "128 rows of floats": (
        "s dot 4 whole free", (128, 1 << 18), 1, ("vector_rows", {"LANES": 128}, 4),
        ("vector_rows", {"LANES": 32}, 4), ("vector_rows", {"LANES": 32}, 2),
    ),
    "128 rows that are not split": (
        "d dot 2 whole free", (128, 1 << 17), 1, ("vector_rows", {"LANES": 128}, 4),
        ("vector_rows", {"LANES": 512, "BLOCKS_PER_SM": 0}, 0), ("vector_rows", {"LANES": 32}, 2),
    ),
    "160 rows of doubles": (
        "d dot 2 whole free", (160, 1 << 18), 0, ("vector_rows", {"LANES": 128}, 4),
        ("vector_rows", {"LANES": 32}, 4), ("vector_rows", {"LANES": 32}, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("factor", [SHARES_WELL, COSTS_TOO_MUCH])
@pytest.mark.parametrize("name", FAVOURED)
def test_a_launch_that_eight_vectors_share_well_is_taken_where_it_costs_little(name, factor):
    """Also where another launch is usual, or comes first."""
    check(FAVOURED[name], factor, factor == SHARES_WELL)


@pytest.mark.parametrize("factor", [SHARES_WELL_OF_FEW, COSTS_TOO_MUCH_OF_FEW])
@pytest.mark.parametrize("name", FAVOURED_OF_FEW)
def test_for_few_rows_it_may_cost_more(name, factor):
    check(FAVOURED_OF_FEW[name], factor, factor == SHARES_WELL_OF_FEW)


def check(favoured, factor, is_near):
    text, (rows_, cols), wins, *launches = favoured
    kind = kind_named(text)
    tried = [Candidate(number_of(own, **knobs), n) for own, knobs, n in launches]
    logs = np.log([1.0, factor, 1.001])
    times = timer.Times(np.zeros(3, int), np.array([rows.code_of(each) for each in tried]), logs)
    lines = (rows_, cols) if kind.access == "axpy" else (cols, rows_)
    cell = cells.index_of_line(lines[0]), cells.index_of_lines(lines[1])

    def favours(problem, candidate):
        assert (problem.rows, problem.cols) == (rows_, cols)
        own = SETS[candidate.number]
        well = sharing.shares_well(own.kernel, own.knobs, candidate.blocks, problem)
        return sharing.favour(problem) if well else 1.0

    expected = wins if is_near else 0
    for usual in ({}, {cell: tried[0]}):
        own = deciding.Deciding(kind, [cell], usual)
        own._cell_of, own._first = {0: 0}, {0: True}
        best = [tried[0], tried[2]] if not expected and not usual else [tried[expected]]
        assert own.chosen(times, 1, favours)[cell] in best
