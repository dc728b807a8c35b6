"""Fit the numbers of a machine to a campaign, and judge them by cells that were kept from the fit.

    python -m benchmarks.fit.fit FILE.json [--json REPORT.json]

The judge is *regret*: the time of what the model would choose of a cell's candidates, over the
time of the best of them. The same is said of the choice that was in force.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.candidates import choice
from benchmarks.fit.model import Counts, Machine, resident_blocks, seconds
from benchmarks.fit.store import Campaign, code_key
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY
from gemv.measure.frames import FramedCell

#: Where the frames of a cell begin, for its alignment alone.
_ADDRESS = 1 << 30
#: A candidate up to so much slower than the best of its cell has full weight in the fit.
_NEAR = 1.5
#: Errors beyond this, as a logarithm, count in proportion instead of squared.
_ROBUST = 0.1
#: How strongly the factors of kernels are held at 1.
_STIFFNESS = 0.3
KERNELS = tuple(name for name, kernel in REGISTRY.items() if not kernel.teaching)


class Samples(NamedTuple):
    """The measurements of a campaign whose code needs no local memory.

    `cells` has the number of each one's cell, `is_present` tells the choice that was in force, and
    `floors` the least time that a plain kernel, a peer or any candidate took on the cell.
    """

    counts: Counts
    times: np.ndarray
    cells: np.ndarray
    is_present: np.ndarray
    is_held_out: np.ndarray
    floors: np.ndarray


class Regret(NamedTuple):
    """Of the cells of one part: means are geometric."""

    cells: int
    model: float
    model_worst: float
    present: float
    floor_over_model: float
    floor_over_present: float
    median_error: float


def samples(campaign: Campaign, device: Device) -> Samples:
    """What the formula reads of each measurement."""
    rows: list[tuple] = []
    facts: list[tuple] = []
    for each in campaign.cells:
        problem = FramedCell.at(each.cell, _ADDRESS, 1).problem
        best = min(time for _, time in each.times)
        floor = min(each.floor_s, best, *each.peers.values())
        for candidate, time in each.times:
            made = choice(candidate, problem, device)
            key = code_key(candidate.constants, made.spec, each.cell.dtype)
            registers, local, shared = campaign.codes[key]
            count = made.kernel.work
            if local or count is None:
                continue
            work = count(problem, made.geometry, made.knobs)
            complex_parts = 4 if problem.dtype.kind == "c" else 1
            rows.append((
                KERNELS.index(made.kernel.name), each.cell.hot, problem.dtype.itemsize == 2,
                work.blocks, -(-work.threads // 32),
                resident_blocks(work.threads, registers, shared),
                work.bytes, work.written, work.scratch, work.passes, work.edge_passes, work.loads,
                work.warp_lines, work.x_loads, work.multiply_adds,
                work.flight // problem.dtype.itemsize * complex_parts,
                work.end_steps, work.collects, work.splits > 1,
            ))  # fmt: skip
            held_out = draw.is_held_out(each.number)
            facts.append((time, each.number, candidate == each.present, held_out, floor))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    counts = Counts(*(c if c.dtype == bool or k == 0 else c.astype(float)
                      for k, c in enumerate(columns)))  # fmt: skip
    return Samples(counts, *(np.array(column) for column in zip(*facts, strict=True)))


def _unpacked(logs: np.ndarray) -> tuple[Machine, np.ndarray]:
    numbers = np.exp(np.clip(logs, -60, 60))
    own = len(Machine._fields)
    return Machine(*numbers[:own]), numbers[own:].reshape(-1, 2)


def fit(found: Samples, multiprocessors: int) -> tuple[Machine, np.ndarray]:
    """The numbers that predict the times of the cells to be fitted best, in relative terms."""
    from scipy.optimize import least_squares

    best = {cell: found.times[found.cells == cell].min() for cell in set(found.cells.tolist())}
    of_cell = np.array([best[cell] for cell in found.cells.tolist()])
    weights = np.where(found.is_held_out, 0, np.minimum(1, _NEAR * of_cell / found.times))
    begin = np.concatenate([np.log(Machine()), np.zeros(2 * len(KERNELS))])
    loose = np.arange(len(begin)) < len(Machine._fields)

    def errors(logs: np.ndarray) -> np.ndarray:
        predicted = seconds(*_unpacked(logs), found.counts, multiprocessors)
        held = np.where(loose, 0.0, _STIFFNESS * logs)
        return np.concatenate([weights * np.log(predicted / found.times), held])

    solution = least_squares(errors, begin, loss="soft_l1", f_scale=_ROBUST, max_nfev=400)
    return _unpacked(solution.x)


def regret(found: Samples, predicted: np.ndarray, which: np.ndarray) -> Regret:
    """How far the model's choice, and the one in force, is from the best, over some samples."""
    ratios = []
    for cell in np.unique(found.cells[which]):
        at = np.flatnonzero(found.cells == cell)
        best = found.times[at].min()
        ours = found.times[at[np.argmin(predicted[at])]]
        present = found.times[at][found.is_present[at]]
        if len(present):
            floor = found.floors[at[0]]
            ratios.append((ours / best, present.min() / best, floor / ours, floor / present.min()))
    logs = np.log(np.array(ratios))
    mean = np.exp(logs.mean(axis=0))
    error = float(np.median(np.abs(np.log(predicted / found.times)[which])))
    return Regret(
        len(ratios), float(mean[0]), float(np.exp(logs[:, 0].max())), *map(float, mean[1:]), error
    )


def report(found: Samples, predicted: np.ndarray) -> dict[str, Regret]:
    """Regret of the cells of the fit, and of those kept from it."""
    held_out = found.is_held_out
    return {"fitted": regret(found, predicted, ~held_out),
            "held out": regret(found, predicted, held_out)}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="of a campaign")
    parser.add_argument("--json", type=Path, help="keep the numbers and the report there")
    options = parser.parse_args(arguments)
    campaign = Campaign.load(options.file)
    device = Device(campaign.about["gpu"], *campaign.about["device"])
    found = samples(campaign, device)
    machine, factors = fit(found, device.multiprocessors)
    predicted = seconds(machine, factors, found.counts, device.multiprocessors)
    content: dict[str, Any] = {"campaign": campaign.about, "machine": _rounded(machine._asdict())}
    content["factors"] = {
        name: _rounded({"start": start, "issue": issue})
        for name, (start, issue) in zip(KERNELS, factors.tolist(), strict=True)
    }
    for name, judged in report(found, predicted).items():
        content[name] = _rounded(judged._asdict())
        print(
            f"{name}: {judged.cells} cells; over the best candidate: model {judged.model:.3f}"
            f" (worst {judged.model_worst:.2f}), present choice {judged.present:.3f}; floor over"
            f" model {judged.floor_over_model:.3f}, over present {judged.floor_over_present:.3f};"
            f" median error of a time {judged.median_error:.1%}"
        )
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


if __name__ == "__main__":
    main()
