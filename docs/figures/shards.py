"""How the time of a product falls with the number of GPUs, from ``benchmarks/results/shards``."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.lines import Line2D
from style import canvas, drawing

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.pages.shards_part import (  # noqa: E402
    ON_SEVERAL,
    WAYS,
    load,
    name,
)

MARKS = "os^Dv"
STROKES = ("-", "--", "-.", ":")


def words(nbytes: float) -> str:
    """A size in units of 1024."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


@drawing("scaling")
def draw_scaling(palette):
    """A product with one matrix on several GPUs, beside our plan on one of them, over the size of
    the matrix. A colour is a way to compute it, a mark is a run. The straight red line is one GPU,
    the dotted one is as many times as fast as there are GPUs."""
    runs = load()
    lines = [
        (way, number, run.scaling(way))
        for number, run in enumerate(runs)
        for way in ON_SEVERAL
        if run.scaling(way)
    ]
    if not lines:
        return None
    figure, axes = canvas(2.9 + 0.17 * len(ON_SEVERAL))
    for way, number, points in lines:
        axes.plot(
            *zip(*sorted(points), strict=True), marker=MARKS[number % len(MARKS)],
            markersize=5, linewidth=1.3, color=palette.line(ON_SEVERAL.index(way)),
            linestyle=STROKES[number % len(STROKES)],
        )  # fmt: skip
    counts = sorted({run.gpus for run in runs})
    for gpus in (1, *counts):
        axes.axhline(gpus, color=palette.accent, linewidth=1, linestyle="-" if gpus == 1 else ":")
    sizes = [nbytes for _, _, points in lines for nbytes, _ in points]
    ticks = [2.0**k for k in range(24, 40) if min(sizes) / 2 <= 2**k <= max(sizes) * 2]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [words(each) for each in ticks], fontsize=8.5)
    axes.set_xticks([], minor=True)
    axes.set(ylim=(0, 1.1 * max(counts)), xlabel="A", ylabel="times as fast as one GPU")
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    ways = dict.fromkeys(way for way, _, _ in lines)
    keys = [
        Line2D([], [], linewidth=1.6, color=palette.line(ON_SEVERAL.index(way)),
               label=WAYS[way].replace("`", ""))
        for way in ways
    ]  # fmt: skip
    keys += [
        Line2D([], [], marker=MARKS[number % len(MARKS)], markersize=5, color=palette.ink,
               linewidth=1.3, linestyle=STROKES[number % len(STROKES)], label=name(run, runs))
        for number, run in enumerate(runs)
    ]  # fmt: skip
    figure.legend(handles=keys, fontsize=8.5, frameon=False, loc="outside lower center", ncols=2)
    return figure
