"""``python -m gemv ladder``: every kernel on one problem."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gemv.cli.console import (
    Report,
    complain,
    draw,
    json_path,
    number,
    one_line_failures,
    picture_path,
    progress,
    write_json,
)
from gemv.cli.options import DTYPE_OF_PREFIX, dtype_letter, names, size
from gemv.cli.simulator import backend_with_kernels, in_simulator, refuse_large

if TYPE_CHECKING:
    from gemv.measure.ladder import Ladder

SIZE = (8192, 8192)
#: Thousands of simulated threads are slow: large enough for tails on every tile, no larger.
SIZE_SIMULATED = (96, 160)


def add_commands(commands: Any) -> None:
    """Add ``ladder`` to the parser."""
    sub = commands.add_parser("ladder", help="measure every kernel on one problem")
    sub.set_defaults(command="ladder", act=ladder)
    sub.add_argument("--m", type=size, metavar="ROWS", help=f"of A; default {SIZE[0]}")
    sub.add_argument("--n", type=size, metavar="COLUMNS", help=f"of A; default {SIZE[1]}")
    sub.add_argument(
        "--dtype",
        type=dtype_letter,
        default="s",
        metavar="s|d|c|z|h|b",
        help="or f32, bf16, ...; default s",
    )
    sub.add_argument("--order", choices=("C", "F"), default="C", help="storage; default C")
    sub.add_argument("--op", choices=("N", "T", "C"), default="N", help="op(A); default N")
    sub.add_argument("--kernels", type=names, metavar="A,B,...", help="only these; default all")
    sub.add_argument("--json", metavar="FILE", help="write the figures there as well")
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )


def ladder(options: argparse.Namespace) -> int:
    """Measure the kernels on one problem and print them as a table."""
    output, picture = json_path(options), picture_path(options)
    name = backend_with_kernels()
    if name == "host":
        return in_simulator(options)
    default = SIZE_SIMULATED if name == "simulator" else SIZE
    m, n = options.m or default[0], options.n or default[1]
    if name == "simulator":
        refuse_large(m, n)
    with one_line_failures():
        from gemv.kernels import REGISTRY
        from gemv.measure import ladder as measure
        from gemv.measure.picture import plot_ladder

        kernels = list(REGISTRY) if options.kernels is None else options.kernels
        with progress("gemv ladder") as report:
            started: list[str] = []

            def starts(kernel: str) -> None:
                report(len(started), len(kernels), kernel)
                started.append(kernel)

            report(0, len(kernels), "preparing")
            measured = measure.ladder(
                m, n, options.dtype, options.order, options.op, kernels=kernels, progress=starts
            )
    _print(measured)
    write_json(output, measured)
    draw("gemv ladder", plot_ladder, measured, picture)
    # written so that NaN counts as wrong
    wrong = [
        row.name
        for row in measured.rows
        if not row.refused and row.error is not None and not row.error <= 1
    ]
    if wrong:
        complain("gemv ladder", f"error above the bound: {', '.join(wrong)}")
    return 1 if wrong else 0


def _print(measured: Ladder) -> None:
    report = Report()
    simulated = measured.backend == "simulator"
    rows = [
        [
            str(row.rung),
            row.name,
            number(row.time_s, ".1f", 1e6),
            number(row.gb_per_s, ".0f"),
            number(row.share, ".0%"),
            number(row.error, ".3g"),
            f"refused: {row.refused}" if row.refused else "",
        ]
        for row in measured.rows
    ]
    headings = ["rung", "kernel", "time us", "GB/s", "of ceiling", "error / bound", ""]
    kinds = "fwffffn"
    if not any(row.refused for row in measured.rows):
        headings, kinds, rows = headings[:-1], kinds[:-1], [row[:-1] for row in rows]
    report.say(
        f"gemv ladder: {measured.m} x {measured.n} {DTYPE_OF_PREFIX[measured.dtype]}, order"
        f" {measured.order}, op {measured.op}"
    )
    report.say(measured.device if simulated else f"{measured.device}, backend {measured.backend}")
    report.table(headings, kinds, rows)
    if simulated:
        report.say("No time is given: a simulator's time says nothing about a GPU.")
    elif measured.ceiling_gb_per_s is not None:
        report.say(f"ceiling: {measured.ceiling_gb_per_s:.0f} GB/s read in this run")
