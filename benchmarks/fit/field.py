"""The GPU of a campaign and its memory: candidates of a cell are checked there, then timed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.fit.candidates import Candidate, choice
from benchmarks.fit.store import Measured, Timed
from gemv.core.geometry import ceil_div
from gemv.measure import peers as other_libraries
from gemv.measure.cells import Cell
from gemv.measure.checks import NUMPY_ELEMENTS, SECOND_KERNEL, WholeNumbers, equal
from gemv.measure.clock import copies_past_l2
from gemv.measure.frames import FramedCell, Place, lay_out
from gemv.measure.plain import launcher, loaded, mover
from gemv.measure.traffic import traffic
from gemv.selection.select import Choice, select

#: A time that is so many times the best of its cell is measured again: 4 of 2500 times of launches
#: in clusters were 15 to 45 times too long, and later could not be repeated.
DISTURBED = 4
#: The same where all candidates are expected to be fast: 2 of 830 cells of an H100 had a time that
#: was twice as long as those of the same kernel with other constants.
DISTURBED_OF_EXPECTED = 1.5
#: One candidate of AGAIN_EACH is timed twice.
AGAIN_EACH = 20
#: Grids of the plain kernel that gives the floor: blocks per multiprocessor, threads per block.
FLOOR_GRIDS = ((2, 512), (4, 256), (8, 256), (16, 128))
#: The most frames of a cell: enough for the smallest cell, and Python lays them out in 50 ms.
_MOST_FRAMES = 12000
#: Expected rate and shortest time; they only decide how many calls a replay has.
_EXPECTED_RATE, _EXPECTED_LEAST_S = 3.5e12, 2e-6


class Field:
    """The GPU and its memory, and what checks and times candidates there.

    The memory is made for `cells`: all those that are measured.
    """

    def __init__(self, cells: Iterable[Cell], engine: Any, libraries: tuple[str, ...]) -> None:
        from gemv.measure.clock import Clock
        from gemv.measure.frames import DeviceFrames, Frames

        self.engine, self.device, self.libraries = engine, engine.device(), libraries
        self.is_timed = engine.name == "cuda"
        self.clock = Clock(engine) if self.is_timed else None
        self._nbytes = max(self.frame_count(cell) * lay_out(cell).nbytes for cell in cells)
        self.frames = (DeviceFrames if self.is_timed else Frames)(engine, self._nbytes)
        self._mover: Any = None
        #: Whether only the present choice is checked, and further candidates of cells.
        self.is_trusting, self.also = False, {}
        self.disturbed: float = DISTURBED

    def frame_count(self, cell: Cell) -> int:
        """The frames that are used in turn, and one more for the check."""
        if cell.hot or self.clock is None:
            return 2
        return copies_past_l2(lay_out(cell).nbytes, self.clock.l2_bytes, _MOST_FRAMES) + 1

    def framed(self, cell: Cell) -> tuple[FramedCell, FramedCell]:
        """The frames for the timed calls, and the frame for the check.

        Raises
        ------
        ValueError
            If the memory is too small, because the cell is none of those that it was made for.
        """
        count = self.frame_count(cell)
        nbytes = count * lay_out(cell).nbytes
        if nbytes > self._nbytes:
            raise ValueError(
                f"field: {cell} needs {nbytes} bytes, and the memory was made for {self._nbytes}"
            )
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

    def measure(
        self, number: int, cell: Cell, tried: list[Candidate], alone: bool = False
    ) -> Measured:
        """Check all candidates of a cell, then time them; if not `alone`, floor and peers as well.

        The file has these of a cell already if candidates are added to it.
        """
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
                    if seconds > self.disturbed * best:
                        seconds = min(seconds, ring.time(at))
                    best = min(best, seconds)
                    found.times.append(Timed(each, seconds))
            # While the first one was timed, there was no best time yet to tell a disturbance by.
            first = found.times[0].seconds
            if first > self.disturbed * best:
                seconds = min(first, ring.time(self.call(choices[tried[0]], timed)))
                found.times[0] = Timed(tried[0], seconds)
            if alone:
                return found
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
