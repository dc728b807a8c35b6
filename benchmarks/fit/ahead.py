"""The candidates of all cells of a machine, computed ahead with the corrections of a fit."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.fit.candidates import has_work
from benchmarks.fit.samples import KNOBS, Launches, row_of, stacked
from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.selection.cells import (
    LINE_INDICES,
    LINES_INDICES,
    Kind,
    indices_of,
    kinds,
    line_of,
    lines_of,
    problem_with,
)
from gemv.selection.choices import CELLS, EMPTY, packed, problem_of
from gemv.selection.items import counts_in_batches, work_of_batch
from gemv.selection.machine import Constants
from gemv.selection.ranking import EQUAL, Candidate, is_vain, knobs_of, launches

#: Indices of lines' lengths and numbers in a block of cells, whose best launches are looked for
#: together.
_BLOCK = (4, 2)
#: Launches that the formula predicts within this factor of the best get corrections; those that are
#: then within the second factor on one problem of a block are compared on all its cells.
_CLOSE, _CLOSER = 1.4, 1.1
#: The column of `Launches.further` that says whether A is in the L2 cache.
_HOT = -2 - len(KNOBS)
#: An A of at most so many bytes may be in the L2 cache: then both times count alike.
MAY_BE_HOT = 24 << 20
#: Bytes of an A that is large.
_LARGE = 16 << 20
#: How much the largest problem of a cell counts, since people like its sizes; the others count 1.
_OF_LARGEST = 2.0
#: A usual choice is kept unless another one is expected to be faster by more than this factor.
GAIN = 1.02

#: What a launch is of (a block or a problem of a cell), the launch, and its row.
_Row = tuple[tuple[int, int], Candidate, tuple]


def launches_of(
    sets: Sequence[Constants],
    problem: Problem,
    device: Device,
    is_hot: bool = False,
    free: bool = True,
) -> Iterator[tuple[Candidate, tuple]]:
    """The launches that a problem could have, each as a row for :func:`stacked`."""
    refused: dict[str, bool] = {}
    for number, constants in enumerate(sets):
        kernel = constants.kernel
        if kernel.name not in refused:
            refused[kernel.name] = (
                kernel.work is None
                or kernel.accepts(problem) is not None
                or kernel.phased
                and not free
                or is_vain(kernel, problem)
            )
        if refused[kernel.name] or not has_work(constants.knobs, problem):
            continue
        for blocks, geometry in launches(constants, problem, device):
            row = _row(constants, blocks, geometry, problem, device, is_hot)
            if row is not None:
                yield Candidate(number, blocks), row


def _row(
    constants: Constants, blocks: int, geometry: Geometry, problem: Problem, device: Device,
    is_hot: bool = False,
) -> tuple | None:  # fmt: skip
    """A row for :func:`stacked`; None for code that needs local memory."""
    kernel, registers = constants.kernel, constants.registers_for(problem)
    if registers is None or kernel.work is None:
        return None
    work = kernel.work(problem, geometry, constants.knobs)
    return row_of(
        kernel.name, constants.knobs, blocks, problem, work, device, registers, is_hot
    )  # fmt: skip


def problems_of(kind: Kind, line: int, lines: int) -> list[Problem]:
    """Problems of a cell: the largest one, and two of other sizes, on a diagonal."""
    largest = problem_of(kind, line, lines)
    if largest is None or indices_of(largest) != (line, lines):
        return [] if largest is None else [largest]
    found = [largest]
    long, count = line_of(line), lines_of(lines)
    # A cell reaches down to what the cell before it has as its largest size.
    quarters = (long - line_of(line - 1)) // 4, (count - lines_of(lines - 1)) // 4
    for down, fewer in ((1, 3), (3, 1)):
        length = long - down * quarters[0]
        if kind.whole:
            length -= length % kind.width
        elif kind.width > 1 and length % kind.width == 0:
            length += 1
        other = problem_with(kind, length, count - fewer * quarters[1])
        if other is not None and other not in found and indices_of(other) == (line, lines):
            found.append(other)
    return found


def choices_of(
    kind: Kind,
    sets: Sequence[Constants],
    device: Device,
    corrections: Any,
    wanted: range = range(LINE_INDICES),
    usual: Mapping[tuple[int, int], Candidate] | None = None,
    of: Callable[[Problem], bool] = lambda problem: True,
) -> dict[tuple[int, int], Candidate]:
    """The candidate of each cell of a kind, by its two indices; `wanted` are the first ones.

    It is the one with the least mean of the logarithms of its times on the problems of the cell: a
    launch that is best for the largest may be poor for others, which fill fewer lanes or blocks.

    A cell whose `usual` candidate is within :data:`GAIN` of that keeps it, and so do all cells of a
    block where no problem that is looked at first has a better one. Cells are left out if `of`
    says no of their largest problem.
    """
    same: dict[tuple[int, int], tuple[int, int]] = {}
    for line in wanted:
        for lines in range(LINES_INDICES):
            largest = problem_of(kind, line, lines)
            if largest is not None and of(largest):
                same[line, lines] = indices_of(largest)
    found: dict[tuple[int, int], Candidate] = {}
    # A strip of blocks at a time, which bounds the memory.
    for _, strip in groupby(sorted(set(same.values())), lambda cell: cell[0] // _BLOCK[0]):
        found |= _of_strip(kind, list(strip), sets, device, corrections, usual or {})
    return {cell: found[first] for cell, first in same.items() if first in found}


def choice_of_cell(
    kind: Kind, cell: tuple[int, int], sets: Sequence[Constants], device: Device,
    corrections: Any, usual: Candidate,
) -> Candidate:  # fmt: skip
    """What one cell gets instead of its `usual` candidate, or that."""
    found = _of_strip(kind, [cell], sets, device, corrections, {cell: usual})
    return found.get(cell, usual)


def _of_strip(
    kind: Kind, cells: list[tuple[int, int]], sets: Sequence[Constants], device: Device,
    corrections: Any, usual: Mapping[tuple[int, int], Candidate],
) -> dict[tuple[int, int], Candidate]:  # fmt: skip
    """The candidates of cells whose lines are of similar lengths."""
    blocks: dict[int, list[tuple[int, int]]] = {}
    for cell in cells:
        blocks.setdefault(cell[1] // _BLOCK[1], []).append(cell)
    rows: list[_Row] = []
    probes_of = {number: _probes(kind, inside, bool(usual)) for number, inside in blocks.items()}
    for number, probes in probes_of.items():
        for probe, cell in enumerate(probes):
            problem = problem_of(kind, *cell)
            for candidate, row in launches_of(sets, problem, device, False, kind.free):
                rows.append(((number, probe), candidate, row))
    near: dict[int, set[Candidate]] = {}
    better: set[int] = set()  # blocks with a problem for which something beats the usual choice
    for (number, probe), times in _log_times(rows, corrections).items():
        least = min(times.values())
        limit = least + np.log(_CLOSER)
        near.setdefault(number, set()).update(c for c, time in times.items() if time <= limit)
        own = usual.get(probes_of[number][probe])
        if own is None or times.get(own, np.inf) > least + np.log(GAIN):
            better.add(number)
    rows = []
    in_batches: list[_Row] = []
    found = {}
    for number, cell in enumerate(cells):
        compared = near.get(cell[1] // _BLOCK[1], set())
        if cell in usual:
            if cell[1] // _BLOCK[1] not in better:
                found[cell] = usual[cell]
                continue
            compared = compared | {usual[cell]}
        for place, problem in enumerate(problems_of(kind, *cell)):
            for candidate in compared:
                of_one = _rows_of_candidate(sets, candidate, problem, device)
                if of_one is not None:
                    rows.append(((number, place), candidate, of_one[0]))
                    if counts_in_batches(problem):
                        in_batches.append(((number, place), candidate, of_one[1]))
    sums: dict[int, dict[Candidate, list[float]]] = {}
    together = _log_times_in_batches(in_batches, corrections)
    for (number, place), times in _log_times(rows, corrections).items():
        costs = {c: time + together.get(((number, place), c), 0.0) for c, time in times.items()}
        least = min(costs.values())
        of_cell = sums.setdefault(number, {})
        for candidate, cost in costs.items():
            weight = _OF_LARGEST if place == 0 else 1.0
            of_cell.setdefault(candidate, []).append(weight * (cost - least))
    for number, each in sums.items():
        most = max(map(len, each.values()))  # problems that a candidate must be for
        regrets = {c: sum(values) for c, values in each.items() if len(values) == most}
        weights = _OF_LARGEST + most - 1
        least, own = min(regrets.values()), usual.get(cells[number])
        if own in regrets and regrets[own] <= least + weights * np.log(GAIN):
            found[cells[number]] = own
            continue
        limit = least + weights * np.log(EQUAL)
        found[cells[number]] = min(c for c, regret in regrets.items() if regret <= limit)
    return found


def _probes(kind: Kind, inside: Sequence[tuple[int, int]], is_known: bool) -> list[tuple[int, int]]:
    """The cells of a block on whose problems all launches are compared.

    Where usual choices are known, most blocks keep them, and one problem is enough to see that. But
    for large columns the best choice changes from cell to cell.
    """
    middle = inside[len(inside) // 2]
    problem = problem_of(kind, *middle)
    assert problem is not None
    if is_known and (
        kind.access == "dot" or problem.rows * problem.cols * problem.dtype.itemsize < _LARGE
    ):
        return [middle]
    return sorted({inside[0], middle, inside[-1]})


def _rows_of_candidate(
    sets: Sequence[Constants], candidate: Candidate, problem: Problem, device: Device
) -> tuple[tuple, tuple] | None:
    """Its rows alone and in a batch, or None if it is not for this problem."""
    constants = sets[candidate.number]
    kernel, registers = constants.kernel, constants.registers_for(problem)
    if registers is None or not has_work(constants.knobs, problem):
        return None
    try:
        knobs = knobs_of(constants, candidate.blocks)
        geometry = kernel.geometry(problem, device, knobs)
    except ValueError:
        return None
    alone = _row(constants, candidate.blocks, geometry, problem, device)
    if alone is None:
        return None
    work = work_of_batch(kernel, knobs, geometry, problem, device)
    return alone, row_of(
        kernel.name, constants.knobs, candidate.blocks, problem, work, device, registers, False
    )


def _log_times_in_batches(
    rows: Sequence[_Row], corrections: Any
) -> dict[tuple[tuple[int, int], Candidate], float]:
    """A quarter of the logarithm of each launch's time in a batch, which no campaign corrects."""
    if not rows:
        return {}
    times = np.log(corrections.parts(stacked([row for _, _, row in rows])).seconds) / 4
    return {(key, c): time for (key, c, _), time in zip(rows, times.tolist(), strict=True)}


def _log_times(
    rows: Sequence[_Row], corrections: Any
) -> dict[tuple[int, int], dict[Candidate, float]]:
    """For each thing that rows are of, the logarithms of the times of its launches near the best.

    Where A may be in the L2 cache, it is the mean over both cases.
    """
    if not rows:
        return {}
    number = {key: k for k, key in enumerate(dict.fromkeys(key for key, _, _ in rows))}
    groups = np.array([number[key] for key, _, _ in rows])
    launches = stacked([row for _, _, row in rows])
    rough = corrections.parts(launches).seconds
    best = np.full(len(number), np.inf)
    np.minimum.at(best, groups, rough)
    near = np.flatnonzero(rough <= _CLOSE * best[groups])
    launches = launches.only(near)
    times = np.log(corrections.seconds(launches))
    small = launches.counts.moved <= MAY_BE_HOT
    if small.any():
        times[small] = (times[small] + np.log(corrections.seconds(_hot(launches.only(small))))) / 2
    found: dict[tuple[int, int], dict[Candidate, float]] = {}
    for k, time in zip(near.tolist(), times.tolist(), strict=True):
        key, candidate, _ = rows[k]
        found.setdefault(key, {})[candidate] = time
    return found


def _hot(launches: Launches) -> Launches:
    """The same launches with A in the L2 cache."""
    further = launches.further.copy()
    further[:, _HOT] = 1
    counts = launches.counts._replace(is_hot=np.ones(len(further)))
    return launches._replace(counts=counts, further=further)


_shared: list[Any] = []


def _of_kind(kind: Kind) -> dict[tuple[int, int], Candidate]:
    return choices_of(kind, *_shared)


def choices_ahead(
    sets: Sequence[Constants],
    device: Device,
    corrections: Any,
    jobs: int,
    wanted: Iterable[Kind] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """``entries`` and ``kinds`` of a machine's JSON: see :mod:`gemv.selection.choices`."""
    wanted = list(kinds() if wanted is None else wanted)
    # Forked processes share these; kernels cannot be sent to others.
    _shared[:] = [sets, device, corrections]
    entries: dict[Candidate, int] = {}
    texts: dict[str, str] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for kind, found in zip(wanted, pool.map(_of_kind, wanted), strict=True):
            numbers = array("H", [EMPTY]) * CELLS
            for (line, lines), candidate in found.items():
                number = entries.setdefault(candidate, len(entries))
                numbers[line * LINES_INDICES + lines] = number
            texts[str(kind)] = packed(numbers)
            say(f"{kind}: {len(found)} cells, {len(texts[str(kind)])} bytes")
    return {"entries": [list(candidate) for candidate in entries], "kinds": texts}
