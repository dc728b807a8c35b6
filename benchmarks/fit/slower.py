"""Cells of a grid that take longer than before, to be timed with both launches in one run.

A choice that is new may be the slower one, and a GPU of the same kind may be: two grids measured on
different days do not tell which. So a campaign times both launches on these cells, beside those
that the formula expects to be the fastest (``campaign --slower BEFORE.json AFTER.json``), and
:mod:`benchmarks.fit.timed_cells` decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemv.measure.cells import Cell
from gemv.measure.records import GridResults

#: The number of the first cell of a grid in a campaign.
GRID = 1 << 26
#: The factor from which on a cell takes longer; between two GPUs of a kind are 2 %.
LONGER = 1.025
#: Launches beside the two that such a cell is timed with.
OTHERS = 4


def slower_cells(before: Path, after: Path) -> tuple[list[tuple[int, Cell]], dict[str, Any]]:
    """Numbered cells that another launch takes longer for, and by number the launch of before."""
    stored = {row.cell: row for row in GridResults.load(before).rows}
    wanted: list[tuple[int, Cell]] = []
    also: dict[str, Any] = {}
    for at, row in enumerate(GridResults.load(after).rows):
        old = stored.get(row.cell)
        if old is None or row.time_s is None or old.time_s is None:
            continue
        is_another = (row.kernel, row.knobs) != (old.kernel, old.knobs)
        if is_another and row.time_s > LONGER * old.time_s:
            wanted.append((GRID + at, row.cell))
            also[str(GRID + at)] = [[old.kernel, old.knobs]]
    return wanted, also
