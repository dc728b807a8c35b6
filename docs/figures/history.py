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
#: Lines of dtypes are drawn in this order, so each has its colour in all pictures.
DTYPES = "float32 float64 float16"


def draw_panel(palette, history: list[Point], panel: Panel):
    """A line for each dtype or kind, with a mark at each point that has its figure."""
    drawn = lines(history, panel)
    figure, axes = canvas(3.1)
    ordered = sorted(drawn.items(), key=lambda line: DTYPES.find(line[0]))
    for place, (name, figures) in enumerate(ordered):
        numbers, values = zip(*figures, strict=True)
        axes.plot(
            numbers, values, marker=MARKS[place % len(MARKS)], markersize=6, linewidth=1.8,
            color=palette.line(place), label=name,
        )  # fmt: skip
    # Commits before the first figure of the picture, and after the last one, are left out.
    known = [number for figures in drawn.values() for number, _ in figures]
    first, last = min(known), max(known)
    shown = range(first, last + 1, max(1, -(-(last + 1 - first) // 8)))
    axes.set_xticks(list(shown), [history[k].commit[:7] for k in shown], rotation=30, ha="right")
    values = [value for figures in drawn.values() for _, value in figures]
    if max(values) > 20 * min(values) > 0:
        axes.set_yscale("log")
    if panel.key == "ratio":
        axes.axhline(1, color=palette.ink, linewidth=1, linestyle=":")
    if panel.key in ("share", "rung"):
        axes.axhline(100, color=palette.ink, linewidth=1, linestyle=":")
    axes.set(xlim=(first - 0.3, last + 0.3), ylabel=panel.unit)
    axes.set_title(panel.better, loc="left", fontsize=10.5, color=palette.quiet)
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=min(5, len(drawn)))
    return figure


def register() -> None:
    """A picture for each panel of each history; no picture has points of two of them."""
    for history in histories():
        for panel in PANELS:
            if any(point.of(panel) for point in history.points):
                mean = ", the mean of its three shapes" if panel.names[0][:3] == "ker" else ""
                caption = (
                    f"{panel.title} over commits on an {history.gpu}, in {panel.unit}{mean}:"
                    f" {panel.better}. There is no mark where a point lacks the figure."
                )
                drawing(f"history-{history.name}-{panel.key}", caption)(
                    functools.partial(draw_panel, history=history.points, panel=panel)
                )


register()
