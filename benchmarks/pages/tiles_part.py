"""The part of ``docs/several.md`` about kernels that are newer than the times beside peers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.grid_page import unbroken
from benchmarks.pages.page import RESULTS, duration, folded, in_part, markdown, number
from benchmarks.pages.today import choice_of, is_it
from gemv.core.geometry import Chip, Device
from gemv.measure.cells import Cell
from gemv.measure.records import CellResult

FOLDER = RESULTS / "tiles"
#: Problems with a faster peer that are in sight; the others are folded away.
IN_SIGHT = 8
_NAMES = {"s": "float32", "d": "float64", "c": "complex64", "h": "float16", "b": "bfloat16"}


def device_of(row: Mapping[str, Any]) -> Device:
    """The GPU that a problem was timed on."""
    found = row["device"]
    capability, chip = tuple(found["compute_capability"]), Chip(**found["chip"])
    return Device(found["name"], capability, found["multiprocessors"], chip=chip)


def now_us(row: Mapping[str, Any]) -> float | None:
    """Microseconds of the constants of today; None if they were not timed."""
    choice = choice_of(Cell(**row["cell"]), device_of(row))
    own = [each["us"] for each in row["sets"] if is_it(choice, row["kernel"], each["knobs"])]
    return min(own, default=None)


def part(earlier: Sequence[CellResult], folder: Path = FOLDER) -> list[str]:
    """A table for each GPU of the problems whose constants of today were timed; or nothing.

    Parameters
    ----------
    earlier : sequence of CellResult
        Times of the reference GPU beside peers.
    """
    tables: list[str] = []
    for file in sorted(folder.glob("*.json")):
        rows = json.loads(file.read_text("utf-8"))
        timed = [(row, us) for row in rows if (us := now_us(row)) is not None]
        if timed:
            make = _beside_peers if "one_us" in timed[0][0] else _beside_earlier
            tables += [f"**On an {device_of(rows[0]).name}**", *make(timed, earlier)]
    if not tables:
        return []
    return [
        "### Newer constants",
        "The kernels for several vectors are newer than the times above. *Now* is the time of"
        " today's kernels. Here *of the floor* is the time of the plain kernel of the same run"
        " divided by ours, so it may be more than 1 (`python -m benchmarks.fit.tiles`). Problems"
        " whose constants have not been timed yet are left out.",
        *tables,
    ]


def _named(row: Mapping[str, Any]) -> str:
    cell = Cell(**row["cell"])
    said = f"{cell.m} x {cell.n} {cell.order}{cell.op}, {_NAMES[cell.dtype]}"
    return f"{said}, {cell.vectors} vectors"


def _us(us: float) -> str:
    """A time whose unit stays beside its number."""
    return unbroken(duration(us * 1e-6))


def _beside_peers(
    timed: Sequence[tuple[Mapping[str, Any], float]], earlier: Sequence[CellResult]
) -> list[str]:
    """With the time of a single product, and PyTorch's of all vectors."""
    lines = []
    for row, us in timed:
        peer, share = row["peers"].get("torch.mm"), row["plain_us"] / us
        texts = [
            _named(row),
            _us(row["one_us"]),
            "" if peer is None else _us(peer),
            _us(us),
            number(None if peer is None else peer / us),
            number(share),
        ]
        lines.append((1.0 if peer is None else min(peer / us, 1.0), share, texts))
    heads = ["A", "one vector", "torch.mm", "now", "times as fast", "of the floor"]
    lines.sort()
    slower = [texts for ratio, _, texts in lines if ratio < 1]
    others = [texts for ratio, _, texts in lines if ratio == 1]
    said = "*One vector* is the time of a single product with the same A."
    table = [in_part(heads, "wfffff", slower, IN_SIGHT)] if slower else []
    if others:
        rest = markdown(heads, "wfffff", others)
        table.append(folded(f"The other {len(others)}, those furthest from the floor first", rest))
    faster = f"`torch.mm` is faster in {len(slower)} of {len(lines)} problems."
    return [f"{faster} {said}", *table]


def _beside_earlier(
    timed: Sequence[tuple[Mapping[str, Any], float]], earlier: Sequence[CellResult]
) -> list[str]:
    """With the earlier time of the same problem, without peers."""
    times = {each.cell: each.time_s for each in earlier if each.time_s}
    lines = []
    for row, us in timed:
        before, share = times.get(Cell(**row["cell"])), row["plain_us"] / us
        above = "" if before is None else _us(before * 1e6)
        lines.append((share, [_named(row), above, _us(us), number(share)]))
    table = markdown(["A", "before", "now", "of the floor"], "wfff", [t for _, t in sorted(lines)])
    said = f"{len(lines)} problems, those furthest from the floor first"
    return ["*Before* is the earlier time. Peers were not timed again.", folded(said, table)]
