"""Launches that several vectors share well, to be timed on cells that a campaign has already.

Several vectors have the sums of the product alone, so a launch that they share well is chosen for
it where a product alone loses next to nothing (:mod:`gemv.selection.sharing`). Trees tell such
small differences only near problems for which both launches were timed.
"""

from __future__ import annotations

from benchmarks.fit.candidates import Candidate, has_work, of_machine
from benchmarks.fit.store import Measured
from benchmarks.fit.timer import CLOSE
from gemv.core.geometry import MAY_BE_HOT, Device
from gemv.core.problem import Problem
from gemv.selection.machine import machine
from gemv.selection.ranking import predictions
from gemv.selection.sharing import shares_well

#: Launches that several vectors share well, the formula's fastest ones, that a cell is timed with.
MOST = 4


def of_sharing(measured: Measured, problem: Problem, device: Device) -> list[Candidate]:
    """Launches of a cell that several vectors share well, behind its best one so far.

    They are of the machine's own constants, and only those that are compared when cells are
    decided, since the formula expects them to be near the best one. What was timed before is left
    out. If nothing new remains, there is no launch at all.
    """
    if problem.rows * problem.cols * problem.dtype.itemsize <= MAY_BE_HOT:
        return []
    used = machine(device)
    expected = sorted(predictions(used, problem, device), key=lambda each: each.parts.seconds)
    known = {each.candidate for each in measured.times}
    found = []
    for each in expected:
        kernel, knobs = each.constants.kernel, each.constants.knobs
        near = each.parts.seconds <= CLOSE * expected[0].parts.seconds
        well = shares_well(kernel, knobs, each.candidate.blocks, problem)
        if near and well and has_work(knobs, problem):
            found.append(of_machine(used, each.candidate))
    new = [each for each in found[:MOST] if each not in known]
    return new and [min(measured.times, key=lambda each: each.seconds).candidate, *new]
