"""``python -m benchmarks``: calls, memories and constants."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemv.cli.console import (
    Parser,
    Refused,
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
from gemv.cli.main import execute
from gemv.cli.options import names, size
from gemv.cli.simulator import backend_with_kernels, in_simulator

if TYPE_CHECKING:
    from benchmarks.measure.calls_records import CallResults
    from benchmarks.measure.constants_records import ConstantsResults
    from benchmarks.measure.memories import MemoryResults

#: Parts of ``constants``.
PARTS = ("coefficients", "vector", "turns")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for a failed check, 2 for a bad request."""
    return execute(_parser(), sys.argv[1:] if argv is None else argv)


def _parser() -> Parser:
    parser = Parser(prog="benchmarks", description="What the pages of the documentation show.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    written = "write the figures there as well"

    sub = commands.add_parser("calls", help="what one call costs the host, beside other libraries")
    sub.set_defaults(command="calls", act=calls)
    sub.add_argument(
        "--lists",
        action="store_true",
        help="calls for 1, 16 and 1500 matrices of different sizes; without a GPU, no launches",
    )
    sub.add_argument(
        "--selection",
        action="store_true",
        help="the choice of a kernel for a new shape, and the data of it; needs no GPU",
    )
    sub.add_argument("--json", metavar="FILE", help=written)

    sub = commands.add_parser("memories", help="one product with its matrix in each kind of memory")
    sub.set_defaults(command="memories", act=memories)
    sub.add_argument("--n", type=size, metavar="N", help="rows and columns of A; default 16384")
    sub.add_argument("--json", metavar="FILE", help=written)

    sub = commands.add_parser(
        "constants", help="constant memory beside other homes of alpha, beta and x"
    )
    sub.set_defaults(command="constants", act=constants)
    sub.add_argument(
        "--parts", type=names, metavar="A,B,...", help=f"of {', '.join(PARTS)}; default all"
    )
    sub.add_argument("--json", metavar="FILE", help=written)
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )
    return parser


# --- calls ----------------------------------------------------------------------------------------


def calls(options: argparse.Namespace) -> int:
    """Measure what calls cost the host and print a table."""
    output = json_path(options)
    if options.lists and options.selection:
        raise Refused("--lists and --selection are two measurements: give one of them")
    if options.lists:
        return _list_calls(options, output)
    if options.selection:
        return _selection(output)
    with one_line_failures():
        from benchmarks.measure import calls as measure

        with progress("benchmarks calls") as report:
            measured = measure.measure(progress=lambda what: report(0, 1, what))
    _print_calls(measured)
    write_json(output, measured)
    return 0


def _list_calls(options: argparse.Namespace, output: Path | None) -> int:
    """The same for calls that take lists of matrices."""
    name = backend_with_kernels()
    if name == "host":
        return in_simulator(options)
    with one_line_failures():
        from benchmarks.measure import list_calls as measure

        with progress("benchmarks calls") as report_of:
            measured = measure.measure(progress=lambda what: report_of(0, 1, what))
    report, group, rows = Report(), None, []
    for row in measured.rows:
        title = "" if row.group == group else row.group
        rows.append([title, row.name, number(row.time_s, ".1f", 1e6), row.note])
        group = row.group
    report.say("benchmarks calls: host time of one call for matrices of different sizes, float32")
    without = "" if name == "cuda" else "; launches are left out"
    report.say(f"{measured.device}{without}")
    report.table(["group", "call", "us", ""], "wwfn", rows)
    write_json(output, measured)
    return 0


def _selection(output: Path | None) -> int:
    """What selection takes for a new shape."""
    with one_line_failures():
        from benchmarks.measure import new_shapes as measure

        with progress("benchmarks calls") as report_of:
            measured = measure.measure(progress=lambda what: report_of(0, 1, what))
    report, group, rows = Report(), None, []
    for row in measured.rows:
        title = "" if row.group == group else row.group
        rows.append([title, row.name, number(row.time_s, ".2f", 1e6), row.note])
        group = row.group
    report.say(
        f"benchmarks calls: host time of selection, with the choices of the {measured.device}"
    )
    report.table(["group", "shape", "us", ""], "wwfn", rows)
    write_json(output, measured)
    return 0


def _print_calls(measured: CallResults) -> None:
    references = {
        row.group: row.time_s
        for row in measured.rows
        if row.name == "torch.mv(out=)" and row.time_s
    }
    rows, group = [], None
    for row in measured.rows:
        reference = references.get(row.group)
        ratio = None if row.time_s is None or reference is None else row.time_s / reference
        title = "" if row.group == group else row.group
        rows.append([title, row.name, number(row.time_s, scale=1e6), number(ratio), row.note])
        group = row.group
    report = Report()
    report.say("benchmarks calls: host time of one call, float32")
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    report.say(f"{measured.device}; {versions}")
    report.table(["group", "call", "us", "of torch.mv(out=)", ""], "wwffn", rows)


# --- memories -------------------------------------------------------------------------------------


def memories(options: argparse.Namespace) -> int:
    """Measure a product with its matrix in each kind of memory and print a table."""
    output = json_path(options)
    with one_line_failures():
        from benchmarks.measure import memories as measure

        order = options.n or measure.ORDER
        sizes = tuple(n for n in measure.THRESHOLDS if n <= order)
        with progress("benchmarks memories") as report:
            measured = measure.measure(order, sizes=sizes, progress=lambda w: report(0, 1, w))
    _print_memories(measured)
    write_json(output, measured)
    wrong = [f"{row.memory}, {row.way}" for row in measured.rows if row.same_bits is False]
    if wrong:
        complain("benchmarks memories", f"other bits than on the device: {'; '.join(wrong)}")
    return 1 if wrong else 0


def _print_memories(measured: MemoryResults) -> None:
    rows = [
        [
            f"{row.memory} ({row.group})",
            row.way,
            number(row.time_s, ".3f", 1e3),
            number(row.gb_per_s, ".1f"),
            row.note,
        ]
        for row in measured.rows
    ]
    report, n = Report(), measured.order
    report.say(f"benchmarks memories: {n} x {n} float32 on {measured.device}")
    report.table(["A is in", "read by", "ms", "GB/s of A", ""], "wwffn", rows)


# --- constants ------------------------------------------------------------------------------------


def constants(options: argparse.Namespace) -> int:
    """Measure constant memory and the other homes, and print a table for each part."""
    output, picture = json_path(options), picture_path(options)
    parts = list(PARTS) if options.parts is None else options.parts
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise Refused(f"no part {', '.join(unknown)}; known parts: {', '.join(PARTS)}")
    if backend_with_kernels() == "host":
        return in_simulator(options)
    with one_line_failures():
        from benchmarks.measure import constants as measure
        from benchmarks.pages.plots import plot_constants

        with progress("benchmarks constants") as report:
            measured = measure.measure(parts, progress=lambda what: report(0, 1, what))
    _print_constants(measured)
    write_json(output, measured)
    draw("benchmarks constants", plot_constants, measured, picture)
    checked = [*measured.coefficients, *measured.vector]
    wrong = [row.home for row in checked if row.error is not None and not row.error <= 1]
    if wrong:
        complain("benchmarks constants", f"error above the bound: {', '.join(wrong)}")
    return 1 if wrong else 0


def _print_constants(measured: ConstantsResults) -> None:
    from benchmarks.pages.constants_tables import tables

    report = Report()
    report.say(f"benchmarks constants on {measured.device}")
    for each in tables(measured):
        kinds = "".join(
            "w" if column < each.left or heading.startswith("machine code") else "f"
            for column, heading in enumerate(each.headings)
        )
        report.say()
        report.say(each.title)
        report.table(each.headings, kinds, each.rows)
    report.say()
    for what, said in measured.limits.items():
        report.say(f"limit ({what}): {said}")
    if measured.backend == "simulator":
        right = len(measured.coefficients) + len(measured.vector)
        report.say(f"{right} results checked. No time is given: a simulator's says nothing.")
