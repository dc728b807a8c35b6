"""Which candidate each cell gets: computed ahead by a fit, or when a problem first asks.

A fit computes the candidates of all cells, and stores their numbers with the machine. On other GPUs
the formula is asked for a cell when its first problem comes. Both give one answer for all problems
of a cell, whatever came before.
"""

from __future__ import annotations

import base64
import functools
import zlib
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.cells import LINE_INDICES, LINES_INDICES, Kind, representative
from gemv.selection.machine import MachineFile, machine
from gemv.selection.overlays import change
from gemv.selection.ranking import Candidate, best

#: A cell without a problem.
EMPTY = 0xFFFF
#: The most bytes of a cell's largest A. Larger ones get what fewer lines get. With 256 MiB, choices
#: for matrices of 256 MiB to 1 GiB took 1.029 times as long as the best launches that were timed on
#: an NVIDIA H100, and up to 1.38 times, against 1.020 times for those of 16 to 64 MiB.
MOST_BYTES = 1 << 30
#: The digits of base 85, in order.
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
#: Cells of a kind.
CELLS = LINE_INDICES * LINES_INDICES


def packed(numbers: array[int]) -> str:
    """The numbers of all cells of a kind as text."""
    little = numbers if _IS_LITTLE else _swapped(numbers)
    return base64.b85encode(zlib.compress(little.tobytes(), 9)).decode()


def unpacked(text: str) -> array[int]:
    """The numbers that :func:`packed` made a text of."""
    numbers = array("H", zlib.decompress(_b85decode(text)))
    return numbers if _IS_LITTLE else _swapped(numbers)


def _b85decode(text: str) -> bytes:
    """As :func:`base64.b85decode`, which takes ten times as long because it is written in Python.

    Five digits stand for four bytes. Digits that are missing at the end are the largest one.
    """
    missing = -len(text) % 5
    digits = np.frombuffer(text.encode("ascii") + b"~" * missing, np.uint8)
    words = _VALUES[digits].reshape(-1, 5) @ _POWERS
    return words.astype(">u4").tobytes()[: 4 * len(words) - missing]


#: The value of each digit, by its character, and of the five places of a word.
_VALUES = np.zeros(128, np.int64)
_VALUES[np.frombuffer(_DIGITS, np.uint8)] = np.arange(85)
_POWERS = 85 ** np.arange(4, -1, -1)


_IS_LITTLE = array("H", [1]).tobytes()[0] == 1


def _swapped(numbers: array[int]) -> array[int]:
    other = numbers[:]
    other.byteswap()
    return other


class Choices:
    """The candidates of all cells on one device.

    Attributes
    ----------
    machine : MachineFile
    entries : list of Candidate
        What the numbers of cells stand for.
    """

    def __init__(self, found: MachineFile, device: Device) -> None:
        self.machine, self._device = found, device
        ahead: Mapping[str, Any] = found.choices
        self.entries = list(map(Candidate._make, ahead.get("entries", ())))
        self._texts: Mapping[str, str] = ahead.get("kinds", {})
        self._changes: Mapping[str, Any] = ahead.get("changes", {"kinds": {}})
        self._kinds: dict[Kind, array[int]] = {}

    def numbers(self, kind: Kind) -> array[int]:
        """The number of each cell of a kind, which may be :data:`EMPTY` until it is asked for."""
        found = self._kinds.get(kind)
        if found is None:
            text = self._texts.get(str(kind))
            numbers = array("H") if text is None else unpacked(text)
            if len(numbers) != CELLS:  # none were made, or cells were of other sizes then
                numbers = array("H", [EMPTY]) * CELLS
            changes = self._changes["kinds"].get(str(kind))
            if changes is not None:
                change(numbers, unpacked(changes), self._changes["first"])
            found = self._kinds.setdefault(kind, numbers)
        return found

    def number(self, kind: Kind, line: int, lines: int) -> int:
        """The number of a cell; :data:`EMPTY` if no constants are for such problems."""
        numbers = self.numbers(kind)
        at = line * LINES_INDICES + lines
        if numbers[at] == EMPTY:
            candidate = self._computed(kind, line, lines)
            if candidate is not None:
                numbers[at] = self._entry(candidate)
        return numbers[at]

    def _entry(self, candidate: Candidate) -> int:
        try:
            return self.entries.index(candidate)
        except ValueError:
            self.entries.append(candidate)
            return self.entries.index(candidate)  # another thread may have appended one as well

    def _computed(self, kind: Kind, line: int, lines: int) -> Candidate | None:
        problem = problem_of(kind, line, lines)
        if problem is None:
            return None
        return best(self.machine, problem, self._device, kind.free)


def problem_of(kind: Kind, line: int, lines: int) -> Problem | None:
    """The problem that stands for a cell: its largest one, or one with fewer lines."""
    problem = representative(kind, line, lines)
    while problem is not None and _is_large(problem):
        lines -= 1
        problem = representative(kind, line, lines)
    return problem


def problems_of_line(kind: Kind, line: int) -> list[Problem | None]:
    """:func:`problem_of` all numbers of lines, in less time than one by one."""
    found: list[Problem | None] = []
    for lines in range(LINES_INDICES):
        problem = representative(kind, line, lines)
        if problem is not None and _is_large(problem):
            problem = found[-1]
        found.append(problem)
    return found


def _is_large(problem: Problem) -> bool:
    return problem.rows * problem.cols * problem.dtype.itemsize > MOST_BYTES and problem.lines > 1


@functools.lru_cache(maxsize=64)
def choices(device: Device) -> Choices:
    """The choices on a device."""
    return Choices(machine(device), device)
