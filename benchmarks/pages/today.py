"""What is chosen today for cells of several products whose times are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.fit.golden import GPUS
from benchmarks.fit.samples import ADDRESS
from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.records import CellResult
from gemv.selection.parts import parts
from gemv.selection.select import Choice


def choice_of(cell: Cell, device: Device) -> Choice:
    """What a GPU computes a cell with; the first part of it, if there are several."""
    (found, *_) = parts(FramedCell.at(cell, ADDRESS, 1).problem, lay_out(cell).batch, device)
    return found.choice


def is_it(choice: Choice, kernel: str, knobs: Mapping[str, int]) -> bool:
    """Whether a stored kernel with its constants is what is chosen."""
    # A constant that is younger than a time had the kernel's default then.
    return kernel == choice.kernel.name and {**choice.kernel.knobs, **knobs} == choice.knobs


def changed(rows: Sequence[CellResult], gpu: str) -> str:
    """A sentence on the cells that have another launch today; empty if none has."""
    devices = {device.name: device for device, _ in GPUS.values()}
    if gpu not in devices:
        return ""
    timed = [row for row in rows if row.time_s]
    count = sum(
        not is_it(choice_of(row.cell, devices[gpu]), row.kernel, row.knobs) for row in timed
    )  # fmt: skip
    said = "The package has changed since these times were measured: in"
    now = f"{count} of these {len(timed)} cells it now chooses another kernel or other constants."
    return f"{said} {now}" if count else ""
