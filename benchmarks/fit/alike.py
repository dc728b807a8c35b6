"""Better choices for a GPU that has the choices of another one, from a small campaign of its own.

    python -m benchmarks.fit.alike OWN.json --of OTHER.json [--gate GATE.json] [--json REPORT.json]
        [--write NAME [--only KIND,KIND] [--sharing]]

OTHER.json is the campaign on the GPU whose multiprocessors this one has. OWN.json is a campaign on
this one, which may be much smaller. Trees learn from both together by which factor a launch differs
from the formula with the numbers of its own GPU, and they see which GPU that is. So what was
learned on the one holds on the other, unless times of the other say something else.

The choice for a cell only changes where the trees expect to gain more than ``deciding.GAIN``. They
are judged by problems that they have not seen: these are dealt into :data:`FOLDS` parts, and for
each part trees decide that are fitted to the others. ``--gate`` names a campaign that no trees see
at all. With ``--write``, trees fitted to all of OWN.json decide, and the changes are written to
``machines/NAME.cells``. ``--only "h axpy 8"`` decides kinds alone whose names begin so
(:class:`gemv.selection.cells.Kind`). With ``--sharing``, only those cells change that get a launch
which several vectors share well. All others keep the changes that the file has.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.ahead import Deciders, choice_of_cell
from benchmarks.fit.candidates import of_machine
from benchmarks.fit.deciding import Cell
from benchmarks.fit.gate import regret, time_of
from benchmarks.fit.named import kinds_named
from benchmarks.fit.samples import ADDRESS, Launches, Samples, factors_of, samples
from benchmarks.fit.store import Campaign
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.measure.frames import FramedCell
from gemv.selection import compiled, overlays
from gemv.selection.cells import LINES_INDICES, Kind, indices_of, kind_of, kinds
from gemv.selection.choices import (
    EMPTY,
    Choices,
    choices,
    packed,
    problem_of,
    problems_of_line,
    unpacked,
)
from gemv.selection.formula import Parts
from gemv.selection.machine import FOLDER, REFERENCE, MachineFile, machine, slug
from gemv.selection.ranking import Candidate
from gemv.selection.refit import weights
from gemv.selection.sharing import shares_badly, shares_well

#: Parts that cells are dealt into.
FOLDS = 6
#: How much a time of this GPU counts; one of the other GPU counts 1.
OWN_WEIGHT = 2.0
#: A GPU of this name has the choices of the reference alone.
WITHOUT_CHANGES = "a GPU without changes"
#: What a file without changes would have.
NO_CHANGES: Mapping[str, Any] = MappingProxyType({"entries": (), "kinds": {}})
#: Groups of trees whose mean decides: each considers other features at each branch.
GROUPS = 3


#: What forked processes share; kernels cannot be sent to others.
_shared: list[Any] = []


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
            weight = weights(times, found.cells[chosen]) ** 4
            counts.append(weight * (OWN_WEIGHT if is_own else 1.0))
        seen, weight = np.vstack(features), np.concatenate(counts)
        self._trees = []
        for number in range(groups):
            fitted = HistGradientBoostingRegressor(**{**SETTINGS, "random_state": number})
            fitted.fit(seen, np.concatenate(logs), sample_weight=weight)
            self._trees.append(fitted)

    def parts(self, launches: Launches) -> Parts:
        return launches.parts(self._numbers, self._factors)

    def seconds(self, launches: Launches) -> np.ndarray:
        """Predicted times of launches on this GPU."""
        predicted = self.parts(launches)
        features = _features(launches, predicted, 1.0)
        logs = [trees.predict(features) for trees in self._trees]
        return predicted.seconds * np.exp(np.mean(logs, axis=0))


def with_times_of(file: Path, own: Samples, which: np.ndarray, used: MachineFile) -> Together:
    """Trees for the reference GPU, fitted to the campaign in `file`, on a like GPU, as well."""
    campaign = Campaign.load(file)
    device = campaign.device._replace(name=WITHOUT_CHANGES)
    return Together(own, which, used, samples(campaign, device), machine(device))


def _features(launches: Launches, predicted: Parts, is_own: float) -> np.ndarray:
    gpu = np.full(len(launches.kernels), is_own)
    return np.column_stack([launches.features(predicted), gpu])


# How good the changes are ------------------------------------------------------------------------


def parts_of(campaign: Campaign) -> dict[int, int]:
    """The part that each cell is dealt into, by its number."""
    numbers = [each.number for each in campaign.cells]
    dealt = np.random.default_rng(0).permutation(len(numbers)) % FOLDS
    return dict(zip(numbers, dealt.tolist(), strict=True))


def judged(
    campaign: Campaign,
    used: MachineFile,
    device: Device,
    trees_of: Callable[[int], Together],
    jobs: int,
) -> dict[str, dict[str, float]]:
    """Regret of the usual choices, and of those that change as `trees_of` the cell's number say.

    The choice is that of the cell of problems that a problem is in. Problems for which it was not
    timed are left out.
    """
    # Forked processes share these; trees would take a second to be sent.
    _shared[:] = [used, device, trees_of, campaign.cells]
    usual, changed = [], []
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for times in pool.map(_times_of_choices, range(len(campaign.cells)), chunksize=8):
            if None not in times:
                before, after, best, floor = times
                usual.append((before, best, floor))
                changed.append((after, best, floor))
    found = {"usual": regret(usual), "changed": regret(changed)}
    for name, numbers in found.items():
        print(name, numbers, "changes:", sum(a != b for a, b in zip(usual, changed, strict=True)))
    return found


def _times_of_choices(at: int) -> tuple[float | None, ...]:
    """Of one problem: times of its usual and its changed choice, the best time, and the floor."""
    used, device, trees_of, cells = _shared
    each = cells[at]
    known = Choices(used, device)
    problem = FramedCell.at(each.cell, ADDRESS, 1).problem
    kind = kind_of(problem)
    assert kind is not None  # no campaign times matrices without a unit stride
    largest = problem_of(kind, *indices_of(problem))
    cell = indices_of(problem if largest is None else largest)
    before = known.entries[known.number(kind, *cell)]
    after = choice_of_cell(kind, cell, used.constants, device, trees_of(each.number), before)
    best = min(timed.seconds for timed in each.times)
    floor = min(each.floor_s, best, *each.peers.values())
    times = (time_of(each, of_machine(used, candidate)) for candidate in (before, after))
    return *times, best, floor


# Changes of cells --------------------------------------------------------------------------------


def _known(device: Device, kind: Kind) -> dict[Cell, Candidate]:
    """What cells of a kind get so far."""
    known = choices(device)
    return {
        divmod(place, LINES_INDICES): known.entries[number]
        for place, number in enumerate(known.numbers(kind))
        if number != EMPTY
    }


def usual(device: Device, kind: Kind) -> dict[Cell, Candidate]:
    """What cells of a kind keep if nothing gains: not what vectors would share badly."""
    constants, known = machine(device).constants, _known(device, kind)
    problems = {line: problems_of_line(kind, line) for line in {line for line, _ in known}}
    found = {}
    for cell, candidate in known.items():
        problem = problems[cell[0]][cell[1]]
        if problem is not None and not shares_badly(constants[candidate.number].kernel, problem):
            found[cell] = candidate
    return found


def _is_of_the_draw(problem: Problem) -> bool:
    """Whether campaigns time problems with an A as large as this."""
    return problem.rows * problem.cols * problem.dtype.itemsize >= draw.BYTES[0]


def _shares_well(used: MachineFile, kind: Kind, cell: Cell, candidate: Candidate) -> bool:
    """Whether several vectors share a launch well for the largest problem of a cell."""
    problem, own = problem_of(kind, *cell), used.constants[candidate.number]
    return problem is not None and shares_well(own.kernel, own.knobs, candidate.blocks, problem)


def changes_ahead(
    device: Device,
    used: MachineFile,
    corrections: Any,
    jobs: int,
    wanted: Sequence[Kind],
    earlier: Mapping[str, Any] = NO_CHANGES,
    is_sharing: bool = False,
) -> dict[str, Any]:
    """``entries`` and ``kinds`` of a file of changes: see :mod:`gemv.selection.overlays`.

    The `wanted` kinds are decided, all of their cells, or if `is_sharing` those that get a launch
    which several vectors share well. All else has the changes of an `earlier` file.
    """
    launches = [Candidate(*each) for each in earlier["entries"]]
    changed = {}
    for name, text in earlier["kinds"].items():
        numbers = overlays.cells_of(unpacked(text))
        changed[name] = {place: launches[number] for place, number in numbers.items()}
    deciders = Deciders(
        jobs, used.constants, device, corrections, functools.partial(usual, device), _is_of_the_draw
    )
    for kind, found in deciders.choices(wanted):
        before = _known(device, kind)
        own = changed.get(str(kind), {}) if is_sharing else {}
        for cell, candidate in found.items():
            if is_sharing and not _shares_well(used, kind, cell, candidate):
                continue
            line, lines = cell
            place = line * LINES_INDICES + lines
            own.pop(place, None)
            if candidate != before.get(cell):
                own[place] = candidate
        changed[str(kind)] = own
        print(f"{kind}: {len(changed[str(kind)])} cells change", flush=True)
    # In the order of kinds, so that a file is the same however its kinds were decided.
    entries: dict[Candidate, int] = {}
    texts = {}
    for name in map(str, kinds()):
        numbers = {
            place: entries.setdefault(candidate, len(entries))
            for place, candidate in sorted(changed.get(name, {}).items())
        }
        if numbers:
            texts[name] = packed(overlays.changes_of(numbers))
    return {"entries": [list(each) for each in entries], "kinds": texts}


def changes_of_file(name: str) -> dict[str, Any]:
    """What ``machines/NAME.cells`` has by now.

    Raises
    ------
    ValueError
        If there is no such file, or the launches of its cells are those of another TOML.
    """
    toml = FOLDER.joinpath(f"{slug(REFERENCE.name)}.toml").read_bytes()
    file = FOLDER.joinpath(f"{name}.cells")
    text = file.read_bytes() if file.is_file() else b""
    found = compiled.choices_of(text, compiled.hash_of(toml))
    if not found:
        raise ValueError(
            f"alike: machines/{name}.cells has no changes of {slug(REFERENCE.name)}.toml as it is"
            " now, so no kind can keep them: decide all kinds, without --only"
        )
    return found


def write(name: str, changes: Mapping[str, Any]) -> None:
    """Write ``machines/NAME.cells``."""
    toml = FOLDER.joinpath(f"{slug(REFERENCE.name)}.toml").read_bytes()
    text = compiled.cells_text_of(toml, changes)
    write_text(Path(str(FOLDER)) / f"{name}.cells", text)
    print(f"{name}.cells: {len(changes['entries'])} launches, {len(text)} bytes")


def _fitted(at: int) -> Together:
    fitted, which = _shared
    return fitted(which[at])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the campaign on this GPU")
    parser.add_argument("--of", type=Path, required=True, help="that on the other GPU")
    parser.add_argument("--gate", type=Path, help="a campaign on this GPU that no trees see")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--write", metavar="NAME", help="write machines/NAME.cells")
    parser.add_argument(
        "--only", default="", metavar="KIND,KIND", help="decide kinds alone whose names begin so"
    )
    parser.add_argument(
        "--sharing", action="store_true",
        help="change only the cells that get a launch which several vectors share well",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    is_partial = bool(options.only) or options.sharing
    if is_partial and not options.write:
        parser.error("--only and --sharing say what --write decides, and there is no --write")
    wanted = kinds_named(options.only)
    earlier = changes_of_file(options.write) if is_partial else NO_CHANGES
    # The trees would use threads, which do not survive that other processes are forked.
    os.environ["OMP_NUM_THREADS"] = "1"
    campaign = Campaign.load(options.file)
    device = campaign.device._replace(name=WITHOUT_CHANGES)
    used, reference = machine(device), machine(REFERENCE)
    own, other = samples(campaign, device), samples(Campaign.load(options.of), REFERENCE)

    def fitted(which: np.ndarray) -> Together:
        return Together(own, which, used, other, reference)

    # Trees without the problems of each part, and then trees that have seen all of them.
    parts = parts_of(campaign)
    of_samples = np.array([parts[number] for number in own.cells.tolist()])
    folds = FOLDS if options.json else 0
    _shared[:] = [fitted, [of_samples != part for part in (*range(folds), FOLDS)]]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        *trees, everything = pool.map(_fitted, range(folds + 1))
    content: dict[str, Any] = {"campaign": campaign.about}
    if options.json:
        print("--- cells held out in turn")
        content["held out"] = judged(
            campaign, used, device, lambda number: trees[parts[number]], options.jobs
        )
    if options.gate:
        print("--- gate")
        gate = Campaign.load(options.gate)
        content["gate"] = judged(gate, used, device, lambda number: everything, options.jobs)
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")
    if options.write:
        found = changes_ahead(
            device, used, everything, options.jobs, wanted, earlier, options.sharing
        )
        write(options.write, found)


if __name__ == "__main__":
    main()
