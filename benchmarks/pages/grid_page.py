"""What is made from ``benchmarks/results/grid/*.json``: a part of the README, its picture, a page.

    python -m benchmarks.pages.grid_page           prints the README's part
    python -m benchmarks.pages.grid_page --write   puts it there, and draws docs/_static/roofline.png
    python -m benchmarks.pages.grid_page --check   exit status 1 if either is not up to date

``make grid`` measures those files on a GPU and does this. The page of the documentation is made by
the same functions when ``make docs`` builds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
README = TOP / "README.md"
RESULTS = TOP / "benchmarks" / "results" / "grid"
#: Cells that nobody chose.
RANDOM = TOP / "benchmarks" / "results" / "random"
PICTURE = TOP / "docs" / "_static" / "roofline.png"
BEGIN = "<!-- grid:begin -->"
END = "<!-- grid:end -->"


def load(folder: Path = RESULTS) -> dict[str, Any]:
    """Every stored grid by the name of its file."""
    from gemv.measure.records import GridResults

    grids = {path.stem: GridResults.load(path) for path in sorted(folder.glob("*.json"))}
    for name, grid in grids.items():
        if grid.backend != "cuda":
            raise ValueError(f"{name}: a grid without a GPU carries no figures")
    return grids


def number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def whole(text: str) -> str:
    """Text that stays on one line of a table."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def headline(rows: list[Any]) -> str:
    """Geometric means of each group of cells."""
    from gemv.measure.picture import title
    from gemv.measure.records import groups

    timed = groups(row for row in rows if row.time_s is not None)
    return means({whole(title(group[0])): group for group in timed.values()})


def means(parts: dict[str, list[Any]]) -> str:
    """Geometric means of cells, by what they are called."""
    from gemv.measure.records import summary

    lines = [
        "| | cells | floor / ours | least | floor / cuBLAS | cuBLAS / ours | least | under 0.98"
        " | at 1 or more |",
        "| --- |" + " ---: |" * 8,
    ]
    for name, group in parts.items():
        s = summary(group)
        ahead = s.ahead / s.against if s.against else None
        figures = [
            str(s.cells), number(s.share), number(s.least_share), number(s.peer_share),
            number(s.ratio), number(s.least_ratio), str(s.behind), number(ahead, ".0%"),
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def listed(rows: list[Any]) -> str:
    """Cells one below the other, with all that is known of them."""
    from gemv.measure.picture import title

    lines = [
        "| | shape | op | times as fast | of the floor | µs | peer µs | TB/s | peer | kernel |",
        "| --- | --- | --- |" + " ---: |" * 5 + " --- | --- |",
    ]
    for row in rows:
        theirs = None if row.peer is None else row.peers[row.peer] * 1e6
        figures = [
            whole(title(row)), whole(f"{row.m} x {row.n}"), row.op, number(row.ratio),
            number(row.share), number(row.time_s * 1e6, ".1f"), number(theirs, ".1f"),
            number(row.rate(row.time_s) / 1e3), whole(row.peer or "–"), f"`{row.kernel}`",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def side_by_side(rows: list[Any]) -> str:
    """A row for each shape of one group, and all ops in it."""
    ops = [op for op in "NTC" if any(row.op == op for row in rows)]
    cells = {(row.m, row.n, row.op): row for row in rows}
    head = [f"{op}: µs | TB/s | of the floor | times as fast" for op in ops]
    lines = [f"| shape | {' | '.join(head)} |", "| --- |" + " ---: |" * (4 * len(ops))]
    for m, n in dict.fromkeys((row.m, row.n) for row in rows):
        figures = []
        for op in ops:
            row = cells.get((m, n, op))
            if row is None:
                figures += [""] * 4
                continue
            figures += [
                number(row.time_s * 1e6, ".1f"), number(row.rate(row.time_s) / 1e3),
                number(row.share), number(row.ratio),
            ]  # fmt: skip
        lines.append(f"| {whole(f'{m} x {n}')} | {' | '.join(figures)} |")
    return "\n".join(lines)


def places(name: str, grid: Any, folder: Path = RESULTS) -> str:
    versions = ", ".join(f"{key} {value}" for key, value in grid.versions.items())
    spreads = sorted(row.spread for row in grid.rows if row.spread is not None)
    middle = spreads[len(spreads) // 2]
    return (
        f"{grid.device}; {versions}. Medians of {grid.rounds} interleaved rounds; the rounds of a"
        f" cell lie {middle:.1%} apart in the middle case"
        f" (`benchmarks/results/{folder.name}/{name}.json`)."
    )


def drawn(grid: Any) -> list[tuple[str, list[Any]]]:
    """The groups of a grid that have figures, by a name for their pictures."""
    from gemv.measure.records import groups

    timed = groups(row for row in grid.rows if row.time_s is not None)
    return [(f"{number}", group) for number, group in enumerate(timed.values())]


def page(grids: dict[str, Any]) -> str:
    """The figures of the roofline page, losing cells first."""
    from gemv.measure.picture import title
    from gemv.measure.records import worst

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
            f"{len(losing)} of {len(rows)} cells are under 0.98 of the fastest peer, the worst"
            " first.",
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


def random_page(grids: dict[str, Any]) -> str:
    """Cells that nobody chose, losing ones first."""
    from gemv.cli.options import DTYPE_OF_PREFIX
    from gemv.core.dtypes import DTYPES
    from gemv.measure.records import worst

    parts = []
    for name, grid in grids.items():
        rows = [row for row in grid.rows if row.time_s is not None]
        losing = [row for row in worst(rows, "ratio", len(rows)) if row.ratio < 0.98]
        by_dtype = {
            DTYPE_OF_PREFIX[prefix]: [row for row in rows if row.dtype == prefix]
            for prefix in DTYPES
        }
        parts += [
            f"## Shapes that nobody chose, on {grid.device}",
            "The shapes of the grid below are round, or known for being awkward, and the table of"
            " constants was made with them in mind. These are drawn: m and n log-uniform up to 16"
            " million, any dtype and storage, N and T, two of five without the first column, or"
            " the first four, of a larger matrix. When they were measured, no constant had been"
            " chosen with them. `python -m gemv bench --random 100 --seed 7` draws others.",
            places(name, grid, RANDOM),
            means({**{key: part for key, part in by_dtype.items() if part}, "all": rows}),
            f"{len(losing)} of {len(rows)} are under 0.98 of the fastest peer:",
            listed(losing) if losing else "None.",
            "Furthest from the floor:",
            listed(worst(rows, "share", 10)),
        ]
    return "\n\n".join(parts) + "\n" if parts else ""


def readme_rows(grid: Any) -> list[Any]:
    """What the README's picture shows: one dtype, from memory."""
    first = next((row.dtype for row in grid.rows), "")
    return [
        row
        for row in grid.rows
        if (row.dtype, row.hot, row.order, row.view, row.beta) == (first, False, "C", "", 0)
        and row.time_s is not None
    ]


def readme_random(grids: dict[str, Any]) -> list[str]:
    """A sentence about the cells that nobody chose, if there are any."""
    from gemv.measure.records import summary

    found = []
    for grid in grids.values():
        s = summary(row for row in grid.rows if row.time_s is not None)
        found.append(
            f"On {s.cells} shapes, dtypes and storages that nobody chose, drawn at random, it is"
            f" {number(s.ratio)} times as fast as the fastest peer in the mean, and at"
            f" {number(s.share)} of the floor; {s.behind} of them are under 0.98 of the peer, the"
            f" least at {number(s.least_ratio)}. `python -m gemv bench --random 100` draws others."
        )
    return found


def readme(grids: dict[str, Any], drawn_cells: dict[str, Any]) -> str:
    if not grids:
        return "No figures yet: `make grid` measures them on a GPU."
    name, grid = next(iter(grids.items()))
    from gemv.measure.picture import title

    rows = readme_rows(grid)
    picture = PICTURE.relative_to(TOP).as_posix()
    plain = [row for row in grid.rows if row.order == "C" and not row.view and not row.beta]
    return "\n\n".join(
        [
            f"![{title(rows[0])}: gemv, cuBLAS and the ceiling over {len(rows) // 2} shapes]"
            f"({picture})",
            f"{title(rows[0])}, on {grid.device}: bytes over device time. The ceiling is the"
            " fastest that anyone moved as many bytes in the same run; cuBLAS is the fastest of"
            " `torch.mv`, cuBLAS's gemv and, for one row, its dot.",
            headline(plain),
            *readme_random(drawn_cells),
            "Geometric means of ratios of device times; the floor is the time at the ceiling."
            " [docs/roofline.md](docs/roofline.md) has all cells, those that lose first, once"
            " `make docs` has built its tables; [docs/measure.md](docs/measure.md) says how this is"
            " measured."
            " `python -m gemv bench` tries your own shapes.",
        ]
    )


def fingerprint(grids: dict[str, Any]) -> str:
    """What the picture was drawn from; it carries this with it."""
    rows = readme_rows(next(iter(grids.values()))) if grids else []
    text = json.dumps([dataclasses.asdict(row) for row in rows])
    return "gemv-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(grids: dict[str, Any], path: Path = PICTURE) -> None:
    from gemv.measure.picture import grid_figure, save

    figure = grid_figure(readme_rows(next(iter(grids.values()))), width=9.0)
    metadata = {"Source": fingerprint(grids), "Software": None}
    save(figure, path, dpi=100, metadata=metadata)


def replaced(text: str, part: str) -> str:
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{part}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    grids = load()
    part = readme(grids, load(RANDOM))
    if not arguments:
        print(part)
        return 0
    if arguments not in (["--write"], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    old = README.read_text(encoding="utf-8")
    new = replaced(old, part)
    if arguments == ["--write"]:
        from gemv.core.files import write_text

        write_text(README, new)
        if grids:
            draw(grids)
        return 0
    current = not grids or fingerprint(grids).encode() in PICTURE.read_bytes()
    if new != old or not current:
        print("README.md or its picture is not up to date: make table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
