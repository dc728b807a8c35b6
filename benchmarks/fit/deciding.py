"""What the cells of a kind get, from predicted times: which problems stand for them, and the best.

The cells are looked at in blocks. First all launches are compared on one to three problems of a
block. Those that do well on any of these are then compared on three problems of each of its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.fit.rows import candidate_of, code_of
from benchmarks.fit.timer import Times
from gemv.core.problem import Problem
from gemv.selection.cells import Kind, indices_of, line_of, lines_of, problem_with
from gemv.selection.choices import problem_of
from gemv.selection.ranking import EQUAL, Candidate
from gemv.selection.sharing import FAVOUR_OF_FEW

#: Up to which factor of the best time a candidate is to be preferred, by the largest problem of a
#: cell; 1 for one that is not.
Favours = Callable[[Problem, Candidate], float]
#: The indices of a cell: of the length and of the number of its lines.
Cell = tuple[int, int]

#: Indices of lines' lengths and numbers in a block of cells, whose best launches are looked for
#: together.
_BLOCK = (4, 2)
#: Launches within this factor of the best on one problem of a block are compared on all its cells.
_CLOSER = 1.1
#: How much the largest problem of a cell counts, since people like its sizes; the others count 1.
_OF_LARGEST = 2.0
#: A usual choice is kept unless another one is expected to be faster by more than this factor.
GAIN = 1.02


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


class Places:
    """Problems by their places, each of them once."""

    def __init__(self) -> None:
        self._places: dict[Problem, int] = {}

    def of(self, problem: Problem) -> int:
        """The place of a problem, which may be a new one."""
        return self._places.setdefault(problem, len(self._places))

    @property
    def problems(self) -> list[Problem]:
        return list(self._places)


class Deciding:
    """The cells of a kind on their way to a choice.

    Parameters
    ----------
    cells : sequence of Cell
        In ascending order. Each is that of its largest problem.
    usual : mapping of Cell to Candidate
        What cells keep if nothing else gains enough.
    """

    def __init__(self, kind: Kind, cells: Sequence[Cell], usual: Mapping[Cell, Candidate]) -> None:
        self.kind, self._cells = kind, cells
        self._usual = np.array([code_of(usual[each]) if each in usual else -1 for each in cells])
        blocks: dict[Cell, list[int]] = {}
        for number, (line, lines) in enumerate(cells):
            blocks.setdefault((line // _BLOCK[0], lines // _BLOCK[1]), []).append(number)
        self._blocks = list(blocks.values())

    def probes(self, places: Places) -> np.ndarray:
        """The places of the problems on which all launches are compared: three of a block."""
        probes = [sorted({own[0], own[len(own) // 2], own[-1]}) for own in self._blocks]
        self._block_of_probe = np.repeat(np.arange(len(probes)), list(map(len, probes)))
        found = [problem_of(self.kind, *self._cells[number]) for own in probes for number in own]
        return np.array([places.of(problem) for problem in found if problem is not None], int)

    def compared(
        self,
        probes: np.ndarray,
        times: Times,
        fitting: Callable[[np.ndarray, Problem, bool], np.ndarray],
        places: Places,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places of problems, and the numbers of candidates that are compared on them.

        `fitting` keeps those of some numbers whose kernel does not refuse a cell's largest problem.
        """
        at = np.argsort(probes)
        probe = at[np.searchsorted(probes[at], times.problems)]
        own = times._replace(problems=probe)
        least = own.least(len(probes))
        near = own.logs <= least[probe] + np.log(_CLOSER)
        pairs = np.unique(
            np.stack([self._block_of_probe[probe[near]], own.codes[near]]), axis=1
        )  # fmt: skip
        begins = np.searchsorted(pairs[0], np.arange(len(self._blocks) + 1))
        found_places, found_codes = [], []
        self._cell_of, self._first = {}, {}
        for block, inside in enumerate(self._blocks):
            codes = pairs[1, begins[block] : begins[block + 1]]
            for number in inside:
                known = self._usual[number]
                compared = codes if known < 0 else np.union1d(codes, [known])
                problems = problems_of(self.kind, *self._cells[number])
                compared = fitting(compared, problems[0], self.kind.free)
                for order, problem in enumerate(problems):
                    place = places.of(problem)
                    self._cell_of[place], self._first[place] = number, order == 0
                    found_places.append(np.full(len(compared), place))
                    found_codes.append(compared)
        nothing = [np.zeros(0, int)]
        return np.concatenate(nothing + found_places), np.concatenate(nothing + found_codes)

    def chosen(self, costs: Times, count: int, favours: Favours) -> dict[Cell, Candidate]:
        """The candidate of each cell, from what is to be small for `count` problems.

        Those that `favours` prefers come first, if they are within its factor of the best.
        """
        found = {}
        cell_of, weights = np.full(count, -1), np.ones(count)
        cell_of[list(self._cell_of)] = list(self._cell_of.values())
        weights[[place for place, is_first in self._first.items() if is_first]] = _OF_LARGEST
        # By cell and candidate, the largest problem first: it has the lowest place of its cell.
        order = np.lexsort((costs.problems, costs.codes, cell_of[costs.problems]))
        problems, codes = costs.problems[order], costs.codes[order]
        losses = weights[problems] * (costs.logs - costs.least(count)[costs.problems])[order]
        keys = np.stack([cell_of[problems], codes])
        (numbers, own_codes), inverse, times = np.unique(
            keys, axis=1, return_inverse=True, return_counts=True
        )
        inverse = inverse.reshape(-1)
        regrets = np.zeros(len(numbers))
        np.add.at(regrets, inverse, losses)
        begins = np.searchsorted(numbers, np.arange(len(self._cells) + 1))
        for number, (low, high) in enumerate(zip(begins[:-1], begins[1:], strict=True)):
            if low == high:
                continue
            most = times[low:high].max()  # problems that a candidate must be for
            full = low + np.flatnonzero(times[low:high] == most)
            least, spread = regrets[full].min(), _OF_LARGEST + most - 1
            largest = problem_of(self.kind, *self._cells[number])
            near = full[regrets[full] <= least + spread * np.log(FAVOUR_OF_FEW)]
            factors = np.array(
                [favours(largest, candidate_of(code)) for code in own_codes[near].tolist()]
            )
            favoured = (factors > 1) & (regrets[near] <= least + spread * np.log(factors))
            if favoured.any():
                full = near[favoured]
                least = regrets[full].min()
            usual = full[own_codes[full] == self._usual[number]]
            if len(usual) and regrets[usual[0]] <= least + spread * np.log(GAIN):
                code = self._usual[number]
            else:
                code = own_codes[full[regrets[full] <= least + spread * np.log(EQUAL)]].min()
            found[self._cells[number]] = candidate_of(int(code))
        return found
