"""What the formula expects of a choice, and of the next best one: for :func:`gemv.explain`."""

from __future__ import annotations

from typing import NamedTuple

from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.formula import BOUNDS, Parts, counted, parts
from gemv.selection.machine import machine
from gemv.selection.ranking import knobs_of, predictions
from gemv.selection.select import Choice


class Forecast(NamedTuple):
    """The predicted time of a launch.

    Attributes
    ----------
    seconds : float
        The time that the formula expects, if A comes from memory.
    bound : str
        What takes most of that time, in words.
    runner_up : str or None
        The kernel that would be next, with its constants; None if there is none.
    runner_up_seconds : float or None
        Its expected time. It is the smaller one where measurements of this GPU corrected the
        formula.
    """

    seconds: float
    bound: str
    runner_up: str | None
    runner_up_seconds: float | None

    def __str__(self) -> str:
        text = f"The formula expects {self.seconds * 1e6:.2f} us, most of it for {self.bound}."
        if self.runner_up is None or self.runner_up_seconds is None:
            return text
        return f"{text} Next would be {self.runner_up}: {self.runner_up_seconds * 1e6:.2f} us."


def forecast(choice: Choice, problem: Problem, device: Device) -> Forecast | None:
    """What the formula expects of a choice; None for a kernel whose work it cannot count."""
    own = _parts(choice, problem, device)
    if own is None:
        return None
    best = None
    for each in predictions(machine(device), problem, device):
        is_own = each.constants.kernel is choice.kernel
        if is_own and each.geometry.launches == choice.geometry.launches:
            continue
        if best is None or each.parts.seconds < best.parts.seconds:
            best = each
    if best is None:
        return Forecast(own.seconds, BOUNDS[own.bound], None, None)
    knobs = knobs_of(best.constants, best.candidate.blocks)
    named = ", ".join(f"{name}={value}" for name, value in knobs.items())
    return Forecast(
        own.seconds,
        BOUNDS[own.bound],
        f"{best.constants.kernel.name} ({named})",
        best.parts.seconds,
    )


def _parts(choice: Choice, problem: Problem, device: Device) -> Parts | None:
    kernel = choice.kernel
    if kernel.work is None:
        return None
    found = machine(device)
    registers = 64  # if the machine does not know these constants
    for constants in found.constants:
        same = {**constants.knobs, "BLOCKS_PER_SM": 0} == {**choice.knobs, "BLOCKS_PER_SM": 0}
        if constants.kernel is kernel and same:
            registers = constants.registers_for(problem) or registers
            break
    work = kernel.work(problem, choice.geometry, choice.knobs)
    start, issue = found.factors_of(kernel)
    return parts(found.numbers, start, issue, counted(work, problem, device, registers))
