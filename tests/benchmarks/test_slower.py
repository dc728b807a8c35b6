"""Cells of a grid that take longer than before are timed by both launches."""

import pytest
from helpers.programs import program

from gemv.engines import backend
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.measure.records import CellResult, GridResults
from gemv.selection.select import select

campaign = program("fit.campaign")
slower = program("fit.slower")
store = program("fit.store")
normal = program("fit.candidates").normal

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
    after = stored(tmp_path / "after.json", rows)
    wanted, also = slower.slower_cells(before, after)
    first = slower.SLOWER.start
    assert wanted == [(first, cells[0]), (first + 1, cells[5])]
    kernel, knobs = LAUNCH
    assert also == {str(number): [[kernel, knobs]] for number, _ in wanted}
    # Times of both launches are enough, those of one are not; and numbers stay different.
    old, new = (normal(kernel, {**knobs, "LANES": lanes}) for lanes in (4, 8))
    times = [store.Timed(old, 1.0), store.Timed(new, 2.0)]
    measured = [
        store.Measured(first + 7, cells[0], 1, 1.0, {}, new, times),
        store.Measured(first + 8, cells[5], 1, 1.0, {}, new, times[1:]),
        store.Measured(1, cells[5], 1, 1.0, {}, new, times),  # of the draw
    ]
    wanted, _ = slower.slower_cells(before, after, measured)
    assert wanted == [(first + 9, cells[5])]


@pytest.mark.skipif(
    campaign.backend_name() != "simulator", reason="the simulator tells what is tried"
)
def test_a_campaign_times_both_launches_on_them(tmp_path, capsys):
    cells = [Cell(40, 36, "s"), Cell(44, 36, "s")]
    grids = [
        str(stored(tmp_path / f"{name}.json", [(cell, seconds, lanes) for cell in cells]))
        for name, seconds, lanes in (("before", 1.0, 4), ("after", 2.0, 8))
    ]
    file = tmp_path / "campaign.json"
    asked = [str(file), "--jobs", "1", "--slower"]
    campaign.main([*asked, *grids])
    found = store.Campaign.load(file).cells
    assert [each.number for each in found] == [slower.SLOWER.start, slower.SLOWER.start + 1]
    before, device = normal(*LAUNCH), backend.engine().device()
    for each in found:
        tried = {one for one, _ in each.times}
        chosen = select(FramedCell.at(each.cell, 1 << 30, 1).problem, device)
        assert each.present == normal(chosen.kernel.name, chosen.knobs) != before
        assert before in tried and each.present in tried and len(tried) <= 2 + slower.OTHERS
    for refused, told in (
        ([*asked, *grids[::-1]], "no such cells"),
        ([*asked, *grids, "--random", "1"], "neither --random"),
        ([*asked, *grids, "--only", "h dot 1"], "nor --only"),
        ([*asked, *grids, "--sharing"], "not allowed with"),
    ):
        with pytest.raises(SystemExit):
            campaign.main(refused)
        assert told in capsys.readouterr().err
