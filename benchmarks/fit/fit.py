"""Fit the numbers of a machine to a campaign, and judge them by cells held out of the fit.

    python -m benchmarks.fit.fit FILE.json [--json REPORT.json]

The measure is *regret*: the time of the candidate that the model chooses for a cell, divided by
the time of the cell's best candidate. The report also has the regret of the present choice, which
is what the tables selected at the time of the campaign.
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
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.measure.frames import FramedCell
from gemv.selection.select import Choice

#: An address for the frames of a cell; only its alignment matters.
_ADDRESS = 1 << 30
#: A candidate has full weight in the fit up to this multiple of the best time of its cell.
_NEAR = 1.5
#: Beyond this error of the logarithm of a time, the loss grows linearly, not quadratically.
_ROBUST = 0.1
#: Weight of the penalty that keeps the factors of kernels near 1.
_STIFFNESS = 0.3
KERNELS = tuple(name for name, kernel in REGISTRY.items() if not kernel.teaching)


class Samples(NamedTuple):
    """The measurements of a campaign, but for those whose code needs local memory.

    For each measurement, `cells` has the number of its cell, `is_present` says whether it is of the
    present choice, and `floors` has the shortest time of the plain kernel, the peers and the
    candidates on the cell.
    """

    counts: Counts
    times: np.ndarray
    cells: np.ndarray
    is_present: np.ndarray
    is_held_out: np.ndarray
    floors: np.ndarray


class Regret(NamedTuple):
    """Regret on one part of the cells. All means are geometric.

    `model` and `present` are mean regrets, of the model's choice and of the present one;
    `model_worst` is the largest regret of the model's choice. `floor_over_model` and
    `floor_over_present` are means of floor over time. `median_error` is the median of the absolute
    logarithm of predicted over measured time.
    """

    cells: int
    model: float
    model_worst: float
    present: float
    floor_over_model: float
    floor_over_present: float
    median_error: float


def counted(made: Choice, problem: Problem, code: tuple[int, int, int], is_hot: bool) -> tuple:
    """The fields of :class:`Counts` for one launch; `code` is an entry of `Campaign.codes`."""
    assert made.kernel.work is not None
    work = made.kernel.work(problem, made.geometry, made.knobs)
    registers, _, shared = code
    complex_parts = 4 if problem.dtype.kind == "c" else 1
    return (
        KERNELS.index(made.kernel.name), is_hot, problem.dtype.itemsize == 2,
        work.blocks, -(-work.threads // 32), resident_blocks(work.threads, registers, shared),
        work.bytes, work.written, work.scratch, work.passes, work.edge_passes, work.loads,
        work.warp_lines, work.x_loads, work.multiply_adds,
        work.flight // problem.dtype.itemsize * complex_parts,
        work.end_steps, work.collects, work.splits > 1,
    )  # fmt: skip


def columns(rows: Sequence[tuple]) -> Counts:
    """One Counts of arrays, from the fields of several launches."""
    found = [np.array(column) for column in zip(*rows, strict=True)]
    return Counts(*(c if c.dtype == bool or k == 0 else c.astype(float)
                    for k, c in enumerate(found)))  # fmt: skip


def samples(campaign: Campaign, device: Device) -> Samples:
    """The counts and the time of each measurement."""
    rows: list[tuple] = []
    facts: list[tuple] = []
    for each in campaign.cells:
        problem = FramedCell.at(each.cell, _ADDRESS, 1).problem
        best = min(time for _, time in each.times)
        floor = min(each.floor_s, best, *each.peers.values())
        for candidate, time in each.times:
            made = choice(candidate, problem, device)
            key = code_key(candidate.constants, made.spec, each.cell.dtype)
            code = campaign.codes[key]
            if code[1] or made.kernel.work is None:
                continue
            rows.append(counted(made, problem, code, each.cell.hot))
            held_out = draw.is_held_out(each.number)
            facts.append((time, each.number, candidate == each.present, held_out, floor))
    return Samples(columns(rows), *(np.array(column) for column in zip(*facts, strict=True)))


def _unpacked(logs: np.ndarray) -> tuple[Machine, np.ndarray]:
    numbers = np.exp(np.clip(logs, -60, 60))
    own = len(Machine._fields)
    return Machine(*numbers[:own]), numbers[own:].reshape(-1, 2)


def fit(found: Samples, multiprocessors: int) -> tuple[Machine, np.ndarray]:
    """The machine and the factors of kernels with the least relative errors on the fitted cells."""
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
    """Regret of the model's choice and of the present choice, over the samples `which`."""
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
    """Regret on the fitted cells, and on the cells held out."""
    held_out = found.is_held_out
    return {"fitted": regret(found, predicted, ~held_out),
            "held out": regret(found, predicted, held_out)}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file of a campaign")
    parser.add_argument("--json", type=Path, help="write the numbers and the report to this file")
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
            f"{name}: {judged.cells} cells; time over that of the best candidate: model's choice"
            f" {judged.model:.3f} (worst {judged.model_worst:.2f}), present choice"
            f" {judged.present:.3f}; floor over time: model's choice {judged.floor_over_model:.3f},"
            f" present choice {judged.floor_over_present:.3f}; median error of a predicted time"
            f" {judged.median_error:.1%}"
        )
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


if __name__ == "__main__":
    main()
