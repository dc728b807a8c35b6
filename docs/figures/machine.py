"""Figures of the introduction: the machine, its threads and its memory, and why gemv waits."""

from __future__ import annotations

import numpy as np
from style import arrow, bare, box, canvas, cell, drawing

from gemv.core.dtypes import DTYPES
from gemv.core.problem import Problem


@drawing("machine-threads")
def threads(palette):
    """A launch starts a grid of blocks. Each block is made of warps of 32 threads, and all 32
    threads of a warp execute the same instruction at the same time."""
    figure, axes = canvas(3.5)
    bare(axes, (0, 12.4), (7.2, 0))
    axes.text(1.75, 0.35, "grid", ha="center", weight="bold")
    for row in range(3):
        for column in range(2):
            first = (row, column) == (0, 1)
            colour = palette.block(0) if first else palette.fade(palette.block(0), 0.6)
            box(axes, palette, 0.1 + 1.7 * column, 0.8 + 2.0 * row, 1.55, 1.7,
                f"block\n({column}, {row})", colour)  # fmt: skip
    axes.text(5.8, 0.35, "one block", ha="center", weight="bold")
    for warp in range(4):
        colour = palette.block(1) if warp == 0 else palette.fade(palette.block(1), 0.55)
        box(axes, palette, 4.4, 0.8 + 1.5 * warp, 2.8, 1.25, f"warp {warp}", colour)
    axes.text(10.25, 0.35, "one warp: 32 lanes", ha="center", weight="bold")
    for lane in range(32):
        cell(axes, palette, 8.25 + lane % 8 * 0.5, 0.8 + lane // 8 * 0.75, 0.5, 0.75,
             palette.block(2))  # fmt: skip
        axes.text(8.5 + lane % 8 * 0.5, 1.18 + lane // 8 * 0.75, str(lane), ha="center",
                  va="center", fontsize=8.5)  # fmt: skip
    axes.text(10.25, 4.6, "total += a[...] * x[...]", ha="center", family="DejaVu Sans Mono",
              fontsize=9.5)  # fmt: skip
    axes.text(10.25, 5.35, "one instruction,\n32 times at once", ha="center", va="top",
              color=palette.quiet)  # fmt: skip
    arrow(axes, palette, (3.4, 1.6), (4.35, 1.6))
    arrow(axes, palette, (7.25, 1.4), (8.2, 1.4))
    return figure


@drawing("machine-memory")
def memory(palette):
    """The places a number can be in. Each step away from the threads is larger, slower and shared
    by more of them. Every element of A is read once, so no cache helps: it has to come up from
    device memory, through the arrow above it."""
    figure, axes = canvas(4.3)
    bare(axes, (0, 12), (9.1, 0))
    levels = [
        ("registers", "each thread has its own", 3.2, 2),
        ("shared memory and L1", "one per multiprocessor, shared by a block", 5.4, 1),
        ("L2 cache", "one per GPU, shared by all blocks", 7.6, 4),
        ("device memory", "A, x and y live here", 9.8, 0),
        ("host memory", "NumPy arrays live here", 11.9, 3),
    ]
    for number, (name, owner, width, colour) in enumerate(levels):
        top = 0.1 + 1.85 * number
        box(axes, palette, 6 - width / 2, top, width, 1.25, "", palette.block(colour))
        axes.text(6, top + 0.42, name, ha="center", va="center", weight="bold")
        axes.text(6, top + 0.88, owner, ha="center", va="center", fontsize=8.5)
        if number:
            arrow(axes, palette, (6, top - 0.02), (6, top - 0.56), style="<|-|>", width=1.6)
    axes.text(0.1, 0.5, "small\nand near", va="center", color=palette.quiet)
    axes.text(11.9, 5.15, "large\nand far", va="center", ha="right", color=palette.quiet)
    return figure


def intensity(m: int, n: int, prefix: str = "s") -> float:
    """Operations of gemv (a product and a sum an element) for each byte it has to move."""
    problem = Problem(DTYPES[prefix], m, n, 0, m, n, False, n, 1)
    return 2 * m * n / problem.bytes_moved(beta_is_zero=True)


@drawing("machine-roofline")
def roofline(palette):
    """The roofline. Left of the ridge the memory sets the speed, right of it the arithmetic. gemv
    does half an operation for each byte of float32, and no shape changes that; a product of two
    matrices uses each element many times and moves to the right as it grows."""
    figure, axes = canvas(3.2)
    x = np.logspace(-2, 3.2, 200)
    # no GPU in particular: ridges of today's lie at tens of operations a byte of float32
    ridge = 20.0
    axes.plot(x, np.minimum(x / ridge, 1), color=palette.ink, linewidth=2)
    single, double = intensity(4096, 4096, "s"), intensity(4096, 4096, "d")
    for value, colour in ((double, 4), (single, 0)):
        axes.plot([value] * 2, [1e-4, value / ridge], color=palette.block(colour), linewidth=3)
        axes.plot(value, value / ridge, "o", color=palette.accent, zorder=3)
    axes.text(double * 0.85, 1.8e-3, "gemv\nfloat64", ha="right", va="center")
    axes.text(single * 1.2, 1.8e-3, "gemv\nfloat32", ha="left", va="center")
    n = 4096
    product = 2 * n**3 / (3 * n * n * 4)
    axes.plot(product, 1, "s", color=palette.accent)
    axes.text(product, 0.45, f"matrix times\nmatrix, n = {n}", ha="center", va="top")
    axes.text(0.013, 0.06, "memory\nsets the speed", color=palette.quiet, va="bottom")
    axes.text(60, 1.25, "arithmetic sets the speed", color=palette.quiet, ha="center")
    axes.set(xscale="log", yscale="log", xlim=(0.01, 1500), ylim=(1e-3, 3))
    axes.set(xlabel="operations for each byte moved", ylabel="share of peak arithmetic")
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


@drawing("machine-sectors")
def sectors(palette):
    """Lines and sectors. A row of cells is a line of 128 bytes, cut into four sectors of 32; a cell
    is a float32. Coloured cells are what the lanes of one warp ask for, dark grey ones come with
    them in the same sector, and pale sectors are not moved."""
    figure, axes = canvas(2.6)
    bare(axes, (-0.3, 67.5), (9.4, -2.1))
    cases = [
        (0, "neighbours: 1 line, 4 sectors", [range(32)]),
        (35, "one of each row: 32 lines, 32 sectors", [[9], [9], [9], [9], [9], [9]]),
    ]
    for left, title, lines in cases:
        axes.text(left, -1.3, title, fontsize=10, color=palette.ink)
        for row, asked in enumerate(lines):
            moved = {element // 8 for element in asked}
            for element in range(32):
                colour = palette.fade(palette.grid, 0.2 if element // 8 in moved else 0.85)
                if element in asked:
                    colour = palette.block(0)
                x = left + element + 0.12 * (element // 8)
                cell(axes, palette, x, 1.3 * row, 1, 1, colour)
        if len(lines) > 1:
            axes.text(left + 16, 8.7, "... and 26 more lines", ha="center", fontsize=9.5,
                      color=palette.quiet)  # fmt: skip
    for place in range(4):
        axes.text(4 + 8.12 * place, 2.0, "sector", ha="center", fontsize=8.5, color=palette.quiet)
    return figure


@drawing("machine-divergence")
def divergence(palette):
    """Divergence. Where the lanes of a warp disagree about a condition, the warp goes through both
    branches and each lane sits one of them out. Where they agree, the other branch costs
    nothing."""
    figure, axes = canvas(2.7)
    bare(axes, (-2.6, 14.6), (6.1, -1.0))
    cases = [(0, "lanes disagree", [1, 1, 1, 1, 1, 0, 0, 0]), (8.2, "lanes agree", [1] * 8)]
    for left, title, taken in cases:
        axes.text(left + 3, -0.55, title, ha="center", weight="bold")
        rows = [("test", [1] * 8, 3), ("A", taken, 0)]
        if not all(taken):
            rows.append(("B", [1 - t for t in taken], 1))
        rows.append(("after", [1] * 8, 2))
        for number, (_, active, colour) in enumerate(rows):
            for lane, on in enumerate(active):
                face = palette.block(colour) if on else palette.fade(palette.grid, 0.6)
                cell(axes, palette, left + lane * 0.75, number * 1.25, 0.75, 1.0, face)
                if number == 0:
                    axes.text(left + lane * 0.75 + 0.37, 0.5, str(lane), ha="center", va="center",
                              fontsize=8.5)  # fmt: skip
            label = {"test": "if p:", "A": "A", "B": "else: B", "after": "go on"}[rows[number][0]]
            axes.text(left - 0.2, number * 1.25 + 0.5, label, ha="right", va="center", fontsize=9.5)
    axes.text(-2.5, 5.7, "time runs down; grey lanes wait", color=palette.quiet, fontsize=9.5)
    return figure


@drawing("machine-latency")
def latency(palette):
    """Why so many threads. A load takes long to answer, so a multiprocessor that waits for one
    warp gives its time to another: with enough warps, or enough loads in flight in each, the
    memory is never idle."""
    figure, axes = canvas(2.5)
    bare(axes, (-2.3, 15), (6.2, -0.9))

    def timeline(top, name, starts):
        axes.text(-2.2, top + 0.4, name, va="center", fontsize=9.5)
        for start in starts:
            cell(axes, palette, start, top, 0.5, 0.8, palette.block(0))
            cell(axes, palette, start + 0.5, top, 4.5, 0.8, palette.fade(palette.grid, 0.45))
            axes.text(start + 2.75, top + 0.4, "waits for memory", ha="center", va="center",
                      fontsize=8.5, color=palette.quiet)  # fmt: skip

    axes.text(-2.2, -0.5, "one warp", weight="bold")
    timeline(0, "warp 0", (0, 5, 10))
    axes.text(-2.2, 1.7, "four warps: four loads on the way at a time", weight="bold")
    for warp in range(4):
        timeline(2.2 + 0.95 * warp, f"warp {warp}", tuple(0.5 * warp + k for k in (0, 5, 9.5)[:2]))
    return figure
