"""Pictures of measured results, for the command line, the documentation and the README.

Matplotlib, which the extra ``plot`` installs, is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemv.core import files
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.measure.ladder import Ladder
from gemv.measure.records import CellResult, GridResults, groups


@dataclass(frozen=True, slots=True)
class Colours:
    """What a picture needs of a palette."""

    ours: str = "#1f77b4"
    peer: str = "#e8590c"
    ceiling: str = "#d5dbe1"
    teaching: str = "#b08fd8"
    ink: str = "#1c2024"
    line: str = "#c2255c"


LIGHT = Colours()


def title(row: CellResult) -> str:
    """What the rows of a group have in common: ``float32, cold, order F``."""
    words = [dtype_name(DTYPES[row.dtype]), "L2-resident" if row.hot else "cold"]
    if row.order != "C":
        words.append(f"order {row.order}")
    if row.view:
        words.append(f"A[{row.view}]")
    if row.beta:
        words.append(f"beta {row.beta}")
    if row.cell.items > 1:
        words.append(f"batch of {row.batch}" if row.batch > 1 else f"{row.vectors} vectors")
    if row.op == "C":
        words.append("conjugate")
    return ", ".join(words)


def draw_op(axes: Any, rows: Sequence[CellResult], colours: Colours = LIGHT) -> None:
    """The rows of one dtype and op: a bar up to the ceiling, a dot each for us and the peer."""
    places = range(len(rows))
    ceiling = [row.rate(row.floor_s) / 1e3 if row.floor_s else 0.0 for row in rows]
    axes.barh(places, ceiling, color=colours.ceiling, height=0.74, label="ceiling", zorder=1)
    named = False
    for place, row in zip(places, rows, strict=True):
        if row.time_s is None:
            continue
        ours = row.rate(row.time_s) / 1e3
        if row.peer is not None:
            theirs = row.rate(row.peers[row.peer]) / 1e3
            behind = colours.ours if ours >= theirs else colours.peer
            axes.plot([theirs, ours], [place, place], color=behind, linewidth=1.4, zorder=2)
            axes.plot(
                theirs, place, "D", color=colours.peer, markersize=4.2, zorder=3,
                label=None if named else "fastest peer",
            )  # fmt: skip
            named = True
        axes.plot(
            ours, place, "o", color=colours.ours, markersize=5, zorder=4,
            label=None if place else "gemv",
        )  # fmt: skip
    axes.set_yticks(places, [f"{row.m} x {row.n}" for row in rows])
    axes.set(title=f"op {rows[0].op}", xlabel="TB/s", xlim=(0, None), ylim=(len(rows) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def grid_figure(rows: Iterable[CellResult], colours: Colours = LIGHT, width: float = 8.0) -> Any:
    """A figure with a row of panels for each group of rows, a panel for each op."""
    from matplotlib.figure import Figure

    found = [
        (group[0], {op: [row for row in group if row.op == op] for op in "NTC"})
        for group in groups(row for row in rows if row.time_s is not None).values()
    ]
    if not found:
        raise ValueError("there is no time to draw: a simulator's time says nothing")
    heights = [0.21 * max(map(len, by_op.values())) + 0.95 for _, by_op in found]
    figure = Figure(figsize=(width, sum(heights) + 0.3), layout="constrained")
    parts = figure.subfigures(len(found), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, (first, by_op) in zip(parts, found, strict=True):
        panels = [op_rows for op_rows in by_op.values() if op_rows]
        shared = len({tuple((r.m, r.n) for r in op_rows) for op_rows in panels}) == 1
        axes = part.subplots(1, len(panels), squeeze=False, sharex=True, sharey=shared)[0]
        for each, op_rows in zip(axes, panels, strict=True):
            draw_op(each, op_rows, colours)
        if len(found) > 1:
            part.suptitle(title(first), fontsize="medium", fontweight="bold")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize="small"
    )
    return figure


def draw_ladder(axes: Any, ladder: Ladder, colours: Colours = LIGHT) -> None:
    """A bar for each kernel, and the ceiling as a line."""
    rows = [row for row in ladder.rows if row.gb_per_s]
    if not rows or ladder.ceiling_gb_per_s is None:
        raise ValueError("there is no time to draw: a simulator's time says nothing")
    ceiling = ladder.ceiling_gb_per_s
    for place, row in enumerate(rows):
        rate = row.gb_per_s or 0.0
        colour = colours.teaching if row.teaching else colours.ours
        axes.barh(place, rate, color=colour, height=0.7)
        # Beside a bar that is nearly as long as the ceiling, the line would go through the figure.
        side = "right" if rate > 0.88 * ceiling else "left"
        axes.text(rate, place, f" {float(f'{rate:.3g}'):g} ", va="center", ha=side,
                  fontsize="small")  # fmt: skip
    axes.axvline(ceiling, color=colours.line, linewidth=1.6)
    axes.text(
        ceiling, -0.75, f"ceiling {ceiling:.4g} ", ha="right", va="bottom", color=colours.line,
        fontsize="small",
    )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set(xlabel="GB/s", xlim=(0, ceiling * 1.14))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: str | Path, **options: Any) -> None:
    """Draw into a file, whole or not at all."""
    with files.whole(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:].lower(), **options)


def plot_grid(grid: GridResults, path: str | Path) -> None:
    """Draw all rows of a grid into a file."""
    figure = grid_figure(grid.rows)
    figure.supxlabel(grid.device, fontsize="small")
    save(figure, path, dpi=110)


def plot_ladder(ladder: Ladder, path: str | Path) -> None:
    """Draw a ladder into a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 0.34 * len(ladder.rows) + 1.4), layout="constrained")
    draw_ladder(figure.subplots(), ladder)
    what = f"{ladder.m} x {ladder.n} {dtype_name(DTYPES[ladder.dtype])}, {ladder.device}"
    figure.suptitle(what, fontsize="medium")
    save(figure, path, dpi=110)
