"""``benchmarks/fit/columns_of_items.py``: what it draws, times and says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import gemv
from benchmarks.fit import columns_of_items
from benchmarks.pages.page import RESULTS
from gemv.core.dtypes import DTYPES
from gemv.kernels.columns_of_items import CANDIDATES
from gemv.measure.cells import Cell

STORED = RESULTS / "items" / "h100.json"


def rows():
    return json.loads(STORED.read_text(encoding="utf-8"))["rows"]


def test_the_formula_is_near_the_best_constants(capsys):
    summary = columns_of_items.report(rows())
    assert summary["batches"] == 134 and summary["times"] == 1967
    assert summary["mean"] <= 1.015 and summary["most_of_95"] <= 1.075 and summary["worst"] <= 1.16
    said = capsys.readouterr().out.splitlines()
    assert json.loads(said[0]) == summary and len(said) == 1 + columns_of_items.WORST
    assert said[1].startswith("1.158  1825 of 193 x 193 b: ")


def test_no_constants_for_all_batches_are_as_good():
    summary = columns_of_items.report(rows())
    for place, constants in enumerate(CANDIDATES):
        ratios = [
            row["us"][place] / min(us for us in row["us"] if us is not None)
            for row in rows()
            if row["us"][place] is not None
        ]
        assert np.exp(np.log(ratios).mean()) > summary["mean"] + 0.05, constants


def test_batches_are_drawn_evenly():
    several = columns_of_items.drawn(3)
    cells = [next(several) for _ in range(300)]
    assert {cell.dtype for cell in cells} == set("dcszb")
    again = columns_of_items.drawn(3)
    assert [next(again) for _ in range(300)] == cells
    for cell in cells:
        size = DTYPES[cell.dtype].itemsize
        assert 32 <= min(cell.m, cell.n) <= max(cell.m, cell.n) <= 512
        assert 0.9 * 136e6 < cell.batch * cell.m * cell.n * size <= 136e6 or cell.batch == 65000
    squares = sum(cell.m == cell.n for cell in cells)
    assert 60 < squares < 160


def test_a_run_compares_results_and_keeps_what_it_has(tmp_path):
    path = tmp_path / "items.json"
    stored = {"rows": []}
    cells = [Cell(40, 36, "d", "T", batch=2), Cell(40, 36, "d", "N", batch=2)]
    columns_of_items.measure(path, stored, cells)
    columns_of_items.measure(path, stored, cells)
    kept = json.loads(path.read_text(encoding="utf-8"))
    (row,) = kept["rows"]  # the second batch has rows, and the second run adds nothing
    assert row["cell"] == {"m": 40, "n": 36, "dtype": "d", "op": "T", "batch": 2}
    assert len(row["us"]) == len(CANDIDATES) and math.log2(row["knobs"]["LANES"]) % 1 == 0
    # The simulator compares results, and times nothing.
    assert all(us is None for us in row["us"]) == (gemv.backend() == "simulator")
    with pytest.raises(ValueError, match="was measured on another GPU, not"):
        columns_of_items.measure(path, kept | {"device": "another GPU"}, cells)
