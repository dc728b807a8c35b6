"""The launches that a problem could have on a machine, and the time that the formula predicts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, Device, Geometry
from gemv.core.problem import Problem
from gemv.kernels.kernel import Kernel
from gemv.kernels.work import Work
from gemv.selection.formula import Parts, counted, parts
from gemv.selection.items import cost, counts_in_batches, work_of_batch
from gemv.selection.machine import Constants, MachineFile
from gemv.selection.sharing import shares_badly

#: Blocks for each multiprocessor that columns may be split into.
SPLITS = (1, 2, 4, 8)
#: Predicted times within this factor count as equal: the earlier constants are preferred.
EQUAL = 1.003
#: Threads that a block may have, on every GPU.
MOST_THREADS = 1024


class Candidate(NamedTuple):
    """Constants of a machine by their number, and BLOCKS_PER_SM (0: columns are not split)."""

    number: int
    blocks: int


class Predicted(NamedTuple):
    """A launch that a problem could have, with the terms of its predicted time."""

    candidate: Candidate
    constants: Constants
    geometry: Geometry
    registers: int
    work: Work
    parts: Parts


def knobs_of(constants: Constants, blocks: int) -> dict[str, int]:
    """The constants with `blocks` blocks for each multiprocessor."""
    knobs = dict(constants.knobs)
    if blocks:
        knobs["BLOCKS_PER_SM"] = blocks
    return knobs


def launches(
    constants: Constants, problem: Problem, device: Device
) -> Iterator[tuple[int, Geometry]]:
    """Each different launch that the constants can have, with its BLOCKS_PER_SM."""
    last = None
    for blocks in SPLITS if constants.has_splits else (0,):
        try:
            geometry = constants.kernel.geometry(problem, device, knobs_of(constants, blocks))
        except ValueError:
            continue
        if geometry.launches != last and prod(geometry.launches[0].block) <= MOST_THREADS:
            last = geometry.launches
            yield blocks, geometry


def is_vain(kernel: Kernel, problem: Problem) -> bool:
    """Whether this is a kernel for unaligned lines, and all lines are aligned."""
    return kernel.phased and problem.a_alignment == LOAD_BYTES


def predictions(
    machine: MachineFile,
    problem: Problem,
    device: Device,
    by_alignment: bool = True,
    kernel: Kernel | None = None,
    is_hot: bool = False,
) -> Iterator[Predicted]:
    """All launches that the machine's constants, of one kernel or of all, can have.

    Unless a kernel is asked for, those are left out with which several vectors would take much
    longer: see :mod:`gemv.selection.sharing`.
    """
    for number, constants in enumerate(machine.constants):
        own = constants.kernel
        if (kernel or own) is not own or own.work is None or own.accepts(problem) is not None:
            continue
        if kernel is None and shares_badly(own, problem):
            continue
        registers = constants.registers_for(problem)
        if own.phased and not by_alignment or is_vain(own, problem) or registers is None:
            continue
        start, issue = machine.factors_of(own)
        for blocks, geometry in launches(constants, problem, device):
            work = own.work(problem, geometry, constants.knobs)
            counts = counted(work, problem, device, registers, is_hot)
            times = parts(machine.numbers, start, issue, counts)
            yield Predicted(Candidate(number, blocks), constants, geometry, registers, work, times)


def first(found: list[tuple[float, Candidate]]) -> Candidate | None:
    """The candidate with the least cost; of several within :data:`EQUAL`, the first one."""
    if not found:
        return None
    limit = min(of_launch for of_launch, _ in found) * EQUAL
    return min(candidate for of_launch, candidate in found if of_launch <= limit)


def best(
    machine: MachineFile,
    problem: Problem,
    device: Device,
    by_alignment: bool = True,
    kernel: Kernel | None = None,
) -> Candidate | None:
    """The candidate that the formula prefers; None if no constants are for such a problem."""
    found = predictions(machine, problem, device, by_alignment, kernel)
    return first([(_cost(machine, each, problem, device), each.candidate) for each in found])


def _cost(machine: MachineFile, launch: Predicted, problem: Problem, device: Device) -> float:
    """The predicted time; for a small matrix, with its time in a batch."""
    if not counts_in_batches(problem):
        return launch.parts.seconds
    kernel, knobs = launch.constants.kernel, knobs_of(launch.constants, launch.candidate.blocks)
    work = work_of_batch(kernel, knobs, launch.geometry, problem, device)
    start, issue = machine.factors_of(kernel)
    counts = counted(work, problem, device, launch.registers)
    return cost(launch.parts.seconds, parts(machine.numbers, start, issue, counts).seconds)
