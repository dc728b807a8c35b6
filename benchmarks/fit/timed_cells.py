"""Choices of a machine for cells of which a problem was timed: none that was slower there.

    python -m benchmarks.fit.timed_cells CAMPAIGN.json --machine nvidia-h200 [--sets N]

Trees decide by many problems that are like a cell's. Where one of the cell was timed, that says
more: 1048576 x 128 float16 took an NVIDIA H200 62.8 us by four lanes for a row, and on another day
77.3 us by eight, which trees expected to be faster. So a cell gets another launch than its choice
if both were timed on the largest problem of the cell, and the choice took longer by more than
:data:`~benchmarks.fit.deciding.GAIN`; or by more than :data:`WITHIN`, if both were timed on smaller
problems of the cell alone. It is the mean that counts if they were timed more than once, as for
both orders of A, or in the L2 cache as well. ``fit --cells`` does so at its end.

A launch may have been faster whose set of constants the machine's file lacks. With ``--sets`` the
file gets up to so many of them, those first that gain most. GPUs whose choices are changes of these
(:mod:`gemv.selection.overlays`) keep their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit.candidates import Candidate as Tried
from benchmarks.fit.candidates import normal, of_machine
from benchmarks.fit.deciding import GAIN, Cell
from benchmarks.fit.portfolio import compiled_sets
from benchmarks.fit.samples import ADDRESS
from benchmarks.fit.store import Campaign, Measured
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.measure.frames import FramedCell
from gemv.selection import compiled, overlays, written
from gemv.selection.cells import LINES_INDICES, Kind, indices_of, kind_of, line_of, lines_of
from gemv.selection.choices import EMPTY, packed, unpacked
from gemv.selection.machine import FOLDER, REFERENCE, Constants, MachineFile, machine, slug
from gemv.selection.parse import parse
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
    known = _numbers_of(used)
    for kind, cells in _by_kind(campaign).items():
        if str(kind) not in texts:
            continue
        numbers = unpacked(texts[str(kind)])
        for (line, lines), timed in cells.items():
            at = line * LINES_INDICES + lines
            if numbers[at] == EMPTY:
                continue
            faster = _faster(entries[numbers[at]], timed, used, known)
            if faster:
                better = faster[0][1]
                if better not in entries:
                    entries.append(better)
                numbers[at] = entries.index(better)
                count += 1
        texts[str(kind)] = packed(numbers)
    return {"entries": [list(each) for each in entries], "kinds": texts}, count


def further_sets(
    choices: Mapping[str, Any], campaign: Campaign, used: MachineFile, most: int
) -> list[Constants]:
    """At most so many sets of constants that the machine lacks, those that gain most first.

    What a set gains on a cell is the factor between its time and that of the best launch of the
    sets that there are; over all cells these factors are multiplied.
    """
    known, count = _numbers_of(used), len(used.constants)
    others = [
        each for each in compiled_sets(campaign)
        if normal(each.name, each.knobs).constants not in known
    ]  # fmt: skip
    all_sets = dataclasses.replace(used, constants=[*used.constants, *others])
    known, entries = _numbers_of(all_sets), [Candidate(*each) for each in choices["entries"]]
    gains: list[dict[int, float]] = []  # of a cell: what each further set gains there
    for kind, cells in _by_kind(campaign).items():
        numbers = unpacked(choices["kinds"][str(kind)]) if str(kind) in choices["kinds"] else []
        for (line, lines), timed in cells.items():
            number = numbers[line * LINES_INDICES + lines] if numbers else EMPTY
            if number == EMPTY:
                continue
            faster = _faster(entries[number], timed, all_sets, known)
            usual = min((mean for mean, each in faster if each.number < count), default=0.0)
            own = {each.number: usual - mean for mean, each in reversed(faster)
                   if each.number >= count and mean < usual}  # fmt: skip
            if own:
                gains.append(own)
    taken: list[Constants] = []
    while gains and len(taken) < most:
        sums: dict[int, float] = {}
        for number, gain in itertools.chain.from_iterable(each.items() for each in gains):
            sums[number] = sums.get(number, 0.0) + gain
        best = min(sums, key=lambda number: (-sums[number], number))
        taken.append(all_sets.constants[best])
        print(f"{taken[-1].name} {dict(taken[-1].knobs)}: {sums[best]:.3f}")
        left = [({n: g - each.get(best, 0.0) for n, g in each.items()}) for each in gains]
        gains = [own for each in left if (own := {n: g for n, g in each.items() if g > 0.0})]
    return taken


def changes_that_keep(
    before: Mapping[str, Any], changes: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Changes with which another GPU keeps its choices, when those that they change are new.

    What was timed on one GPU does not say what is fast on the other.
    """
    usual, new = ([Candidate(*each) for each in found["entries"]] for found in (before, after))
    own = [Candidate(*each) for each in changes["entries"]]
    entries: dict[Candidate, int] = {}
    texts = {}
    for kind, text in before["kinds"].items():
        now = [usual[n] if n != EMPTY else None for n in unpacked(text)]
        if kind in changes["kinds"]:
            for place, number in overlays.cells_of(unpacked(changes["kinds"][kind])).items():
                now[place] = own[number]
        others = (new[n] if n != EMPTY else None for n in unpacked(after["kinds"][kind]))
        numbers = {
            place: entries.setdefault(candidate, len(entries))
            for place, (candidate, other) in enumerate(zip(now, others, strict=True))
            if candidate is not None and candidate != other
        }
        if numbers:
            texts[kind] = packed(overlays.changes_of(numbers))
    return {"entries": [list(each) for each in entries], "kinds": texts}


def changed_for_others(folder: Path, device: Device) -> dict[str, bytes]:
    """Files in a folder with changes for other GPUs of the choices on this device, by name."""
    if slug(device.name) != slug(REFERENCE.name):
        return {}
    files = sorted(folder.glob("*.cells"))
    return {each.name: each.read_bytes() for each in files
            if not each.with_suffix(".toml").exists()}  # fmt: skip


def _numbers_of(used: MachineFile) -> dict[Any, int]:
    """The number of each set of constants of a machine."""
    return {normal(each.name, each.knobs).constants: n for n, each in enumerate(used.constants)}


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


def _faster(
    chosen: Candidate, timed: Timed, used: MachineFile, known: Mapping[Any, int]
) -> list[tuple[float, Candidate]]:
    """The launches that were faster than a cell's choice by enough, the fastest first.

    Each has the logarithm of its time over that of the choice. Launches that several vectors cannot
    share are left out.
    """
    own, problem = of_machine(used, chosen), timed.problem
    logs: dict[Tried, list[float]] = {}
    for each in timed.measured:
        times: dict[Tried, float] = {}
        for candidate, seconds in each.times:
            times[candidate] = min(seconds, times.get(candidate, seconds))
        if own in times:
            for candidate, seconds in times.items():
                logs.setdefault(candidate, []).append(float(np.log(seconds / times[own])))
    faster = []
    for tried, found in logs.items():
        number = known.get(tried.constants)
        if number is None or shares_badly(used.constants[number].kernel, problem):
            continue
        candidate = Candidate(number, tried.blocks)
        gain = GAIN if timed.is_largest else WITHIN
        if _shares(used, chosen, problem) and not _shares(used, candidate, problem):
            gain = max(gain, favour(problem))
        mean = float(np.mean(found))
        if mean < -float(np.log(gain)):
            faster.append((mean, candidate))
    return sorted(faster, key=lambda each: each[0])


def _shares(used: MachineFile, candidate: Candidate, problem: Problem) -> bool:
    constants = used.constants[candidate.number]
    return shares_well(constants.kernel, constants.knobs, candidate.blocks, problem)


def _with_sets(file: Path, sets: Sequence[Constants]) -> None:
    """Add sets to the end of a machine's portfolio."""
    text = written.with_sets(file.read_text("utf-8"), sets)
    content = parse(text, str(file))
    write_text(file, text)
    write_text(file.with_suffix(".jsonl"), compiled.text_of(file.read_bytes(), content))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file of a campaign")
    parser.add_argument("--machine", required=True, help="the name of the machine's file")
    parser.add_argument(
        "--sets", type=int, default=0, metavar="N",
        help="before that, add at most so many sets of constants that gain most",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    campaign = Campaign.load(options.file)
    file = Path(str(FOLDER)) / f"{options.machine}.toml"
    toml, cells = file.read_bytes(), file.with_suffix(".cells")
    before = compiled.choices_of(cells.read_bytes(), compiled.hash_of(toml))
    like = changed_for_others(file.parent, campaign.device)
    used = machine(campaign.device)
    sets = further_sets(before, campaign, used, options.sets)
    if sets:
        _with_sets(file, sets)
        used = dataclasses.replace(used, constants=[*used.constants, *sets])
    found, count = corrected(before, campaign, used)
    write_text(cells, compiled.cells_text_of(file.read_bytes(), found))
    print(f"{cells.name}: {count} cells have a launch that was faster there")
    for name, text in like.items():
        changes = compiled.choices_of(text, compiled.hash_of(toml))
        own = changes_that_keep(before, changes, found)
        write_text(file.with_name(name), compiled.cells_text_of(file.read_bytes(), own))


if __name__ == "__main__":
    main()
