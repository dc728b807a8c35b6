"""``python -m gemv tune``: a machine's file for the current GPU, in about a minute."""

from __future__ import annotations

import argparse
import math
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemv.cli.console import (
    Refused,
    Report,
    complain,
    json_path,
    number,
    one_line_failures,
    output_path,
    progress,
    reason,
    refused_writes,
    write_json,
)
from gemv.cli.options import DTYPE_OF_PREFIX, seconds
from gemv.cli.simulator import backend_with_kernels

if TYPE_CHECKING:
    from gemv.core.geometry import Device
    from gemv.measure.tune import Timed, Tuning

SECONDS = 60.0
#: Launches that are printed, those whose predicted times are furthest off.
_SHOWN = 20


def add_commands(commands: Any) -> None:
    """Add ``tune`` to the parser."""
    sub = commands.add_parser(
        "tune", help="measure this GPU in a minute and write its machine's file"
    )
    sub.set_defaults(command="tune", act=tune)
    sub.add_argument(
        "--seconds", type=seconds, default=SECONDS, metavar="S",
        help=f"begin no problem after so long; default {SECONDS:g}",
    )  # fmt: skip
    sub.add_argument(
        "--output", metavar="FILE", help="the file, .toml; default the GPU's name and -tuned.toml"
    )
    sub.add_argument("--json", metavar="FILE", help="write all times there as well")


def tune(options: argparse.Namespace) -> int:
    """Time a few dozen problems, fit numbers of the machine, write its file if it is no worse."""
    output = None if options.output is None else output_path(options.output, (".toml",))
    times = json_path(options)
    _require_gpu()
    with one_line_failures(OSError):
        from gemv.engines import backend

        device = backend.engine().device()
    if output is None:
        output = _usual(device)
    try:
        with one_line_failures(OSError):
            measured = measure(device, options.seconds)
    except ArithmeticError as error:
        complain("gemv tune", f"wrong result: {reason(error)}")
        return 1
    _print(measured)
    write_json(times, measured)
    objections = measured.objections
    if objections:
        complain(
            "gemv tune",
            f"{output} was not written. On problems held out of the fit the fitted machine is"
            f" worse than the one in use: {'; '.join(objections)}",
        )
        return 1
    _write(measured, output)
    return 0


def measure(device: Device, limit: float) -> Tuning:
    """Time and fit on the current GPU."""
    import dataclasses

    from gemv.measure.tune import Stopwatch
    from gemv.measure.tune import tune as fit
    from gemv.measure.tuning_launches import problems
    from gemv.selection.machine import is_of, machine

    found = machine(device)
    wanted = problems(device)
    timer = Stopwatch([cell for cell, _ in wanted])
    wanted = [each for each in wanted if timer.fits(each[0])]
    with progress("gemv tune") as report:
        measured = fit(
            timer, device, found, wanted, limit, is_of(found, device),
            progress=lambda done, total, cell: report(done, total, _problem(cell)),
        )  # fmt: skip
    today = datetime.now(UTC).date().isoformat()
    return dataclasses.replace(measured, versions=timer.versions(), date=today)


def _require_gpu() -> None:
    name = backend_with_kernels()
    if name == "simulator":
        raise Refused("it times kernels on a GPU, and times of the simulator say nothing about one")
    if name != "cuda":
        raise Refused("it times kernels on a GPU, and there is none; see python -m gemv info")


def _usual(device: Device) -> Path:
    from gemv.selection.machine import slug

    return output_path(f"{slug(device.name)}-tuned.toml", (".toml",))


def _write(measured: Tuning, output: Path) -> None:
    from gemv.core.files import write_text
    from gemv.selection.machine import made
    from gemv.selection.parse import parse

    text = measured.to_toml()
    sha256 = made(output.stem, parse(text, str(output)), {}).hash
    with refused_writes(output):
        write_text(output, text)
    print(f"wrote {output}, sha256 {sha256}. It is used where this is set:")
    print(f"GEMV_MACHINE={shlex.quote(str(output.resolve()))}")


def _problem(cell: Any) -> str:
    hot = " in L2" if cell.hot else ""
    return f"{cell.m} x {cell.n} {DTYPE_OF_PREFIX[cell.dtype]} order {cell.order}{hot}"


def _print(measured: Tuning) -> None:
    report = Report()
    before, after = measured.before.numbers, measured.after.numbers
    report.say(f"gemv tune on {measured.device.name}, from machine {measured.before.name}")
    report.say(", ".join(f"{name} {version}" for name, version in measured.versions.items()))
    if len(measured.before.exceptions) > len(measured.after.exceptions):
        report.say("Its exceptions are dropped: they were measured on another GPU.")
    rows = [
        [name, f"{old:.4g}", f"{new:.4g}", number(new / old if old else None)]
        for name, old, new in zip(before._fields, before, after, strict=True)
        if new != old
    ]
    report.say(f"Numbers that {len(measured.timed)} times tell; all others stay as they were")
    report.table(["number", "before", "after", "factor"], "wfff", rows)
    shown = [(each, "fitted") for each in measured.timed]
    shown += [(each, "held out") for each in measured.held_out]
    shown.sort(key=lambda row: -abs(math.log(row[0].launch.seconds(after) / row[0].seconds)))
    report.say(f"Predicted / measured time, the worst {min(_SHOWN, len(shown))} of {len(shown)}")
    headings = ["problem", "kernel", "", "us", "before", "after"]
    report.table(headings, "wwwfff", [_line(*row, measured) for row in shown[:_SHOWN]])
    old, new = measured.errors
    report.say(
        f"On {len(measured.judged)} problems held out, predictions were {old:.1%} wrong and are"
        f" {new:.1%} wrong; what is chosen takes {measured.ratio:.3f} of the time before."
    )


def _line(each: Timed, part: str, measured: Tuning) -> list[str]:
    old, new = (
        each.launch.seconds(found.numbers) / each.seconds
        for found in (measured.before, measured.after)
    )
    return [
        _problem(each.cell), each.launch.choice.kernel.name, part,
        number(each.seconds, ".1f", 1e6), number(old), number(new),
    ]  # fmt: skip
