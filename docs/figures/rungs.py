"""Figures of the rungs, drawn from what each kernel did in the simulator.

Every kernel of the registry gets ``matrix-NAME`` (which thread reads which element),
``lines-NAME`` (what one request of a warp touches in memory) and, if it has shared memory,
``banks-NAME``; a new rung needs nothing here. What only one rung has to show is drawn by hand
below.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import numpy as np
from matplotlib.collections import LineCollection
from style import arrow, bare, box, canvas, cell, cells, drawing
from watch import BANKS, Access, Record, banks_of, lines_of, sectors_of, watch

from gemv.core.geometry import CACHE_LINE_BYTES, SECTOR_BYTES, ceil_div
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel

#: Shapes and constants of ``matrix-NAME`` where the kernel's own would not fit on a page.
SMALL = {
    "serial": (5, 16, {}),
    "thread_per_row": (6, 16, {}),
    "threads_are_columns": (4, 20, {}),
    "coalesced": (6, 34, {"BLOCK_X": 4, "BLOCK_Y": 2}),
    "last_block": (6, 34, {"BLOCK_X": 4, "BLOCK_Y": 2}),
    "tile2d": (6, 34, {}),
    "warp_per_row": (5, 40, {}),
    "atomics": (4, 34, {"THREADS_PER_BLOCK": 4}),
    # Lines of an odd length, so that there are four phases.
    "phased_rows": (9, 37, {}),
    "phased_columns": (11, 16, {"LANES": 2}),
    "short_columns": (3, 44, {}),
}
SECTORS = CACHE_LINE_BYTES // SECTOR_BYTES
#: Every kernel accepts this; a warp's 32 rows and some lines of each.
COUNTED = (32, 128)


def small_case(kernel: Kernel) -> tuple[int, int, dict[str, int]]:
    """Rows, columns and knobs of a matrix that shows whole tiles and a tail, if they are small."""
    if kernel.name in SMALL:
        m, n, knobs = SMALL[kernel.name]
        return m, n, {**kernel.small_knobs, **knobs}
    knobs = dict(kernel.small_knobs)
    rows, cols = kernel.tile({**kernel.knobs, **knobs})
    m, n = min(max(2 * rows + 1, 5), 12), min(max(2 * cols + 3, 16), 44)
    if kernel.wide:  # lines that begin where a load of 16 bytes may
        m, n = 4 * ceil_div(m, 4), 4 * ceil_div(n, 4)
    return m, n, knobs


@functools.cache
def counted(name: str, order: str) -> Record:
    """What a kernel with its real blocks does on a small matrix."""
    return watch(REGISTRY[name], *COUNTED, order=order)


@functools.cache
def watched_small(name: str, order: str) -> Record:
    m, n, knobs = small_case(REGISTRY[name])
    return watch(REGISTRY[name], m, n, order=order, knobs=knobs)


def shares_memory(name: str) -> bool:
    """Whether it might; with the knobs of :func:`counted` it may still not."""
    return "cuda.shared.array" in inspect.getsource(inspect.getmodule(REGISTRY[name].build))


def facts(name: str) -> dict[str, dict]:
    """What the page of a kernel tells about :func:`counted`, by storage order."""
    told = {}
    for order in _orders(name):
        record = counted(name, order)
        x_requests = record.requests("x")
        threads = record.geometry.launches[0].threads_per_block
        told[order] = {
            "launches": len(record.geometry.launches),
            "blocks": record.blocks,
            "threads of a block": threads,
            "lines that a request for A touches": round(record.lines(), 2),
            "sectors that it moves": round(record.sectors(), 2),
            "share of moved bytes asked for": f"{record.useful():.0%}",
            "different elements of x in a request": round(
                sum(len({one.element for one in each}) for each in x_requests)
                / max(1, len(x_requests)), 2
            ),
            "times an element of x is read": round(len(record.of("x")) / COUNTED[1], 2),
            "steps of the worst request for shared memory": record.bank_ways,
            "barriers, all blocks together": record.barriers,
            "atomic operations": record.atomics,
            "partial sums written to memory": len(record.of("scratch", write=True)),
        }  # fmt: skip
    return told


def _orders(name: str) -> tuple[str, ...]:
    """Both storage orders, where the kernel takes both."""
    from gemv.core.dtypes import DTYPES
    from gemv.measure.inputs import make_problem

    cases = COUNTED, small_case(REGISTRY[name])[:2]
    return tuple(
        order
        for order in "CF"
        if not any(
            REGISTRY[name].accepts(make_problem(*shape, DTYPES["s"], order, "N")) for shape in cases
        )
    )


STORED = {"C": "A stored along rows (C)", "F": "A stored along columns (Fortran)"}


def draw_matrix(palette, name: str):
    kernel = REGISTRY[name]
    m, n, knobs = small_case(kernel)
    panels: dict[str, dict] = {}
    for order in _orders(name):
        record = watched_small(name, order)
        place = _place(order, m, n)
        reads: dict[tuple[int, int], Access] = {}
        for one in record.of("a"):
            reads.setdefault(place(one.element), one)
        outlined = {place(one.element) for one in record.requests("a")[0]}
        who = {at: (one.block, one.tid, one.visit) for at, one in sorted(reads.items())}
        panels[order] = {"reads": reads, "outlined": outlined, "who": who}
    titles = dict(STORED)
    if len(panels) == 2 and panels["C"]["who"] == panels["F"]["who"]:
        del panels["F"]
        titles["C"] = "in either storage order"
    height = max(5.7 / n, 0.26) * m
    figure, axes = canvas((height + 0.5) * len(panels) + 0.1, nrows=len(panels), squeeze=False)
    for (order, panel), surface in zip(panels.items(), axes[:, 0], strict=True):
        reads = panel["reads"]
        blocks = sorted({one.block for one in reads.values()}, key=lambda b: (b[2], b[1], b[0]))
        bare(surface, (-0.06 * n, n + 0.1), (m + 0.15, -0.15))
        _paint(surface, palette, reads, blocks, m, n)
        _outline(surface, palette, panel["outlined"])
        surface.set_title(f"{titles[order]}: {len(blocks)} block{'s' * (len(blocks) > 1)}",
                          fontsize=10.5, loc="left", color=palette.ink)  # fmt: skip
        for i in range(m):
            surface.text(-0.15, i + 0.5, f"row {i}" if n <= 24 else str(i), ha="right",
                         va="center", fontsize=8.5, color=palette.quiet)  # fmt: skip
    return figure


def _outline(surface, palette, cells: set[tuple[int, int]]) -> None:
    """The border of a set of cells, drawn where a cell's neighbour is not in it."""
    edges = []
    for i, j in cells:
        for di, dj, start, end in (
            (-1, 0, (j, i), (j + 1, i)),
            (1, 0, (j, i + 1), (j + 1, i + 1)),
            (0, -1, (j, i), (j, i + 1)),
            (0, 1, (j + 1, i), (j + 1, i + 1)),
        ):
            if (i + di, j + dj) not in cells:
                edges.append((start, end))
    surface.add_collection(
        LineCollection(edges, colors=palette.accent, linewidths=2.4, capstyle="round", zorder=3)
    )


def _place(order: str, m: int, n: int) -> Callable[[int], tuple[int, int]]:
    """Row and column of an element, from its place in memory."""
    if order == "C":
        return lambda element: divmod(element, n)
    return lambda element: divmod(element, m)[::-1]


def _paint(surface, palette, reads, blocks, m, n) -> None:
    """Cells in the colour of their block, later steps fainter, labelled with the thread."""
    deepest = max(one.visit for one in reads.values()) or 1
    colours = [
        palette.fade(palette.block(blocks.index(one.block)), 0.55 * one.visit / deepest)
        for one in reads.values()
    ]
    cells(surface, palette, [(j, i) for i, j in reads], colours)
    roomy = n <= 22
    for i in range(m):
        j = 0
        while j < n:
            end = j + 1
            mine = reads[i, j]
            while end < n and (reads[i, end].block, reads[i, end].tid) == (mine.block, mine.tid):
                end += 1
            if end - j == n:  # one thread has the whole row
                marks = range(j, end, max(1, n // 8))
            elif roomy or end - j > 2:
                marks = range(j, end) if roomy else [j + (end - j - 1) / 2]
            else:
                marks = [j] if n <= 36 or j % 2 == 0 else []
            for at in marks:
                surface.text(at + 0.5, i + 0.5, str(mine.tid), ha="center", va="center",
                             fontsize=8.5 if roomy else 7, color=palette.ink)  # fmt: skip
            j = end


def caption_matrix(name: str) -> str:
    m, n, knobs = small_case(REGISTRY[name])
    made = ", ".join(f"{knob}={value}" for knob, value in knobs.items() if knob != "MAX_BLOCKS")
    return (
        f"Which thread reads which element of a {m} x {n} matrix, recorded in the simulator"
        f"{f' with small blocks ({made})' if made else ''}. A number is a thread's place in its"
        " block, a colour is a block, and fainter cells are read in later steps. Outlined:"
        " the first request of the first warp."
    )


def draw_lines(palette, name: str):
    """What one request of a warp touches in memory, for both storage orders."""
    orders = _orders(name)
    records = [counted(name, order) for order in orders]
    requests = [record.requests("a")[0] for record in records]
    most = max(len(lines_of(request)) for request in requests)
    height = 0.11 * most + 0.7
    figure, axes = canvas(height, ncols=len(orders), squeeze=False)
    for order, record, request, surface in zip(orders, records, requests, axes[0], strict=True):
        lines = sorted(lines_of(request))
        each = CACHE_LINE_BYTES // request[0].itemsize
        moved = sectors_of(request)
        bare(surface, (-0.5, each + 0.5), (max(most, 2) + 0.3, -0.3))
        read = {one.element for one in request}
        unused, left = palette.fade(palette.grid, 0.2), palette.fade(palette.grid, 0.85)
        places = [(k, row) for row in range(len(lines)) for k in range(each)]
        elements = [lines[row] * each + k for k, row in places]
        colours = [
            palette.block(0) if one in read
            else unused if one * request[0].itemsize // SECTOR_BYTES in moved
            else left
            for one in elements
        ]  # fmt: skip
        cells(surface, palette, places, colours, 1, 0.86)
        share = 100 * record.useful()
        along = {"C": "rows", "F": "columns"}[order]
        surface.set_title(
            f"A along {along}: {len(lines)} line{'s' * (len(lines) > 1)}, {len(moved)} sectors,\n"
            f"{share:.0f} % of the moved bytes are used",
            fontsize=9.5, loc="left", color=palette.ink,
        )  # fmt: skip
    return figure


def caption_lines(name: str) -> str:
    return (
        "The first request of the first warp, in float32 and with the kernel's own block size."
        f" Each row of cells is a line of {CACHE_LINE_BYTES} bytes, {SECTORS} sectors of"
        f" {SECTOR_BYTES}. The warp asked for the coloured cells. The dark grey ones are moved as"
        " well, because they are in the same sectors; the pale ones are not moved."
    )


def draw_banks(palette, name: str):
    order = _orders(name)[0]
    request = counted(name, order).worst_bank_request()
    if not request:
        return None
    words = banks_of(request)
    most = max(len(each) for each in words.values())
    if most == 1:
        return None  # no lane waits for another, as the table of counts says
    figure, axes = canvas(1.5 + 0.16 * most)
    bare(axes, (-0.5, BANKS + 0.5), (-0.9, max(most, 2) + 0.3))
    for bank in range(BANKS):
        cell(axes, palette, bank, -0.75, 1, 0.65, palette.fade(palette.grid, 0.5))
        axes.text(bank + 0.5, -0.43, str(bank), ha="center", va="center", fontsize=7.5)
        for level in range(len(words.get(bank, ()))):
            colour = palette.block(2) if level == 0 else palette.block(4)
            cell(axes, palette, bank, level, 1, 0.92, colour)
    axes.set_title(f"the 32 banks of shared memory, worst request: {most} words in one bank:"
                   f" {most} steps", fontsize=10.5, loc="left", color=palette.ink)  # fmt: skip
    return figure


def caption_banks(name: str) -> str:
    return (
        "Shared memory lies in 32 banks, and each bank hands out one word at a time. Every box"
        " stands for a word that the warp wants in the same moment; boxes on top of each other"
        " have to wait for each other. Recorded in the simulator, in float32."
    )


for _name in REGISTRY:
    drawing(f"matrix-{_name}", caption_matrix(_name))(functools.partial(draw_matrix, name=_name))
    drawing(f"lines-{_name}", caption_lines(_name))(functools.partial(draw_lines, name=_name))
    if shares_memory(_name):
        drawing(f"banks-{_name}", caption_banks(_name))(functools.partial(draw_banks, name=_name))


# --- Drawn for one rung ---------------------------------------------------------------------------

#: Further figures of a rung, in the order they are shown.
SPECIAL = {
    "block_per_row": ["tree"],
    "tile2d": ["beta-once"],
    "warp_per_row": ["butterfly"],
    "atomics": ["arrival"],
    "last_block": ["tickets"],
}


@drawing("tree")
def tree(palette):
    """The tree, for eight sums: at each level half of the threads that are left add the sum of a
    thread in the other half to their own, and a barrier separates the levels."""
    figure, axes = canvas(2.9)
    bare(axes, (-1.9, 8.1), (7.2, -0.2))
    for level, count in enumerate((8, 4, 2, 1)):
        top = 2.0 * level
        for k in range(8):
            live = k < count
            colour = palette.block(0) if live else palette.fade(palette.grid, 0.6)
            cell(axes, palette, k, top, 0.94, 0.8, colour)
            if live:
                text = f"s{k}" if count > 1 else "y[i]"
                axes.text(k + 0.47, top + 0.4, text, ha="center", va="center", fontsize=10)
        if count > 1:
            for k in range(count // 2):
                arrow(axes, palette, (k + count // 2 + 0.47, top + 0.85), (k + 0.62, top + 1.95),
                      palette.accent)  # fmt: skip
                arrow(axes, palette, (k + 0.4, top + 0.85), (k + 0.4, top + 1.95))
            axes.text(-0.15, top + 1.4, "barrier", ha="right", va="center", fontsize=9.5,
                      color=palette.quiet)  # fmt: skip
        axes.text(-0.15, top + 0.4, f"{count} sum{'s' * (count > 1)}", ha="right", va="center",
                  fontsize=9.5)  # fmt: skip
    return figure


@drawing("beta-once")
def beta(palette):
    """The trap of beta. When two blocks share y[i], each of them adding alpha*part + beta*y counts
    beta*y twice. Partial sums that meet in a scratch array, and one thread that applies beta once
    they are all there, count it once."""
    figure, axes = canvas(2.7)
    bare(axes, (0, 12), (5.4, -0.5))
    for left, title, wrong in ((0, "wrong", True), (6.3, "this kernel", False)):
        axes.text(left + 2.7, -0.15, title, ha="center", weight="bold")
        for k in range(2):
            box(axes, palette, left + 0.2 + 2.7 * k, 0.4, 2.3, 0.9, f"block (i, {k})",
                palette.block(k))  # fmt: skip
        if wrong:
            for k in range(2):
                arrow(axes, palette, (left + 1.35 + 2.7 * k, 1.35), (left + 2.2 + k, 3.8),
                      palette.accent)  # fmt: skip
                axes.text(left + (0.1 if k == 0 else 5.3), 2.5, f"+ part {k}\n+ beta*y",
                          ha="left" if k == 0 else "right", va="center", fontsize=9.5)  # fmt: skip
            box(axes, palette, left + 1.6, 3.9, 2.2, 0.9, "y[i]", palette.block(4))
        else:
            for k in range(2):
                arrow(axes, palette, (left + 1.35 + 2.7 * k, 1.35), (left + 1.35 + 2.7 * k, 1.95))
                box(axes, palette, left + 0.2 + 2.7 * k, 2.0, 2.3, 0.8, f"scratch[{k}, i]",
                    palette.fade(palette.block(k), 0.5), 9.5)  # fmt: skip
                arrow(axes, palette, (left + 1.35 + 2.7 * k, 2.85), (left + 2.2 + k, 3.8))
            axes.text(left + 2.7, 3.3, "then", ha="center", va="center", fontsize=9.5,
                      color=palette.quiet)  # fmt: skip
            box(axes, palette, left + 0.2, 3.9, 5.0, 0.9, "alpha*(sum) + beta*y[i], once",
                palette.block(2), 9.5)  # fmt: skip
    return figure


@drawing("butterfly")
def butterfly(palette):
    """The butterfly, for eight lanes (a warp starts with two more steps, 16 and 8): at each step a
    lane adds what it had to the sum of the lane whose number differs in one bit. In the end
    all lanes hold the whole sum."""
    figure, axes = canvas(3.1)
    bare(axes, (-1.7, 8.05), (7.0, -0.2))
    sets = [{k} for k in range(8)]
    for step, mask in enumerate((4, 2, 1, 0)):
        top = 2.0 * step
        for k in range(8):
            strength = 1 - len(sets[k]) / 8
            cell(axes, palette, k, top, 0.94, 0.8, palette.fade(palette.block(2), 0.6 * strength))
            text = f"L{k}" if len(sets[k]) == 1 else f"{len(sets[k])}"
            axes.text(k + 0.47, top + 0.4, text, ha="center", va="center")
        if mask:
            for k in range(8):
                arrow(axes, palette, ((k ^ mask) + 0.47, top + 0.85), (k + 0.47, top + 1.95),
                      palette.accent if k < k ^ mask else palette.quiet, width=0.9)  # fmt: skip
            axes.text(-0.15, top + 1.4, f"xor {mask}", ha="right", va="center", fontsize=9.5)
            sets = [sets[k] | sets[k ^ mask] for k in range(8)]
        axes.text(-0.15, top + 0.4, "lane" if step == 0 else "terms", ha="right", va="center",
                  fontsize=9.5, color=palette.quiet)  # fmt: skip
    return figure


def _arrivals() -> tuple[list[float], list[tuple[list[int], list[np.float32]]]]:
    terms = [1.0, 1e8, -1e8, 0.5]
    runs = []
    for order in ([0, 1, 2, 3], [1, 2, 0, 3]):
        total, running = np.float32(0), []
        for k in order:
            total = np.float32(total + np.float32(terms[k]))
            running.append(total)
        runs.append((order, running))
    return terms, runs


@drawing("arrival")
def arrival(palette):
    """Two runs of one atomic sum in float32, computed while this figure was drawn. The four blocks
    bring the same four numbers, in another order, and y ends up different."""
    terms, runs = _arrivals()
    figure, axes = canvas(2.3)
    bare(axes, (-1.2, 12), (5.2, -0.2))
    for run, (order, running) in enumerate(runs):
        top = 2.7 * run
        axes.text(-1.1, top + 0.45, f"run {run + 1}", va="center", weight="bold")
        for place, k in enumerate(order):
            left = 0.5 + 2.3 * place
            box(axes, palette, left, top, 2.0, 0.9, f"{terms[k]:+g}", palette.block(k))
            arrow(axes, palette, (left + 1.0, top + 0.95), (left + 1.0, top + 1.45))
            axes.text(left + 1.0, top + 1.85, f"{running[place]:g}", ha="center", va="center",
                      color=palette.accent if place == 3 else palette.ink,
                      weight="bold" if place == 3 else "normal")  # fmt: skip
        axes.text(9.9, top + 1.85, f"y = {running[-1]:g}", va="center", color=palette.accent,
                  weight="bold")  # fmt: skip
    return figure


@drawing("tickets")
def tickets(palette):
    """Four blocks that share a tile of rows, in the order they happen to finish. Each leaves its
    sums in the scratch array, fences them and draws a number. The block that draws the last
    number finds all sums in place and adds them up, always from split 0 on."""
    figure, axes = canvas(2.9)
    bare(axes, (-2.1, 12.3), (6.0, -0.3))
    order = {0: (4.2, 1), 1: (3.0, 0), 2: (5.6, 2), 3: (7.2, 3)}
    for k, (end, ticket) in order.items():
        top = 1.25 * k
        axes.text(-0.15, top + 0.4, f"block (i, {k})", ha="right", va="center", fontsize=9.5)
        cell(axes, palette, 0, top, end - 0.6, 0.85, palette.block(k))
        axes.text((end - 0.6) / 2, top + 0.42, "reads its columns", ha="center", va="center",
                  fontsize=8.5)  # fmt: skip
        cell(axes, palette, end - 0.6, top, 0.55, 0.85, palette.quiet)
        last = ticket == 3
        axes.text(end + 0.15, top + 0.42, f"draws {ticket}", va="center", fontsize=9.5,
                  color=palette.accent if last else palette.ink,
                  weight="bold" if last else "normal")  # fmt: skip
        if last:
            cell(axes, palette, end + 2.1, top, 2.9, 0.85, palette.block(2))
            axes.text(end + 3.55, top + 0.42, "adds 0, 1, 2, 3", ha="center", va="center",
                      fontsize=9)  # fmt: skip
    axes.text(0, 5.55, "time runs to the right; dark: write to scratch, then the fence",
              color=palette.quiet, fontsize=9.5, va="center")  # fmt: skip
    return figure
