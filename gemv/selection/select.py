"""Which kernel a problem gets, and with which constants.

A small matrix has a kernel of its own, because its sums have one order everywhere. For others a
machine's file lists a few exceptions, and constants that do well on that GPU. The first exception
that matches a problem decides. Otherwise the formula of :mod:`gemv.selection.formula` does: each
kernel counts its work with each set of constants, and the least predicted time wins. That is done
once for all problems of a cell: see :mod:`gemv.selection.cells`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from gemv.core import memo
from gemv.core.environment import switched_off
from gemv.core.geometry import SECTOR_BYTES, Device
from gemv.core.problem import Problem
from gemv.core.values import shown
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import Kernel
from gemv.kernels.small_sums import runs_down
from gemv.selection.cells import (
    CLOSE_BYTES,
    LINES_INDICES,
    index_of_line,
    index_of_lines,
    kind_of,
)
from gemv.selection.choices import EMPTY, choices
from gemv.selection.entry import Choice, Entry, made
from gemv.selection.items import is_small
from gemv.selection.machine import machine
from gemv.selection.ranking import best, knobs_of
from gemv.selection.row import numbers

#: The kernel for problems that all constants of the machine are wrong for, and reasons of choices.
GENERAL = "last_block"
_FASTEST = "the fastest by the formula for lines of such a length and number"
_ANY_STRIDES = "no unit stride: a tile with its threads along the sum, combined in one launch"
_BY_NAME = "asked for by name"
_SMALL = "sums of small matrices have one order, wherever these lie and however many there are"

#: Choices that are kept. One more, and the oldest is forgotten.
MAX_CHOICES = 4096


# Selection -------------------------------------------------------------------------------------

_by_alignment = not switched_off("GEMV_ALIGNMENT")


def use_alignment(yes: bool = True) -> None:
    """Whether kernels may be chosen by how operands are aligned in memory.

    Beyond 32 x 32 the order of a sum depends on the width of its loads, and that on the alignment
    of A and x: of their addresses and of A's leading dimension. So views of the same values may
    differ in their last bits. Without alignment every load is one element wide, whatever the
    address, and kernels that look for the next multiple of 16 bytes are not used, so that the bits
    depend on the values, the shape, the storage order and the GPU alone, where elements are aligned
    to their own size. That takes time: narrow loads reach a smaller part of the memory's rate.

    Parameters
    ----------
    yes : bool
        False to forbid it for this process from now on, in plans that exist as well.
        ``GEMV_ALIGNMENT=0`` in the environment does the same from the start.

    Examples
    --------
    >>> import gemv
    >>> gemv.use_alignment(False)
    >>> gemv.use_alignment(True)
    """
    global _by_alignment
    if not isinstance(yes, bool):
        raise TypeError(f"use_alignment: yes must be True or False, got {shown(yes)}")
    _by_alignment = yes
    for known in _known.values():
        known.choices.clear()
    memo.forget()


def as_computed(problem: Problem, device: Device, by_alignment: bool | None = None) -> Problem:
    """`problem` with the alignment and the sums that a kernel is chosen and compiled for.

    Without `by_alignment`, by default the setting of :func:`use_alignment`, addresses have that of
    elements. A GPU with few units for float64 adds up wide sums as pairs of float32.
    """
    if not (_by_alignment if by_alignment is None else by_alignment):
        size = problem.dtype.itemsize
        problem = problem.aligned(min(problem.a_alignment, size), min(problem.x_alignment, size))
    if problem.accumulate == "wide" and device.has_few_doubles:
        in_double = problem.precision.sums.fields is None  # else sums are two numbers already
        problem = problem._replace(accumulate="pairs") if in_double else problem
    return problem


def select(
    problem: Problem,
    device: Device,
    kernel: str | None = None,
    knobs: Mapping[str, int] | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
    literals: tuple[Any, ...] = (),
) -> Choice:
    """The kernel for `problem`, or the one asked for.

    Parameters
    ----------
    problem : Problem
        With ``rows >= 1`` and ``cols >= 1``.
    device : Device
        Its number of multiprocessors shapes the grid.
    kernel : str, optional
        A name from the registry, forced.
    knobs : mapping of str to int, optional
        Compile-time constants. If the kernel is chosen here, they replace its constants; if
        `kernel` is given, its defaults. With `kernel` alone the constants are those that the
        formula expects to be its fastest, or else its defaults.
    homes : (str, str)
        Where it finds alpha and beta: see :data:`gemv.kernels.spec.HOMES`.
    literals : (number, number)
        Their values, where they are compiled in.

    Raises
    ------
    ValueError
        For an unknown kernel or knob, or a kernel that refuses the problem, with its reason.
    """
    usual = kernel is None and knobs is None and not literals
    by_alignment = _by_alignment
    if usual:
        known = _latest if _latest.device is device else known_of(device)
        key = (problem, homes, by_alignment)
        choice = known.choices.get(key)
        if choice is not None:
            return choice
    problem = as_computed(problem, device, by_alignment)
    if usual:
        choice = _first(problem, known, homes, by_alignment)
        known.choices[key] = choice
        if len(known.choices) > MAX_CHOICES:
            try:
                known.choices.popitem(last=False)
            except KeyError:  # emptied by another thread
                pass
        return choice
    if kernel is not None:
        forced = get(kernel)
        refusal = forced.accepts(problem)
        if forced.phased and not by_alignment:
            refusal = "its sums follow addresses, which use_alignment(False) forbids"
        if refusal:
            raise ValueError(f"kernel {kernel!r} refuses this problem: {refusal}")
        used = knobs
        if used is None and forced.constants_of is not None:
            used = forced.constants_of(problem)
        if used is None:
            used = _usual_knobs(forced, problem, device, by_alignment)
        return made(forced, problem, device, used, homes, literals, _BY_NAME)
    chosen = _first(problem, known_of(device), homes, by_alignment)
    merged = {**chosen.knobs, **(knobs or {})}
    return made(chosen.kernel, problem, device, merged, homes, literals, chosen.reason)


def _usual_knobs(
    kernel: Kernel, problem: Problem, device: Device, by_alignment: bool
) -> Mapping[str, int]:
    """The constants of a kernel that suit a problem best, or else its defaults."""
    found = machine(device)
    for row in found.exceptions:
        if row.kernel == kernel.name and row.matches(problem):
            return row.knobs
    candidate = best(found, problem, device, by_alignment, kernel)
    if candidate is None:
        return kernel.knobs
    return knobs_of(found.constants[candidate.number], candidate.blocks)


class _Problems:
    """All problems that differ in their sizes alone, on one device.

    Attributes
    ----------
    kind : Kind or None
        Of their cells; None if memory runs neither along the sum nor along y.
    rows : tuple of (tuple, Entry)
        The exceptions that such problems can match, each behind its ranges.
    numbers : sequence of int
        The number of each cell of the kind.
    entries : dict of int to Entry
        By the numbers of cells.
    general : Entry or None
        For problems that have no kind; None where they have one.
    """

    __slots__ = ("choices", "entries", "general", "kind", "numbers", "rows")

    def __init__(self, problem: Problem, device: Device, by_alignment: bool) -> None:
        self.kind = None if problem.splits_elements else kind_of(problem, by_alignment)
        self.choices = choices(device)
        rows = [
            (row.ranges, Entry(REGISTRY[row.kernel], row.knobs, row.reason, f"{row.place}: "))
            for row in machine(device).exceptions
            if row.can_match(problem) and (by_alignment or not REGISTRY[row.kernel].phased)
        ]
        self.rows: tuple[tuple[tuple, Entry], ...] = tuple(rows)
        self.numbers = None if self.kind is None else self.choices.numbers(self.kind)
        self.entries: dict[int, Entry] = {}
        self.general = None
        if self.kind is None:
            self.general = Entry(REGISTRY[GENERAL], REGISTRY[GENERAL].knobs, _ANY_STRIDES, "")

    def exceptions(self, problem: Problem) -> Iterator[Entry]:
        """What the exceptions give that match, in order."""
        line, lines, _, _, lda = numbers(problem, problem.access, problem.widths[0])
        for ranges, exception in self.rows:
            (line_min, line_max), (lines_min, lines_max), _, _, (lda_min, lda_max) = ranges
            if (
                line_min <= line <= line_max
                and lines_min <= lines <= lines_max
                and lda_min <= lda <= lda_max
            ):
                yield exception

    def entry(self, line: int, lines: int) -> Entry | None:
        """What problems get whose lines are so long and so many; None if no cell says so."""
        if self.numbers is None or self.kind is None:
            return self.general
        line, lines = index_of_line(line), index_of_lines(lines)
        number = self.numbers[line * LINES_INDICES + lines]
        if number == EMPTY:
            number = self.choices.number(self.kind, line, lines)
            if number == EMPTY:
                return None
        entry = self.entries.get(number)
        if entry is None:
            entry = self.entries[number] = self._of_number(number)
        return entry

    def _of_number(self, number: int) -> Entry:
        candidate = self.choices.entries[number]
        constants = self.choices.machine.constants[candidate.number]
        knobs = knobs_of(constants, candidate.blocks)
        place = f"machine {self.choices.machine.name}, constants {candidate.number + 1}: "
        return Entry(constants.kernel, knobs, _FASTEST, place)


class Known:
    """What is known of one device: choices that were made, and what cells of problems get.

    Attributes
    ----------
    device : Device
    choices : OrderedDict
        By problem, homes of alpha and beta, and whether alignment counts. It is ordered, because an
        ordinary dict takes ever longer to find its oldest key.
    problems : dict
        By all of a problem but its sizes, and whether alignment counts.
    small : dict
        What small matrices get, by all that their kernel is compiled for.
    """

    __slots__ = ("choices", "device", "problems", "small")

    def __init__(self, device: Device | None) -> None:
        self.device = device
        self.choices: OrderedDict[tuple, Choice] = OrderedDict()
        self.problems: dict[tuple, _Problems] = {}
        self.small: dict[tuple, Entry] = {}


_known: dict[Device, Known] = {}
#: That of the device that was asked for last: a comparison of identities is faster than a hash.
_latest = Known(None)


def known_of(device: Device) -> Known:
    """What is known of a device."""
    global _latest
    found = _known.get(device)
    if found is None:
        found = _known.setdefault(device, Known(device))
    _latest = found
    return found


def forget() -> None:
    """Forget everything that is known, as after a change of machines."""
    global _latest
    _known.clear()
    _latest = Known(None)


def _small(problem: Problem, known: Known, device: Device, homes: tuple[str, str]) -> Choice:
    """The choice for a small matrix, which neither addresses nor the GPU decide."""
    # All that the constants and the machine code follow from; to find constants takes longer.
    key = (
        problem.dtype, problem.access, runs_down(problem), problem.cols, problem.conj,
        problem.incx == 1, problem.a_alignment, problem.x_alignment, problem.result,
        problem.accumulate,
    )  # fmt: skip
    entry = known.small.get(key)
    if entry is None:
        kernel = get("small_matrix")
        assert kernel.constants_of is not None
        entry = Entry(kernel, kernel.constants_of(problem), _SMALL, "")
        entry = known.small.setdefault(key, entry)
    choice = entry.choice(problem, device, homes)
    assert choice is not None  # it accepts what is small
    return choice


def _first(problem: Problem, known: Known, homes: tuple[str, str], by_alignment: bool) -> Choice:
    """The choice for `problem`: by the first exception that matches, or by its cell."""
    device = known.device
    assert device is not None
    if is_small(problem):
        return _small(problem, known, device, homes)
    (
        dtype, _, _, _, rows, cols, conj, row_stride, col_stride, incx, _, _, _,
        a_alignment, x_alignment, result, accumulate,
    ) = problem  # fmt: skip
    size = dtype.itemsize
    # As Problem's own properties have it, but each only once.
    if col_stride == 1 and not (cols == 1 and row_stride == 1):
        access, line, lines, step = 0, cols, rows, row_stride
    elif row_stride == 1:
        access, line, lines, step = 1, rows, cols, col_stride
    else:
        access, line, lines, step = 2, cols, rows, row_stride
    width = a_alignment // size or 1
    key = (
        dtype, access, width, incx == 1 and x_alignment >= width * size, not line % width,
        lines == 1, 0 <= (step - line) * size < SECTOR_BYTES, line * size <= CLOSE_BYTES,
        0 < a_alignment < size, conj, result, accumulate, by_alignment,
    )  # fmt: skip
    found = known.problems.get(key)
    if found is None:
        found = known.problems.setdefault(key, _Problems(problem, device, by_alignment))
    choice: Choice | None
    if found.rows:
        for exception in found.exceptions(problem):
            choice = exception.choice(problem, device, homes)
            if choice is not None:
                return choice
    entry = found.entry(line, lines)
    if entry is not None:
        try:
            choice = entry.choice(problem, device, homes)
            if choice is not None:
                return choice
        except ValueError:
            if entry is found.general:
                raise
    # Nothing stands for the cell, or what does was accepted and this problem is not.
    candidate = best(machine(device), problem, device, by_alignment)
    if candidate is None:
        return made(get(GENERAL), problem, device, {}, homes, (), _ANY_STRIDES)
    constants = machine(device).constants[candidate.number]
    knobs = knobs_of(constants, candidate.blocks)
    return made(constants.kernel, problem, device, knobs, homes, (), _FASTEST)
