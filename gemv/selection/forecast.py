"""What the formula expects of a choice, of the next best one, and of a launch of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels.work import Work
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
        formula, and where a small matrix was chosen for by its time in a batch as well.
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
    work = kernel.work(problem, choice.geometry, choice.knobs)
    return _of_work(choice, work, problem, device)


def _of_work(choice: Choice, work: Work, problem: Problem, device: Device) -> Parts:
    found = machine(device)
    registers = 64  # if the machine does not know these constants
    for constants in found.constants:
        same = {**constants.knobs, "BLOCKS_PER_SM": 0} == {**choice.knobs, "BLOCKS_PER_SM": 0}
        if constants.kernel is choice.kernel and same:
            registers = constants.registers_for(problem) or registers
            break
    start, issue = found.factors_of(choice.kernel)
    return parts(found.numbers, start, issue, counted(work, problem, device, registers))


#: Counts of a launch that are those of all its items together, and those of the item with most.
#: The others decide how long a block is busy, and are means over the blocks.
_TOGETHER = ("blocks", "bytes", "written", "scratch")
_MOST = ("passes", "edge_passes", "end_steps", "collects", "splits")
_MEAN = ("loads", "x_loads", "multiply_adds")


def seconds_of_list(choice: Choice, problems: Sequence[Problem], device: Device) -> float:
    """The time that is expected of one launch for products of different sizes.

    It is that of the formula for the work of all of them, and of two waits for the L2 cache, in
    which a block finds its item. Kernels whose work is not counted, those for small items and for
    most items of a list together, are taken to wait twice for the memory: for A, and for x.
    """
    kernel, knobs, numbers = choice.kernel, choice.knobs, machine(device).numbers
    tables = 2 * numbers.cache_latency
    if kernel.work is None:
        nbytes = sum(problem.bytes_moved(True) for problem in problems)
        waits = numbers.block_start + 2 * numbers.memory_latency
        return tables + numbers.start + waits + nbytes / numbers.memory_rate
    each = [
        kernel.work(problem, kernel.geometry(problem, device, knobs), knobs) for problem in problems
    ]
    blocks = sum(work.blocks for work in each)
    counts: dict[str, Any] = {}
    counts |= {name: sum(getattr(work, name) for work in each) for name in _TOGETHER}
    counts |= {name: max(getattr(work, name) for work in each) for name in _MOST}
    counts |= {
        name: sum(getattr(work, name) * work.blocks for work in each) / blocks for name in _MEAN
    }
    found = _of_work(choice, each[0]._replace(**counts), problems[0], device)
    return tables + float(found.seconds)
