"""The program that times small matrices: its launches, its checks and its table."""

from __future__ import annotations

import json

import pytest

import gemv
from benchmarks.measure import small
from gemv.measure.cells import Cell
from gemv.selection import select as selection

if gemv.backend() != "simulator":
    pytest.skip("on a GPU the program itself runs", allow_module_level=True)

FEW = {
    "single": [Cell(5, 7, "s"), Cell(17, 16, "z", "C", beta=-1), Cell(3, 31, "h", view=":, 1:")],
    "few": [Cell(4, 5, "s", batch=3)],
    "vectors": [Cell(6, 9, "d", vectors=5)],
    "wide": [Cell(5, 5, "d", batch=2)],
}


@pytest.fixture
def few_cells(monkeypatch):
    def cells(part):
        return ((cell, "wide" if part == "wide" else "plain") for cell in FEW[part])

    monkeypatch.setattr(small, "cells", cells)


def test_all_parts_are_right_and_a_second_run_goes_on(few_cells, tmp_path, capsys):
    file = tmp_path / "small.json"
    rows = small.measure(file, ("single", "few"), 100, 1)
    assert [row["wrong"] for row in rows] == [None] * 4
    rows = small.measure(file, small.PARTS, 100, 1)
    assert [row["wrong"] for row in rows] == [None] * 6
    assert rows == json.loads(file.read_text())
    kernels = {row["part"]: row["kernels"] for row in rows}
    assert kernels["single"]["small_matrix"] == "small_matrix" != kernels["single"]["formula"]
    assert kernels["few"] == {"small_matrix": "small_matrix", "small_items": "small_items"}
    assert kernels["vectors"]["each a warp"] == kernels["vectors"]["several a warp"]
    assert kernels["vectors"]["formula"].startswith("several_")
    small.report(rows)
    printed = capsys.readouterr().out
    assert "small_matrix over the formula's choice" in printed and "WRONG" not in printed
    assert "4x5 sC  3: 1.00/1.00" in printed


def test_other_bits_and_wrong_sums_are_told(few_cells, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(small.WAYS, "vectors", [
        small.Way("one", "the same"), small.Way("other", "the same", small.FORMULA),
    ])  # fmt: skip
    rows = small.measure(tmp_path / "small.json", ("vectors",), 100, 1)
    assert rows[0]["wrong"] == "other: other bits than one"
    small.report(rows)
    assert "WRONG 6x9 dCN x5 other: other bits than one" in capsys.readouterr().out


def test_selection_is_as_it_was_after_each_way():
    for ways in small.WAYS.values():
        for way in ways:
            with small.chosen_by(way):
                pass
    assert selection.is_small.__name__ == "is_small"
