"""The part of ``docs/several.md`` about matrices of different sizes.

It is made from ``benchmarks/results/ragged``, which ``python -m gemv bench --ragged --json FILE``
measures. Without a file there is no such part.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.pages.page import (
    RESULTS,
    by_device,
    duration,
    markdown,
    number,
    three_digits,
    versions,
)
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.measure.ragged_records import RaggedResult, RaggedResults

FOLDER = RESULTS / "ragged"


def load(folder: Path = FOLDER) -> list[RaggedResults]:
    """The stored results, the reference GPU's first."""
    found = [RaggedResults.load(file) for file in sorted(folder.glob("*.json"))]
    return by_device(found, lambda each: each.device)


def part(results: list[RaggedResults]) -> list[str]:
    """The paragraphs: a table for each file, in which the lists that lose most come first."""
    if not results:
        return []
    return ["## Matrices of different sizes", *(each for one in results for each in _of(one))]


def _of(found: RaggedResults) -> list[str]:
    timed = sorted((row for row in found.rows if row.time_s), key=lambda row: row.ratio or 0.0)
    if not timed:
        raise ValueError(f"benchmarks/results/ragged has a file without times, of {found.device}")
    first = timed[0]
    names = list(dict.fromkeys(name for row in timed for name in row.peers))
    behind = sum(row.ratio is not None and row.ratio < 1 for row in timed)
    lists = f"{len(found.rows)} list{'s' * (len(found.rows) > 1)}"
    wrong = sum(row.wrong is not None for row in found.rows)
    words = (
        f"A plan of `gemv.Batch` on an {found.device}, in a CUDA graph. m and n are drawn from a"
        f" log-uniform distribution from {first.least} to {first.most}. The last columns say how"
        " many times as long other ways take. `gemv.gemv`, `torch.mv` and cuBLAS's gemv compute one"
        " product after the other, in a graph. `torch.bmm` multiplies copies that are padded to the"
        f" largest matrix, with {three_digits(first.padding)} times as many elements. {lists},"
        f" {wrong} wrong; in {behind} of {len(timed)} another way is faster."
    )
    short = [re.sub(r"^(gemv|torch)\.|,.*| gemv.*", "", name) for name in names]
    heads = ["matrices, op", "launches", "time (of the floor)", *short]
    table = markdown(heads, f"wff{'f' * len(names)}", [_line(row, names) for row in timed])
    return [words, table, f"Versions: {versions(found.versions)}."]


def _line(row: RaggedResult, names: list[str]) -> list[str]:
    others = [
        number(row.peers[name] / row.time_s) if name in row.peers and row.time_s else "–"
        for name in names
    ]
    return [
        f"{row.count} {DTYPE_OF_PREFIX[row.dtype]} {row.order}, {row.op}", str(len(row.launches)),
        f"{duration(row.time_s)} ({number(row.share)})", *others,
    ]  # fmt: skip
