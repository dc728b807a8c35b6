"""Measure candidates on the cells of the draw, and keep every time.

    python -m benchmarks.fit.campaign FILE.json [--cells 560] [--seconds 560] [--jobs 15]
        [--earlier FILE.json] [--kernels NAME,NAME | --sharing] [--random SEED] [--only KIND,KIND]
        [--slower BEFORE.json AFTER.json]

A cell is one problem: shape, dtype, storage, and cold or L2-resident. On each cell the campaign
tries candidates (``candidates.py``): kernels with constants. It first checks their results on whole
numbers, then times them. One candidate of AGAIN_EACH is timed twice, which shows the noise. With
``--random``, cells are those of ``bench --random`` with this seed, and the candidates are what the
GPU's choices could be: the constants of its machine file that the formula expects to be the
fastest. They share machine code, so that three times as many cells are timed.

With ``--kernels`` and with ``--sharing``, times are added to cells that the file has. ``--kernels``
times random constants of some kernels on small matrices. ``--sharing`` times launches that several
vectors share well on large ones (``shared.py``). ``--only "h dot 1"`` keeps cells whose kind begins
so (:class:`gemv.selection.cells.Kind`), random ones or those of the file: where choices are poor,
more times are worth more than elsewhere.

With ``--slower``, cells are those of a grid that take longer than in an earlier one
(``slower.py``).

Cells that the file already has are skipped, so a run that was interrupted continues where it
stopped. Other processes compile machine code ahead. Under the simulator the cells of a draw are
small and nothing is timed, so a test can run the whole program without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit import draw
from benchmarks.fit.candidates import (
    Candidate,
    candidates,
    choice,
    expected,
    is_taken,
    normal,
    of_kernels,
)
from benchmarks.fit.compilers import Compilers
from benchmarks.fit.field import DISTURBED_OF_EXPECTED, Field
from benchmarks.fit.foresight import Foresight
from benchmarks.fit.named import kinds_named
from benchmarks.fit.samples import ADDRESS
from benchmarks.fit.shared import of_sharing
from benchmarks.fit.slower import OTHERS, SLOWER, slower_cells
from benchmarks.fit.store import Campaign, Measured, code_key
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.measure import peers as other_libraries
from gemv.measure.cells import Cell, random_cells
from gemv.measure.frames import FramedCell
from gemv.selection.cells import kind_of

#: Candidates of a cell that an earlier fit expects to be the fastest.
EXPECTED = 12
#: The same of a random cell, and the number of the first one with seed 0.
EXPECTED_OF_RANDOM, RANDOM = 13, 1 << 20
#: Candidates of kernels that are added to a cell, and the bytes of the largest such cell.
ADDED, ADDED_BYTES = 14, 12 << 20
#: What gives the candidates that are added to a cell that was measured before.
Added = Callable[[Measured, Problem, Device], list[Candidate]]
#: Number of cells for which machine code is compiled ahead.
_AHEAD = 60


def _simulated(cell: Cell) -> Cell:
    m, n = min(cell.m, 40), min(cell.n, 40)
    return Cell(m, n, cell.dtype, cell.op, cell.order, cell.view, cell.hot)


def _tried(
    number: int, cell: Cell, field: Field, foresight: Foresight | None = None
) -> list[Candidate]:
    timed, _ = field.framed(cell)
    also = [normal(kernel, knobs) for kernel, knobs in field.also.get(str(number), ())]
    if number in SLOWER:
        also = [each for each in also if is_taken(each, timed.problem, field.device)]
        return list(dict.fromkeys([*expected(timed.problem, field.device, OTHERS), *also]))
    if number >= RANDOM:
        return expected(timed.problem, field.device, EXPECTED_OF_RANDOM)
    first = foresight.first(timed.problem, field.device, EXPECTED, cell.hot) if foresight else ()
    found = candidates(timed.problem, field.device, number, [*also, *first])
    if not field.is_timed:  # the simulator is slow
        found = [each for each in found if dict(each.constants[1]).get("THREADS_PER_BLOCK", 0) < 99]
    return found


def _of_kernels(
    names: Collection[str], measured: Measured, problem: Problem, device: Device
) -> list[Candidate]:
    """Candidates of some kernels for a cell, and its best one so far; none for a large cell."""
    if measured.nbytes > ADDED_BYTES:
        return []
    found = of_kernels(names, problem, device, measured.number, ADDED)
    return found and [min(measured.times, key=lambda each: each.seconds).candidate, *found]


def run(
    campaign: Campaign,
    file: Path,
    wanted: list[tuple[int, Cell]],
    field: Field,
    end: float,
    compilers: Compilers | None,
    foresight: Foresight | None = None,
    added: Added | None = None,
) -> Iterator[Measured]:
    """Measure cells until the time `end`. The file is saved every 5 s and at the end.

    With `added`, the candidates that it gives are added to cells of the campaign.
    """
    plans = {}
    earlier = {each.number: each for each in campaign.cells} if added else {}

    def plan(number: int, cell: Cell) -> list[Candidate]:
        if number not in plans:
            # Many cells get nothing, so their frames are not laid out; addresses are alike.
            problem = FramedCell.at(cell, ADDRESS, 1).problem
            if added:
                tried = added(earlier[number], problem, field.device)
            else:
                tried = _tried(number, cell, field, foresight)
            plans[number] = tried, [choice(each, problem, field.device) for each in tried]
            if compilers is not None:
                compilers.order(plans[number][1])
        return plans[number][0]

    saved = time.monotonic()
    try:
        for at, (number, cell) in enumerate(wanted):
            for ahead in wanted[at : at + _AHEAD]:
                plan(*ahead)
            tried, made = plans.pop(number)
            if time.monotonic() > end or (compilers and not compilers.wait(made, end)):
                return
            if not tried:
                continue
            measured = field.measure(number, cell, tried, alone=added is not None)
            if added:
                earlier[number].times += measured.times
            else:
                campaign.cells.append(measured)
            if field.is_timed:
                for each, one in zip(tried, made, strict=True):
                    key = code_key(each.constants, one.spec, cell.dtype)
                    if key not in campaign.codes:
                        campaign.codes[key] = field.facts(one)
            if time.monotonic() - saved > 5:
                campaign.save(file)
                saved = time.monotonic()
            yield measured
    finally:
        campaign.save(file)


def summary(cells: list[Measured]) -> str:
    """Geometric means of floor / best candidate, floor / present choice, present choice / best."""
    if not cells or not cells[0].floor_s:
        return f"{len(cells)} cells: all candidates agree"
    # A cell has no time of its present choice if the kernel has another launch there since.
    cells = [each for each in cells if any(one == each.present for one, _ in each.times)]
    best = [min(t.seconds for t in each.times) for each in cells]
    floor = [
        min(each.floor_s, b, *each.peers.values()) for each, b in zip(cells, best, strict=True)
    ]
    chosen = [min(time for one, time in each.times if one == each.present) for each in cells]

    def mean(ratios: Iterable[float]) -> float:
        return float(np.exp(np.mean(np.log(list(ratios)))))

    pairs = list(zip(best, floor, chosen, strict=True))
    return (
        f"{len(cells)} cells, {sum(len(each.times) for each in cells)} times; floor / best"
        f" {mean(f / b for b, f, _ in pairs):.3f}, floor / present"
        f" {mean(f / c for _, f, c in pairs):.3f}, present / best"
        f" {mean(c / b for b, _, c in pairs):.3f}"
    )


def random_wanted(count: int, seed: int, only: str = "") -> list[tuple[int, Cell]]:
    """Random cells with their numbers: of `count`, those of kinds whose names begin so."""
    return _of_kinds(only, enumerate(random_cells(count, seed), RANDOM * (1 + seed)))


def _of_kinds(only: str, found: Iterable[tuple[int, Cell]]) -> list[tuple[int, Cell]]:
    named = set(kinds_named(only))
    return [
        (number, cell)
        for number, cell in found
        if kind_of(FramedCell.at(cell, ADDRESS, 1).problem) in named
    ]


def wanted_cells(
    options: argparse.Namespace, measured: Iterable[Measured], is_timed: bool
) -> list[tuple[int, Cell]]:
    """All cells that a run may measure, with their numbers."""
    if options.kernels or options.sharing:
        return _of_kinds(options.only, ((each.number, each.cell) for each in measured))
    if options.random is None:
        wanted = [(number, draw.cell(number)) for number in range(options.first, options.cells)]
    else:
        wanted = random_wanted(options.cells, options.random, options.only)[options.first :]
    return wanted if is_timed else [(number, _simulated(cell)) for number, cell in wanted]


def _about(field: Field) -> dict[str, Any]:
    """What the file of a new campaign says of the GPU."""
    versions = {} if field.clock is None else field.clock.versions()
    device = field.device
    return {
        "gpu": device.name,
        "device": [list(device.compute_capability), device.multiprocessors],
        "chip": device.chip._asdict(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions | other_libraries.versions(field.libraries),
    }


def backend_name() -> str:
    """The name of the backend that a campaign would run on."""
    from gemv.engines import backend

    return backend.backend()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--cells", type=int, default=560)
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--first", type=int, default=0, help="number of the first cell")
    parser.add_argument(
        "--also", type=Path, metavar="CANDIDATES.json",
        help="further candidates: for the number of a cell, a list of [kernel, constants]",
    )  # fmt: skip
    parser.add_argument(
        "--trust", action="store_true", help="check the result of the present choice alone"
    )
    what_cells = parser.add_mutually_exclusive_group()
    what_cells.add_argument(
        "--kernels", default="",
        help="time candidates of these kernels alone, on the cells that the file has; with commas",
    )  # fmt: skip
    what_cells.add_argument(
        "--sharing", action="store_true",
        help="time launches that several vectors share well, on large cells that the file has",
    )  # fmt: skip
    what_cells.add_argument(
        "--slower", nargs=2, type=Path, metavar="GRID.json",
        help="cells that take longer in the second grid than in the first one, with both launches",
    )  # fmt: skip
    parser.add_argument(
        "--earlier", type=Path, metavar="FILE.json",
        help="an earlier campaign: what the formula expects to be fastest is a candidate",
    )  # fmt: skip
    parser.add_argument(
        "--random", type=int, metavar="SEED", help="as many cells of `bench --random` instead"
    )
    parser.add_argument(
        "--only", default="", metavar="KIND,KIND",
        help="random cells, or those of the file, whose kind begins so: 'h dot 1'",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds

    from gemv.engines import backend

    names = [name for name in options.kernels.split(",") if name]
    added: Added | None = functools.partial(_of_kernels, names) if names else None
    if options.sharing:
        added = of_sharing
    if added and not options.file.exists():
        parser.error(f"times are added to cells of {options.file}, and there is no such file")
    engine: Any = backend.engine()
    is_timed = engine.name == "cuda"
    loaded = Campaign.load(options.file) if options.file.exists() else None
    if loaded and loaded.about["gpu"] != engine.device().name:
        parser.error(
            f"{options.file} has times of {loaded.about['gpu']}, and this GPU is"
            f" {engine.device().name}"
        )
    measured = loaded.cells if loaded else ()
    if options.slower:
        if options.random is not None or options.only:
            parser.error("--slower takes the cells of two grids: neither --random nor --only")
        wanted, also = slower_cells(*options.slower, measured)
    else:
        wanted, also = wanted_cells(options, measured, is_timed), {}
    if not wanted:
        parser.error("there are no such cells")
    libraries = tuple(name for name in ("torch",) if other_libraries.installed(name))
    # Its memory is as large as the largest of these cells needs.
    field = Field([each for _, each in wanted], engine, libraries if is_timed else ())
    campaign = loaded or Campaign(_about(field))
    done = set() if added else {each.number for each in campaign.cells}
    field.is_trusting = options.trust
    field.also = also
    if options.random is not None or options.sharing or options.slower:
        field.disturbed = DISTURBED_OF_EXPECTED
    if options.also:
        field.also |= json.loads(options.also.read_text("utf-8"))
    foresight = Foresight(field.device, options.earlier) if options.earlier else None
    compilers = None
    if is_timed and options.jobs > 1:
        compilers = Compilers(options.jobs, field.device.compute_capability)
    try:
        left = [each for each in wanted if each[0] not in done]
        found = run(campaign, options.file, left, field, end, compilers, foresight, added)
        for count, _ in enumerate(found, 1):
            if count % 25 == 0:
                spent = options.seconds - (end - time.monotonic())
                print(f"{spent:.0f} s: {summary(campaign.cells)}", flush=True)
    finally:
        if compilers is not None:
            compilers.close()
    print(summary(campaign.cells))


if __name__ == "__main__":
    main()
