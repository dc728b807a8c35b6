"""Better choices for a GPU that has the choices of another one, from a small campaign of its own.

    python -m benchmarks.fit.alike OWN.json --of OTHER.json [--gate GATE.json] [--json REPORT.json]
        [--write NAME]

OTHER.json is the campaign on the GPU whose multiprocessors this one has. OWN.json is a campaign on
this one, which may be much smaller. Trees learn from both together by which factor a launch differs
from the formula with the numbers of its own GPU, and they see which GPU that is. So what was
learned on the one holds on the other, unless times of the other say something else.

The choice for a cell only changes where the trees expect to gain more than :data:`GAIN`. They are
judged by cells that they have not seen: these are dealt into :data:`FOLDS` parts, and each part is
predicted by trees fitted to the others. ``--gate`` names a campaign that no trees see at all. With
``--write``, trees fitted to all of OWN.json decide, and the changes are written to
``machines/NAME.cells``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.ahead import GAIN, choices_of
from benchmarks.fit.candidates import normal
from benchmarks.fit.fit import Regret, regret
from benchmarks.fit.samples import ADDRESS, KERNELS, Launches, Samples, samples
from benchmarks.fit.store import Campaign
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.measure.frames import FramedCell
from gemv.selection import compiled, overlays
from gemv.selection.cells import LINES_INDICES, Kind, kinds
from gemv.selection.choices import EMPTY, Choices, packed
from gemv.selection.formula import Parts
from gemv.selection.machine import FOLDER, REFERENCE, MachineFile, machine, slug
from gemv.selection.ranking import Candidate
from gemv.selection.refit import weights
from gemv.selection.select import select

#: Parts that cells are dealt into.
FOLDS = 6
#: How much a time of this GPU counts; one of the other GPU counts 1.
OWN_WEIGHT = 2.0
#: Groups of trees whose mean decides: each considers other features at each branch.
GROUPS = 3


class Together:
    """Corrections by trees that are fitted to the times of two GPUs.

    Parameters
    ----------
    own, other : Samples
        Of this GPU and of the other one.
    which : array of bool
        The samples of `own` that take part.
    used, reference : MachineFile
        The numbers of this GPU and of the other one.
    """

    def __init__(
        self, own: Samples, which: np.ndarray, used: MachineFile,
        other: Samples, reference: MachineFile, groups: int = GROUPS,
    ) -> None:  # fmt: skip
        from sklearn.ensemble import HistGradientBoostingRegressor

        from benchmarks.fit.corrections import SETTINGS

        self._numbers, self._factors = used.numbers, factors_of(used)
        features, logs, counts = [], [], []
        for found, chosen, file, is_own in (
            (other, np.ones(len(other.times), bool), reference, 0.0),
            (own, which, used, 1.0),
        ):
            launches, times = found.launches.only(chosen), found.times[chosen]
            predicted = launches.parts(file.numbers, factors_of(file))
            features.append(_features(launches, predicted, is_own))
            logs.append(np.log(times / predicted.seconds))
            weight = weights(times, found.cells[chosen]) ** 2
            counts.append(weight * (OWN_WEIGHT if is_own else 1.0))
        self._trees = [
            HistGradientBoostingRegressor(**{**SETTINGS, "random_state": number}).fit(
                np.vstack(features), np.concatenate(logs), sample_weight=np.concatenate(counts)
            )
            for number in range(groups)
        ]

    def parts(self, launches: Launches) -> Parts:
        return launches.parts(self._numbers, self._factors)

    def seconds(self, launches: Launches) -> np.ndarray:
        """Predicted times of launches on this GPU."""
        predicted = self.parts(launches)
        features = _features(launches, predicted, 1.0)
        logs = [trees.predict(features) for trees in self._trees]
        return predicted.seconds * np.exp(np.mean(logs, axis=0))


def factors_of(found: MachineFile) -> np.ndarray:
    """The two factors of each kernel."""
    return np.array([found.factors_of(REGISTRY[name]) for name in KERNELS])


def _features(launches: Launches, predicted: Parts, is_own: float) -> np.ndarray:
    gpu = np.full(len(launches.kernels), is_own)
    return np.column_stack([launches.features(predicted), gpu])


# How good the changes are ------------------------------------------------------------------------


def folds_of(found: Samples) -> np.ndarray:
    """The part of each sample; samples of one cell are in one part."""
    numbers, at = np.unique(found.cells, return_inverse=True)
    return (np.random.default_rng(0).permutation(len(numbers)) % FOLDS)[at]


def held_out(own: Samples, used: MachineFile, other: Samples, reference: MachineFile) -> np.ndarray:
    """The time of each launch, predicted by trees that have not seen its cell."""
    folds, found = folds_of(own), np.zeros(len(own.times))
    for fold in range(FOLDS):
        trees = Together(own, folds != fold, used, other, reference)
        found[folds == fold] = trees.seconds(own.launches.only(folds == fold))
    return found


def with_usual_kept(found: Samples, seconds: np.ndarray) -> np.ndarray:
    """Predicted times; those of usual choices are shorter by the gain that a change must bring."""
    return np.where(found.is_present, seconds / GAIN, seconds)


def judged(found: Samples, seconds: np.ndarray, which: np.ndarray) -> dict[str, Any]:
    """Regret on some cells of the usual choices, and of those with changes."""
    orders = {
        "usual": np.where(found.is_present, 0.0, 1.0),
        "changed": with_usual_kept(found, seconds),
    }
    made: dict[str, Regret] = {name: regret(found, order, which) for name, order in orders.items()}
    for name, each in made.items():
        print(
            f"{name:<10}{each.cells} cells: regret {each.mean:.3f}, 95th percentile"
            f" {each.most_of_95:.3f}, worst {each.worst:.2f}; floor / time"
            f" {each.floor_over_time:.3f}"
        )
    return {
        name: {key: float(f"{value:.4g}") for key, value in each._asdict().items()}
        for name, each in made.items()
    }


def usual_choices(campaign: Campaign, device: Device) -> None:
    """Let the present choice of each cell be what the other GPU's choices give it now."""
    for each in campaign.cells:
        made = select(FramedCell.at(each.cell, ADDRESS, 1).problem, device)
        each.present = normal(made.kernel.name, made.knobs)


# Changes of cells --------------------------------------------------------------------------------

_shared: list[Any] = []


def _of_kind(kind: Kind) -> dict[int, Candidate]:
    """The cells of a kind whose choice changes, by their place, and their new choices."""
    device, used, corrections = _shared
    known = Choices(used, device)
    before = {
        divmod(place, LINES_INDICES): known.entries[number]
        for place, number in enumerate(known.numbers(kind))
        if number != EMPTY
    }
    found = choices_of(kind, used.constants, device, corrections, usual=before, of=_is_of_the_draw)
    return {
        line * LINES_INDICES + lines: candidate
        for (line, lines), candidate in found.items()
        if candidate != before.get((line, lines))
    }


def _is_of_the_draw(problem: Problem) -> bool:
    """Whether campaigns time problems with an A as large as this."""
    return problem.rows * problem.cols * problem.dtype.itemsize >= draw.BYTES[0]


def changes_ahead(device: Device, used: MachineFile, corrections: Any, jobs: int) -> dict[str, Any]:
    """``entries`` and ``kinds`` of a file of changes: see :mod:`gemv.selection.overlays`."""
    # Forked processes share these; kernels cannot be sent to others.
    _shared[:] = [device, used, corrections]
    entries: dict[Candidate, int] = {}
    texts = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for kind, found in zip(kinds(), pool.map(_of_kind, kinds()), strict=True):
            numbers = {
                place: entries.setdefault(each, len(entries)) for place, each in found.items()
            }
            if numbers:
                texts[str(kind)] = packed(overlays.changes_of(numbers))
            print(f"{kind}: {len(found)} cells change", flush=True)
    return {"entries": [list(each) for each in entries], "kinds": texts}


def write(name: str, changes: Mapping[str, Any]) -> None:
    """Write ``machines/NAME.cells``."""
    toml = FOLDER.joinpath(f"{slug(REFERENCE.name)}.toml").read_bytes()
    text = compiled.cells_text_of(toml, changes)
    write_text(Path(str(FOLDER)) / f"{name}.cells", text)
    print(f"{name}.cells: {len(changes['entries'])} launches, {len(text)} bytes")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the campaign on this GPU")
    parser.add_argument("--of", type=Path, required=True, help="that on the other GPU")
    parser.add_argument("--gate", type=Path, help="a campaign on this GPU that no trees see")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--write", metavar="NAME", help="write machines/NAME.cells")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    # The trees would use threads, which do not survive that other processes are forked.
    os.environ["OMP_NUM_THREADS"] = "1"
    campaign = Campaign.load(options.file)
    # Under this name it has the other GPU's choices alone.
    device = campaign.device._replace(name="a GPU without changes")
    used, reference = machine(device), machine(REFERENCE)
    usual_choices(campaign, device)
    own, other = samples(campaign, device), samples(Campaign.load(options.of), REFERENCE)
    everything = np.ones(len(own.times), bool)
    content: dict[str, Any] = {"campaign": campaign.about}
    if options.json:
        print("--- cells held out in turn")
        content["held out"] = judged(own, held_out(own, used, other, reference), everything)
    trees = Together(own, everything, used, other, reference)
    if options.gate:
        gate = Campaign.load(options.gate)
        usual_choices(gate, device)
        unseen = samples(gate, device)
        print("--- gate")
        content["gate"] = judged(unseen, trees.seconds(unseen.launches), unseen.times > 0)
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")
    if options.write:
        write(options.write, changes_ahead(device, used, trees, options.jobs))


if __name__ == "__main__":
    main()
