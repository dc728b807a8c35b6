"""The candidates of all cells of a machine, computed ahead with the corrections of a fit."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

from benchmarks.fit.deciding import Cell, Deciding, Places
from benchmarks.fit.timer import Timer, launches_of_set, refuses
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.cells import LINE_INDICES, LINES_INDICES, Kind, indices_of, kinds
from gemv.selection.choices import CELLS, EMPTY, packed, problems_of_line
from gemv.selection.machine import Constants
from gemv.selection.ranking import Candidate
from gemv.selection.sharing import favour, shares_well

#: Lines' lengths that a process decides for at a time: whole blocks of cells.
_LINES_AT_ONCE = 72
#: What says whether a cell is decided for, by its largest problem.
Of = Callable[[Problem], bool]


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
            refused[kernel.name] = refuses(kernel, problem, free)
        if not refused[kernel.name]:
            yield from launches_of_set(number, constants, problem, device, is_hot)


def everywhere(problem: Problem) -> bool:
    """Whether a cell is decided for: each of them is."""
    return True


def choices_of(
    kind: Kind,
    sets: Sequence[Constants],
    device: Device,
    corrections: Any,
    wanted: Iterable[int] = range(LINE_INDICES),
    usual: Mapping[Cell, Candidate] | None = None,
    of: Of = everywhere,
) -> dict[Cell, Candidate]:
    """The candidate of each cell of a kind, by its two indices; `wanted` are the first ones.

    It is the one with the least mean of the logarithms of its times on the problems of the cell: a
    launch that is best for the largest may be poor for others, which fill fewer lanes or blocks.

    A cell whose `usual` candidate is within :data:`~benchmarks.fit.deciding.GAIN` of that keeps it.
    Cells are left out if `of` says no of their largest problem.
    """
    known = {kind: usual or {}}
    return choices_of_kinds([kind], sets, device, corrections, wanted, known, of)[kind]


def choices_of_kinds(
    several: Sequence[Kind],
    sets: Sequence[Constants],
    device: Device,
    corrections: Any,
    wanted: Iterable[int],
    usual: Mapping[Kind, Mapping[Cell, Candidate]],
    of: Of = everywhere,
) -> dict[Kind, dict[Cell, Candidate]]:
    """:func:`choices_of` several kinds that differ in `whole`, `close` and `free` alone."""
    same: dict[Kind, dict[Cell, Cell]] = {kind: {} for kind in several}
    for kind, line in product(several, wanted):
        for lines, largest in enumerate(problems_of_line(kind, line)):
            if largest is not None and of(largest):
                same[kind][line, lines] = indices_of(largest)
    cells = {kind: sorted(set(own.values())) for kind, own in same.items()}
    found = _decided(cells, sets, device, corrections, usual)
    return {
        kind: {cell: found[kind][first] for cell, first in own.items() if first in found[kind]}
        for kind, own in same.items()
    }


def choice_of_cell(
    kind: Kind, cell: Cell, sets: Sequence[Constants], device: Device,
    corrections: Any, usual: Candidate,
) -> Candidate:  # fmt: skip
    """What one cell gets instead of its `usual` candidate, or that."""
    found = _decided({kind: [cell]}, sets, device, corrections, {kind: {cell: usual}})
    return found[kind].get(cell, usual)


def _decided(
    cells: Mapping[Kind, Sequence[Cell]], sets: Sequence[Constants], device: Device,
    corrections: Any, usual: Mapping[Kind, Mapping[Cell, Candidate]],
) -> dict[Kind, dict[Cell, Candidate]]:  # fmt: skip
    """The candidates of cells of several kinds, whose problems are counted together."""
    own = [Deciding(kind, inside, usual.get(kind, {})) for kind, inside in cells.items() if inside]
    found: dict[Kind, dict[Cell, Candidate]] = {kind: {} for kind in cells}
    if not own:
        return found

    def favours(problem: Problem, candidate: Candidate) -> float:
        constants = sets[candidate.number]
        well = shares_well(constants.kernel, constants.knobs, candidate.blocks, problem)
        return favour(problem) if well else 1.0

    places = Places()
    probes = [each.probes(places) for each in own]
    timer = Timer(places.problems, sets, device, corrections)
    times = timer.of_all([(at, each.kind.free) for at, each in zip(probes, own, strict=True)])
    places = Places()
    pairs = [
        each.compared(*known, timer.fitting, places)
        for each, known in zip(own, zip(probes, times, strict=True), strict=True)
    ]
    costs = Timer(places.problems, sets, device, corrections).of_pairs(pairs)
    for each, cost in zip(own, costs, strict=True):
        found[each.kind] = each.chosen(cost, len(places.problems), favours)
    return found


# All cells, by several processes ------------------------------------------------------------------


class Deciders:
    """Processes that decide for cells.

    Parameters
    ----------
    jobs : int
        How many there are.
    sets, device, corrections
        As of :func:`choices_of`.
    usual : callable, optional
        ``usual(kind)`` gives the usual choices of a kind, ``of(problem)`` whether a cell is decided
        for. Both are sent to the processes, so they are functions of a module, or have their
        arguments from :func:`functools.partial`.
    """

    def __init__(
        self, jobs: int, sets: Sequence[Constants], device: Device, corrections: Any,
        usual: Callable[[Kind], Mapping[Cell, Candidate]] | None = None, of: Of = everywhere,
    ) -> None:  # fmt: skip
        plain = [(each.name, dict(each.knobs), dict(each.registers)) for each in sets]
        work = pickle.dumps((plain, device, corrections, usual, of))
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(work,)
        )

    def choices(self, wanted: Sequence[Kind]) -> Iterator[tuple[Kind, dict[Cell, Candidate]]]:
        """Each kind and the candidates of its cells."""
        tasks = [
            (together, range(first, min(first + _LINES_AT_ONCE, LINE_INDICES)))
            for together in _alike(wanted)
            for first in range(0, LINE_INDICES, _LINES_AT_ONCE)
        ]
        with self._pool as pool:
            running = [(task, pool.submit(_of_task, *task)) for task in tasks]
            found: dict[Kind, dict[Cell, Candidate]] = {}
            for (together, lines), each in running:
                for kind, own in each.result().items():
                    found.setdefault(kind, {}).update(own)
                if lines.stop == LINE_INDICES:
                    yield from ((kind, found.pop(kind)) for kind in together)


def _alike(wanted: Sequence[Kind]) -> list[list[Kind]]:
    """Kinds that are decided together: those with the same loads of the same numbers."""
    found: dict[tuple, list[Kind]] = {}
    for kind in wanted:
        found.setdefault((kind.letter, kind.access, kind.width), []).append(kind)
    return list(found.values())


class _Work(NamedTuple):
    """What a process decides with."""

    sets: list[Constants]
    device: Device
    corrections: Any
    usual: Callable[[Kind], Mapping[Cell, Candidate]] | None
    of: Of


_work: list[_Work] = []


def _begin(work: bytes) -> None:
    plain, *rest = pickle.loads(work)
    _work[:] = [_Work([Constants(*each) for each in plain], *rest)]


def _of_task(together: list[Kind], lines: range) -> dict[Kind, dict[Cell, Candidate]]:
    (own,) = _work
    usual = {} if own.usual is None else {kind: own.usual(kind) for kind in together}
    return choices_of_kinds(
        together, own.sets, own.device, own.corrections, lines, usual, own.of
    )  # fmt: skip


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
    entries: dict[Candidate, int] = {}
    texts: dict[str, str] = {}
    for kind, found in Deciders(jobs, sets, device, corrections).choices(wanted):
        numbers = array("H", [EMPTY]) * CELLS
        for (line, lines), candidate in found.items():
            number = entries.setdefault(candidate, len(entries))
            numbers[line * LINES_INDICES + lines] = number
        texts[str(kind)] = packed(numbers)
        say(f"{kind}: {len(found)} cells, {len(texts[str(kind)])} bytes")
    return {"entries": [list(candidate) for candidate in entries], "kinds": texts}
