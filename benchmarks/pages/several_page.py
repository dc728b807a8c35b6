"""``docs/several.md`` from ``benchmarks/results/several``, ``tiles``, ``ragged``, ``shards``.

    python -m benchmarks.pages.several_page            prints the page
    python -m benchmarks.pages.several_page --write    writes it
    python -m benchmarks.pages.several_page --check    exit status 1 if it is not up to date

``make several`` measures what is on it, ``python -m benchmarks.measure.shards`` the part of
several GPUs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.pages import ragged_part, shards_part, tiles_part
from benchmarks.pages.page import RESULTS, TOP, command, duration, markdown, number, versions
from gemv.measure.records import CellResult, GridResults

PAGE = TOP / "docs" / "several.md"
FOLDER = RESULTS / "several"
_NAMES = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128", "h": "float16",
          "b": "bfloat16"}  # fmt: skip


def results() -> dict[str, GridResults]:
    """The stored results by the name of their file."""
    return {file.stem: GridResults.load(file) for file in sorted(FOLDER.glob("*.json"))}


def _mean(values: Iterable[float | None]) -> float | None:
    found = [math.log(each) for each in values if each is not None]
    return math.exp(sum(found) / len(found)) if found else None


def _summary(rows: Sequence[CellResult], name: str) -> list[list[str]]:
    """A line for each dtype and number: means, the slowest cell, and how many are behind a peer."""
    lines = []
    keys = dict.fromkeys((row.dtype, getattr(row, name)) for row in rows)
    for dtype, count in sorted(keys):
        some = [r for r in rows if (r.dtype, getattr(r, name)) == (dtype, count) and r.time_s]
        ratios = [r.ratio for r in some if r.ratio is not None]
        lines.append(
            [
                _NAMES[dtype],
                str(count),
                number(_mean(r.share for r in some)),
                number(_mean(ratios)),
                number(min(ratios, default=None)),
                f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}",
            ]
        )
    return lines


def _behind(rows: Sequence[CellResult], name: str) -> str:
    """The cells in which a peer is faster, the slowest first."""
    found = [row for row in rows if row.time_s and row.ratio is not None and row.ratio < 1]
    if not found:
        return "In no cell is a peer faster."
    found.sort(key=lambda row: row.ratio or 0.0)
    lines = [
        [
            f"{getattr(row, name)}: {row.m} x {row.n} {row.order}{row.op}, {_NAMES[row.dtype]}",
            duration(row.time_s),
            number(row.share),
            number(row.ratio),
        ]
        for row in found
    ]
    heads = [f"{name}: A", "time", "of the floor", "times as fast"]
    table = markdown(heads, "wfff", lines)
    return f"The cells in which a peer is faster, the slowest first:\n\n{table}"


def _part(title: str, rows: Sequence[CellResult], name: str) -> str:
    heads = ["A", name, "of the floor", "times as fast", "slowest", "peer is faster"]
    summary = markdown(heads, "wfffff", _summary(rows, name))
    return "\n\n".join([f"## {title}", summary, _behind(rows, name)])


def page() -> str:
    found = results()
    rows = [row for each in found.values() for row in each.rows]
    first = next(iter(found.values()))
    wrong = sum(row.wrong is not None for row in rows)
    parts = [
        "# Several vectors, matrices, GPUs",
        "<!-- Written by benchmarks/pages/several_page.py from benchmarks/results/. -->",
        f"One call for several products on an {first.device}, all arrays on the GPU. *Of the floor*"
        " is the time of a plain kernel that moves the bytes of A, x and y once, divided by ours."
        " *Times as fast* compares with the fastest peer: the geometric mean, and beside it the"
        " *slowest* cell. The peers are PyTorch's `mm` and `bmm` and what else"
        f" [How we measure](measure.md) names; TF32 is off. {len(rows)} cells, {wrong} wrong. C and"
        " F are the storage orders of A. For float64 and 16-bit numbers PyTorch uses tensor cores;"
        " our sums have the bits of single products instead.",
    ]
    vectors = [row for row in rows if row.vectors > 1]
    if vectors:
        parts.append(_part("One matrix and several vectors", vectors, "vectors"))
    parts += tiles_part.part(vectors)
    batches = [row for row in rows if row.batch > 1]
    if batches:
        parts.append(_part("Several matrices, each with a vector of its own", batches, "batch"))
    parts += ragged_part.part(ragged_part.load())
    parts += shards_part.part(shards_part.load())
    sources = ", ".join(dict.fromkeys(each.versions.get("gemv", "") for each in found.values()))
    others = {name: said for name, said in first.versions.items() if name != "gemv"}
    parts.append(f"Versions: gemv {sources}; {versions(others)}.")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(command(__doc__, sys.argv[1:], pages))
