"""Launches of many problems as rows: counted together, for the formula and for trees."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.fit.samples import Launches
from gemv.selection.formula import Counts
from gemv.selection.ranking import Candidate

#: A candidate as one number: its own number, times this, and its blocks for each multiprocessor.
_BLOCKS = 16

#: Places of problems, their candidate, and its launches as :func:`~benchmarks.fit.samples.row_of`
#: gives them: what differs between these problems is an array.
Part = tuple[np.ndarray, Candidate, tuple]


def code_of(candidate: Candidate) -> int:
    """The number of a candidate; numbers have the order of candidates."""
    return candidate.number * _BLOCKS + candidate.blocks


def candidate_of(code: int) -> Candidate:
    """The candidate with this number."""
    return Candidate(*divmod(code, _BLOCKS))


def numbers_of(codes: np.ndarray) -> np.ndarray:
    """The constants of several candidates, by their numbers in a machine's file."""
    return codes // _BLOCKS


class Rows:
    """Launches that were counted together.

    Attributes
    ----------
    problems : array of int
        The place of the problem that each launch is of.
    codes : array of int
        The candidate, by :func:`code_of`.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = list(parts)
        lengths = np.array([len(places) for places, _, _ in self._parts], int)
        codes = np.array([code_of(each) for _, each, _ in self._parts], int)
        kernels = np.array([row[0] for _, _, row in self._parts], int)
        self._begins = np.append(0, np.cumsum(lengths))
        nothing = np.zeros(0, int)
        self.problems = np.concatenate([nothing, *(places for places, _, _ in self._parts)])
        self.codes, self._kernels = np.repeat(codes, lengths), np.repeat(kernels, lengths)
        self._counts = np.empty((len(Counts._fields), len(self)))
        for at, (_, _, row) in enumerate(self._parts):
            own = self._counts[:, self._begins[at] : self._begins[at + 1]]
            for column, value in zip(own, row[1], strict=True):
                column[:] = value

    def __len__(self) -> int:
        return int(self._begins[-1])

    def counted(self) -> Launches:
        """All launches, for the formula alone: without the numbers for trees."""
        return Launches(self._kernels, Counts(*self._counts), np.empty((len(self), 0)))

    def launches(self, which: np.ndarray) -> Launches:
        """The launches `which`, in ascending order, with the numbers for trees."""
        further = np.empty((len(which), len(self._parts[0][2][2]) if self._parts else 0))
        bounds = np.searchsorted(which, self._begins)
        for at, (_, _, row) in enumerate(self._parts):
            low, high = bounds[at], bounds[at + 1]
            if low == high:
                continue
            own = which[low:high] - self._begins[at]
            for column, value in enumerate(row[2]):
                is_one = not isinstance(value, np.ndarray)
                further[low:high, column] = value if is_one else value[own]
        return Launches(self._kernels[which], Counts(*self._counts[:, which]), further)
