"""The candidates of all cells of a machine, computed ahead with the corrections of a fit."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.fit.candidates import has_work, is_vain
from benchmarks.fit.samples import Launches, row_of, stacked
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.cells import INDICES, Kind, indices_of, kinds
from gemv.selection.choices import EMPTY, packed, problem_of
from gemv.selection.machine import Constants
from gemv.selection.ranking import EQUAL, Candidate, launches

#: Only launches that the formula predicts within this factor of the best are looked at closely.
_CLOSE = 1.4
#: Cells in a row and in a column of a block of cells, whose first cell is looked at in full.
_BLOCK = 4
#: An A of at most so many bytes may be in the L2 cache: then both times count alike.
_MAY_BE_HOT = 24 << 20


def launches_of(
    sets: Sequence[Constants],
    problem: Problem,
    device: Device,
    is_hot: bool = False,
    free: bool = True,
    only: Collection[Candidate] | None = None,
) -> Iterator[tuple[Candidate, tuple]]:
    """The launches that a problem could have, each as a row for :func:`stacked`.

    If `only` is given, sets of constants that are in none of these candidates are left out.
    """
    numbers = range(len(sets)) if only is None else sorted({each.number for each in only})
    for number in numbers:
        constants = sets[number]
        kernel = constants.kernel
        if kernel.work is None or kernel.accepts(problem) is not None:
            continue
        if kernel.phased and not free or is_vain(kernel, problem):
            continue
        registers = constants.registers_for(problem)
        if registers is None or not has_work(constants.knobs, problem):
            continue
        for blocks, geometry in launches(constants, problem, device):
            candidate = Candidate(number, blocks)
            if only is not None and candidate not in only:
                continue
            work = kernel.work(problem, geometry, constants.knobs)
            yield (
                candidate,
                row_of(
                    kernel.name, constants.knobs, blocks, problem, work, device, registers, is_hot
                ),
            )


def choices_of(
    kind: Kind, sets: Sequence[Constants], device: Device, corrections: Any
) -> dict[tuple[int, int], Candidate]:
    """The candidate of each cell of a kind, by its two indices.

    The formula looks at all launches of one cell in 16, and at what did well there in the others.
    """
    problems = {}
    for line in range(INDICES):
        for lines in range(INDICES):
            problem = problem_of(kind, line, lines)
            if problem is not None:
                problems[line, lines] = problem
    near = _near_of_blocks(problems, kind, sets, device, corrections)
    rows, at, who = [], [], []
    same: dict[tuple[int, int], tuple[int, int]] = {}
    seen: dict[Problem, tuple[int, int]] = {}
    for cell, problem in problems.items():
        same[cell] = seen.setdefault(problem, cell)
        if same[cell] != cell:
            continue
        own = indices_of(problem)
        only = set().union(*(near.get(each, ()) for each in _around(own)))
        for candidate, row in launches_of(sets, problem, device, False, kind.free, only or None):
            rows.append(row)
            at.append(cell)
            who.append(candidate)
    if not rows:
        return {}
    found = _best(stacked(rows), at, who, corrections)
    return {cell: found[first] for cell, first in same.items() if first in found}


def _around(cell: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The blocks of cells that a cell is in, or next to."""
    line, lines = cell
    for i in {line // _BLOCK, -(-line // _BLOCK)}:
        for j in {lines // _BLOCK, -(-lines // _BLOCK)}:
            yield i, j


def _near_of_blocks(
    problems: dict[tuple[int, int], Problem], kind: Kind, sets: Sequence[Constants],
    device: Device, corrections: Any,
) -> dict[tuple[int, int], set[Candidate]]:  # fmt: skip
    """For the first cell of each block, the candidates that the formula expects to be near."""
    rows, at, who = [], [], []
    for (line, lines), problem in problems.items():
        if line % _BLOCK == 0 and lines % _BLOCK == 0:
            for candidate, row in launches_of(sets, problem, device, False, kind.free):
                rows.append(row)
                at.append((line // _BLOCK, lines // _BLOCK))
                who.append(candidate)
    found: dict[tuple[int, int], set[Candidate]] = {}
    if rows:
        seconds = corrections.parts(stacked(rows)).seconds
        best: dict[tuple[int, int], float] = {}
        for cell, time in zip(at, seconds.tolist(), strict=True):
            best[cell] = min(best.get(cell, time), time)
        for cell, candidate, time in zip(at, who, seconds.tolist(), strict=True):
            if time <= _CLOSE * best[cell]:
                found.setdefault(cell, set()).add(candidate)
    return found


def _best(
    launches: Launches, at: Sequence[tuple[int, int]], who: Sequence[Candidate], corrections: Any
) -> dict[tuple[int, int], Candidate]:
    """For each cell of `at`, the first candidate that is nearly the fastest."""
    number = {cell: k for k, cell in enumerate(dict.fromkeys(at))}
    cells = np.array([number[cell] for cell in at])

    def least(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        best = np.full(len(number), np.inf)
        np.minimum.at(best, which, values)
        return best[which]

    rough = corrections.parts(launches).seconds
    near = np.flatnonzero(rough <= _CLOSE * least(rough, cells))
    launches, cells = launches.only(near), cells[near]
    times = np.log(corrections.seconds(launches))
    small = launches.counts.moved <= _MAY_BE_HOT
    if small.any():
        hot = launches.only(small)
        hot = hot._replace(counts=hot.counts._replace(is_hot=np.ones(int(small.sum()))))
        hot.further[:, HOT] = 1
        times[small] = (times[small] + np.log(corrections.seconds(hot))) / 2
    nearly = times <= least(times, cells) + np.log(EQUAL)
    found: dict[tuple[int, int], Candidate] = {}
    for k in np.flatnonzero(nearly).tolist():
        cell = at[near[k]]
        found[cell] = min(found.get(cell, who[near[k]]), who[near[k]])
    return found


def _hot_column() -> int:
    """The column of `Launches.further` that says whether A is in the L2 cache."""
    from benchmarks.fit.samples import _KNOBS

    return -2 - len(_KNOBS)


HOT = _hot_column()


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
            numbers = array("H", [EMPTY]) * INDICES**2
            for (line, lines), candidate in found.items():
                number = entries.setdefault(candidate, len(entries))
                numbers[line * INDICES + lines] = number
            texts[str(kind)] = packed(numbers)
            say(f"{kind}: {len(found)} cells, {len(texts[str(kind)])} bytes")
    return {"entries": [list(candidate) for candidate in entries], "kinds": texts}
