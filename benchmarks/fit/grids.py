"""Times of the grid of ordinary shapes as cells of a campaign, so that a fit learns from them.

    python -m benchmarks.fit.grids CAMPAIGN.json GRID.json [GRID.json ...]

Draws and random problems hardly ever have a size like 1048576 x 128, which people like. Every GRID
file (``make grid``) has the time of one launch for each of its cells, that which was selected then.
Files of several dates have several launches, whose times tell which one was better. They all have
to be of the GPU of the campaign. A launch whose registers the campaign does not know is compiled,
which needs no GPU. Launches that no kernel takes any longer are left out, and so are cells that
have none left. Cells of the grid that the campaign has are replaced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.fit.candidates import Candidate, choice, normal
from benchmarks.fit.samples import ADDRESS
from benchmarks.fit.store import Campaign, Measured, Timed, code_key
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.selection.select import Choice

#: Registers and bytes of local memory of a thread, bytes of shared memory of a block.
Facts = tuple[int, int, int]

#: The numbers of cells of the grid: no draw has so many cells, and those of random ones are larger.
GRID = range(500_000, 600_000)


def cells_of(
    campaign: Campaign, grids: Iterable[Mapping[str, Any]], facts: Callable[[Choice], Facts]
) -> list[Measured]:
    """The cells of some grids, each with the times of all of them.

    The campaign gets the `facts` of machine code that it does not know.
    """
    found: dict[Cell, Measured] = {}
    for grid in grids:
        if grid["device"] != campaign.about["gpu"]:
            raise ValueError(
                f"grids: a grid of {grid['device']} is not for a campaign on"
                f" {campaign.about['gpu']}"
            )
        for row in grid["rows"]:
            cell = Cell(**{each.name: row[each.name] for each in fields(Cell) if each.name in row})
            timed = Timed(normal(row["kernel"], row["knobs"]), row["time_s"])
            if row["wrong"] or not _is_known(campaign, timed.candidate, cell, facts):
                continue
            measured = found.setdefault(
                cell,
                Measured(GRID.start, cell, row["nbytes"], row["plain_s"], {}, timed.candidate, []),
            )
            measured.floor_s = min(measured.floor_s, row["plain_s"])
            measured.present, measured.peers = timed.candidate, dict(row["peers"])
            measured.times.append(timed)
    for number, measured in zip(GRID, found.values(), strict=False):
        measured.number = number
    return list(found.values())


def _is_known(
    campaign: Campaign, candidate: Candidate, cell: Cell, facts: Callable[[Choice], Facts]
) -> bool:
    """Whether a launch is still possible; then the campaign knows its machine code."""
    try:
        made = choice(candidate, FramedCell.at(cell, ADDRESS, 1).problem, campaign.device)
    except ValueError:
        return False
    key = code_key(candidate.constants, made.spec, cell.dtype)
    if key not in campaign.codes:
        campaign.codes[key] = facts(made)
    return True


def compiled(made: Choice, capability: tuple[int, int]) -> Facts:
    """What the assembler says of the machine code of a launch."""
    from gemv.engines.binaries import binaries

    (binary,) = binaries(made.kernel, made.spec, capability)
    shared = binary.resource("bytes smem") if "bytes smem" in binary.log else 0
    return binary.resource("registers"), binary.resource("stack,"), shared


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the campaign, which is changed")
    parser.add_argument("grids", type=Path, nargs="+", help="the newest last")
    options = parser.parse_args(arguments)
    campaign = Campaign.load(options.file)
    grids = [json.loads(file.read_text("utf-8")) for file in options.grids]
    capability = campaign.device.compute_capability
    added = cells_of(campaign, grids, lambda made: compiled(made, capability))
    campaign.cells = [each for each in campaign.cells if each.number not in GRID] + added
    campaign.save(options.file)
    times = sum(len(each.times) for each in added)
    print(f"{len(added)} cells of the grid, {times} times")


if __name__ == "__main__":
    main()
