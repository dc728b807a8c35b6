"""What pages say of ``torch.compile``, from ``benchmarks/results/compiled``.

:mod:`benchmarks.measure.compiled` measures those files.
"""

from __future__ import annotations

import math

from benchmarks.measure.compiled import NAME
from benchmarks.pages.grid_page import exact, of_gpus, places, timed, unbroken, with_least
from benchmarks.pages.page import RESULTS, markdown, number
from gemv.measure.picture import title
from gemv.measure.records import GridResults
from gemv.selection.machine import REFERENCE

FOLDER = RESULTS / "compiled"


def part(grids: dict[str, GridResults]) -> str:
    """Cells beside ``torch.compile``, those that lose most to it first; nothing without results."""
    parts = []
    for file, grid in grids.items():
        rows = [row for row in timed([grid]) if NAME in row.peers]
        if not rows:
            continue
        rows.sort(key=lambda row: row.peers[NAME] / row.time_s)
        lines = [
            [
                f"{title(row)}: {unbroken(f'{row.m} x {row.n}')}, {row.op}",
                exact(row.peers[NAME] / row.time_s), number(row.share),
                number(row.time_s * 1e6, ".1f"), number(row.peers[NAME] * 1e6, ".1f"),
                exact(row.ratio), row.peer,
            ]
            for row in rows
        ]  # fmt: skip
        behind = sum(row.peers[NAME] < row.time_s for row in rows)
        heads = ["cell", "times as fast", "of the floor", "µs", "compiled, µs",
                 "than the fastest", "fastest peer"]  # fmt: skip
        parts += [
            f"## Beside torch.compile, on {grid.device}",
            "`torch.mv`, compiled by PyTorch into a kernel of Triton's, with"
            ' `mode="max-autotune-no-cudagraphs"`: PyTorch tries kernels for each shape and takes'
            f" the fastest. It is faster than `gemv` in {behind} of {len(rows)} cells. Triton"
            " itself has no matrix-vector product.",
            markdown(heads, "wfffffw", lines),
            places(file, grid, FOLDER),
        ]
    return "\n\n".join(parts) + "\n" if parts else ""


def sentence(grids: dict[str, GridResults]) -> str:
    """What ``torch.compile`` takes beside our calls, in the cells where it was timed."""
    told = []
    for device, each in of_gpus(grids).items():
        rows = [row for row in timed(each) if NAME in row.peers]
        gains = [row.peers[NAME] / row.time_s for row in rows]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            page = "roofline" if device == REFERENCE.name else "roofline_others"
            told.append(
                f" `torch.compile`, whose kernels are Triton's, was timed in {len(gains)} cells on"
                f" an {device}: {with_least(mean, min(gains))} ([docs/{page}.md](docs/{page}.md))."
            )
    return "".join(told) or " `torch.compile` and Triton were not timed."
