"""``python -m gemv bench``: times of calls beside the floor and other libraries."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemv.cli.console import (
    Refused,
    Report,
    draw,
    number,
    one_line_failures,
    picture_path,
    progress,
)
from gemv.cli.options import DTYPE_OF_PREFIX, dtype_letters, names, shapes, size
from gemv.cli.resumed import end, file_of, libraries_of, stored, stored_before
from gemv.cli.simulator import backend_with_kernels, in_simulator, refuse_large

if TYPE_CHECKING:
    from gemv.measure.cells import Cell
    from gemv.measure.records import CellResult, GridResults


def add_commands(commands: Any) -> None:
    """Add ``bench`` to the parser."""
    sub = commands.add_parser("bench", help="measure calls beside those of other libraries")
    sub.set_defaults(command="bench", act=bench)
    sub.add_argument(
        "--shapes", type=shapes, metavar="MxN,...", help="of A; default 24 from small to 2 GiB"
    )
    sub.add_argument(
        "--dtypes", type=dtype_letters, metavar="s,d,...", help="default all but complex128"
    )
    sub.add_argument("--ops", type=names, metavar="N,T,C", help="op(A); default N,T")
    sub.add_argument("--order", type=names, metavar="C,F", help="storage of A; default C")
    sub.add_argument(
        "--view",
        action="append",
        metavar="SLICES",
        help="A as a view: '[:, 1:]', '[3:, 5:]', '[:, :-7]', '[::2, ::2]'; may be repeated",
    )
    sub.add_argument(
        "--hot", action="store_true", help="the same A each time, held by the L2 cache if it fits"
    )
    sub.add_argument(
        "--beta", type=int, choices=(0, -1), help="of y := A*x + beta*y; default 0", metavar="0|-1"
    )
    sub.add_argument(
        "--batch", type=size, metavar="COUNT", help="so many matrices in one call, with gemv.matvec"
    )
    sub.add_argument(
        "--vectors", type=size, metavar="COUNT", help="one matrix and so many vectors in one call"
    )
    sub.add_argument(
        "--ragged",
        type=size,
        nargs="?",
        const=0,
        metavar="COUNT",
        help="so many matrices of different sizes in one plan of gemv.Batch; default 64 MiB",
    )
    sub.add_argument(
        "--random",
        type=size,
        metavar="COUNT",
        help="so many shapes, dtypes, ops, orders and views that nobody chose; --seed for others",
    )
    sub.add_argument(
        "--host", action="store_true", help="NumPy's arrays on the host, beside SciPy's own calls"
    )
    sub.add_argument("--seed", type=int, metavar="SEED", help="of --random and --ragged; default 0")
    sub.add_argument(
        "--against", type=names, metavar="torch,cupy", help="peers; default: those installed"
    )
    sub.add_argument("--seconds", type=float, metavar="S", help="begin nothing after so long")
    sub.add_argument(
        "--json", metavar="FILE", help="write the figures there, those of a grid after each cell"
    )
    sub.add_argument(
        "--resume", action="store_true", help="skip what the file of --json has already"
    )
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )


def bench(options: argparse.Namespace) -> int:
    """Measure a grid of cells and print every figure and the means."""
    if options.host:
        from gemv.cli.bench_host import bench_host

        return bench_host(options)
    if options.ragged is not None:
        from gemv.cli.bench_ragged import bench_ragged

        return bench_ragged(options)
    output, picture = file_of(options), picture_path(options)
    name = backend_with_kernels()
    if name == "host":
        return in_simulator(options)
    simulated = name == "simulator"
    with one_line_failures(KeyError, OSError):
        from gemv.measure import grid
        from gemv.measure.picture import plot_grid
        from gemv.measure.records import GridResults

        before = stored_before(output, GridResults.load) if options.resume else None
        wanted = cells_of(options, simulated)
        for cell in wanted if simulated else ():
            refuse_large(cell.m, cell.n, cell.batch)
        libraries = libraries_of(options)
        with progress("gemv bench") as report:
            measured = stored(
                grid.measure(
                    wanted,
                    [] if simulated else libraries,
                    before,
                    math.inf if options.seconds is None else options.seconds,
                    lambda done, total, cell: report(
                        done, total, f"{cell.m} x {cell.n} {cell.dtype}"
                    ),
                ),
                output,
            )
    asked = set(wanted)
    rows = [row for row in measured.rows if row.cell in asked]
    _print(measured, rows, len(asked))
    draw("gemv bench", plot_grid, measured, picture)
    wrong = [f"{row.m} x {row.n} {row.dtype} {row.op}: {row.wrong}" for row in rows if row.wrong]
    return end(wrong)


def cells_of(options: argparse.Namespace, simulated: bool) -> list[Cell]:
    """The cells that the options ask for."""
    from gemv.core.dtypes import DTYPES
    from gemv.measure import cells

    ops = [op.upper() for op in options.ops or ("N", "T")]
    beta = options.beta or 0
    if options.random is not None:
        others = ("shapes", "view", "hot", "batch", "vectors")
        given = [f"--{name}" for name in others if getattr(options, name)]
        if given:
            raise Refused(
                "--random draws shapes and views of single products by itself, without"
                f" {', '.join(given)}"
            )
        return cells.random_cells(
            options.random,
            options.seed or 0,
            options.dtypes or list(DTYPES),
            ops,
            [order.upper() for order in options.order or ("C", "F")],
            beta,
            (1, 1 << 11) if simulated else cells.RANDOM_BYTES,
        )
    if options.seed is not None:
        raise Refused("--seed is that of --random and --ragged")
    batch, vectors = options.batch or 1, options.vectors or 1
    if batch > 1 and vectors > 1:
        raise Refused("--batch has one vector for each matrix, and --vectors one matrix for all")
    usual = cells.HOT_SHAPES if options.hot else cells.SHAPES
    usual = cells.BATCH_SHAPES if batch > 1 else usual
    return cells.cells(
        options.shapes or (cells.SIMULATED_SHAPES if simulated else usual),
        options.dtypes or [prefix for prefix in DTYPES if prefix != "z"],
        ops,
        [order.upper() for order in options.order or ("C",)],
        options.view or [""],
        options.hot,
        beta,
        batch,
        vectors,
    )


def _print(measured: GridResults, rows: Sequence[CellResult], asked: int) -> None:
    report = Report()
    report.say(f"gemv bench on {measured.device}")
    report.say(", ".join(f"{name} {version}" for name, version in measured.versions.items()))
    timed = [row for row in rows if row.time_s is not None]
    if any(row.cell.items > 1 for row in rows):
        rows = sorted(rows, key=lambda row: row.loses)
        report.say("Those that lose most come first.")
    if timed:
        _print_times(report, rows)
        _print_means(report, timed)
    else:
        shown = [[_kind(row), _shape(row), row.op, row.kernel] for row in rows]
        report.table(["", "shape", "op", "kernel"], "wwww", shown)
        right = sum(row.wrong is None and row.frames > 0 for row in rows)
        report.say(f"{right} results checked. No time is given: a simulator's says nothing.")
    if len(rows) < asked:
        report.say(f"Time is up: {len(rows)} of {asked} cells; --json FILE --resume goes on.")


def _kind(row: CellResult) -> str:
    """What a cell is besides its shape and op: ``float32 cold order F``."""
    words = [DTYPE_OF_PREFIX[row.dtype], "hot" if row.hot else "cold"]
    words += [f"order {row.order}"] if row.order != "C" else []
    words += [f"A[{row.view}]"] if row.view else []
    words += [f"beta {row.beta}"] if row.beta else []
    words += [f"batch of {row.batch}"] if row.batch > 1 else []
    words += [f"{row.vectors} vectors"] if row.vectors > 1 else []
    return " ".join(words)


def _shape(row: CellResult) -> str:
    return f"{row.m} x {row.n}"


def _print_times(report: Report, rows: Sequence[CellResult]) -> None:
    shown = []
    for row in rows:
        cell = [_kind(row), _shape(row), row.op]
        if row.time_s is None:
            shown.append([*cell, "–", "", "", "", "", row.wrong or row.refused.get("gemv", "")])
            continue
        peer_s = None if row.peer is None else row.peers[row.peer]
        shown.append([
            *cell, number(row.time_s, ".1f", 1e6), number(row.rate(row.time_s) / 1e3),
            number(row.share), number(peer_s, ".1f", 1e6), number(row.ratio),
            row.peer or "; ".join(row.refused.values())[:40],
        ])  # fmt: skip
    headings = ["", "shape", "op", "us", "TB/s", "of floor", "peer us", "times as fast", "peer"]
    report.table(headings, "wwwffffff", shown)


def _print_means(report: Report, timed: Sequence[CellResult]) -> None:
    from gemv.measure.records import groups, summary, worst

    parts: list[tuple[str, Sequence[CellResult]]] = [
        (f"{_kind(group[0])}{' conjugate' * (group[0].op == 'C')}", group)
        for group in groups(timed).values()
    ]
    shown = []
    for title, part in [*parts, ("all", timed)] if len(parts) > 1 else parts:
        s = summary(part)
        shown.append([
            title, str(s.cells), number(s.share), number(s.least_share), number(s.peer_share),
            number(s.ratio), number(s.least_ratio), str(s.behind),
            number(s.ahead / s.against if s.against else None, ".0%"),
        ])  # fmt: skip
    report.say("Geometric means, and the least")
    headings = [
        "", "cells", "floor / ours", "least", "floor / peer", "peer / ours", "least",
        "under 0.98", "at 1 or more",
    ]  # fmt: skip
    report.table(headings, "wffffffff", shown)
    for by, what in (("share", "Furthest from the floor"), ("ratio", "Worst beside the peer")):
        said = [
            f"{_kind(row)} {_shape(row)} {row.op} {getattr(row, by):.2f}"
            for row in worst(timed, by)
        ]
        if said:
            report.say(f"{what}: {'; '.join(said)}")
