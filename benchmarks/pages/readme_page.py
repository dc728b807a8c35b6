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

from benchmarks.pages.grid_page import RANDOM, load, older, unbroken
from benchmarks.pages.page import RESULTS, TOP, between_markers, command, duration, markdown, number
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.measure.picture import grid_figure, save, title
from gemv.measure.records import CellResult, GridResults, summary, worst

README = TOP / "README.md"
PICTURE = TOP / "docs" / "_static" / "roofline.png"
#: What the maker's datasheet promises of the memory, in bytes per second.
DATASHEET = {"NVIDIA H200": 4.8e12}
#: What the picture shows of a cell.
SHOWN = ("m", "n", "op", "nbytes", "time_s", "plain_s", "peers")
#: A matrix with a shorter side is called skinny.
SKINNY = 256
RANDOM_KIND = "shape, dtype and storage drawn at random"


def stored(folder: str) -> dict:
    """The first file of a folder of results."""
    path = min((RESULTS / folder).glob("*.json"))
    return json.loads(path.read_text(encoding="utf-8"))


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
        f"![{title(rows[0])}: gemv, cuBLAS and the ceiling over {len(rows) // 2} shapes]"
        f"({PICTURE.relative_to(TOP).as_posix()})\n\n{caption(grid)}"
    )


def caption(grid: GridResults) -> str:
    """What the picture shows."""
    dtype = DTYPE_OF_PREFIX[picture_rows(grid)[0].dtype]
    return (
        f"{dtype} on an {grid.device}, A in memory. Further right is better. The round dot is the"
        " rate of gemv. The square one is the faster one of torch.mv and cuBLAS's own gemv. The"
        " grey bar ends at the highest rate at which any kernel of the same run moved as many"
        " bytes."
    )


def fingerprint(grids: dict[str, GridResults]) -> str:
    """A hash of the cells that the picture shows; the file of the picture holds it."""
    rows = picture_rows(next(iter(grids.values()))) if grids else []
    text = json.dumps([[getattr(row, name) for name in SHOWN] for row in rows])
    return "gemv-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(grids: dict[str, GridResults], path: Path = PICTURE) -> None:
    figure = grid_figure(picture_rows(next(iter(grids.values()))), width=9.0)
    metadata = {"Source": fingerprint(grids), "Software": None}
    save(figure, path, dpi=100, metadata=metadata)


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
        return "views of a larger matrix"
    if row.op == "C":
        return "conjugate transposed"
    if min(row.m, row.n) < SKINNY:
        return f"skinny: a side below {SKINNY}"
    return f"both sides {SKINNY} or more"


def kinds(rows: list[CellResult], random: list[CellResult]) -> dict[str, list[CellResult]]:
    """Cells by their kind, those drawn at random last."""
    found: dict[str, list[CellResult]] = {}
    for row in rows:
        found.setdefault(kind(row), []).append(row)
    return {**found, **({RANDOM_KIND: random} if random else {})}


def by_kind(found: dict[str, list[CellResult]], device: str) -> str:
    """Ratios to the fastest peer for each kind and dtype, and the shares of floor and datasheet."""
    known = {row.dtype for rows in found.values() for row in rows}
    dtypes = [dtype for dtype in DTYPE_OF_PREFIX if dtype in known]
    promised = DATASHEET.get(device)
    lines = []
    for name, rows in found.items():
        cells = [ratio([row for row in rows if row.dtype == dtype]) for dtype in dtypes]
        slower = sum(row.ratio < 1 for row in rows if row.ratio is not None)
        in_memory = promised and not any(row.hot for row in rows)
        rates = sorted(row.rate(row.time_s) * 1e9 for row in rows)
        of_promised = rates[len(rates) // 2] / promised if in_memory else None
        lines.append([
            name, *cells, f"{slower} of {len(rows)}", number(summary(rows).share, ".0%"),
            number(of_promised, ".0%"),
        ])  # fmt: skip
    headings = [
        "A", *(DTYPE_OF_PREFIX[dtype] for dtype in dtypes), "cells where a peer is faster",
        "of the floor", "of the datasheet",
    ]  # fmt: skip
    return markdown(headings, "w" + "f" * (len(dtypes) + 3), lines)


def ratio(rows: list[CellResult]) -> str:
    """Mean and least ratio to the fastest peer; the least is rounded down, so 0.999 is no 1.00."""
    s = summary(rows)
    if s.ratio is None:
        return "–"
    return unbroken(f"{s.ratio:.2f} ({math.floor(100 * s.least_ratio) / 100:.2f})")


def behind(rows: list[CellResult]) -> str:
    """Every cell in which a peer is faster, the slowest first."""
    losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 1]
    if not losing:
        return "None."
    lines = [
        [
            unbroken(title(row)), unbroken(f"{row.m} x {row.n}"), row.op, number(row.ratio, ".3f"),
            number(row.share), duration(row.time_s), unbroken(row.peer),
        ]
        for row in losing
    ]  # fmt: skip
    headings = ["", "A", "op", "times as fast", "of the floor", "time", "fastest peer"]
    return markdown(headings, "wwwfffw", lines)


def programs(solvers: dict, memories: dict, calls: dict) -> str:
    """What whole programs and single calls gain or lose, from the other results."""
    lines = []
    by = {(row["problem"], row["by"]): row["time_s"] for row in solvers["rows"]}
    problems = list(dict.fromkeys(problem for problem, _ in by))
    for ours, peer, array in (("gemv, SciPy", "SciPy", "NumPy"), ("gemv, CuPy", "CuPy", "CuPy")):
        gains = sorted(by[problem, peer] / by[problem, ours] for problem in problems)
        lines.append([
            f"{len(gains)} problems, {peer}'s solvers with a `gemv.Matrix`",
            f"{peer}'s solvers with {array}'s array", f"{gains[0]:.2f} to {gains[-1]:.2f}",
        ])  # fmt: skip
    times = {row["name"]: row["time_s"] for row in calls["rows"] if row["group"] == "64 x 64"}
    for library, peer in (("cupy", "cupy.cublas.gemv"), ("torch", "torch.mv(out=)")):
        gain = times[peer] / times[f"gemv, {library}, in place"]
        what = f"the host's part of a call, 64 x 64, arrays of `{library}`"
        lines.append([what, f"`{peer}`", number(gain)])
    shared = times["torch.mv(out=), 8 threads"] / times["gemv, torch, in place, 8 threads"]
    lines.append(["the same, from 8 threads of Python at once", "`torch.mv(out=)`", number(shared)])
    sizes = {size["n"]: size for size in memories["sizes"]}
    for n in (max(sizes), 256):
        for what, key in (
            ("`gemv.Matrix`, x and y in host memory", "kept_s"),
            ("A in host memory, copied for one product", "call_s"),
        ):
            gain = sizes[n]["host_s"] / sizes[n][key]
            lines.append([f"{what}, {n} x {n} float32", "SciPy on the CPU", number(gain)])
    return markdown(["what", "compared with", "times as fast"], "wwf", lines)


def selection_of(grid: GridResults) -> str:
    """A remark if the grid was measured before a formula selected kernels."""
    return (
        " The grid is older than the formula that selects kernels now"
        " ([docs/selection.md](docs/selection.md)); the random cells were measured with it."
        if older(grid)
        else ""
    )


def pays(grids: dict[str, GridResults], drawn: dict[str, GridResults]) -> str:
    """The tables, each with the words that it needs."""
    if not grids:
        return "No figures yet: `make grid` measures them on a GPU."
    grid = next(iter(grids.values()))
    rows = [row for row in grid.rows if row.time_s is not None]
    random = [row for each in drawn.values() for row in each.rows if row.time_s is not None]
    found = kinds(rows, random)
    promised = DATASHEET.get(grid.device, 0.0) / 1e12
    narrow = {f"`{peer}`" for row in rows if row.dtype in "hb" for peer in row.peers}
    return "\n\n".join(
        [
            f"**One product on an {grid.device}**, all arrays on the GPU. Each figure says how many"
            " times as fast as the fastest peer `gemv` is: the geometric mean and, in brackets,"
            " the slowest cell. A *cell* is one shape, storage order and op. The peers are"
            " `torch.mv`, cuBLAS's gemv and, for a single row, the dot products of both. For"
            f" 16-bit numbers the peers are {' and '.join(sorted(narrow, reverse=True))}, because"
            " cuBLAS has no gemv for them. `torch.compile` and Triton were not timed.",
            by_kind(found, grid.device),
            "*Of the floor* is the mean of floor over time; the floor is the shortest time in"
            " which any kernel of the same run moved as many bytes. *Of the datasheet* is the"
            f" middle cell's rate as a part of the {promised:g} TB/s that the maker promises."
            + selection_of(grid),
            "**Programs and calls** on the same GPU. [docs/solvers.md](docs/solvers.md),"
            " [docs/calls.md](docs/calls.md) and [docs/memories.md](docs/memories.md) have the"
            " times; [docs/several.md](docs/several.md) has several vectors, matrices and GPUs.",
            programs(stored("solvers"), stored("memories"), stored("calls")),
            "**Where a peer is faster**: every such cell, the slowest first. *Cold* means that A"
            " comes from memory in each call. *Order F* means that A is stored by columns.",
            behind([*rows, *random]),
            "`python -m gemv bench` measures your own shapes. [docs/measure.md](docs/measure.md)"
            " says how we measure. `make docs` builds the page of all cells,"
            " [docs/roofline.md](docs/roofline.md).",
        ]
    )


def replaced(text: str, grids: dict[str, GridResults], drawn: dict[str, GridResults]) -> str:
    """The README with both parts."""
    return between_markers(
        between_markers(text, "picture", picture(grids)), "pays", pays(grids, drawn)
    )


def pages() -> dict[Path, str]:
    """The README as it should be."""
    return {README: replaced(README.read_text(encoding="utf-8"), load(), load(RANDOM))}


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages, draw_if_any, lambda: drawn_now(load())))
