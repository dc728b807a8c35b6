"""The few sets of constants that a machine's file keeps, of all that a campaign has timed.

Each set costs machine code for every dtype, so a machine keeps a portfolio of them. It begins with
the set that is best on most problems, and grows by the set that helps most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.ahead import launches_of
from benchmarks.fit.samples import ADDRESS, Launches, stacked
from benchmarks.fit.store import Campaign
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY
from gemv.measure.frames import FramedCell
from gemv.selection.machine import Constants, code_for

#: Cells of the draw that a portfolio is chosen for.
CELLS = 700


def compiled_sets(campaign: Campaign) -> list[Constants]:
    """All sets of a campaign, each with its registers; 0 stands for code with local memory."""
    found: dict[tuple, dict[str, int]] = {}
    for (constants, *code_of), (registers, local, _) in campaign.codes.items():
        code = code_for(REGISTRY[constants[0]], *code_of)
        found.setdefault(constants, {})[code] = 0 if local else registers
    return [Constants(name, dict(knobs), registers)
            for (name, knobs), registers in found.items()]  # fmt: skip


def chosen(
    sets: Sequence[Constants],
    count: int,
    device: Device,
    seconds: Callable[[Launches], np.ndarray],
) -> list[Constants]:
    """`count` of the sets: the portfolio, in the order in which it grew."""
    rows, of_cell, of_set = [], [], []
    for number in range(CELLS):
        cell = draw.cell(number)
        problem = FramedCell.at(cell, ADDRESS, 1).problem
        for candidate, row in launches_of(sets, problem, device, cell.hot):
            rows.append(row)
            of_cell.append(number)
            of_set.append(candidate.number)
    times = np.full((CELLS, len(sets)), np.inf)
    np.minimum.at(times, (np.array(of_cell), np.array(of_set)), seconds(stacked(rows)))
    times = times[np.isfinite(times).any(axis=1)]
    # A cell that no set of a small portfolio is for costs as much as a launch a hundred times
    # slower than the best.
    regret = np.minimum(np.log(times / times.min(axis=1, keepdims=True)), np.log(100))
    taken: list[int] = []
    now = np.full(len(regret), np.log(100))
    for _ in range(min(count, len(sets))):
        gains = np.mean(np.minimum(regret, now[:, None]), axis=0)
        gains[taken] = np.inf
        taken.append(int(np.argmin(gains)))
        now = np.minimum(now, regret[:, taken[-1]])
    print(f"portfolio of {count}: expected regret {np.exp(now.mean()):.4f}")
    return [sets[number] for number in taken]
