"""From ``benchmarks/results/grid/*.json``: a part of the README, its picture, the roofline page.

    python -m benchmarks.pages.grid_page            prints the README
    python -m benchmarks.pages.grid_page --write    writes it, and draws docs/_static/roofline.png
    python -m benchmarks.pages.grid_page --check    exit status 1 if either is not up to date

``make grid`` measures those files on a GPU and then writes the README. ``make docs`` makes the page
of the roofline with the functions of this file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

from benchmarks.pages.page import RESULTS, TOP, between_markers, command, markdown, number, versions
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.measure.picture import grid_figure, save, title
from gemv.measure.records import CellResult, GridResults, groups, summary, worst

README = TOP / "README.md"
GRIDS = RESULTS / "grid"
#: Cells whose shape, dtype and storage were drawn at random.
RANDOM = RESULTS / "random"
PICTURE = TOP / "docs" / "_static" / "roofline.png"


def load(folder: Path = GRIDS) -> dict[str, GridResults]:
    """Every stored grid by the name of its file."""
    grids = {path.stem: GridResults.load(path) for path in sorted(folder.glob("*.json"))}
    for name, grid in grids.items():
        if grid.backend != "cuda":
            raise ValueError(f"{name}: a grid without a GPU carries no figures")
    return grids


def unbroken(text: str) -> str:
    """Text that stays on one line of a table."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def headline(rows: list[CellResult]) -> str:
    """Geometric means of each group of cells."""
    timed = groups(row for row in rows if row.time_s is not None)
    return means({unbroken(title(group[0])): group for group in timed.values()})


def means(parts: dict[str, list[CellResult]]) -> str:
    """Geometric means of each part, one row for each name."""
    rows = []
    for name, group in parts.items():
        s = summary(group)
        ahead = s.ahead / s.against if s.against else None
        rows.append([
            name, str(s.cells), number(s.share), number(s.least_share), number(s.peer_share),
            number(s.ratio), number(s.least_ratio), str(s.behind), number(ahead, ".0%"),
        ])  # fmt: skip
    headings = [
        "", "cells", "floor / ours", "least", "floor / cuBLAS", "cuBLAS / ours", "least",
        "under 0.98", "at 1 or more",
    ]  # fmt: skip
    return markdown(headings, "wffffffff", rows)


def listed(rows: list[CellResult]) -> str:
    """A table with one row for each cell."""
    lines = []
    for row in rows:
        theirs = None if row.peer is None else row.peers[row.peer] * 1e6
        lines.append([
            unbroken(title(row)), unbroken(f"{row.m} x {row.n}"), row.op, number(row.ratio),
            number(row.share), number(row.time_s * 1e6, ".1f"), number(theirs, ".1f"),
            number(row.rate(row.time_s) / 1e3), unbroken(row.peer or "–"), f"`{row.kernel}`",
        ])  # fmt: skip
    headings = [
        "", "shape", "op", "times as fast", "of the floor", "µs", "peer µs", "TB/s", "peer",
        "kernel",
    ]  # fmt: skip
    return markdown(headings, "wwwfffffww", lines)


def side_by_side(rows: list[CellResult]) -> str:
    """A table with one row for each shape of one group, and columns for each op."""
    ops = [op for op in "NTC" if any(row.op == op for row in rows)]
    cells = {(row.m, row.n, row.op): row for row in rows}
    lines = []
    for m, n in dict.fromkeys((row.m, row.n) for row in rows):
        figures = [unbroken(f"{m} x {n}")]
        for op in ops:
            row = cells.get((m, n, op))
            if row is None:
                figures += [""] * 4
                continue
            figures += [
                number(row.time_s * 1e6, ".1f"), number(row.rate(row.time_s) / 1e3),
                number(row.share), number(row.ratio),
            ]  # fmt: skip
        lines.append(figures)
    headings = [
        word for op in ops for word in (f"{op}: µs", "TB/s", "of the floor", "times as fast")
    ]
    return markdown(["shape", *headings], "w" + "f" * len(headings), lines)


def places(name: str, grid: GridResults, folder: Path = GRIDS) -> str:
    spreads = sorted(row.spread for row in grid.rows if row.spread is not None)
    middle = spreads[len(spreads) // 2]
    return (
        f"{grid.device}; {versions(grid.versions)}. Each time is the median of {grid.rounds}"
        f" interleaved rounds. In the median cell the rounds differ by {middle:.1%}."
        f" All times are in `benchmarks/results/{folder.name}/{name}.json`."
    )


def drawn(grid: GridResults) -> list[tuple[str, list[CellResult]]]:
    """The groups of a grid that were timed, each with the name of its picture."""
    timed = groups(row for row in grid.rows if row.time_s is not None)
    return [(f"{number}", group) for number, group in enumerate(timed.values())]


def page(grids: dict[str, GridResults]) -> str:
    """The figures of the roofline page, losing cells first."""
    if not grids:
        return "No results are stored yet: `make grid` measures them on a GPU.\n"
    parts = []
    for name, grid in grids.items():
        rows = [row for row in grid.rows if row.time_s is not None]
        losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 0.98]
        mark = f" ({name})" if len(grids) > 1 else ""
        parts += [f"## {grid.device}{mark}", places(name, grid)]
        parts += [f"### Where cuBLAS is faster{mark}"]
        parts += [
            f"{len(losing)} of {len(rows)} cells are under 0.98 of the fastest peer's speed. The"
            " slowest of them comes first.",
            listed(losing) if losing else "None.",
        ]
        parts += [f"### Furthest from the floor{mark}", listed(worst(rows, "share", 10))]
        parts += [f"### Means{mark}", headline(rows)]
        for picture, group in drawn(grid):
            parts += [
                f"### {title(group[0])}{mark}",
                f"```{{drawing}} grid-{name}-{picture}\n```",
                "<details><summary>In numbers</summary>",
                side_by_side(group),
                "</details>",
            ]
    return "\n\n".join(parts) + "\n"


def random_page(grids: dict[str, GridResults]) -> str:
    """Cells drawn at random, losing ones first."""
    from gemv.core.dtypes import DTYPES

    parts = []
    for name, grid in grids.items():
        rows = [row for row in grid.rows if row.time_s is not None]
        losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 0.98]
        by_dtype = {
            DTYPE_OF_PREFIX[prefix]: [row for row in rows if row.dtype == prefix]
            for prefix in DTYPES
        }
        parts += [
            f"## Shapes drawn at random, on {grid.device}",
            "The grid further down has round shapes and shapes that are known to be slow, and the"
            " table of constants was tuned on shapes like these. The cells of this section were"
            " drawn at random: m and n log-uniform up to 16 million, any dtype and storage, N and"
            " T. Two of five are views of a larger matrix, without its first column or without"
            " its first four columns. No constant was tuned on these cells before they were"
            " measured. `python -m gemv bench --random 100 --seed 7` draws others.",
            places(name, grid, RANDOM),
            means({**{key: part for key, part in by_dtype.items() if part}, "all": rows}),
            f"{len(losing)} of {len(rows)} cells are under 0.98 of the fastest peer's speed:",
            listed(losing) if losing else "None.",
            "Furthest from the floor:",
            listed(worst(rows, "share", 10)),
        ]
    return "\n\n".join(parts) + "\n" if parts else ""


def readme_rows(grid: GridResults) -> list[CellResult]:
    """The cells of the README's picture: one dtype, cold."""
    first = next((row.dtype for row in grid.rows), "")
    return [
        row
        for row in grid.rows
        if (row.dtype, row.hot, row.order, row.view, row.beta) == (first, False, "C", "", 0)
        and row.time_s is not None
    ]


def readme_random(grids: dict[str, GridResults]) -> list[str]:
    """A sentence for each stored draw of random cells."""
    found = []
    for grid in grids.values():
        s = summary(row for row in grid.rows if row.time_s is not None)
        found.append(
            f"On {s.cells} cells whose shape, dtype and storage were drawn at random, gemv is in"
            f" the mean {number(s.ratio)} times as fast as the fastest peer, and at"
            f" {number(s.share)} of the floor. {s.behind} of them are under 0.98 of the peer's"
            f" speed, the slowest at {number(s.least_ratio)}."
            " `python -m gemv bench --random 100` draws others."
        )
    return found


def readme(grids: dict[str, GridResults], drawn_cells: dict[str, GridResults]) -> str:
    if not grids:
        return "No figures yet: `make grid` measures them on a GPU."
    name, grid = next(iter(grids.items()))
    rows = readme_rows(grid)
    picture = PICTURE.relative_to(TOP).as_posix()
    plain = [row for row in grid.rows if row.order == "C" and not row.view and not row.beta]
    return "\n\n".join(
        [
            f"![{title(rows[0])}: gemv, cuBLAS and the ceiling over {len(rows) // 2} shapes]"
            f"({picture})",
            f"{title(rows[0])}, on {grid.device}: bytes over device time. The ceiling is the"
            " highest rate at which any kernel moved as many bytes in the same run. cuBLAS is the"
            " fastest peer: `torch.mv`, cuBLAS's gemv or, for one row, its dot.",
            headline(plain),
            *readme_random(drawn_cells),
            "The figures are geometric means of ratios of device times; the floor is the time at"
            " the ceiling. `make docs` builds the tables of [docs/roofline.md](docs/roofline.md),"
            " which have all cells, those where a peer is faster first."
            " [docs/measure.md](docs/measure.md) says how we measure."
            " `python -m gemv bench` measures your own shapes.",
        ]
    )


def fingerprint(grids: dict[str, GridResults]) -> str:
    """A hash of the cells that the picture shows; the file of the picture holds it."""
    rows = readme_rows(next(iter(grids.values()))) if grids else []
    text = json.dumps([dataclasses.asdict(row) for row in rows])
    return "gemv-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(grids: dict[str, GridResults], path: Path = PICTURE) -> None:
    figure = grid_figure(readme_rows(next(iter(grids.values()))), width=9.0)
    metadata = {"Source": fingerprint(grids), "Software": None}
    save(figure, path, dpi=100, metadata=metadata)


def replaced(text: str, part: str) -> str:
    """The README with that part."""
    return between_markers(text, "grid", part)


def pages() -> dict[Path, str]:
    """The README as it should be."""
    return {README: replaced(README.read_text(encoding="utf-8"), readme(load(), load(RANDOM)))}


def drawn_now(grids: dict[str, GridResults]) -> bool:
    """Whether the picture was drawn from these grids."""
    return not grids or fingerprint(grids).encode() in PICTURE.read_bytes()


def draw_if_any() -> None:
    """Draw the picture, unless nothing is stored."""
    grids = load()
    if grids:
        draw(grids)


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages, draw_if_any, lambda: drawn_now(load())))
