"""The page ``docs/several.md`` from ``benchmarks/results/several``.

    python -m benchmarks.pages.several_page            prints the page
    python -m benchmarks.pages.several_page --write    writes it
    python -m benchmarks.pages.several_page --check    exit status 1 if it is not up to date

``make several`` measures what is on it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

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


def _cells(rows: Sequence[CellResult], name: str) -> list[list[str]]:
    """All cells, those first where a peer is faster by most."""
    timed = [row for row in rows if row.time_s]
    timed.sort(key=lambda row: math.inf if row.ratio is None else row.ratio)
    return [
        [
            f"{getattr(row, name)}: {row.m} x {row.n} {row.order}, {_NAMES[row.dtype]}",
            duration(row.time_s),
            number(row.share),
            number(row.ratio),
            f"`{row.kernel}`",
        ]
        for row in timed
    ]


def _part(title: str, rows: Sequence[CellResult], name: str) -> str:
    heads = ["A", name, "of the floor", "beside the peer", "slowest", "a peer is faster"]
    cells = [f"{name}: A", "time", "of the floor", "beside the peer", "kernel"]
    return "\n\n".join(
        [
            f"## {title}",
            markdown(heads, "wfffff", _summary(rows, name)),
            "Each cell, those first where a peer is faster by most:",
            markdown(cells, "wfffw", _cells(rows, name)),
        ]
    )


def page() -> str:
    found = results()
    rows = [row for each in found.values() for row in each.rows]
    first = next(iter(found.values()))
    wrong = sum(row.wrong is not None for row in rows)
    parts = [
        "% Made by benchmarks/pages/several_page.py from benchmarks/results/several; edit that"
        " instead.",
        "# Several vectors, several matrices",
        f"One call for several products on an {first.device}, all arrays on the GPU. *Of the floor*"
        " is the time of a plain kernel that moves the bytes of A, x and y once, divided by ours."
        " *Beside the peer* says how many times as fast as the fastest peer we are: the geometric"
        " mean, then the slowest cell. The peers are PyTorch's `mm` and `bmm` and what else"
        f" {{doc}}`measure` names; TF32 is off. {len(rows)} cells, {wrong} wrong. C and F are the"
        " storage orders of A. A few vectors of 16-bit numbers are what tensor cores are made for,"
        " and PyTorch uses them; our sums have the bits of single products instead.",
    ]
    vectors = [row for row in rows if row.vectors > 1]
    if vectors:
        parts.append(_part("One matrix and several vectors", vectors, "vectors"))
    batches = [row for row in rows if row.batch > 1]
    if batches:
        parts.append(_part("Several matrices, each with a vector of its own", batches, "batch"))
    parts.append(f"Versions: {versions(first.versions)}.")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(command(__doc__, sys.argv[1:], pages))
