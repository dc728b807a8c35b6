"""Choices of a machine for cells of which a problem was timed: none that was slower there.

    python -m benchmarks.fit.timed_cells CAMPAIGN.json --machine nvidia-h200

Trees decide by many problems that are like a cell's. Where one of the cell was timed, that says
more: 1048576 x 128 float16 took an NVIDIA H200 62.8 us by four lanes for a row, and on another day
77.3 us by eight, which trees expected to be faster. So a cell gets another launch than its choice
if both were timed on the largest problem of the cell, and the choice took longer by more than
:data:`~benchmarks.fit.deciding.GAIN`; or by more than :data:`WITHIN`, if both were timed on smaller
problems of the cell alone. It is the mean that counts if they were timed more than once, as for
both orders of A, or in the L2 cache as well. ``fit --cells`` does so at its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit.candidates import Candidate as Tried
from benchmarks.fit.candidates import normal, of_machine
from benchmarks.fit.deciding import GAIN, Cell
from benchmarks.fit.samples import ADDRESS
from benchmarks.fit.store import Campaign, Measured
from gemv.core.files import write_text
from gemv.core.problem import Problem
from gemv.measure.frames import FramedCell
from gemv.selection import compiled
from gemv.selection.cells import LINES_INDICES, Kind, indices_of, kind_of, line_of, lines_of
from gemv.selection.choices import EMPTY, packed, unpacked
from gemv.selection.machine import FOLDER, MachineFile, machine
from gemv.selection.ranking import Candidate
from gemv.selection.sharing import favour, shares_badly, shares_well

#: The factor that another launch has to gain on a problem that is not the largest of its cell.
WITHIN = 1.05


class Timed(NamedTuple):
    """What was timed of a cell: one of its problems, everything timed, whether on the largest."""

    problem: Problem
    measured: list[Measured]
    is_largest: bool


def corrected(
    choices: Mapping[str, Any], campaign: Campaign, used: MachineFile
) -> tuple[dict[str, Any], int]:
    """``entries`` and ``kinds`` of a machine's file, and how many cells have other choices."""
    entries = [Candidate(*each) for each in choices["entries"]]
    texts, count = dict(choices["kinds"]), 0
    known = {normal(each.name, each.knobs).constants: n for n, each in enumerate(used.constants)}
    for kind, cells in _by_kind(campaign).items():
        if str(kind) not in texts:
            continue
        numbers = unpacked(texts[str(kind)])
        for (line, lines), timed in cells.items():
            at = line * LINES_INDICES + lines
            if numbers[at] == EMPTY:
                continue
            better = _better(entries[numbers[at]], timed, used, known)
            if better is not None:
                if better not in entries:
                    entries.append(better)
                numbers[at] = entries.index(better)
                count += 1
        texts[str(kind)] = packed(numbers)
    return {"entries": [list(each) for each in entries], "kinds": texts}, count


def _by_kind(campaign: Campaign) -> dict[Kind, dict[Cell, Timed]]:
    """What was timed of each cell: on its largest problem alone, if that was timed."""
    found: dict[Kind, dict[Cell, Timed]] = {}
    for each in campaign.cells:
        problem = FramedCell.at(each.cell, ADDRESS, 1).problem
        kind = kind_of(problem)
        if kind is None:
            continue
        cell = indices_of(problem)
        largest = line_of(cell[0]), lines_of(cell[1])
        sizes = problem.rows, problem.cols
        own = Timed(problem, [each], (sizes if kind.access == "axpy" else sizes[::-1]) == largest)
        known = found.setdefault(kind, {}).setdefault(cell, own)
        if own.is_largest and not known.is_largest:
            found[kind][cell] = own
        elif known is not own and own.is_largest == known.is_largest:
            known.measured.append(each)
    return found


def _better(
    chosen: Candidate, timed: Timed, used: MachineFile, known: Mapping[Any, int]
) -> Candidate | None:
    """The launch that was faster than a cell's choice, if any was by enough."""
    own, problem = of_machine(used, chosen), timed.problem
    logs: dict[Tried, list[float]] = {}
    for each in timed.measured:
        times: dict[Tried, float] = {}
        for candidate, seconds in each.times:
            times[candidate] = min(seconds, times.get(candidate, seconds))
        if own in times:
            for candidate, seconds in times.items():
                logs.setdefault(candidate, []).append(float(np.log(seconds / times[own])))
    best, least = None, 0.0
    for candidate, found in _allowed(logs, problem, used, known):
        gain = GAIN if timed.is_largest else WITHIN
        if _shares(used, chosen, problem) and not _shares(used, candidate, problem):
            gain = max(gain, favour(problem))
        mean = float(np.mean(found))
        if mean < min(least, -float(np.log(gain))):
            best, least = candidate, mean
    return best


def _allowed(
    logs: Mapping[Tried, list[float]], problem: Problem, used: MachineFile, known: Mapping[Any, int]
) -> Iterator[tuple[Candidate, list[float]]]:
    """Those of the machine's constants, but for launches that several vectors cannot share."""
    for tried, found in logs.items():
        number = known.get(tried.constants)
        if number is None:
            continue
        candidate = Candidate(number, tried.blocks)
        if not shares_badly(used.constants[number].kernel, problem):
            yield candidate, found


def _shares(used: MachineFile, candidate: Candidate, problem: Problem) -> bool:
    constants = used.constants[candidate.number]
    return shares_well(constants.kernel, constants.knobs, candidate.blocks, problem)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file of a campaign")
    parser.add_argument("--machine", required=True, help="the name of the machine's file")
    options = parser.parse_args(arguments)
    campaign = Campaign.load(options.file)
    file = Path(str(FOLDER)) / f"{options.machine}.cells"
    toml = file.with_suffix(".toml").read_bytes()
    choices = compiled.choices_of(file.read_bytes(), compiled.hash_of(toml))
    found, count = corrected(choices, campaign, machine(campaign.device))
    write_text(file, compiled.cells_text_of(toml, found))
    print(f"{file.name}: {count} cells have a launch that was faster there")


if __name__ == "__main__":
    main()
