"""The part of ``docs/several.md`` about kernels that are newer than the times beside peers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.pages.page import RESULTS, duration, markdown, number
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.records import CellResult
from gemv.selection.machine import REFERENCE
from gemv.selection.parts import parts

#: An address for A; only its alignment matters.
_ADDRESS = 1 << 30
_FILE = RESULTS / "tiles" / "h200.json"
_NAMES = {"s": "float32", "d": "float64", "c": "complex64", "h": "float16", "b": "bfloat16"}


def part(earlier: Sequence[CellResult]) -> list[str]:
    """A table of the problems whose constants of today were timed; nothing without times."""
    if not _FILE.exists():
        return []
    times = {row.cell: row.time_s for row in earlier if row.time_s}
    lines = []
    for row in json.loads(_FILE.read_text("utf-8")):
        cell = Cell(**row["cell"])
        framed = FramedCell.at(cell, _ADDRESS, 1)
        (found, *_) = parts(framed.problem, lay_out(cell).batch, REFERENCE)
        own = [each["us"] for each in row["sets"] if each["knobs"] == found.choice.knobs]
        if own:
            before = times.get(cell)
            lines.append(
                (
                    row["plain_us"] / min(own),
                    f"{cell.m} x {cell.n} {cell.order}{cell.op}, {_NAMES[cell.dtype]},"
                    f" {cell.vectors} vectors",
                    "" if before is None else duration(before),
                    duration(min(own) * 1e-6),
                )
            )
    if not lines:
        return []
    table = [[text, before, now, number(share)] for share, text, before, now in sorted(lines)]
    return [
        "### Newer constants",
        "The kernels for several vectors have changed since they were timed beside peers. *Now* is"
        " a time of today's kernels on the same GPU model, beside the plain kernel but without"
        " peers (`python -m benchmarks.fit.tiles`); those furthest from the floor come first.",
        markdown(["A", "above", "now", "of the floor"], "wfff", table),
    ]
