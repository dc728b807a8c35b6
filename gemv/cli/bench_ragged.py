"""``python -m gemv bench --ragged``: matrices of different sizes, multiplied by one plan."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from gemv.cli.console import (
    Refused,
    Report,
    number,
    one_line_failures,
    progress,
)
from gemv.cli.options import DTYPE_OF_PREFIX
from gemv.cli.resumed import end, file_of, libraries_of, stored, stored_before
from gemv.cli.simulator import backend_with_kernels, in_simulator

if TYPE_CHECKING:
    from gemv.measure.ragged import RaggedCell
    from gemv.measure.ragged_records import RaggedResult, RaggedResults

#: Options of ``bench`` that say something about one shape, or that this kind of it lacks.
_OTHERS = ("shapes", "view", "hot", "beta", "batch", "vectors", "random", "plot")
#: Sizes that are printed.
_SHOWN = 12


def bench_ragged(options: argparse.Namespace) -> int:
    """Measure lists of products and print a table, those that lose most first."""
    values = {name: getattr(options, name) for name in _OTHERS}
    # Not by truth: a beta of 0 is given, too.
    given = [f"--{name}" for name, v in values.items() if v is not None and v is not False]
    if given:
        raise Refused(
            "--ragged goes with --dtypes, --ops, --order, --seed, --against, --seconds, --json and"
            f" --resume, not with {given[0]}"
        )
    output = file_of(options)
    name = backend_with_kernels()
    if name == "host":
        return in_simulator(options)
    simulated = name == "simulator"
    with one_line_failures(KeyError, OSError):
        import gemv
        from gemv.measure import ragged_bench
        from gemv.measure.ragged_records import RaggedResults

        before = stored_before(output, RaggedResults.load) if options.resume else None
        wanted = cells_of(options, simulated)
        libraries = libraries_of(options)
        with progress("gemv bench") as report:
            measured = stored(
                ragged_bench.measure(
                    wanted,
                    ragged_bench.Ours(gemv.Batch, gemv.gemv),
                    [] if simulated else libraries,
                    before,
                    math.inf if options.seconds is None else options.seconds,
                    lambda done, total, cell: report(done, total, f"{cell.count} {cell.dtype}"),
                ),
                output,
            )
    asked = set(wanted)
    rows = [row for row in measured.rows if row.cell in asked]
    _print(measured, rows, wanted)
    wrong = [f"{_kind(row)} {row.op}: {row.wrong}" for row in rows if row.wrong]
    return end(wrong)


def cells_of(options: argparse.Namespace, simulated: bool) -> list[RaggedCell]:
    """The lists that the options ask for."""
    from gemv.measure import ragged

    count = options.ragged or (ragged.SIMULATED_COUNT if simulated else None)
    return ragged.cells(
        count,
        options.dtypes or "sdchb",
        [op.upper() for op in options.ops or ("N", "T")],
        [order.upper() for order in options.order or ("C", "F")],
        options.seed or 0,
        ragged.SIMULATED_MOST if simulated else ragged.MOST,
    )


def _print(measured: RaggedResults, rows: list[RaggedResult], wanted: list[RaggedCell]) -> None:
    report, first = Report(), wanted[0]
    report.say(f"gemv bench on {measured.device}")
    report.say(", ".join(f"{name} {version}" for name, version in measured.versions.items()))
    sizes = [f"{m} x {n}" for m, n in first.sizes[:_SHOWN]]
    more = ", ..." if first.count > _SHOWN else ""
    report.say(
        f"Sizes are log-uniform from {first.least} to {first.most}, seed {first.seed}:"
        f" {', '.join(sizes)}{more}"
    )
    rows = sorted(rows, key=lambda row: row.loses)
    if any(row.time_s is not None for row in rows):
        report.say("Those that lose most come first.")
        _print_times(report, rows)
    else:
        shown = [[_kind(row), row.op, str(len(row.launches))] for row in rows]
        report.table(["", "op", "launches"], "wwf", shown)
        right = sum(row.wrong is None and row.frames > 0 for row in rows)
        report.say(f"{right} results checked. No time is given: a simulator's says nothing.")
    if len(rows) < len(wanted):
        report.say(f"Time is up: {len(rows)} of {len(wanted)} lists; --json FILE --resume goes on.")


def _kind(row: RaggedResult) -> str:
    """What a list is besides its op: ``1474 matrices float32 order F``."""
    words = f"{row.count} matrices {DTYPE_OF_PREFIX[row.dtype]}"
    return f"{words} order {row.order}" if row.order != "C" else words


def _print_times(report: Report, rows: list[RaggedResult]) -> None:
    """Our times, and how many times as long each other way takes."""
    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    shown = []
    for row in rows:
        cell = [_kind(row), row.op]
        if row.time_s is None:
            why = row.wrong or row.refused.get("gemv", "")
            shown.append([*cell, "–", "", "", "", *[""] * len(names), why])
            continue
        others = [
            number(row.peers[name] / row.time_s) if name in row.peers else "–" for name in names
        ]
        shown.append([
            *cell, number(row.time_s, ".1f", 1e6), number(row.rate(row.time_s) / 1e3),
            number(row.share), str(len(row.launches)), *others,
            "; ".join(f"{name}: {why}" for name, why in row.refused.items())[:60],
        ])  # fmt: skip
    headings = ["", "op", "us", "TB/s", "of floor", "launches", *names, ""]
    report.say("Of the other ways: their times over ours.")
    report.table(headings, f"wwffff{'f' * len(names)}n", shown)
