"""How the time of a product falls with the number of GPUs, from ``benchmarks/results/shards``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from style import canvas, drawing

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.pages.shards_part import (  # noqa: E402
    ON_SEVERAL,
    WAYS,
    Measured,
    load,
    models,
    picture_name,
)

MARKS = "os^Dv"


def words(nbytes: float) -> str:
    """A size in units of 1024."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


def draw_scaling(palette, runs: list[Measured]):
    """A line for each way and number of GPUs, and one for as many times as there are GPUs."""
    lines = {
        (way, run.gpus): run.scaling(way) for run in runs for way in ON_SEVERAL if run.scaling(way)
    }
    figure, axes = canvas(2.7 + 0.17 * len(lines))
    counts = sorted({gpus for _, gpus in lines})
    for (way, gpus), points in lines.items():
        place = ON_SEVERAL.index(way)
        axes.plot(
            *zip(*points, strict=True), marker=MARKS[counts.index(gpus) % len(MARKS)],
            markersize=5, linewidth=1.3, color=palette.block(place),
            markeredgecolor=palette.quiet, markeredgewidth=0.5,
            label=f"{WAYS[way].replace('`', '')}, {gpus} GPUs",
        )  # fmt: skip
    for gpus in (1, *counts):
        axes.axhline(gpus, color=palette.accent, linewidth=1, linestyle="-" if gpus == 1 else ":")
    sizes = [nbytes for points in lines.values() for nbytes, _ in points]
    ticks = [2.0**k for k in range(24, 40) if min(sizes) / 2 <= 2**k <= max(sizes) * 2]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [words(each) for each in ticks], fontsize=8.5)
    axes.set_xticks([], minor=True)
    axes.set(ylim=(0, 1.1 * max(counts)), xlabel="A", ylabel="times as fast as one GPU")
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=2)
    return figure


def register() -> None:
    """A picture for each model of GPU; none without results."""
    for model, runs in models(load()).items():
        caption = (
            f"A product with one matrix on several GPUs ({model}), beside our plan on one of them,"
            " over the size of the matrix. The solid line is one GPU; a dotted line is as many"
            " times as fast as there are GPUs."
        )
        drawing(picture_name(model), caption)(functools.partial(draw_scaling, runs=runs))


register()
