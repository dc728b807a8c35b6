"""The README's figures, from ``benchmarks/results/``: a picture, and the tables of when it pays.

    python -m benchmarks.pages.readme_page            prints the README
    python -m benchmarks.pages.readme_page --write    writes it, and draws docs/_static/roofline.png
    python -m benchmarks.pages.readme_page --check    exit status 1 if either is not up to date

``make grid`` measures the grid on a GPU and then writes the README; ``make table`` only writes it.
:mod:`benchmarks.pages.ladder_table` makes the README's table of kernels.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path

from benchmarks.pages import compiled_part, programs_part, today
from benchmarks.pages.grid_page import (
    DATASHEET,
    RANDOM,
    load,
    of_datasheet,
    of_gpus,
    older,
    timed,
    unbroken,
)
from benchmarks.pages.page import (
    RESULTS,
    TOP,
    between_markers,
    by_device,
    command,
    folded,
    in_part,
    markdown,
    number,
)
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.measure.picture import grid_figure, save, title
from gemv.measure.records import CellResult, GridResults, summary, worst

README = TOP / "README.md"
PICTURE = TOP / "docs" / "_static" / "roofline.png"
#: Pixels of the picture on a desktop; its letters have to be legible on a phone, which shrinks it.
WIDTH = 620
#: What the picture shows of a cell.
SHOWN = ("m", "n", "op", "nbytes", "time_s", "plain_s", "peers")
#: Cells of matrices with a shorter side are a kind of their own.
SKINNY = 256
RANDOM_KIND = "drawn at random"
#: Kinds of cells of the first table; the others are in the second.
PLAIN = (f"both sides {SKINNY} or more", f"a side below {SKINNY}", RANDOM_KIND)
#: Lines of the table of losing cells that are in sight; the others are folded away.
IN_SIGHT = 4
#: Cells of several products in one call.
SEVERAL = RESULTS / "several"


def stored(folder: str) -> dict:
    """The first file of a folder of results, one of the reference GPU if there is any."""
    paths = sorted((RESULTS / folder).glob("*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return by_device(found, device_of)[0]


def device_of(found: dict) -> str:
    """The GPU of a result, the first one of several."""
    return found.get("device") or found["names"][0]


# --- The picture ----------------------------------------------------------------------------------


def picture_rows(grid: GridResults) -> list[CellResult]:
    """The cells of the picture: one dtype, A in memory and stored by rows."""
    first = next((row.dtype for row in grid.rows), "")
    return [
        row
        for row in grid.rows
        if (row.dtype, row.hot, row.order, row.view, row.beta) == (first, False, "C", "", 0)
        and row.time_s is not None
    ]


def picture(grids: dict[str, GridResults]) -> str:
    """The picture and what it shows."""
    if not grids:
        return "No figures yet: `make grid` measures them on a GPU."
    grid = next(iter(grids.values()))
    rows = picture_rows(grid)
    return (
        f'<img src="{PICTURE.relative_to(TOP).as_posix()}" width="{WIDTH}" alt="{title(rows[0])}:'
        f' gemv, cuBLAS and the ceiling over {len(rows) // 2} shapes">\n\n{caption(grid)}'
    )


def caption(grid: GridResults) -> str:
    """What the picture shows."""
    dtype = DTYPE_OF_PREFIX[picture_rows(grid)[0].dtype]
    return (
        f"{dtype} on an {grid.device}, A in memory. Further right is better. The dot is the rate"
        " of gemv. The diamond is the faster one of torch.mv and cuBLAS's own gemv. The grey bar"
        " ends at the highest rate at which any kernel of the same run moved as many bytes."
    )


def fingerprint(grids: dict[str, GridResults]) -> str:
    """A hash of the cells that the picture shows; the file of the picture holds it."""
    rows = picture_rows(next(iter(grids.values()))) if grids else []
    text = json.dumps([[getattr(row, name) for name in SHOWN] for row in rows])
    return "gemv-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(grids: dict[str, GridResults], path: Path = PICTURE) -> None:
    figure = grid_figure(picture_rows(next(iter(grids.values()))), width=WIDTH / 100)
    metadata = {"Source": fingerprint(grids), "Software": None}
    save(figure, path, dpi=150, metadata=metadata)


def drawn_now(grids: dict[str, GridResults]) -> bool:
    """Whether the picture was drawn from these grids."""
    return not grids or fingerprint(grids).encode() in PICTURE.read_bytes()


def draw_if_any() -> None:
    """Draw the picture, unless nothing is stored."""
    grids = load()
    if grids:
        draw(grids)


# --- When it pays ---------------------------------------------------------------------------------


def kind(row: CellResult) -> str:
    """The kind of problem that a cell of the grid is."""
    if row.hot:
        return "A in the L2 cache"
    if row.view:
        return "view of a larger matrix"
    if row.op == "C":
        return "op C"
    if min(row.m, row.n) < SKINNY:
        return PLAIN[1]
    return PLAIN[0]


def kinds(rows: list[CellResult], random: list[CellResult]) -> dict[str, list[CellResult]]:
    """Cells by their kind, those drawn at random last."""
    found: dict[str, list[CellResult]] = {}
    for row in rows:
        found.setdefault(kind(row), []).append(row)
    return {**found, **({RANDOM_KIND: random} if random else {})}


def by_kind(found: dict[str, list[CellResult]], device: str, corner: str) -> str:
    """A column for each kind: ratios to the fastest peer by dtype, then what holds of all cells."""
    known = {row.dtype for rows in found.values() for row in rows}
    parts = [
        [DTYPE_OF_PREFIX[dtype], *(ratio([row for row in rows if row.dtype == dtype])
                                   for rows in found.values())]
        for dtype in DTYPE_OF_PREFIX if dtype in known
    ]  # fmt: skip
    slower = [
        f"{sum(row.ratio < 1 for row in rows if row.ratio is not None)} of {len(rows)}"
        for rows in found.values()
    ]
    floor = [number(summary(rows).share, ".0%") for rows in found.values()]
    promised = [number(of_datasheet(rows, device), ".0%") for rows in found.values()]
    parts += [["a peer is faster in", *slower], ["of the floor", *floor],
              ["of the datasheet", *promised]]  # fmt: skip
    return markdown([corner, *found], "w" + "f" * len(found), parts)


def ratio(rows: list[CellResult]) -> str:
    """Mean and least ratio to the fastest peer; the least is rounded down, so 0.999 is no 1.00."""
    s = summary(rows)
    if s.ratio is None:
        return "–"
    return f"{s.ratio:.2f} ({math.floor(100 * s.least_ratio) / 100:.2f})"


def behind(rows: list[CellResult]) -> str:
    """Every cell in which a peer is faster, the slowest first; all but some lines are folded."""
    losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 1]
    if not losing:
        return "None."
    lines = [
        [
            f"{title(row)}: {unbroken(f'{row.m} x {row.n}')}, {row.op}",
            f"{number(row.ratio, '.3f')} ({number(row.share)})", row.peer or "",
        ]
        for row in losing
    ]  # fmt: skip
    said = "times as fast (of the floor)"
    return in_part(["cell: A, op", said, "fastest peer"], "wfw", lines, IN_SIGHT)


def products(rows: list[CellResult], before: str = "") -> str:
    """Ratios of calls with several vectors, then of batches: a line for each dtype.

    Parameters
    ----------
    before : str
        What a table's first heading begins with.
    """
    parts: dict[tuple[int, int], list[CellResult]] = {}
    for row in sorted(rows, key=lambda row: (row.batch, row.vectors)):
        parts.setdefault((row.vectors, row.batch), []).append(row)
    vectors = {str(key[0]): part for key, part in parts.items() if key[0] > 1}
    batches = {batch_name(part): part for key, part in parts.items() if key[0] == 1}
    tables = []
    for corner, columns in (("vectors with one matrix", vectors), ("many matrices", batches)):
        known = {row.dtype for part in columns.values() for row in part}
        lines = [
            [DTYPE_OF_PREFIX[dtype], *(ratio([row for row in part if row.dtype == dtype])
                                       for part in columns.values())]
            for dtype in DTYPE_OF_PREFIX if dtype in known
        ]  # fmt: skip
        if lines:
            heads = [f"{before}{corner}", *columns]
            tables.append(markdown(heads, "w" + "f" * len(columns), lines))
    return "\n\n".join(tables)


def batch_name(rows: list[CellResult]) -> str:
    """How a batch is called: the number of matrices, and their shapes."""
    sizes = [row.m for row in rows]
    return f"{rows[0].batch} of {min(sizes)}² to {max(sizes)}²"


def losing_of(rows: list[CellResult]) -> str:
    """In how many cells a peer is faster."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}"


def shapes_of(rows: list[CellResult]) -> str:
    """The shapes of A in the cells of several vectors, in a sentence."""
    names = list(dict.fromkeys(f"{row.m} x {row.n}" for row in rows if row.vectors > 1))
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def selection_of(grid: GridResults) -> str:
    """A remark if cells of the grid were measured before a formula selected kernels."""
    return (
        f" {older(grid)} were timed before today's formula chose the kernels"
        " ([docs/selection.md](docs/selection.md))."
        if older(grid)
        else ""
    )


def split(found: dict[str, list[CellResult]]) -> tuple[dict, dict]:
    """The kinds of the first table, and those of the second."""
    plain = {name: found[name] for name in PLAIN if name in found}
    return plain, {name: part for name, part in found.items() if name not in plain}


def elsewhere(device: str, rows: list, random: list, several: list) -> list[str]:
    """The tables of a GPU that is not the first; the cells themselves are on other pages."""
    short = device.removeprefix("NVIDIA ").partition(" ")[0]
    plain, others = split(kinds(rows, random))
    tables = [
        *([by_kind(plain, device, f"{short}: A in memory")] if plain else []),
        *([by_kind(others, device, f"{short}: the other cells")] if others else []),
        *([products(several, f"{short}: ")] if several else []),
        *filter(None, [today.changed(several, device)]),
    ]
    promised = DATASHEET.get(device)
    maker = "" if promised is None else f" The maker promises {promised / 1e12:g} TB/s."
    lists = [
        *(["[docs/roofline_others.md](docs/roofline_others.md)"] if rows or random else []),
        *(["[docs/several.md](docs/several.md)"] if several else []),
    ]
    words = (
        f"**On an {device}** a peer is faster in {losing_of([*rows, *random, *several])} cells;"
        f" {' and '.join(lists)} list{'s' * (len(lists) == 1)} them.{maker}"
    )
    return [words, folded(f"The tables of the {short}", "\n\n".join(tables))]


def pays(
    grids: dict[str, GridResults], drawn: dict[str, GridResults], many: dict[str, GridResults]
) -> str:
    """The tables, each with the words that it needs: of the first GPU, then of each other one.

    Parameters
    ----------
    grids, drawn, many : dict
        Results of chosen shapes, of shapes drawn at random, and of several products in one call.
    """
    if not grids:
        return "No figures yet: `make grid` measures them on a GPU."
    grid = next(iter(grids.values()))
    parts = [of_gpus(each) for each in (grids, drawn, many)]
    rows, random, several = (timed(each.pop(grid.device, [])) for each in parts)
    plain, others = split(kinds(rows, random))
    promised = DATASHEET.get(grid.device, 0.0) / 1e12
    found = [stored(folder) for folder in ("solvers", "memories", "calls", "shards")]
    gpus = " and an ".join(dict.fromkeys(map(device_of, found)))
    narrow = {f"`{peer}`" for row in rows if row.dtype in "hb" for peer in row.peers}
    further = [
        text
        for device in by_device({device for each in parts for device in each}, str)
        for text in elsewhere(device, *(timed(each.get(device, [])) for each in parts))
    ]
    return "\n\n".join(
        [
            f"**One product** on an {grid.device}, all arrays on the GPU. A figure says how many"
            " times as fast as the fastest peer `gemv` is: the geometric mean and, in brackets, the"
            " slowest cell. A *cell* is one shape, storage order and op. Peers are `torch.mv`,"
            " cuBLAS's gemv and, for a single row, the dot products of both; for 16-bit numbers"
            f" only {' and '.join(sorted(narrow, reverse=True))}, because cuBLAS has no such gemv."
            + compiled_part.sentence(load(compiled_part.FOLDER)),
            by_kind(plain, grid.device, "A in memory"),
            by_kind(others, grid.device, "the other cells"),
            "The *floor* is the shortest time in which any kernel of the same run moved as many"
            " bytes. *Of the floor* is that time divided by ours, the geometric mean of the cells."
            f" *Of the datasheet* is the median cell's rate divided by the {promised:g} TB/s that"
            " the maker promises. *Op C* is the conjugate transpose." + selection_of(grid),
            "**Where a peer is faster**: every such cell, the slowest first. *Cold* means that A"
            " comes from memory in each call. *Order F* means that A is stored by columns.",
            behind([*rows, *random]),
            "**Several products in one call.** The peers are PyTorch's `mm` and `bmm`, CuPy and"
            f" cuBLAS's strided batches. A peer is faster in {losing_of(several)} cells;"
            " [docs/several.md](docs/several.md) lists them. With several vectors A is"
            f" {shapes_of(several)}.",
            products(several),
            *filter(None, [today.changed(several, grid.device)]),
            *further,
            f"**Programs, calls, GPUs**, on an {gpus}. A line with two sizes of A has two figures,"
            " and its A is float32. The times are in [docs/solvers.md](docs/solvers.md),"
            " [docs/calls.md](docs/calls.md), [docs/memories.md](docs/memories.md) and"
            " [docs/shards.md](docs/shards.md).",
            programs_part.programs(*found, rows, grid.device),
            "`python -m gemv bench` measures your own shapes. [docs/measure.md](docs/measure.md)"
            " says how we measure, and [docs/cells.md](docs/cells.md) has every cell.",
        ]
    )


def replaced(text: str, *results: dict[str, GridResults]) -> str:
    """The README with both parts, of the results that :func:`pays` takes."""
    return between_markers(
        between_markers(text, "picture", picture(results[0])), "pays", pays(*results)
    )


def results() -> tuple[dict[str, GridResults], ...]:
    """The stored results that the README has tables of."""
    return load(), load(RANDOM), load(SEVERAL)


def pages() -> dict[Path, str]:
    """The README as it should be."""
    return {README: replaced(README.read_text(encoding="utf-8"), *results())}


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages, draw_if_any, lambda: drawn_now(load())))
