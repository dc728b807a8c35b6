"""The measurements of a campaign as arrays: times, counts, and features for trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.candidates import Candidate, choice
from benchmarks.fit.store import Campaign, code_key
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.kernels.work import Work
from gemv.measure.frames import FramedCell
from gemv.selection.formula import Counts, Machine, Parts, counted, parts
from gemv.selection.machine import MachineFile
from gemv.selection.ranking import MOST_THREADS

#: An address for the frames of a cell; only its alignment matters.
ADDRESS = 1 << 30
KERNELS = tuple(name for name, kernel in REGISTRY.items() if not kernel.teaching)
#: Constants that are features of a launch.
KNOBS = ("LANES", "ROWS", "VECTORS", "PIECES", "COLUMNS", "FACTORS", "THREADS_PER_BLOCK",
          "MIN_BLOCKS", "CLUSTER")  # fmt: skip


class Launches(NamedTuple):
    """Launches: what the formula reads of them, and further numbers for trees.

    `kernels` has the index of the kernel in :data:`KERNELS`.
    """

    kernels: np.ndarray
    counts: Counts
    further: np.ndarray

    def parts(self, machine: Machine, factors: np.ndarray) -> Parts:
        """The terms of the formula; `factors` has the two factors of each kernel."""
        start, issue = factors[self.kernels].T
        return parts(machine, start, issue, self.counts)

    def features(self, predicted: Parts) -> np.ndarray:
        """What trees decide by: logarithms, so that a factor is a distance."""
        seconds = predicted.seconds
        fullness = self.counts.full_waves - self.counts.waves
        shares = np.column_stack(predicted) / seconds[:, None]
        return np.column_stack(
            [np.log2(1 + self.further), shares, fullness, np.log(seconds), self.kernels]
        )

    def only(self, which: np.ndarray) -> Launches:
        """Those that `which` selects."""
        counts = Counts(*(column[which] for column in self.counts))
        return Launches(self.kernels[which], counts, self.further[which])


class Samples(NamedTuple):
    """The measurements of a campaign, but for those whose code needs local memory.

    For each measurement, `cells` has the number of its cell, `is_present` says whether it is of the
    present choice, and `floors` has the shortest time of the plain kernel, the peers and the
    candidates on the cell.
    """

    launches: Launches
    times: np.ndarray
    cells: np.ndarray
    is_present: np.ndarray
    is_held_out: np.ndarray
    floors: np.ndarray


def factors_of(found: MachineFile) -> np.ndarray:
    """The two factors of each kernel."""
    return np.array([found.factors_of(REGISTRY[name]) for name in KERNELS])


def row_of(
    name: str, knobs: Mapping[str, int], blocks: int, problem: Problem, work: Work,
    device: Device, registers: int, is_hot: bool,
) -> tuple[int, Counts, tuple[float, ...]]:  # fmt: skip
    """One launch; :func:`stacked` makes Launches of several."""
    size = problem.dtype.itemsize
    step = problem.col_stride if problem.access == "axpy" else problem.row_stride
    counts = counted(work, problem, device, registers, is_hot)
    further = (
        *work, registers, blocks, problem.rows, problem.cols, problem.line_bytes, problem.lines,
        size, problem.dtype.kind == "c", *problem.widths, problem.whole, problem.a_alignment,
        abs(step) * size % 128, problem.access == "axpy", is_hot,
        problem.line_bytes * problem.lines, *(knobs.get(knob, 0) for knob in KNOBS),
    )  # fmt: skip
    return KERNELS.index(name), counts, further


def stacked(rows: Sequence[tuple[int, Counts, tuple[float, ...]]]) -> Launches:
    """Launches of the rows."""
    kernels, counts, further = zip(*rows, strict=True)
    columns = np.array(counts, dtype=float).T
    return Launches(np.array(kernels), Counts(*columns), np.array(further, dtype=float))


def samples(campaign: Campaign, device: Device) -> Samples:
    """The measurements of a campaign."""
    rows, facts = [], []
    for each in campaign.cells:
        problem = FramedCell.at(each.cell, ADDRESS, 1).problem
        best = min(time for _, time in each.times)
        floor = min(each.floor_s, best, *each.peers.values())
        for candidate, time in each.times:
            row = _row(campaign, candidate, problem, each.cell.dtype, device, each.cell.hot)
            if row is not None:
                rows.append(row)
                held_out = draw.is_held_out(each.number)
                facts.append((time, each.number, candidate == each.present, held_out, floor))
    return Samples(stacked(rows), *(np.array(column) for column in zip(*facts, strict=True)))


def _row(
    campaign: Campaign,
    candidate: Candidate,
    problem: Problem,
    letter: str,
    device: Device,
    is_hot: bool,
) -> tuple | None:
    made = choice(candidate, problem, device)
    registers, local, _ = campaign.codes[code_key(candidate.constants, made.spec, letter)]
    threads = made.geometry.launches[0].threads_per_block
    if local or made.kernel.work is None or threads > MOST_THREADS:
        return None
    work = made.kernel.work(problem, made.geometry, made.knobs)
    knobs = dict(candidate.constants[1])
    return row_of(
        made.kernel.name, knobs, candidate.blocks, problem, work, device, registers, is_hot
    )
