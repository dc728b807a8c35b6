"""Constants for several vectors: what a campaign would try, and what the stored one found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.programs import program

from gemv.kernels import get
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.selection.machine import REFERENCE as H200
from gemv.selection.parts import parts

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "tiles" / "h200.json"
#: Constants that sums depend on.
OF_SUMS = ("LANES", "PIECES", "COLUMNS", "BLOCKS_PER_SM", "OF_ROWS", "OF_VECTORS", "OF_THREADS")


def chosen(cell):
    layout = lay_out(cell)
    framed = FramedCell.at(cell, 1 << 30, 1)
    (part, *_) = parts(framed.problem, layout.batch, H200)
    return framed.problem, layout.batch, part.choice


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("letter", "sdbch")
def test_candidates_have_the_sums_of_what_is_chosen(letter, order):
    tiles = program("fit.tiles")
    wanted = [cell for cell in tiles.cells() if (cell.dtype, cell.order) == (letter, order)]
    assert len(wanted) == 9
    numbers = []
    for cell in wanted:
        problem, batch, choice = chosen(cell)
        found = tiles.candidates(choice.kernel.name, problem, choice.knobs, 24)
        assert found[0] == choice.knobs and len(found) <= 24
        numbers.append(len(found))
        for knobs in found:
            assert all(knobs.get(name) == choice.knobs.get(name) for name in OF_SUMS)
            assert knobs["COUNT"] == choice.knobs["COUNT"]
            choice.kernel.of_batch(problem, batch, H200, knobs)  # the constants go together
    assert max(numbers) > 10


def test_stored_times_are_of_the_right_results_and_the_choices_are_among_the_fastest():
    rows = json.loads(STORED.read_text("utf-8"))
    ratios = []
    for row in rows:
        assert all(each["has_same_bits"] for each in row["sets"]), row["cell"]
        _, _, choice = chosen(Cell(**row["cell"]))
        assert get(row["kernel"]).name == choice.kernel.name
        times = [each["us"] for each in row["sets"] if each["knobs"] == choice.knobs]
        if times:
            ratios.append(min(times) / min(each["us"] for each in row["sets"]))
    # Of some problems the choice was not timed: it leaves out what spills registers.
    assert len(ratios) > len(rows) / 2 and max(ratios) < 1.2
