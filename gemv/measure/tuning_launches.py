"""Problems and launches of the quick mode of a fit: see :mod:`gemv.measure.tune`.

Problems cover sizes and shapes evenly. On each of them a few launches of a machine's portfolio are
timed: the one that the formula prefers, and others that it expects to be bound by something else,
because they tell its numbers apart.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.selection.cells import (
    index_of_line,
    index_of_lines,
    indices_of,
    kind_of,
    line_of,
    lines_of,
)
from gemv.selection.choices import EMPTY, Choices
from gemv.selection.formula import BOUNDS, Counts, Machine, counted, parts
from gemv.selection.machine import Constants, MachineFile
from gemv.selection.ranking import best, knobs_of, predictions
from gemv.selection.select import Choice

#: Problems of a whole draw.
PROBLEMS = 60
#: Dtype and storage order of problems, in turn; lines are rows in order C, and columns in order F.
_KINDS = (("s", "C"), ("s", "F"), ("d", "C"), ("b", "F"), ("b", "C"))
#: One problem of so many is in the L2 cache, and one of so many is held out of the fit. These two
#: and the number of kinds have no common factor, so every kind is in every part.
_HOT_EACH, _HELD_OUT_EACH = 4, 3
#: Least and most bytes of A; in the L2 cache, at most this share of it.
BYTES = (1 << 17, 1 << 27)
_CACHE_SHARE = 4
#: Lines are multiples of so many elements, so that all problems of a kind share machine code.
_LINE = 64
#: Steps of an additive sequence that fills a square evenly. 3, 4 or 5 of them are not near a whole
#: number, so problems in the cache, those held out and each kind fill it evenly, too.
_STEPS = (0.4494897427831779, 0.8191725133961645)
#: Launches that are timed on a problem of the fit, and how much slower than the best the formula
#: may expect them to be.
_LAUNCHES, _NEAR = 3, 2.5
#: Code that is not yet compiled takes about a second; other code is preferred within this factor.
_COMPILED = 2.5
#: An address for operands; only its alignment matters.
_ADDRESS = 1 << 30


class Launch(NamedTuple):
    """A launch that a problem can have, and what the formula reads of it."""

    constants: Constants
    blocks: int
    choice: Choice
    counts: Counts
    factors: tuple[float, float]

    def seconds(self, numbers: Machine) -> float:
        """Its time by the formula."""
        return float(parts(numbers, *self.factors, self.counts).seconds)

    @property
    def code(self) -> tuple:
        """What it is compiled for."""
        return id(self.constants), self.choice.spec


def problems(
    device: Device, count: int = PROBLEMS, sizes: tuple[int, int] = BYTES
) -> list[tuple[Cell, bool]]:
    """Problems that cover sizes and shapes evenly, each with whether it is held out of the fit.

    Any beginning of them covers the same ranges, only less densely.
    """
    found = []
    for number in range(count):
        size, length = ((0.5 + (number + 1) * step) % 1 for step in _STEPS)
        letter, order = _KINDS[number % len(_KINDS)]
        hot = number % _HOT_EACH == _HOT_EACH - 1
        least, most = sizes
        if hot:
            most = min(most, max(device.chip.cache_bytes // _CACHE_SHARE, least))
        elements = int(least * (most / least) ** size) // DTYPES[letter].itemsize
        multiples = max(elements // _LINE, 1)
        line = _LINE * max(1, round(multiples**length))
        # The largest of its cell, for which the choice is made that all problems of the cell get.
        line = line_of(index_of_line(line))
        lines = lines_of(index_of_lines(max(1, elements // line)))
        m, n = (lines, line) if order == "C" else (line, lines)
        held_out = number % _HELD_OUT_EACH == _HELD_OUT_EACH - 1
        found.append((Cell(m, n, letter, "N", order, hot=hot), held_out))
    return found


@functools.lru_cache(maxsize=256)
def problem_of(cell: Cell) -> Problem:
    """The problem of a cell, its operands aligned as those of a :class:`Stopwatch` are."""
    return FramedCell.at(cell, _ADDRESS, 1).problem


def launch_of(
    found: MachineFile, constants: Constants, blocks: int, cell: Cell, device: Device
) -> Launch:
    """The launch of a cell with these constants; a ValueError says why there is none."""
    kernel, problem, knobs = constants.kernel, problem_of(cell), knobs_of(constants, blocks)
    refusal = kernel.accepts(problem)
    if refusal or kernel.work is None:
        raise ValueError(refusal or f"{kernel.name} does not count its work")
    geometry = kernel.geometry(problem, device, knobs)
    work = kernel.work(problem, geometry, constants.knobs)
    registers = constants.registers_for(problem) or 255
    counts = counted(work, problem, device, registers, cell.hot)
    choice = Choice(kernel, kernel.spec(problem, knobs), geometry, "a launch that is timed")
    return Launch(constants, blocks, choice, counts, found.factors_of(kernel))


def telling(found: MachineFile, cell: Cell, device: Device, compiled: set[tuple]) -> list[Launch]:
    """Launches whose times tell the most: the fastest ones, by what the formula says bounds them.

    Those in `compiled`, the codes that are there already, come first where times are similar; the
    codes of the launches are added to it.
    """
    every = list(predictions(found, problem_of(cell), device, is_hot=cell.hot))
    if not every:
        return []
    limit = _NEAR * min(each.parts.seconds for each in every)
    rows = [
        (
            each.parts.seconds,
            each.parts.bound,
            launch_of(found, each.constants, each.candidate.blocks, cell, device),
        )
        for each in every
        if each.parts.seconds <= limit
    ]
    rows.sort(key=lambda row: row[0] * (1 if row[2].code in compiled else _COMPILED))
    taken: list[Launch] = []
    for bound in BOUNDS:
        taken += [launch for _, by, launch in rows if by == bound][:1]
    for _, _, launch in rows:
        if all(launch.constants is not each.constants for each in taken):
            taken.append(launch)
    taken = taken[:_LAUNCHES]
    compiled.update(each.code for each in taken)
    return taken


def chosen(choices: Choices, cell: Cell, device: Device) -> Launch:
    """What a machine chooses for a cell: by an exception, by the cell's choice, or by the formula.

    Raises
    ------
    ValueError
        If the machine has no constants for such a problem.
    """
    found, problem = choices.machine, problem_of(cell)
    for row in found.exceptions:
        kernel = REGISTRY[row.kernel]
        if row.matches(problem) and kernel.accepts(problem) is None:
            knobs = {**kernel.knobs, **row.knobs}
            constants = Constants(kernel.name, knobs, {})
            return launch_of(found, constants, knobs.get("BLOCKS_PER_SM", 0), cell, device)
    kind = kind_of(problem)
    number = EMPTY if kind is None else choices.number(kind, *indices_of(problem))
    if number != EMPTY:
        candidate = choices.entries[number]
        try:
            constants = found.constants[candidate.number]
            return launch_of(found, constants, candidate.blocks, cell, device)
        except ValueError:
            pass  # it accepted the largest problem of the cell, and not this one
    other = best(found, problem, device)
    if other is None:
        raise ValueError(f"machine {found.name} has no constants for {cell}")
    return launch_of(found, found.constants[other.number], other.blocks, cell, device)
