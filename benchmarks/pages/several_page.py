"""``docs/several.md`` from ``benchmarks/results/several``, ``tiles`` and ``ragged``, and
``docs/shards.md`` from ``benchmarks/results/shards``.

    python -m benchmarks.pages.several_page            prints both pages
    python -m benchmarks.pages.several_page --write    writes them
    python -m benchmarks.pages.several_page --check    exit status 1 if one is not up to date

``make several`` measures what is on the first, ``python -m benchmarks.measure.shards`` the second.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.pages import (
    grid_page,
    machines_part,
    ragged_part,
    shards_part,
    tiles_part,
    today,
)
from benchmarks.pages.page import (
    RESULTS,
    TOP,
    command,
    duration,
    in_part,
    markdown,
    number,
    versions,
)
from gemv.measure.records import CellResult, GridResults

PAGE = TOP / "docs" / "several.md"
FOLDER = RESULTS / "several"
TITLE = "# Several vectors, several matrices"
SHARDS = TOP / "docs" / "shards.md"
#: Losing cells that are in sight; the others are folded away.
IN_SIGHT = 8
WRITTEN = "<!-- Written by benchmarks/pages/several_page.py from benchmarks/results/. -->"
_NAMES = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128", "h": "float16",
          "b": "bfloat16"}  # fmt: skip


def results() -> dict[str, GridResults]:
    """The stored results by the name of their file, a folder for each machine."""
    return grid_page.load(FOLDER)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [math.log(each) for each in values if each is not None]
    return math.exp(sum(found) / len(found)) if found else None


def _down(least: float | None) -> float | None:
    """The least figure with two digits, rounded down as on the other pages."""
    return None if least is None else math.floor(100 * least) / 100


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
                number(_down(min(ratios, default=None))),
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
            grid_page.exact(row.ratio),
        ]
        for row in found
    ]
    heads = [f"{name}: A", "time", "of the floor", "times as fast"]
    table = in_part(heads, "wfff", lines, IN_SIGHT)
    return f"The cells in which a peer is faster, the slowest first:\n\n{table}"


def _part(title: str, found: dict[str, list[CellResult]], name: str) -> list[str]:
    """A section of the cells whose number of that name is more than 1; by GPU, if several have any.

    Parameters
    ----------
    found : dict
        Cells by GPU.
    """
    heads = ["A", name, "of the floor", "times as fast", "slowest", "peer is faster"]
    chosen = {gpu: [row for row in rows if getattr(row, name) > 1] for gpu, rows in found.items()}
    tables = [
        [
            *([f"### {gpu}"] if sum(map(bool, chosen.values())) > 1 else []),
            markdown(heads, "wfffff", _summary(rows, name)),
            *filter(None, [today.changed(rows, gpu)]), _behind(rows, name),
        ]
        for gpu, rows in chosen.items()
        if rows
    ]  # fmt: skip
    return [f"## {title}", *(text for each in tables for text in each)] if tables else []


def _sources(grids: Sequence[GridResults]) -> str:
    """What some results of one GPU were measured with."""
    sources = ", ".join(dict.fromkeys(each.versions.get("gemv", "") for each in grids))
    others = {name: said for name, said in grids[0].versions.items() if name != "gemv"}
    return f"gemv {sources}; {versions(others)}."


def page() -> str:
    by_gpu = grid_page.of_gpus(results())
    if not by_gpu:
        return f"{TITLE}\n\nNo results are stored yet: `make several` measures them on a GPU.\n"
    found = {gpu: [row for each in grids for row in each.rows] for gpu, grids in by_gpu.items()}
    rows = [row for each in found.values() for row in each]
    wrong = sum(row.wrong is not None for row in rows)
    parts = [
        TITLE,
        WRITTEN,
        f"One call for several products on an {' and on an '.join(found)}, all arrays on the GPU."
        " *Of the floor* is the floor divided by our time. The floor is the shortest time in which"
        " any kernel of the same run (a plain one, ours or a peer's) moved the bytes of A, x and"
        " y once. *Times as fast* is the time of the fastest peer divided by ours: the geometric"
        " mean, and the *slowest* cell. [How we measure](measure.md) names the peers; TF32 is"
        f" off. {len(rows)} cells, {wrong} wrong. C and F are the storage orders of A, N and T are"
        " op(A). PyTorch uses tensor cores for float64 and 16-bit numbers. gemv does not, because"
        " each of its products has the bits that it has alone.",
    ]
    parts += _part("One matrix and several vectors", found, "vectors")
    parts += tiles_part.part()
    parts += _part("Several matrices, each with a vector of its own", found, "batch")
    parts += ragged_part.part(ragged_part.load())
    for gpu, grids in by_gpu.items():
        parts.append(f"Versions{f', {gpu}' if len(by_gpu) > 1 else ''}: {_sources(grids)}")
    return "\n\n".join(parts) + "\n"


def shards() -> str:
    """The page of one matrix on several GPUs."""
    parts = shards_part.part(shards_part.load()) or [
        "No results are stored yet: `python -m benchmarks.measure.shards` measures them."
    ]
    parts += machines_part.part(machines_part.load())
    return "\n\n".join(["# One matrix on several GPUs", WRITTEN, *parts]) + "\n"


def pages() -> dict[Path, str]:
    return {PAGE: page(), SHARDS: shards()}


if __name__ == "__main__":
    sys.exit(command(__doc__, sys.argv[1:], pages))
