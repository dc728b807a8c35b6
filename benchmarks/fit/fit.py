"""Fit a machine to a campaign, judge it by cells held out of the fit, and write its file.

    python -m benchmarks.fit.fit FILE.json --machine nvidia-h200 [--json REPORT.json] [--all]

The measure is *regret*: the time of the candidate that is chosen for a cell, divided by the time of
the cell's best candidate. The report has the regret of the formula alone, of the formula with its
corrections, and of the present choice, which is what was selected at the time of the campaign.
Without ``--all`` nothing is written but the report, and cells held out of the fit judge it. With
``--all`` the held-out cells take part in a second fit, whose machine is written. ``--cells``
decides all cells of that machine anew, for when what a cell is has changed: its numbers and
constants stay. With ``--like OTHER.json``, trees learn from the campaign on another GPU with the
same multiprocessors as well, as in :mod:`benchmarks.fit.alike`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit.samples import KERNELS, Samples, factors_of, samples
from benchmarks.fit.store import Campaign
from gemv.core.files import write_text
from gemv.selection.formula import Machine
from gemv.selection.refit import weights

#: Beyond this error of the logarithm of a time, the loss grows linearly, not quadratically.
_ROBUST = 0.1
#: Weight of the penalty that keeps the factors of kernels near 1.
_STIFFNESS = 0.3


class Regret(NamedTuple):
    """Regret on one part of the cells.

    `mean` is the geometric mean; `most_of_95` is the 95th percentile. `floor_over_time` is the
    geometric mean of floor over time.
    """

    cells: int
    mean: float
    most_of_95: float
    worst: float
    floor_over_time: float


def fit(found: Samples, which: np.ndarray) -> tuple[Machine, np.ndarray]:
    """The machine and the factors of kernels with the least relative errors on samples `which`."""
    from scipy.optimize import least_squares

    launches, times = found.launches.only(which), found.times[which]
    weight = weights(times, found.cells[which])
    begin = np.concatenate([np.log(Machine()), np.zeros(2 * len(KERNELS))])
    loose = np.arange(len(begin)) < len(Machine._fields)

    def errors(logs: np.ndarray) -> np.ndarray:
        predicted = launches.parts(*_unpacked(logs)).seconds
        held = np.where(loose, 0.0, _STIFFNESS * logs)
        return np.concatenate([weight * np.log(predicted / times), held])

    solution = least_squares(errors, begin, loss="soft_l1", f_scale=_ROBUST, max_nfev=400)
    return _unpacked(solution.x)


def _unpacked(logs: np.ndarray) -> tuple[Machine, np.ndarray]:
    numbers = np.exp(np.clip(logs, -60, 60))
    own = len(Machine._fields)
    return Machine(*numbers[:own].tolist()), numbers[own:].reshape(-1, 2)


def rounded(machine: Machine, factors: np.ndarray) -> tuple[Machine, np.ndarray]:
    """The numbers as a machine's file has them, with four digits."""
    return (
        Machine(*(float(f"{number:.4g}") for number in machine)),
        np.array([[float(f"{factor:.4g}") for factor in pair] for pair in factors.tolist()]),
    )


def regret(found: Samples, order: np.ndarray, which: np.ndarray) -> Regret:
    """Regret on the cells of the samples `which`, if the least of `order` decides."""
    ratios, floors = [], []
    for cell in np.unique(found.cells[which]):
        at = np.flatnonzero(found.cells == cell)
        ours = found.times[at[np.argmin(order[at])]]
        ratios.append(ours / found.times[at].min())
        floors.append(found.floors[at[0]] / ours)
    return Regret(
        len(ratios),
        float(np.exp(np.mean(np.log(ratios)))),
        float(np.percentile(ratios, 95)),
        float(np.max(ratios)),
        float(np.exp(np.mean(np.log(floors)))),
    )


def report(found: Samples, seconds: dict[str, np.ndarray], which: np.ndarray) -> dict[str, Any]:
    """Regret of several predictions, and of the present choice."""
    judged = {name: regret(found, order, which) for name, order in seconds.items()}
    # A cell has no time of its present choice if the kernel has another launch there since.
    timed = np.isin(found.cells, found.cells[found.is_present])
    present = np.where(found.is_present, 0.0, 1.0)
    judged["present choice"] = regret(found, present, which & timed)
    for name, each in judged.items():
        print(
            f"{name:<24}{each.cells} cells: regret {each.mean:.3f}, 95th percentile"
            f" {each.most_of_95:.3f}, worst {each.worst:.2f}; floor / time"
            f" {each.floor_over_time:.3f}"
        )
    content: dict[str, Any] = {name: _short(each._asdict()) for name, each in judged.items()}
    formula = seconds["formula"]
    error = float(np.median(np.abs(np.log(formula / found.times)[which])))
    print(f"median error of a time by the formula {error:.1%}")
    content["median_error_of_formula"] = float(f"{error:.4g}")
    return content


def _short(numbers: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file of a campaign")
    parser.add_argument("--machine", help="the name of the machine's file")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--all", action="store_true", help="fit all cells and write the machine")
    parser.add_argument(
        "--cells", action="store_true",
        help="decide all cells anew, by the numbers and constants that the machine's file has",
    )  # fmt: skip
    parser.add_argument(
        "--like", type=Path, metavar="OTHER.json",
        help="with --cells: trees learn from the campaign on a like GPU as well",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    # One thread, so that the sums of a fit have one order on any number of cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    from benchmarks.fit.corrections import Corrections

    campaign = Campaign.load(options.file)
    device = campaign.device
    found = samples(campaign, device)
    everything = np.ones(len(found.times), bool)
    if options.cells:
        from benchmarks.fit.publish import decide, machine_of

        known = machine_of(device)
        corrections: Any = Corrections(found, everything, known.numbers, factors_of(known))
        if options.like:
            from benchmarks.fit.alike import with_times_of

            corrections = with_times_of(options.like, found, everything, known)
        decide(options.machine, campaign, device, corrections, options.jobs)
        return
    kept = ~found.is_held_out
    machine, factors = rounded(*fit(found, kept))
    corrections = Corrections(found, kept, machine, factors)
    seconds = {
        "formula": found.launches.parts(machine, factors).seconds,
        "formula, corrected": corrections.seconds(found.launches),
    }
    content: dict[str, Any] = {"campaign": campaign.about}
    for name, which in (("fitted", kept), ("held out", ~kept)):
        print(f"--- {name}")
        content[name] = report(found, seconds, which)
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")
    if options.all:
        from benchmarks.fit.publish import publish

        machine, factors = rounded(*fit(found, everything))
        corrections = Corrections(found, everything, machine, factors)
        publish(options.machine, campaign, device, machine, factors, corrections,
                content["held out"], options.jobs)  # fmt: skip


if __name__ == "__main__":
    main()
