"""Predicted times of the launches of many problems, all counted together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit.candidates import has_work
from benchmarks.fit.rows import Part, Rows, candidate_of, numbers_of
from benchmarks.fit.samples import KNOBS, Launches, row_of
from benchmarks.fit.together import Gathered, arrays
from gemv.core.geometry import MAY_BE_HOT, Device, Geometry
from gemv.core.problem import Problem
from gemv.selection.items import ROOT, counts_in_batches, work_of_batch
from gemv.selection.machine import Constants
from gemv.selection.ranking import Candidate, is_vain, knobs_of, launches
from gemv.selection.sharing import shares_badly

#: Launches that the formula predicts within this factor of the best get corrections.
CLOSE = 1.4
#: The column of `Launches.further` that says whether A is in the L2 cache.
_HOT = -2 - len(KNOBS)
#: Launches whose times are predicted at once: few enough for the caches of a core.
_AT_ONCE = 2048


class Times(NamedTuple):
    """Launches near the best of their problem: its place, the candidate's number, and a logarithm.

    The logarithm is that of the predicted time, or of what is to be small instead.
    """

    problems: np.ndarray
    codes: np.ndarray
    logs: np.ndarray

    def least(self, count: int) -> np.ndarray:
        """The least logarithm of each of `count` problems; infinite where it has no launch."""
        found = np.full(count, np.inf)
        np.minimum.at(found, self.problems, self.logs)
        return found


class Timer:
    """Times of the launches of problems that differ in their sizes alone.

    Parameters
    ----------
    problems : sequence of Problem
        Others speak of them by their places.
    sets : sequence of Constants
        What the numbers of candidates stand for.
    corrections : Corrections
        What predicts times: see :mod:`benchmarks.fit.corrections`.
    """

    def __init__(
        self, problems: Sequence[Problem], sets: Sequence[Constants], device: Device,
        corrections: Any,
    ) -> None:  # fmt: skip
        self._problems, self._sets, self._device = problems, sets, device
        self._corrections = corrections
        self._gathered = Gathered(problems)
        self._kernels = list(dict.fromkeys(each.kernel for each in sets))
        self._kernel_of = np.array([self._kernels.index(each.kernel) for each in sets])

    def fitting(self, codes: np.ndarray, problem: Problem, free: bool) -> np.ndarray:
        """Those of the numbers of candidates whose kernel does not refuse a problem."""
        fits = np.array([not refuses(kernel, problem, free) for kernel in self._kernels])
        return codes[fits[self._kernel_of[numbers_of(codes)]]]

    def of_all(self, wanted: Sequence[tuple[np.ndarray, bool]]) -> list[Times]:
        """Times of all launches, for some places and whether kernels may look at alignment."""
        places = np.unique(np.concatenate([own for own, _ in wanted]))
        free = any(each for _, each in wanted)
        with arrays():
            rows = Rows(self._all(places, free))
        phased = np.array([each.kernel.phased for each in self._sets])
        by_alignment = phased[numbers_of(rows.codes)]
        return self._near(
            rows, [np.isin(rows.problems, own) & (is_free | ~by_alignment)
                   for own, is_free in wanted],
        )  # fmt: skip

    def of_pairs(self, wanted: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Times]:
        """What is to be small for some places and the numbers of candidates for them.

        A small matrix costs more than its time alone: see :mod:`gemv.selection.items`.
        """
        count = len(self._problems)
        keys = [codes * count + places for places, codes in wanted]
        codes, places = np.divmod(np.unique(_joined(keys)), count)
        with arrays():
            rows = Rows(self._each(places, codes, self._row))
        own = rows.codes * count + rows.problems
        found = self._near(rows, [np.isin(own, each) for each in keys])
        return self._with_batches(found)

    def _all(self, places: np.ndarray, free: bool) -> Iterator[Part]:
        """All launches of the problems at these places."""
        accepted: dict[str, np.ndarray] = {}
        for number, constants in enumerate(self._sets):
            kernel = constants.kernel
            if kernel.name not in accepted:
                refused = lambda problem, kernel=kernel: refuses(kernel, problem, free)  # noqa: E731
                groups = self._gathered.in_groups(refused, places)
                accepted[kernel.name] = _joined([at for at, no in groups if not no])
            made = lambda problem, number=number: list(  # noqa: E731
                launches_of_set(number, self._sets[number], problem, self._device)
            )
            for at, found in self._gathered.in_groups(made, accepted[kernel.name]):
                for candidate, row in found:
                    yield at, candidate, row

    def _each(
        self, places: np.ndarray, codes: np.ndarray, make: Callable[[Candidate, Problem], Any]
    ) -> Iterator[Part]:
        """What `make` gives for pairs of a problem and a candidate, sorted by candidates."""
        numbers, begins = np.unique(codes, return_index=True)
        ends = np.append(begins[1:], len(codes))[: len(begins)]
        for code, begin, end in zip(numbers, begins, ends, strict=True):
            candidate, at = candidate_of(int(code)), places[begin:end]
            of_one = lambda problem, candidate=candidate: make(candidate, problem)  # noqa: E731
            for group, found in self._gathered.in_groups(of_one, at):
                if found is not None:
                    yield group, candidate, found

    def _row(self, candidate: Candidate, problem: Problem) -> tuple | None:
        """The row of a candidate, or None if it is not for this problem."""
        constants = self._sets[candidate.number]
        geometry = self._geometry(candidate, problem)
        if geometry is None:
            return None
        return row(constants, candidate.blocks, geometry, problem, self._device)

    def _geometry(self, candidate: Candidate, problem: Problem) -> Geometry | None:
        constants = self._sets[candidate.number]
        if constants.registers_for(problem) is None or not has_work(constants.knobs, problem):
            return None
        try:
            knobs = knobs_of(constants, candidate.blocks)
            return constants.kernel.geometry(problem, self._device, knobs)
        except ValueError:
            return None

    def _row_in_batch(self, candidate: Candidate, problem: Problem) -> tuple:
        """The row of a candidate that has one, for a batch of such problems."""
        constants = self._sets[candidate.number]
        kernel, registers = constants.kernel, constants.registers_for(problem)
        knobs, geometry = knobs_of(constants, candidate.blocks), self._geometry(candidate, problem)
        assert geometry is not None and registers is not None
        work = work_of_batch(kernel, knobs, geometry, problem, self._device)
        return row_of(
            kernel.name, constants.knobs, candidate.blocks, problem, work, self._device, registers,
            False,
        )  # fmt: skip

    def _near(self, rows: Rows, wanted: Sequence[np.ndarray]) -> list[Times]:
        """Times of launches near the best of those that each of `wanted` selects."""
        rough = self._corrections.parts(rows.counted()).seconds
        near = []
        for which in wanted:
            best = np.full(len(self._problems), np.inf)
            np.minimum.at(best, rows.problems[which], rough[which])
            near.append(np.flatnonzero(which & (rough <= CLOSE * best[rows.problems])))
        every = np.unique(_joined(near))
        logs = np.empty(len(rough))
        for begin in range(0, len(every), _AT_ONCE):
            some = every[begin : begin + _AT_ONCE]
            logs[some] = self._logs(rows.launches(some))
        return [Times(rows.problems[own], rows.codes[own], logs[own]) for own in near]

    def _logs(self, found: Launches) -> np.ndarray:
        """Logarithms of times; where A may be in the L2 cache, their mean over both cases."""
        logs = np.log(self._corrections.seconds(found))
        small = found.counts.moved <= MAY_BE_HOT
        if small.any():
            hot = np.log(self._corrections.seconds(_hot(found.only(small))))
            logs[small] = (logs[small] + hot) / 2
        return logs

    def _with_batches(self, found: Sequence[Times]) -> list[Times]:
        """Times, multiplied by a root of those in a batch where a matrix is small enough."""
        count = len(self._problems)
        small = np.array([counts_in_batches(each) for each in self._problems])
        keys = [each.codes * count + each.problems for each in found]
        wanted = np.unique(_joined(keys))
        codes, places = np.divmod(wanted[small[wanted % count]], count)
        if not len(codes):
            return list(found)
        with arrays():
            rows = Rows(self._each(places, codes, self._row_in_batch))
        # No campaign corrects these times.
        roots = np.log(self._corrections.parts(rows.counted()).seconds) / ROOT
        order = np.argsort(rows.codes * count + rows.problems)
        own_keys = (rows.codes * count + rows.problems)[order]
        costs = []
        for each, key in zip(found, keys, strict=True):
            logs, many = each.logs.copy(), small[each.problems]
            logs[many] += roots[order][np.searchsorted(own_keys, key[many])]
            costs.append(each._replace(logs=logs))
        return costs


def refuses(kernel: Any, problem: Problem, free: bool) -> bool:
    """Whether no launch of a kernel is compared for a problem."""
    return (
        kernel.work is None
        or kernel.accepts(problem) is not None
        or kernel.phased
        and not free
        or is_vain(kernel, problem)
        or shares_badly(kernel, problem)
    )


def launches_of_set(
    number: int, constants: Constants, problem: Problem, device: Device, is_hot: bool = False
) -> Iterator[tuple[Candidate, tuple]]:
    """The launches that a problem could have by a set of constants that its kernel accepts."""
    if has_work(constants.knobs, problem):
        for blocks, geometry in launches(constants, problem, device):
            found = row(constants, blocks, geometry, problem, device, is_hot)
            if found is not None:
                yield Candidate(number, blocks), found


def row(
    constants: Constants, blocks: int, geometry: Geometry, problem: Problem, device: Device,
    is_hot: bool = False,
) -> tuple | None:  # fmt: skip
    """A row for :func:`~benchmarks.fit.samples.stacked`; None for code that needs local memory."""
    kernel, registers = constants.kernel, constants.registers_for(problem)
    if registers is None or kernel.work is None:
        return None
    work = kernel.work(problem, geometry, constants.knobs)
    return row_of(
        kernel.name, constants.knobs, blocks, problem, work, device, registers, is_hot
    )  # fmt: skip


def _joined(found: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *found])


def _hot(launches: Launches) -> Launches:
    """The same launches with A in the L2 cache."""
    further = launches.further.copy()
    further[:, _HOT] = 1
    counts = launches.counts._replace(is_hot=np.ones(len(further)))
    return launches._replace(counts=counts, further=further)
