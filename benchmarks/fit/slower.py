"""Cells of a grid that take longer than before, to be timed with both launches in one run.

A choice that is new may be the slower one, and a GPU of the same kind may be: two grids measured on
different days do not tell which. So a campaign times both launches on these cells, beside those
that the formula expects to be the fastest (``campaign --slower BEFORE.json AFTER.json``), and
:mod:`benchmarks.fit.timed_cells` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.fit.candidates import Candidate, normal
from benchmarks.fit.store import Measured
from gemv.measure.cells import Cell
from gemv.measure.records import GridResults

#: The numbers of such cells in a campaign, behind those of ``grids.py``.
SLOWER = range(600_000, 700_000)
#: The factor from which on a cell takes longer. A plain copy of 268 MB took two H200s 118.3 and
#: 120.3 us, a factor of 1.017.
LONGER = 1.025
#: Launches of a cell beside that of before.
OTHERS = 5


def slower_cells(
    before: Path, after: Path, measured: Iterable[Measured] = ()
) -> tuple[list[tuple[int, Cell]], dict[str, Any]]:
    """Numbered cells that another launch takes longer for, and by number the launch of before.

    Cells are left out for which `measured` has times of both launches. The others get numbers that
    no cell of `measured` has.
    """
    stored = {row.cell: row for row in GridResults.load(before).rows}
    known: dict[Cell, set[Candidate]] = {}
    number = SLOWER.start
    for each in measured:
        if each.number in SLOWER:
            number = max(number, each.number + 1)
            known.setdefault(each.cell, set()).update(one for one, _ in each.times)
    wanted: list[tuple[int, Cell]] = []
    also: dict[str, Any] = {}
    for row in GridResults.load(after).rows:
        old = stored.get(row.cell)
        if old is None or row.time_s is None or old.time_s is None:
            continue
        both = {normal(old.kernel, old.knobs), normal(row.kernel, row.knobs)}
        is_known = both <= known.get(row.cell, set())
        if len(both) == 2 and row.time_s > LONGER * old.time_s and not is_known:
            wanted.append((number, row.cell))
            also[str(number)] = [[old.kernel, old.knobs]]
            number += 1
    return wanted, also
