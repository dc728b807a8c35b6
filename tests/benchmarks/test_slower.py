"""Cells of a grid that take longer than before are timed by both launches."""

import pytest
from helpers.programs import program

from gemv.measure.cells import Cell
from gemv.measure.records import CellResult, GridResults

campaign = program("fit.campaign")
slower = program("fit.slower")
store = program("fit.store")

#: What a cell had before: four lanes for a row.
LAUNCH = "vector_rows", {"LANES": 4, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 64}


def stored(path, rows):
    """The path of a grid with these cells, seconds and lanes."""
    kernel, knobs = LAUNCH
    content = GridResults("NVIDIA H200", "cuda")
    for cell, seconds, lanes in rows:
        content.rows.append(
            CellResult(cell.m, cell.n, cell.dtype, cell.op, cell.order, cell.view, cell.hot,
                       cell.beta, 1, 1, kernel, {**knobs, "LANES": lanes}, seconds)
        )  # fmt: skip
    content.store(path)
    return path


def test_only_cells_that_another_launch_takes_longer_for_are_timed_again(tmp_path):
    cells = [Cell(m, 64, "s") for m in range(1, 7)]
    before = stored(
        tmp_path / "before.json",
        [(cell, None if cell == cells[4] else 1.0, 4) for cell in cells if cell != cells[3]],
    )
    longer, no_longer = 1.001 * slower.LONGER, 0.999 * slower.LONGER
    rows = [
        (cells[0], longer, 8), (cells[1], no_longer, 8),
        (cells[2], longer, 4),  # by the same launch
        (cells[3], longer, 8), (cells[4], longer, 8),  # without a time of before
        (cells[5], longer, 8),
    ]  # fmt: skip
    wanted, also = slower.slower_cells(before, stored(tmp_path / "after.json", rows))
    assert wanted == [(slower.GRID, cells[0]), (slower.GRID + 5, cells[5])]
    kernel, knobs = LAUNCH
    assert also == {str(number): [[kernel, knobs]] for number, _ in wanted}


@pytest.mark.skipif(
    campaign.backend_name() != "simulator", reason="the simulator tells what is tried"
)
def test_a_campaign_times_both_launches_on_them(tmp_path):
    cells = [Cell(20, 16, "s"), Cell(24, 16, "s")]
    grids = [
        str(stored(tmp_path / f"{name}.json", [(cell, seconds, lanes) for cell in cells]))
        for name, seconds, lanes in (("before", 1.0, 4), ("after", 2.0, 8))
    ]
    file = tmp_path / "campaign.json"
    campaign.main([str(file), "--slower", *grids, "--jobs", "1"])
    found = store.Campaign.load(file).cells
    assert [each.number for each in found] == [slower.GRID, slower.GRID + 1]
    first = program("fit.candidates").normal(*LAUNCH)
    for each in found:
        tried = [one for one, _ in each.times]
        assert first in tried and each.present in tried and len(set(tried)) <= 2 + slower.OTHERS
    with pytest.raises(SystemExit):
        campaign.main([str(file), "--slower", *grids[::-1], "--jobs", "1"])
