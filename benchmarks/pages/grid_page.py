"""The page of the roofline, from ``benchmarks/results/grid/*.json`` and ``random/*.json``.

``docs/_ext/parts.py`` writes the page with the functions of this file, and
:mod:`benchmarks.pages.readme_page` the README from the same results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from benchmarks.pages.page import RESULTS, by_device, drawing, folded, markdown, number, versions
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.measure.picture import title
from gemv.measure.records import CellResult, GridResults, groups, summary, worst

GRIDS = RESULTS / "grid"
#: Cells whose shape, dtype and storage were drawn at random.
RANDOM = RESULTS / "random"
#: What the maker's datasheet promises of the memory, in bytes per second.
DATASHEET = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}


def load(folder: Path = GRIDS) -> dict[str, GridResults]:
    """Every stored grid by the name of its file below the folder, the reference GPU's first."""
    grids = {
        path.relative_to(folder).with_suffix("").as_posix(): GridResults.load(path)
        for path in sorted(folder.rglob("*.json"))
    }
    for name, grid in grids.items():
        if grid.backend != "cuda":
            raise ValueError(f"{name}: a grid without a GPU carries no figures")
    return dict(by_device(grids.items(), lambda item: item[1].device))


def of_gpus(grids: dict[str, GridResults]) -> dict[str, list[GridResults]]:
    """The grids of each GPU, in their order."""
    found: dict[str, list[GridResults]] = {}
    for grid in grids.values():
        found.setdefault(grid.device, []).append(grid)
    return found


def timed(grids: Iterable[GridResults]) -> list[CellResult]:
    """The cells of some grids that have a time."""
    return [row for grid in grids for row in grid.rows if row.time_s is not None]


def unbroken(text: str) -> str:
    """Text that stays on one line of a table."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def brackets(device: str) -> str:
    """What a table of means says of its figures."""
    promised = DATASHEET.get(device)
    maker = (
        "" if promised is None else
        " *Of the datasheet* is the middle cell's rate over the"
        f" {promised / 1e12:g} TB/s that the maker promises."
    )  # fmt: skip
    return (
        "Each figure is a geometric mean. In brackets is the worst cell. *Of the floor* is floor"
        f" over time; *times as fast* compares with the fastest peer.{maker}"
    )


def of_datasheet(rows: list[CellResult], device: str) -> float | None:
    """The middle rate over the promised one; None where A is not in memory, or nothing is known."""
    promised = DATASHEET.get(device)
    if promised is None or any(row.hot for row in rows):
        return None
    rates = sorted(row.rate(row.time_s) * 1e9 for row in rows)
    return rates[len(rates) // 2] / promised


def headline(rows: list[CellResult], device: str) -> str:
    """Geometric means of each group of cells."""
    found = groups(row for row in rows if row.time_s is not None)
    return means({title(group[0]): group for group in found.values()}, device)


def means(parts: dict[str, list[CellResult]], device: str) -> str:
    """Means of each part and, in brackets, its worst cell; one row for each name."""
    rows = []
    for name, group in parts.items():
        s = summary(group)
        slower = sum(row.ratio < 1 for row in group if row.ratio is not None)
        rows.append([
            name, with_least(s.share, s.least_share), number(of_datasheet(group, device)),
            number(s.peer_share), with_least(s.ratio, s.least_ratio), f"{slower} of {s.cells}",
        ])  # fmt: skip
    headings = ["", "of the floor", "of the datasheet", "peer, of the floor", "times as fast",
                "peer is faster"]  # fmt: skip
    return markdown(headings, "wfffff", rows)


def with_least(mean: float | None, least: float | None) -> str:
    """A mean and the least figure; that one is rounded down, so that 0.999 is no 1.00."""
    if mean is None or least is None:
        return "–"
    return unbroken(f"{mean:.2f} ({math.floor(100 * least) / 100:.2f})")


def listed(rows: list[CellResult]) -> str:
    """A table with one row for each cell."""
    lines = []
    for row in rows:
        theirs = None if row.peer is None else row.peers[row.peer] * 1e6
        lines.append([
            f"{title(row)}: {unbroken(f'{row.m} x {row.n}')}, {row.op}", exact(row.ratio),
            number(row.share), number(row.time_s * 1e6, ".1f"),
            number(theirs, ".1f"), row.peer or "–", f"`{row.kernel}`",
        ])  # fmt: skip
    headings = ["cell", "times as fast", "of the floor", "µs", "peer, µs", "peer", "kernel"]
    return markdown(headings, "wffffww", lines)


def exact(ratio: float) -> str:
    """A ratio; below 1 with three digits, so that none looks like 1.00."""
    return number(ratio, ".3f" if ratio < 1 else ".2f")


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
                figures += [""] * 3
                continue
            figures += [
                number(row.time_s * 1e6, ".1f"), number(row.share), number(row.ratio)
            ]  # fmt: skip
        lines.append(figures)
    headings = [word for op in ops for word in (f"{op}: µs", "of the floor", "times as fast")]
    return markdown(["shape", *headings], "w" + "f" * len(headings), lines)


def older(grid: GridResults) -> str:
    """The cells of a grid whose kernels a table of rows selected, as before the formula."""
    version = grid.versions.get("gemv", "")
    if " table " not in version:
        return ""
    return "Views of a larger matrix and op C" if " machine " in version else "All cells"


def places(name: str, grid: GridResults, folder: Path = GRIDS) -> str:
    spreads = sorted(row.spread for row in grid.rows if row.spread is not None)
    middle = spreads[len(spreads) // 2]
    old = (
        f" {older(grid)} were timed before a formula selected the kernels ({{doc}}`selection`)."
        if older(grid)
        else ""
    )
    return (
        f"{grid.device}; {versions(grid.versions)}.{old} Each time is the median of {grid.rounds}"
        f" interleaved rounds. In the median cell the rounds differ by {middle:.1%}."
        f" All times are in `benchmarks/results/{folder.name}/{name}.json`."
    )


def drawn(grid: GridResults) -> list[tuple[str, list[CellResult]]]:
    """The groups of a grid that were timed, each with the name of its picture."""
    found = groups(timed([grid]))
    return [(f"{number}", group) for number, group in enumerate(found.values())]


def page(grids: dict[str, GridResults]) -> str:
    """The figures of the roofline page, losing cells first."""
    if not grids:
        return "No results are stored yet: `make grid` measures them on a GPU.\n"
    parts = []
    for name, grid in grids.items():
        rows = timed([grid])
        losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 1]
        mark = f" ({name})" if len(grids) > 1 else ""
        parts += [f"## {grid.device}{mark}", places(name, grid)]
        parts += [f"### Where a peer is faster{mark}"]
        parts += [
            f"In {len(losing)} of {len(rows)} cells the fastest peer is faster. The slowest of them"
            " comes first.",
            listed(losing) if losing else "None.",
        ]
        parts += [f"### Furthest from the floor{mark}", listed(worst(rows, "share", 5))]
        parts += [
            f"### Means{mark}", brackets(grid.device), headline(rows, grid.device),
            "{doc}`cells` has every cell.",
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def cells_page(grids: dict[str, GridResults]) -> str:
    """Every cell of every grid: a picture for each group, and its figures."""
    if not grids:
        return "No results are stored yet: `make grid` measures them on a GPU.\n"
    parts = []
    for name, grid in grids.items():
        mark = f" ({name})" if len(grids) > 1 else ""
        parts += [f"## {grid.device}{mark}"]
        for picture, group in drawn(grid):
            parts += [
                f"### {title(group[0])}{mark}",
                drawing(f"grid-{name}-{picture}"),
                folded("In numbers", side_by_side(group)),
            ]
    return "\n\n".join(parts) + "\n"


def random_page(grids: dict[str, GridResults]) -> str:
    """Cells drawn at random, losing ones first."""
    from gemv.core.dtypes import DTYPES

    parts = []
    for name, grid in grids.items():
        rows = timed([grid])
        losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 1]
        by_dtype = {
            DTYPE_OF_PREFIX[prefix]: [row for row in rows if row.dtype == prefix]
            for prefix in DTYPES
        }
        parts += [f"## Shapes drawn at random, on {grid.device}"]
        if grid is next(iter(grids.values())):
            parts += [
                "The shapes of the grid further down were chosen. The cells of this section were"
                " drawn at random: m and n log-uniform up to 16 million, any dtype and storage, N"
                " and T. Two of five are views of a larger matrix, without its first column or"
                " without its first four columns. Nothing was fitted to these cells before they"
                " were measured. `python -m gemv bench --random 100 --seed 7` draws others."
            ]
        parts += [
            places(name, grid, RANDOM),
            brackets(grid.device),
            means(
                {**{key: part for key, part in by_dtype.items() if part}, "all": rows}, grid.device
            ),
            f"In {len(losing)} of {len(rows)} cells the fastest peer is faster:",
            listed(losing) if losing else "None.",
            "Furthest from the floor:",
            listed(worst(rows, "share", 5)),
        ]
    return "\n\n".join(parts) + "\n" if parts else ""
