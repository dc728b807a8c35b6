"""Figures of the second part of the course: batches, and several vectors with one matrix."""

from __future__ import annotations

import functools
from unittest import mock

from style import bare, canvas, cells, drawing
from watch import Record, lines_of, sectors_of
from watch_items import watch_items

from benchmarks.pages.grid_page import of_gpus, timed
from benchmarks.pages.several_page import results
from gemv.core.geometry import CACHE_LINE_BYTES, SECTOR_BYTES
from gemv.measure.records import CellResult

#: Of the batch that is watched: rows and columns of an item, and their number.
SMALL_ITEMS = (4, 4, 64)
#: Rows and columns of the small matrix that is watched alone.
SMALL_MATRIX = (32, 32)
#: The kernel for one vector, storage order, and rows and columns of the matrix that is watched: one
#: step of the kernel's blocks.
SEVERAL = {
    "several_rows": ("vector_rows", "C", 8, 512),
    "several_columns": ("vector_columns", "F", 64, 32),
    "several_long_columns": ("long_columns", "F", 1024, 4),
    "several_small": ("small_matrix", "C", 32, 32),
    "several_short_rows": ("vector_rows", "C", 256, 64),
}
#: Kernels for numbers of 2 or 8 bytes; what is watched and drawn are products in float32.
NARROW = ("several_long_rows", "several_staged_rows")
#: Kernels for matrices that are too large to be watched.
LARGE = ("several_rows_in_shares",)
#: The kernel of the single product, storage order, and rows and columns of the items that are
#: watched, whose lines begin anywhere.
STAGED = {
    "staged_rows": ("vector_rows", "C", 32, 99),
    "staged_columns": ("vector_columns", "F", 129, 32),
}
STAGED_ITEMS = 2
#: Rows and columns of the matrix whose measured times are drawn.
DRAWN = {
    "several_rows": (8192, 8192),
    "several_columns": (8192, 8192),
    "several_long_columns": (1 << 20, 64),
    "several_small": (32, 32),
    "several_short_rows": (1 << 20, 64),
}
VECTORS = (1, 2, 4, 8)
_SHORT_ROWS = "gemv.kernels.vectors.b05_several_short_rows"


def _as_for_many(name: str) -> dict[str, object]:
    """What `several_short_rows` has for many rows of 2-byte numbers, where `name` is its name."""
    if name != "several_short_rows":
        return {"LEAST_VECTORS": {}}
    taken = {"LEAST_VECTORS": {4: 2}, "MOST_SHARERS": {4: 8}}
    many = {"ENOUGH_THREADS": 1, "MANY_THREADS": 1}
    return {**taken, **many, "most_blocks": lambda device, knobs: 1}


@functools.cache
def watched(kernel: str) -> Record:
    """What `kernel` does with :data:`SMALL_ITEMS` along rows."""
    return watch_items(*SMALL_ITEMS, kernel=None if kernel == "small_items" else kernel)


@functools.cache
def watched_in_stages(name: str, staged: bool) -> Record:
    """What the kernel called `name` does with the items of :data:`STAGED`, or that of one product.

    Without `staged` it is the latter.
    """
    single, order, m, n = STAGED[name]
    return watch_items(m, n, STAGED_ITEMS, order=order, kernel=single, staged=staged)


def facts(name: str) -> dict[str, dict]:
    """What the page of a kernel tells, a column of its table each."""
    if name == "small_items":
        return {kernel: _of_items(watched(kernel)) for kernel in (name, "thread_per_row")}
    if name == "small_matrix":
        alone = (watch_items(*SMALL_MATRIX, 1, kernel=each) for each in (name, "small_items"))
        return {record.kernel.name: _alone(record) for record in alone}
    if name in STAGED:
        both = (watched_in_stages(name, staged) for staged in (True, False))
        return {record.kernel.name: _of_items(record) for record in both}
    single, order, m, n = SEVERAL[name]
    told = {}
    for vectors in VECTORS:
        as_for_thousands = mock.patch("gemv.kernels.vectors.b04_several_small.MANY", 2)
        with as_for_thousands, mock.patch.multiple(_SHORT_ROWS, **_as_for_many(name)):
            record = watch_items(m, n, vectors, order=order, shares_matrix=True, kernel=single)
        reads = {array: len(record.of(array)) for array in "ax"}
        told[str(vectors)] = {
            "reads of an element of A": round(reads["a"] / (m * n), 2),
            "the same for each vector": round(reads["a"] / (m * n) / vectors, 3),
            "reads of x for a read of A": round(reads["x"] / reads["a"], 2),
        }
    return told


def _of_items(record: Record) -> dict[str, object]:
    requests = record.requests("a")
    readers = {(one.block, one.tid) for one in record.of("a")}
    launched = record.blocks * record.geometry.launches[0].threads_per_block
    return {
        "blocks": record.blocks,
        "threads that read A": f"{len(readers) / launched:.0%}",
        "requests for A": len(requests),
        "sectors that a request moves": round(record.sectors(), 2),
        "share of moved bytes asked for": f"{record.useful():.0%}",
    }


def _alone(record: Record) -> dict[str, object]:
    return {
        "blocks": record.blocks,
        "threads that read A": len({(one.block, one.tid) for one in record.of("a")}),
        "requests for A": len(record.requests("a")),
        "barriers of a block": record.barriers // record.blocks,
        "numbers stored in shared memory": len(record.of("shared", write=True)),
    }


@drawing("items-small_matrix")
def draw_partial_sums(palette):
    """Matrices of 8 x 32 and of 8 x 31 float32 along the rows, as recorded: numbers of one colour
    in a row are added up by one thread. Where 16 bytes divide a row, it has four partial sums of
    neighbouring columns in turn, and else two from 16 columns on."""
    figure, axes = canvas(1.6, ncols=2)
    for n, surface in zip((32, 31), axes, strict=True):
        record = watch_items(8, n, 1, kernel="small_matrix")
        readers = {one.element: one.tid for one in record.of("a")}
        bare(surface, (-0.5, 32.5), (8.2, -0.2))
        places = [(k % n, k // n) for k in sorted(readers)]
        colours = [palette.block(readers[k] // 8) for k in sorted(readers)]  # lanes by rows
        cells(surface, palette, places, colours, 1, 0.86)
        sums = len(set(colours))
        surface.set_title(f"8 x {n}: {sums} partial sums a row", fontsize=9.5, loc="left",
                          color=palette.ink)  # fmt: skip
    return figure


@drawing("items-small_items")
def draw_requests(palette):
    """The first request for A in a batch of matrices of 4 x 4 float32, as recorded. Each row of
    cells is a line of 128 bytes, which has two matrices. With a thread for each row, the four
    threads of an item ask for four numbers. With the kernel for small items, the 32 threads of a
    warp ask for 16 bytes each."""
    names = ("thread_per_row", "small_items")
    return _draw_requests(palette, {name: watched(name) for name in names})


def _draw_requests(palette, records: dict[str, Record]):
    """The first request for A of each record, in lines of the caches."""
    figure, axes = canvas(1.5, ncols=2)
    for (name, record), surface in zip(records.items(), axes, strict=True):
        request = record.requests("a")[0]
        each, sector = CACHE_LINE_BYTES // 4, SECTOR_BYTES // 4
        bare(surface, (-0.5, each + 0.5), (4.2, -0.2))
        read, moved = {one.element for one in request}, sectors_of(request)
        unused, left = palette.fade(palette.grid, 0.2), palette.fade(palette.grid, 0.85)
        colours = [
            palette.block(0) if k in read else unused if k // sector in moved else left
            for k in range(4 * each)
        ]
        cells(surface, palette, [(k % each, k // each) for k in range(4 * each)], colours, 1, 0.86)
        count = len(lines_of(request))
        surface.set_title(
            f"{name}:\n{count} line{'s' * (count > 1)}, {len(moved)} sectors, {len(read)} numbers",
            fontsize=9.5, loc="left", color=palette.ink,
        )  # fmt: skip
    return figure


def draw_stages(palette, name: str):
    """The first request for A, of the kernel for one product and of the one that copies."""
    both = (watched_in_stages(name, staged) for staged in (False, True))
    return _draw_requests(palette, {record.kernel.name: record for record in both})


for _name, (_single, _order, _m, _n) in STAGED.items():
    drawing(
        f"items-{_name}",
        f"The first request for A in a batch of matrices of {_m} x {_n} float32, stored along"
        f" {'rows' if _order == 'C' else 'columns'}, as recorded. Each row of cells is a line of"
        f" 128 bytes. In {_single} the threads of a warp ask for a number each; copies move 16"
        " bytes for each thread.",
    )(functools.partial(draw_stages, name=_name))


def measured(name: str) -> list[CellResult]:
    """The stored float32 cells of the first GPU in which a kernel was selected."""
    _, rows = first_gpu()
    return [row for row in rows if row.kernel == name and row.dtype == "s"]


def first_gpu() -> tuple[str, list[CellResult]]:
    """The first GPU that has results, and its cells."""
    for device, grids in of_gpus(results()).items():
        return device, timed(grids)
    return "GPU", []


def of_vectors(name: str) -> dict[int, CellResult]:
    """The stored cells of the matrix that is drawn for a kernel, by the number of vectors."""
    if name not in DRAWN:
        return {}
    cell = (*DRAWN[name], "N")
    return {row.vectors: row for row in measured(name) if (row.m, row.n, row.op) == cell}


def draw_vectors(palette, name: str):
    """Times over the number of vectors, from the stored cells of one matrix."""
    rows = of_vectors(name)
    if not rows:
        return None
    counts = sorted(rows)
    figure, axes = canvas(2.8)
    lines = {
        "gemv, one call": ([rows[k].time_s for k in counts], palette.strong, "o-"),
        "torch.mm": ([rows[k].peers.get("torch.mm") for k in counts], palette.accent, "s-"),
        "the floor: A, x and y once": ([rows[k].plain_s for k in counts], palette.quiet, "^--"),
    }
    for label, (times, colour, style) in lines.items():
        points = [(k, 1e6 * t) for k, t in zip(counts, times, strict=True) if t]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=6)
    axes.set(xlabel="vectors", ylabel="µs", ylim=(0, None), xticks=counts)
    axes.grid(axis="y", color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=3)
    return figure


for _name, (_m, _n) in DRAWN.items():
    _along = "rows" if SEVERAL[_name][1] == "C" else "columns"
    drawing(
        f"items-{_name}",
        f"One matrix of {_m} x {_n} float32, stored along {_along}, and several vectors: the time"
        f" of all products together, measured on an {first_gpu()[0]}.",
    )(functools.partial(draw_vectors, name=_name))
