"""One call for a list of products of different sizes, its floor and other ways, in one run.

Ours is a plan of a batch, in a CUDA graph. As in :mod:`gemv.measure.grid` results are checked on
small whole numbers and timed on random ones, and frames are used in turn so that together they
exceed the L2 cache three times. The floor is a plain kernel that moves the bytes of all products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from gemv.engines import backend as engines_backend
from gemv.measure import grid, peers_of_ragged
from gemv.measure.checks import equal, nearly_equal
from gemv.measure.clock import Clock, copies_past_l2
from gemv.measure.frames import ALIGNED, DeviceFrames, Frames
from gemv.measure.peers_of_ragged import Way
from gemv.measure.plain import Enqueue, Mover
from gemv.measure.ragged import RaggedCell, RaggedLayout, lay_out
from gemv.measure.ragged_records import RaggedResult, RaggedResults
from gemv.measure.records import ROUNDS

#: Frames have at most so many products together: each has a plan and arrays of its own.
_MOST_PRODUCTS = 1 << 15
#: What our single calls, one after the other, are called in results.
ONE_BY_ONE = "gemv.gemv, one by one"


class Ours(NamedTuple):
    """What is measured: the class of batches, and the function for one product."""

    batch: Callable[..., Any]
    gemv: Callable[..., Any]


class RaggedBench:
    """Checks and times lists. Memory is allocated once, for the largest of those that fit."""

    def __init__(
        self,
        wanted: Sequence[RaggedCell],
        ours: Ours,
        libraries: Sequence[str] = (),
        engine: Any = None,
        clock: Any = None,
    ) -> None:
        self.engine = engines_backend.engine() if engine is None else engine
        self.device = self.engine.device()
        self.libraries, self.ours = tuple(libraries), ours
        self.clock = clock
        if clock is None and self.engine.name == "cuda":
            self.clock = Clock(self.engine)
        self._mover = Mover(self.engine, self.clock)
        self._free = grid.free_bytes(self.engine)
        needs = []
        for cell in wanted:
            layout = lay_out(cell)
            needs.append(self._frame_count(layout) * layout.nbytes)
        nbytes = max((need for need in needs if need <= self._free), default=ALIGNED)
        kind = DeviceFrames if self.engine.name == "cuda" else Frames
        self.frames = kind(self.engine, nbytes)

    def results(self) -> RaggedResults:
        """A file without rows yet."""
        versions = grid.versions(self.device, self.clock, self.libraries)
        return RaggedResults(self.device.name, self.engine.name, versions)

    def _frame_count(self, layout: RaggedLayout) -> int:
        if self.clock is None:
            return 1
        most = max(2, _MOST_PRODUCTS // len(layout.problems))
        wanted = copies_past_l2(layout.nbytes, self.clock.l2_bytes, most)
        return max(1, min(wanted, self._free // layout.nbytes))

    def measure(self, cell: RaggedCell) -> RaggedResult:
        """The result of one list: checked, then timed where there is a GPU."""
        layout = lay_out(cell)
        moved = layout.moved
        row = RaggedResult(**asdict(cell), nbytes=sum(moved), frames=0, padding=layout.padding)
        if layout.nbytes > self._free:
            row.refused["gemv"] = f"{layout.nbytes} bytes do not fit into the {self._free} free"
            return row
        row.frames = self._frame_count(layout)
        ends = row.frames * layout.nbytes
        starts = list(range(self.frames.base, self.frames.base + ends, layout.nbytes))
        self.frames.fill("whole", layout.dtype, starts[0], ends // layout.dtype.itemsize)
        arrays = [self._arrays(layout, start) for start in starts]
        batches = [self.ours.batch(a, cell.op) for a, _, _ in arrays]
        row.launches = [str(each) for each in batches[0].explain().launches]
        plans = [
            _plan(batch.plan(x, y, stream=self._stream))
            for batch, (_, x, y) in zip(batches, arrays, strict=True)
        ]
        singles = [self._one_by_one(layout, each) for each in arrays]
        ways = [Way(ONE_BY_ONE, lambda starts: singles, lambda start: singles[0])]
        for library in self.libraries:
            l2_bytes = 0 if self.clock is None else self.clock.l2_bytes
            found, refused = peers_of_ragged.ways(library, layout, self.frames.array, l2_bytes)
            ways += found
            row.refused |= refused
        self._check(row, layout, starts[0], plans[0], ways)
        if row.wrong is None and self.clock is not None:
            self._time(row, layout, starts, plans, ways)
        return row

    @property
    def _stream(self) -> int:
        return 0 if self.clock is None else self.clock.stream

    def _arrays(self, layout: RaggedLayout, start: int) -> tuple[list[Any], list[Any], list[Any]]:
        """All A, x and y of a frame, as device arrays."""
        vector, dtype, order = self.frames.vector, layout.dtype, layout.cell.order
        a = [
            vector(start + at, dtype, p.m * p.n).reshape((p.m, p.n), order=order)
            for at, p in zip(layout.a_at, layout.problems, strict=True)
        ]
        x, y = (
            [
                vector(start + at, dtype, count)
                for at, count in zip(places, counts, strict=True)
            ]
            for places, counts in (
                (layout.x_at, [p.cols for p in layout.problems]),
                (layout.y_at, [p.rows for p in layout.problems]),
            )
        )  # fmt: skip
        return a, x, y

    def _one_by_one(
        self, layout: RaggedLayout, arrays: tuple[list[Any], list[Any], list[Any]]
    ) -> Enqueue:
        gemv, trans = self.ours.gemv, "NTC".index(layout.cell.op)

        def call(stream: int) -> None:
            for a, x, y in zip(*arrays, strict=True):
                gemv(1, a, x, 0, y, trans=trans, overwrite_y=1, stream=stream)

        return call

    def _check(
        self, row: RaggedResult, layout: RaggedLayout, start: int, plan: Enqueue, ways: list[Way]
    ) -> None:
        """Compare all results; another way that is wrong leaves `ways`."""
        expected = layout.expected(self.frames.pattern("whole", layout.dtype))
        results, beside = self._results(layout, start, plan)
        for k, (found, exact) in enumerate(zip(results, expected, strict=True)):
            if not equal(found, exact):
                problem = layout.problems[k]
                row.wrong = f"item {k}, {problem.m} x {problem.n}, differs from what it should be"
                return
        if not beside:
            row.wrong = "bytes between two y were written"
            return
        for way in list(ways):
            try:
                results, _ = self._results(layout, start, way.checked(start))
                if not nearly_equal(np.concatenate(results), np.concatenate(expected)):
                    raise ArithmeticError("its result is wrong")
            except Exception as error:  # whatever another library raises
                _drop(row, ways, way, error)

    def _results(
        self, layout: RaggedLayout, start: int, call: Enqueue
    ) -> tuple[list[np.ndarray], bool]:
        """Each y after a call, which finds NaN there; and whether NaN is left between them."""
        dtype, begin = layout.dtype, start + layout.y_start
        nbytes = layout.nbytes - layout.y_start
        self.frames.spoil(begin, nbytes)
        call(self._stream)
        memory = self.frames.read(begin, np.dtype(np.uint8), nbytes)
        results = []
        for at, problem in zip(layout.y_at, layout.problems, strict=True):
            own = memory[at - layout.y_start :][: problem.rows * dtype.itemsize]
            results.append(own.view(dtype).copy())
            own[:] = 0xFF
        return results, bool((memory == 0xFF).all())

    def _time(
        self,
        row: RaggedResult,
        layout: RaggedLayout,
        starts: list[int],
        plans: list[Enqueue],
        ways: list[Way],
    ) -> None:
        count = len(starts) * layout.nbytes // layout.dtype.itemsize
        self.frames.fill("random", layout.dtype, starts[0], count)
        calls = {"ours": plans}
        places = [(start, start + layout.y_start) for start in starts]
        for number, each in enumerate(self._mover.calls(places, *layout.moved)):
            calls[f"plain {number}"] = each
        for way in list(ways):
            try:
                calls[way.name] = way.calls(starts)
            except Exception as error:  # no memory for padded copies, for instance
                _drop(row, ways, way, error)
        row.take(self.clock.race(calls, ROUNDS))


def _plan(plan: Any) -> Enqueue:
    def call(stream: int) -> None:
        plan(stream=stream)

    return call


def _drop(row: RaggedResult, ways: list[Way], way: Way, error: Exception) -> None:
    """Note why a way has no time."""
    row.refused[way.name] = f"{type(error).__name__}: {error}"[:200]
    ways.remove(way)


def measure(
    wanted: Sequence[RaggedCell],
    ours: Ours,
    libraries: Sequence[str] = (),
    stored: RaggedResults | None = None,
    seconds: float = math.inf,
    progress: Callable[[int, int, RaggedCell], None] | None = None,
) -> Iterator[RaggedResults]:
    """Measure list by list, and give all results after each of them.

    The parameters, but for `ours`, are those of :func:`gemv.measure.grid.measure`, and so are the
    errors.
    """
    bench = RaggedBench(grid.open_cells(wanted, stored), ours, libraries)
    yield from grid.each_cell(bench, wanted, stored, seconds, progress)
