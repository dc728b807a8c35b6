"""Figures over the points of the history, from ``benchmarks/results``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from style import canvas, drawing

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.history.series import PANELS, Panel, Point, lines  # noqa: E402
from benchmarks.pages.history_page import histories  # noqa: E402

MARKS = "os^Dv"


def draw_panel(palette, history: list[Point], panel: Panel):
    """A line for each figure, with a mark at each point that has it."""
    drawn = lines(history, panel)
    figure, axes = canvas(2.5 + 0.17 * ((len(drawn) + 2) // 3))
    for place, (name, figures) in enumerate(drawn.items()):
        colour = palette.block(place)
        style = "--" if place >= len(palette.blocks) else "-"
        numbers, values = zip(*figures, strict=True)
        axes.plot(
            numbers, values, marker=MARKS[place % len(MARKS)], markersize=5, linewidth=1.3,
            linestyle=style, color=colour, markeredgecolor=palette.quiet, markeredgewidth=0.5,
            label=name,
        )  # fmt: skip
    every = max(1, len(history) // 8)
    shown = range(0, len(history), every)
    axes.set_xticks(list(shown), [history[k].commit[:7] for k in shown], fontsize=8.5)
    values = [value for figures in drawn.values() for _, value in figures]
    if max(values) > 20 * min(values) > 0:
        axes.set_yscale("log")
    if panel.key == "ratio":
        axes.axhline(1, color=palette.accent, linewidth=1)
    axes.set(xlim=(-0.3, len(history) - 0.7), ylabel=panel.unit)
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=3)
    return figure


def register() -> None:
    """A picture for each panel of each machine."""
    for machine, history in histories().items():
        for panel in PANELS:
            if any(point.of(panel) for point in history):
                caption = (
                    f"{panel.title} ({panel.unit}) over commits: {panel.better}. A figure has no"
                    " mark where a point lacks it."
                )
                drawing(f"history-{machine}-{panel.key}", caption)(
                    functools.partial(draw_panel, history=history, panel=panel)
                )


register()
