"""Our calls, the floor and the peers over a grid of cells, in one run.

A *cell* is one problem: shape, dtype, op, storage order and view, and how many of these one call
computes. Its operands lie in *frames*
(:mod:`gemv.measure.frames`). Results are checked on small whole numbers and timed on random numbers
with full mantissas.

The *floor* of a cell is the least time in which its bytes were moved in the same run: by a plain
kernel that reads and writes as many (:mod:`gemv.measure.plain`), by our call, or by a peer. Bytes
are counted in 32-byte sectors, the unit in which memory answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gemv.core.geometry import Device
from gemv.engines import backend as engines_backend
from gemv.measure import peers, peers_of_batches
from gemv.measure.cells import Cell
from gemv.measure.checks import (
    NUMPY_ELEMENTS,
    SECOND_KERNEL,
    WholeNumbers,
    equal,
    nearly_equal,
)
from gemv.measure.clock import Clock, copies_past_l2
from gemv.measure.frames import ALIGNED, DeviceFrames, FramedCell, Frames, Layout, Place, lay_out
from gemv.measure.peers import Peer
from gemv.measure.plain import Enqueue, Mover
from gemv.measure.records import ROUNDS, CellResult, GridResults
from gemv.measure.traffic import traffic
from gemv.selection.machine import machine
from gemv.selection.parts import Part, parts
from gemv.selection.select import select

_MOST_FRAMES = 2048


def free_bytes(engine: Any) -> int:
    """Bytes that frames may take: some are left for modules, workspaces and other libraries."""
    if engine.name != "cuda":
        return 1 << 30
    from numba import cuda

    return int(0.85 * cuda.current_context().get_memory_info().free)


def versions(device: Device, clock: Any, libraries: Sequence[str]) -> dict[str, str]:
    """Of this package with its table, the driver and all libraries."""
    import gemv
    from gemv.engines.fingerprint import Unknown, imported_source

    try:
        source = imported_source()[:12]
    except Unknown as why:
        source = f"unknown: {why}"
    ours = f"{gemv.__version__} (source {source}, machine {machine(device).hash[:12]})"
    timed = {} if clock is None else clock.versions()
    return {"gemv": ours, **timed, **peers.versions(tuple(libraries))}


class Bench:
    """Checks and times cells. Memory is allocated once, for the largest of those that fit."""

    def __init__(
        self,
        wanted: Sequence[Cell],
        libraries: Sequence[str] = (),
        engine: Any = None,
        clock: Any = None,
    ) -> None:
        self.engine = engines_backend.engine() if engine is None else engine
        self.device = self.engine.device()
        self.libraries = tuple(libraries)
        self.clock = clock
        if clock is None and self.engine.name == "cuda":
            self.clock = Clock(self.engine)
        self._mover = Mover(self.engine, self.clock)
        self.free_bytes = free_bytes(self.engine)
        layouts = [(cell, lay_out(cell)) for cell in wanted]
        needs = [self.frame_count(cell, layout) * layout.nbytes for cell, layout in layouts]
        nbytes = max((need for need in needs if need <= self.free_bytes), default=ALIGNED)
        kind = DeviceFrames if self.engine.name == "cuda" else Frames
        self.frames = kind(self.engine, nbytes)

    def versions(self) -> dict[str, str]:
        return versions(self.device, self.clock, self.libraries)

    def results(self) -> GridResults:
        """A file without rows yet."""
        return GridResults(self.device.name, self.engine.name, self.versions())

    def frame_count(self, cell: Cell, layout: Layout) -> int:
        """The number of frames that calls use in turn."""
        if cell.hot or self.clock is None:
            return 1
        wanted = copies_past_l2(layout.nbytes, self.clock.l2_bytes, _MOST_FRAMES)
        return max(1, min(wanted, self.free_bytes // layout.nbytes))

    def measure(self, cell: Cell) -> CellResult:
        """The result of one cell: checked, then timed where there is a GPU."""
        layout = lay_out(cell)
        moved = traffic(layout, cell.beta)
        row = CellResult(**asdict(cell), nbytes=sum(moved), frames=0, kernel="", knobs={})
        if layout.nbytes > self.free_bytes:
            row.refused["gemv"] = (
                f"{layout.nbytes} bytes do not fit into the {self.free_bytes} free"
            )
            return row
        row.frames = self.frame_count(cell, layout)
        framed = FramedCell.at(cell, self.frames.base, row.frames)
        chosen = self._chosen(framed)
        row.kernel, row.knobs = chosen[0].choice.kernel.name, chosen[0].choice.knobs
        contenders, refused = self.contenders(framed)
        row.refused |= refused
        self._check(row, framed, chosen, contenders)
        if row.wrong is None and self.clock is not None:
            self._time(row, framed, chosen, contenders, moved)
        return row

    def contenders(self, framed: FramedCell) -> tuple[list[Peer], dict[str, str]]:
        """The peers for a cell, and why others cannot take it."""
        contenders: list[Peer] = []
        reasons: dict[str, str] = {}
        cell, memory = framed.cell, self.frames.array
        for library in self.libraries:
            if cell.items > 1:
                found, refused = peers_of_batches.peers(library, framed, memory)
            else:
                found, refused = peers.peers(library, framed.problem, cell.beta, memory)
            contenders += found
            reasons |= refused
        return contenders, reasons

    def _chosen(self, framed: FramedCell, kernel: str | None = None) -> list[Part]:
        """Our launches: one, but for a batch that takes several."""
        batch = framed.layout.batch
        if framed.cell.items > 1:
            return parts(framed.problem, batch, self.device, kernel)
        choice = select(framed.problem, self.device, kernel)
        return [Part(batch, (0,) * len(batch.strides), choice)]

    def our_call(self, framed: FramedCell, chosen: list[Part], place: Place) -> Enqueue:
        problem, layout = framed.problem, framed.layout
        dtype, buffer, run = problem.dtype, self.frames.buffer, self.engine.run
        factor = problem.precision.factors.type
        alpha, beta = factor(1), factor(framed.cell.beta)
        launches = []
        for part in chosen:
            starts = zip(
                (place.a, place.x, place.y),
                part.offsets,
                (layout.elements - layout.first, layout.items * problem.cols,
                 layout.items * problem.rows),
                strict=False,
            )  # fmt: skip
            operands = (
                buffer(at + offset * dtype.itemsize, dtype, count - offset)
                for at, offset, count in starts
            )
            launches.append((part.choice, *operands))

        def call(stream: int) -> None:
            for choice, a, x, y in launches:
                run(choice, problem, alpha, a, x, beta, y, stream)

        return call

    def _check(
        self, row: CellResult, framed: FramedCell, chosen: list[Part], contenders: list[Peer]
    ) -> None:
        """Compare all results; a peer that is wrong leaves `contenders`."""
        problem, place = framed.problem, framed.places[0]
        stream = 0 if self.clock is None else self.clock.stream
        numbers = WholeNumbers(self.frames, framed, stream)
        if framed.cell.items * problem.rows * problem.cols > NUMPY_ELEMENTS:
            second = self._chosen(framed, SECOND_KERNEL)
            expected = numbers.result(self.our_call(framed, second, place))
        else:
            expected = numbers.by_numpy()
        if not equal(numbers.result(self.our_call(framed, chosen, place)), expected):
            row.wrong = f"{row.kernel} differs from what it should be"
            return
        for peer in list(contenders):
            try:
                if not nearly_equal(numbers.result(peer.checked(place)), expected):
                    raise ArithmeticError("its result is wrong")
            except Exception as error:  # whatever another library raises
                row.refused[peer.name] = f"{type(error).__name__}: {error}"[:200]
                contenders.remove(peer)

    def _time(
        self,
        row: CellResult,
        framed: FramedCell,
        chosen: list[Part],
        contenders: list[Peer],
        moved: tuple[int, int],
    ) -> None:
        dtype, places = framed.problem.dtype, framed.places
        count = len(places) * framed.layout.nbytes // dtype.itemsize
        self.frames.fill("random", dtype, self.frames.base, count)
        calls = {"ours": [self.our_call(framed, chosen, place) for place in places]}
        starts = [(framed.start(place), place.y) for place in places]
        for number, each in enumerate(self._mover.calls(starts, *moved, framed.cell.hot)):
            calls[f"plain {number}"] = each
        calls |= {peer.name: [peer.at(place) for place in places] for peer in contenders}
        row.take(self.clock.race(calls, ROUNDS))


def measure(
    wanted: Sequence[Cell],
    libraries: Sequence[str] = (),
    grid: GridResults | None = None,
    seconds: float = math.inf,
    progress: Callable[[int, int, Cell], None] | None = None,
    bench: Bench | None = None,
) -> Iterator[GridResults]:
    """Measure cell by cell, and give the grid after each of them.

    Parameters
    ----------
    wanted : sequence of Cell
    libraries : sequence of {"torch", "cupy"}
        The peers.
    grid : GridResults, optional
        What was measured before: its cells are skipped, and new ones are added where they stand
        among `wanted`.
    seconds : float
        After so long no further cell is begun.

    Raises
    ------
    ValueError
        If `grid` is of another device.
    BackendError
        On the host backend, which has no kernels.
    """
    bench = Bench(open_cells(wanted, grid), libraries) if bench is None else bench
    yield from each_cell(bench, wanted, grid, seconds, progress)


def open_cells(wanted: Sequence[Any], stored: Any) -> list[Any]:
    """The cells that stored results lack."""
    done = set() if stored is None else {row.cell for row in stored.rows}
    return [cell for cell in dict.fromkeys(wanted) if cell not in done]


def each_cell(
    bench: Any,
    wanted: Sequence[Any],
    stored: Any,
    seconds: float,
    progress: Callable[[int, int, Any], None] | None,
) -> Iterator[Any]:
    """Measure what is not stored yet by ``bench.measure``, and give all results after each."""
    left = open_cells(wanted, stored)
    end = time.monotonic() + seconds
    fresh = bench.results()
    if stored is None:
        stored = fresh
    elif (stored.device, stored.backend) != (fresh.device, fresh.backend):
        raise ValueError(f"the file was measured on {stored.device}, and this is {fresh.device}")
    yield stored
    for number, cell in enumerate(left):
        if time.monotonic() > end:
            return
        if progress is not None:
            progress(number, len(left), cell)
        _insert(stored.rows, bench.measure(cell), wanted)
        if number == 0:
            _add_versions(stored, fresh.versions)
        yield stored


def _insert(rows: list[Any], row: Any, wanted: Sequence[Any]) -> None:
    """Add a result behind that of the cell before it, or else before that of the next one.

    So cells that are measured again stand where they stood.
    """
    places = {cell: place for place, cell in enumerate(wanted)}
    own = places[row.cell]
    known = [(places[each.cell], at) for at, each in enumerate(rows) if each.cell in places]
    before = max((each for each in known if each[0] < own), default=None)
    behind = min((each for each in known if each[0] > own), default=None)
    rows.insert(before[1] + 1 if before else behind[1] if behind else len(rows), row)


def _add_versions(stored: Any, fresh: dict[str, str]) -> None:
    """Add the versions that results are continued with to those that they began with."""
    for name, version in fresh.items():
        had = stored.versions.get(name, "none")
        if version not in had.split(", later "):
            stored.versions[name] = f"{had}, later {version}"
