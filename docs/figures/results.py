"""Plots of measured figures, from the JSON in ``benchmarks/results/`` and from nothing else."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from pathlib import Path

from style import WIDTH, canvas, drawing

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.pages import grid_page, readme_page  # noqa: E402
from benchmarks.pages.ladder_table import LADDERS, load, title  # noqa: E402
from gemv.measure import picture  # noqa: E402
from gemv.measure.ladder import Ladder  # noqa: E402


def colours(palette) -> picture.Colours:
    """The palette of a page for the pictures that the command line draws as well."""
    return picture.Colours(
        ours=palette.strong, peer=palette.accent, ceiling=palette.grid,
        teaching=palette.block(3), line=palette.accent,
    )  # fmt: skip


def draw_ladder(palette, case: dict):
    ladder = Ladder.from_json(json.dumps(case))
    figure, axes = canvas(0.34 * sum(bool(row.gb_per_s) for row in ladder.rows) + 1.1)
    ours = dataclasses.replace(colours(palette), ours=palette.block(0))
    picture.draw_ladder(axes, ladder, ours)
    return figure


def draw_grid(palette, rows: list):
    return picture.grid_figure(rows, colours(palette), WIDTH)


def draw_roofline(palette, cases: dict[str, dict]):
    """Operations a second over operations a byte: every kernel under the roof of its own run."""
    figure, axes = canvas(3.4 + 0.1 * len(cases))
    for number, case in enumerate(cases.values()):
        flops = 2 * case["m"] * case["n"] * (4 if case["dtype"] in "cz" else 1)
        x = flops / case["bytes_moved"] * (1 + 0.03 * (number % 3 - 1))
        rates = [row["gb_per_s"] * flops / case["bytes_moved"] for row in case["rows"]
                 if row.get("gb_per_s")]  # fmt: skip
        axes.plot(
            [x] * len(rates), rates, "os^D"[number // 6 % 4], markersize=5, label=title(case),
            color=palette.block(number), markeredgecolor=palette.quiet, markeredgewidth=0.5,
        )  # fmt: skip
    best = max(case["ceiling_gb_per_s"] for case in cases.values())
    span = [0.15, 0.9]
    axes.plot(span, [best * s for s in span], color=palette.accent, linewidth=1.6)
    axes.set(xscale="log", yscale="log", xlabel="operations for each byte moved",
             ylabel="10⁹ operations a second")  # fmt: skip
    axes.set_xticks([0.2, 0.3, 0.5, 0.8], ["0.2", "0.3", "0.5", "0.8"])
    axes.set_xticks([], minor=True)
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=2)
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def register(folder: Path = LADDERS) -> None:
    """One bar chart for each measured problem and a roofline of all; none without results."""
    cases = load(folder)
    for name, case in cases.items():
        caption = (
            f"{title(case)} on {case['device']}: bytes a perfect gemv moves, over the measured"
            " time of each kernel. The line is the fastest read of the same run; teaching kernels"
            " have the other colour."
        )
        drawing(f"ladder-{name}", caption)(functools.partial(draw_ladder, case=case))
    if cases:
        caption = (
            "All measured kernels under the roof of the fastest read (dots of one column are the"
            " kernels on one problem; problems are drawn a little apart). Arithmetic is nowhere"
            " near its own limit."
        )
        drawing("ladder-roofline", caption)(functools.partial(draw_roofline, cases=cases))


def register_grids(folder: Path = grid_page.GRIDS) -> None:
    """One picture for each group of cells of each measured grid."""
    for name, grid in grid_page.load(folder).items():
        for part, rows in grid_page.drawn(grid):
            caption = (
                f"{picture.title(rows[0])}, on {grid.device}: bytes over device time, for us and"
                " for the fastest peer. The bar ends where the fastest moved as many bytes in the"
                " same run."
            )
            drawing(f"grid-{name}-{part}", caption)(functools.partial(draw_grid, rows=rows))


def front() -> tuple[str, list]:
    """Caption and rows of the first grid's picture."""
    for grid in grid_page.load().values():
        return readme_page.caption(grid), readme_page.picture_rows(grid)
    return "", []


@drawing("roofline", front()[0])
def draw_front(palette):
    _, rows = front()
    return draw_grid(palette, rows) if rows else None


register()
register_grids()
