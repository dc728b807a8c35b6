"""The part of ``docs/several.md`` about problems on which constants were tried."""

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


def part(folder: Path = FOLDER) -> list[str]:
    """A table for each GPU of the problems whose constants of today were timed; or nothing.

    Those that were timed without peers say nothing here.
    """
    tables: list[str] = []
    for file in sorted(folder.glob("*.json")):
        rows = [row for row in json.loads(file.read_text("utf-8")) if "one_us" in row]
        timed = [(row, us) for row in rows if (us := now_us(row)) is not None]
        if timed:
            tables += [f"**On an {device_of(rows[0]).name}**", *_beside_peers(timed)]
    if not tables:
        return []
    return [
        "### Further problems",
        "These were timed to choose the constants of kernels (`python -m benchmarks.fit.tiles`)."
        " *Now* is the time of the constants of today. Here *of the floor* is the time of the"
        " plain kernel of the same run divided by ours, so it may be more than 1. Problems whose"
        " constants of today have not been timed are left out.",
        *tables,
    ]


def _named(row: Mapping[str, Any]) -> str:
    cell = Cell(**row["cell"])
    said = f"{cell.m} x {cell.n} {cell.order}{cell.op}, {_NAMES[cell.dtype]}"
    return f"{said}, {cell.vectors} vectors"


def _us(us: float) -> str:
    """A time whose unit stays beside its number."""
    return unbroken(duration(us * 1e-6))


def _beside_peers(timed: Sequence[tuple[Mapping[str, Any], float]]) -> list[str]:
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
