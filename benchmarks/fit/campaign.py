"""Measure candidates on the cells of the draw, and keep every time.

    python -m benchmarks.fit.campaign FILE.json [--cells 560] [--seconds 560] [--jobs 15]
        [--earlier FILE.json] [--kernels NAME,NAME] [--random SEED]

A cell is one problem: shape, dtype, storage, and cold or L2-resident. On each cell the campaign
tries candidates (``candidates.py``): kernels with constants. It first checks their results on whole
numbers, then times them. One candidate of AGAIN_EACH is timed twice, which shows the noise. With
``--random``, cells are those of ``bench --random`` with this seed, and the candidates are what the
GPU's choices could be: the constants of its machine file that the formula expects to be the
fastest. They share machine code, so that three times as many cells are timed.

Cells that the file already has are skipped, so a run that was interrupted continues where it
stopped. Other processes compile machine code ahead. Under the simulator the cells are small and
nothing is timed, so a test can run the whole program without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
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
    normal,
    of_kernels,
)
from benchmarks.fit.compilers import Compilers
from benchmarks.fit.foresight import Foresight
from benchmarks.fit.store import Campaign, Measured, Timed, code_key
from gemv.core.geometry import ceil_div
from gemv.core.problem import Problem
from gemv.measure import peers as other_libraries
from gemv.measure.cells import Cell, random_cells
from gemv.measure.checks import NUMPY_ELEMENTS, SECOND_KERNEL, WholeNumbers, equal
from gemv.measure.clock import copies_past_l2
from gemv.measure.frames import FramedCell, Place, lay_out
from gemv.measure.plain import launcher, loaded, mover
from gemv.measure.traffic import traffic
from gemv.selection.select import Choice, select

#: Candidates of a cell that an earlier fit expects to be the fastest.
EXPECTED = 12
#: The same of a random cell, and the number of the first one with seed 0.
EXPECTED_OF_RANDOM, RANDOM = 13, 1 << 20
#: A time that is so many times the best of its cell is measured again: 4 of 2500 times of launches
#: in clusters were 15 to 45 times too long, and later could not be repeated.
DISTURBED = 4
#: Candidates of kernels that are added to a cell, and the bytes of the largest such cell.
ADDED, ADDED_BYTES = 14, 12 << 20
#: One candidate of AGAIN_EACH is timed twice.
AGAIN_EACH = 20
#: Grids of the plain kernel that gives the floor: blocks per multiprocessor, threads per block.
FLOOR_GRIDS = ((2, 512), (4, 256), (8, 256), (16, 128))
#: The most frames of a cell: enough for the smallest cell, and Python lays them out in 50 ms.
_MOST_FRAMES = 12000
#: Expected rate and shortest time; they only decide how many calls a replay has.
_EXPECTED_RATE, _EXPECTED_LEAST_S = 3.5e12, 2e-6
#: Number of cells for which machine code is compiled ahead.
_AHEAD = 60


class Field:
    """The GPU and its memory, and what checks and times candidates there."""

    def __init__(self, cells: Iterable[Cell], engine: Any, libraries: tuple[str, ...]) -> None:
        from gemv.measure.clock import Clock
        from gemv.measure.frames import DeviceFrames, Frames

        self.engine, self.device, self.libraries = engine, engine.device(), libraries
        self.is_timed = engine.name == "cuda"
        self.clock = Clock(engine) if self.is_timed else None
        nbytes = max(self.frame_count(cell) * lay_out(cell).nbytes for cell in cells)
        self.frames = (DeviceFrames if self.is_timed else Frames)(engine, nbytes)
        self._mover: Any = None
        #: Whether only the present choice is checked, and further candidates of cells.
        self.is_trusting, self.also = False, {}

    def frame_count(self, cell: Cell) -> int:
        """The frames that are used in turn, and one more for the check."""
        if cell.hot or self.clock is None:
            return 2
        return copies_past_l2(lay_out(cell).nbytes, self.clock.l2_bytes, _MOST_FRAMES) + 1

    def framed(self, cell: Cell) -> tuple[FramedCell, FramedCell]:
        """The frames for the timed calls, and the frame for the check."""
        count = self.frame_count(cell)
        timed = FramedCell.at(cell, self.frames.base, count - 1)
        last = self.frames.base + (count - 1) * timed.layout.nbytes
        return timed, FramedCell.at(cell, last, 1)

    def call(self, made: Choice, framed: FramedCell) -> Any:
        """A function of a place and a stream, which enqueues the choice's launch."""
        problem, layout, engine = framed.problem, framed.layout, self.engine
        dtype, buffer = problem.dtype, self.frames.buffer
        one, zero = (problem.precision.factors.type(value) for value in (1, 0))

        def at(place: Place, stream: int) -> None:
            a = buffer(place.a, dtype, layout.elements - layout.first)
            x, y = buffer(place.x, dtype, problem.cols), buffer(place.y, dtype, problem.rows)
            engine.run(made, problem, one, a, x, zero, y, stream)

        return at

    def plain(self, grid: tuple[int, int], framed: FramedCell, moved: tuple[int, int]) -> Any:
        """A function of a place and a stream, which enqueues a plain kernel for as many bytes."""
        if self._mover is None:
            self._mover = loaded(self.engine, mover(), np.dtype(np.float64))
        read, written = moved
        each, threads = grid
        blocks = min(self.device.multiprocessors * each, ceil_div(read // 16, threads))
        sizes = {
            "read": read // 16, "written": written // 8, "segments": 1 if written * 16 < read else 8
        }  # fmt: skip

        def at(place: Place, stream: int) -> None:
            values = {**sizes, "a": framed.start(place), "y": place.y}
            launcher(self.engine, self._mover, (max(blocks, 1), 1, 1), (threads, 1, 1), values)(
                stream
            )

        return at

    def measure(self, number: int, cell: Cell, tried: list[Candidate]) -> Measured:
        """Check all candidates of a cell, then time them."""
        timed, checked = self.framed(cell)
        problem, moved = timed.problem, traffic(timed.layout, cell.beta)
        choices = {each: choice(each, problem, self.device) for each in tried}
        some = tried[:1] if self.is_trusting else tried
        self._check(checked, {each: choices[each] for each in some})
        found = Measured(number, cell, sum(moved), 0.0, {}, tried[0], [])
        if not self.is_timed:
            found.times = [Timed(each, 0.0) for each in tried]
            return found
        from benchmarks.fit.ring import Ring

        count = len(timed.places) * timed.layout.nbytes // problem.dtype.itemsize
        self.frames.fill("random", problem.dtype, self.frames.base, count)
        ring = Ring(timed.places, sum(moved) / _EXPECTED_RATE + _EXPECTED_LEAST_S)
        try:
            again = set(tried[number % AGAIN_EACH :: AGAIN_EACH])
            best = math.inf
            for each in tried:
                at = self.call(choices[each], timed)
                for _ in range(1 + (each in again)):
                    seconds = ring.time(at)
                    if seconds > DISTURBED * best:
                        seconds = min(seconds, ring.time(at))
                    best = min(best, seconds)
                    found.times.append(Timed(each, seconds))
            found.floor_s = min(ring.time(self.plain(g, timed, moved)) for g in FLOOR_GRIDS)
            for library in self.libraries:
                for peer in other_libraries.peers(library, problem, 0, self.frames.array)[0]:
                    at = lambda place, stream, peer=peer: peer.at(place)(stream)  # noqa: E731
                    found.peers[peer.name] = ring.time(at)
        finally:
            ring.close()
        return found

    def _check(self, checked: FramedCell, choices: dict[Candidate, Choice]) -> None:
        problem, place = checked.problem, checked.places[0]
        numbers = WholeNumbers(self.frames, checked, 0)
        if problem.rows * problem.cols > NUMPY_ELEMENTS:
            second = self.call(select(problem, self.device, SECOND_KERNEL), checked)
            expected = numbers.result(lambda stream: second(place, stream))
        else:
            expected = numbers.by_numpy()
        for candidate, made in choices.items():
            at = self.call(made, checked)
            result = numbers.result(lambda stream, at=at: at(place, stream))
            if not equal(result, expected):
                raise AssertionError(f"{candidate} is wrong on {checked.cell}")

    def facts(self, made: Choice) -> tuple[int, int, int]:
        """Registers and bytes of local memory of a thread, bytes of shared memory of a block."""
        from cuda.bindings import driver

        from gemv.driver.libcuda import check

        kind = driver.CUfunction_attribute
        (function,) = self.engine.load(made, self.device)
        return tuple(
            check(driver.cuFuncGetAttribute(attribute, function.handle))
            for attribute in (
                kind.CU_FUNC_ATTRIBUTE_NUM_REGS,
                kind.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
        )


def _simulated(cell: Cell) -> Cell:
    m, n = min(cell.m, 40), min(cell.n, 40)
    return Cell(m, n, cell.dtype, cell.op, cell.order, cell.view, cell.hot)


def _tried(
    number: int, cell: Cell, field: Field, foresight: Foresight | None = None
) -> list[Candidate]:
    timed, _ = field.framed(cell)
    if number >= RANDOM:
        return expected(timed.problem, field.device, EXPECTED_OF_RANDOM)
    first = foresight.first(timed.problem, field.device, EXPECTED, cell.hot) if foresight else ()
    also = [normal(kernel, knobs) for kernel, knobs in field.also.get(str(number), ())]
    found = candidates(timed.problem, field.device, number, [*also, *first])
    if not field.is_timed:  # the simulator is slow
        found = [each for each in found if dict(each.constants[1]).get("THREADS_PER_BLOCK", 0) < 99]
    return found


def _added(
    names: Collection[str], measured: Measured, problem: Problem, field: Field
) -> list[Candidate]:
    """Candidates of some kernels for a cell, and its best one so far; none for a large cell."""
    if measured.nbytes > ADDED_BYTES:
        return []
    found = of_kernels(names, problem, field.device, measured.number, ADDED)
    return found and [min(measured.times, key=lambda each: each.seconds).candidate, *found]


def run(
    campaign: Campaign,
    file: Path,
    wanted: list[tuple[int, Cell]],
    field: Field,
    end: float,
    compilers: Compilers | None,
    foresight: Foresight | None = None,
    names: Collection[str] = (),
) -> Iterator[Measured]:
    """Measure cells until the time `end`. The file is saved every 5 s and at the end.

    If there are `names` of kernels, candidates of these are added to cells of the campaign.
    """
    plans = {}
    earlier = {each.number: each for each in campaign.cells} if names else {}

    def plan(number: int, cell: Cell) -> list[Candidate]:
        if number not in plans:
            problem = field.framed(cell)[0].problem
            if names:
                tried = _added(names, earlier[number], problem, field)
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
            measured = field.measure(number, cell, tried)
            if names:
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
    parser.add_argument(
        "--kernels", default="",
        help="time candidates of these kernels alone, on the cells that the file has; with commas",
    )  # fmt: skip
    parser.add_argument(
        "--earlier", type=Path, metavar="FILE.json",
        help="an earlier campaign: what the formula expects to be fastest is a candidate",
    )  # fmt: skip
    parser.add_argument(
        "--random", type=int, metavar="SEED", help="as many cells of `bench --random` instead"
    )
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds

    from gemv.engines import backend

    engine: Any = backend.engine()
    if options.random is None:
        wanted = [(number, draw.cell(number)) for number in range(options.first, options.cells)]
    else:
        drawn = random_cells(options.cells, options.random)
        wanted = list(enumerate(drawn, RANDOM * (1 + options.random)))[options.first :]
    if engine.name != "cuda":
        wanted = [(number, _simulated(cell)) for number, cell in wanted]
    libraries = tuple(name for name in ("torch",) if other_libraries.installed(name))
    field = Field([each for _, each in wanted], engine, libraries if engine.name == "cuda" else ())
    if options.file.exists():
        campaign = Campaign.load(options.file)
    else:
        versions = {} if field.clock is None else field.clock.versions()
        versions |= other_libraries.versions(field.libraries)
        date = datetime.now(UTC).date().isoformat()
        device = field.device
        campaign = Campaign(
            {
                "gpu": device.name,
                "device": [list(device.compute_capability), device.multiprocessors],
                "chip": device.chip._asdict(),
                "date": date,
                "versions": versions,
            }
        )
    done = {each.number for each in campaign.cells}
    names = [name for name in options.kernels.split(",") if name]
    if names:
        wanted = [(each.number, each.cell) for each in campaign.cells]
        done = set()
    field.is_trusting = options.trust
    if options.also:
        field.also = json.loads(options.also.read_text("utf-8"))
    foresight = Foresight(field.device, options.earlier) if options.earlier else None
    compilers = None
    if engine.name == "cuda" and options.jobs > 1:
        compilers = Compilers(options.jobs, field.device.compute_capability)
    try:
        left = [each for each in wanted if each[0] not in done]
        measured = run(campaign, options.file, left, field, end, compilers, foresight, names)
        for count, _ in enumerate(measured, 1):
            if count % 25 == 0:
                spent = options.seconds - (end - time.monotonic())
                print(f"{spent:.0f} s: {summary(campaign.cells)}", flush=True)
    finally:
        if compilers is not None:
            compilers.close()
    print(summary(campaign.cells))


if __name__ == "__main__":
    main()
