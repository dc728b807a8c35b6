"""Times of small matrices on a GPU: their kernels beside what the formula would choose.

    python -m benchmarks.measure.small FILE.json [--parts single,few] [--seconds S]

All times are of captured graphs. Whole numbers are checked exactly, and random ones bit for bit
where two launches should have the same sums. FILE.json is written as the measurement goes, and a
second run continues it. The parts are

single
    One product up to 32 x 32: ``small_matrix``, the choice of the formula, more sums in a row
    (``STEPS = 4``), and all of a matrix in one block.
few
    Batches of 1 to 16384: ``small_items`` and ``small_matrix``, for ``FEW_ITEMS``.
vectors
    One small matrix and 2 to 65535 vectors: the formula's kernel, and ``several_small`` with one
    vector a warp or several, for ``MANY``.
wide
    Sums of twice the precision, alone and in a batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.fit.compilers import Compilers
from gemv.core.files import write_text
from gemv.kernels import small_sums
from gemv.kernels.vectors import b04_several_small
from gemv.measure.cells import Cell
from gemv.measure.checks import WholeNumbers, equal
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import Bench
from gemv.selection import batches
from gemv.selection import select as selection
from gemv.selection.parts import Part, parts

SIZES = [
    (1, 1), (4, 4), (5, 5), (8, 8), (15, 15), (16, 16), (17, 17), (24, 24), (31, 31), (32, 32),
    (1, 32), (32, 1), (3, 32), (32, 3),
]  # fmt: skip
PARTS = ("single", "few", "vectors", "wide")
ROUNDS = 5
#: Frames that calls go round. Small matrices are in the L2 cache, however many there are.
MOST_FRAMES = 256
#: Elements of A up to which NumPy says what is right; else the first way does.
NUMPY_ELEMENTS = 1 << 21


class Way(NamedTuple):
    """A way to compute a cell: what is chosen with some numbers of the package in place of its own.

    Ways with the same `sums` have the same bits.
    """

    name: str
    sums: str
    patches: dict[tuple[Any, str], Any] = {}
    knobs: dict[str, int] = {}
    kernel: str | None = None
    is_timed: bool = True


#: As before there were kernels for small matrices.
FORMULA = {(selection, "is_small"): lambda p: False, (batches, "is_small"): lambda p: False}
_FEW = (batches, "FEW_ITEMS")
_MANY = (b04_several_small, "MANY")
WAYS = {
    "single": [
        Way("small_matrix", "small"),
        Way("formula", "formula", FORMULA),
        Way("one block", "small", knobs={"THREADS_PER_BLOCK": 128}),
        Way("STEPS 4", "more sums", {(small_sums, "STEPS"): 4}),
        Way("small_items", "small", kernel="small_items", is_timed=False),
    ],
    "few": [Way("small_matrix", "small", {_FEW: 1 << 20}), Way("small_items", "small", {_FEW: 0})],
    "vectors": [
        Way("each a warp", "small", {_MANY: 1 << 20}),
        Way("several a warp", "small", {_MANY: 0}),
        Way("formula", "formula", FORMULA),
    ],
    "wide": [Way("small_matrix", "small"), Way("formula", "formula", FORMULA)],
}


class Task(NamedTuple):
    """A cell and the launches of its ways."""

    part: str
    cell: Cell
    accumulate: str
    framed: FramedCell
    ways: list[tuple[Way, list[Part]]]


def cells(part: str) -> Iterator[tuple[Cell, str]]:
    """The problems of a part, and how their products are added up."""
    if part == "single":
        for letter, order, view, (m, n) in itertools.product(
            "sdhczb", "CF", ("", ":, 1:"), SIZES
        ):  # a view of an F matrix without its first row
            rows = ":" if order == "C" else "1:"
            cut = view if order == "C" or not view else f"{rows}, :"
            yield Cell(m, n, letter, "N", order, cut), "plain"
        for letter, (m, n) in itertools.product("sz", [(8, 8), (17, 17), (32, 32)]):
            yield Cell(m, n, letter, "C", "C", beta=-1), "plain"
    if part == "few":
        for letter, n, count in itertools.product(
            "sd", (4, 8, 17, 32), (1, 8, 64, 512, 4096, 16384)
        ):
            yield Cell(n, n, letter, "N", "C", batch=count), "plain"
    if part == "vectors":
        for letter, n, count in itertools.product(
            "sd", (8, 31, 32), (2, 8, 512, 4096, 16384, 65535)
        ):
            yield Cell(n, n, letter, "N", "C", vectors=count), "plain"
    if part == "wide":
        for letter, n, count in itertools.product("sdz", (5, 17, 32), (1, 4096)):
            yield Cell(n, n, letter, "N", "C", batch=count), "wide"


@contextmanager
def chosen_by(way: Way) -> Iterator[None]:
    """Let selection be that of a way."""
    with ExitStack() as patches:
        for (module, name), value in way.patches.items():
            patches.enter_context(mock.patch.object(module, name, value))
        selection.forget()
        try:
            yield
        finally:
            selection.forget()


def launches(bench: Bench, framed: FramedCell, way: Way) -> list[Part]:
    """The launches of a cell in one way."""
    batch = framed.layout.batch
    with chosen_by(way):
        if framed.cell.items > 1:
            found = parts(framed.problem, batch, bench.device, way.kernel)
        else:
            choice = selection.select(framed.problem, bench.device, way.kernel)
            found = [Part(batch, (0,) * len(batch.strides), choice)]
    if not way.knobs:
        return found
    (part,) = found
    choice = part.choice
    knobs = {**choice.knobs, **way.knobs}
    spec = dataclasses.replace(choice.spec, knobs=tuple(sorted(knobs.items())))
    geometry = choice.kernel.geometry(framed.problem, bench.device, knobs)
    return [part._replace(choice=choice._replace(spec=spec, geometry=geometry))]


def planned(bench: Bench, part: str, cell: Cell, accumulate: str) -> Task:
    """The launches of a cell in all ways; without those that are as one before."""
    layout = lay_out(cell)
    count = min(bench.frame_count(cell, layout), MOST_FRAMES)
    framed = FramedCell.at(cell, bench.frames.base, count)
    problem = framed.problem._replace(accumulate=accumulate)
    framed = dataclasses.replace(framed, problem=problem)
    found: list[tuple[Way, list[Part]]] = []
    for way in WAYS[part]:
        made = launches(bench, framed, way)
        same = [(p.choice.spec, p.choice.geometry) for p in made]
        if same not in [[(p.choice.spec, p.choice.geometry) for p in each] for _, each in found]:
            found.append((way, made))
    return Task(part, cell, accumulate, framed, found)


def checked(bench: Bench, task: Task) -> str | None:
    """What is wrong with a result, or None."""
    framed, frames, place = task.framed, bench.frames, task.framed.places[0]
    problem, layout = framed.problem, framed.layout
    calls = {way.name: bench.our_call(framed, made, place) for way, made in task.ways}
    stream = 0 if bench.clock is None else bench.clock.stream
    numbers = WholeNumbers(frames, framed, stream)
    if layout.items * problem.rows * problem.cols <= NUMPY_ELEMENTS:
        expected = numbers.by_numpy()
    else:
        expected = numbers.result(next(iter(calls.values())))
    for name, call in calls.items():
        if not equal(numbers.result(call), expected):
            return f"{name}: wrong"
    dtype, y_bytes = problem.dtype, layout.items * problem.rows * problem.dtype.itemsize
    nbytes = layout.nbytes if framed.cell.beta == 0 else place.y - framed.start(place)
    seen: dict[str, tuple[str, bytes]] = {}
    sums = {way.name: way.sums for way, _ in task.ways}
    for name, call in calls.items():
        frames.fill("random", dtype, framed.start(place), layout.nbytes // dtype.itemsize)
        if nbytes == layout.nbytes:
            frames.spoil(place.y, y_bytes)
        call(stream)
        found = frames.read(place.y, dtype, layout.items * problem.rows).tobytes()
        other, bits = seen.setdefault(sums[name], (name, found))
        if bits != found:
            return f"{name}: other bits than {other}"
    return None


def timed(bench: Bench, task: Task) -> dict[str, Any]:
    """The row of a task: the median time of each way in microseconds."""
    framed, dtype = task.framed, task.framed.problem.dtype
    row: dict[str, Any] = {
        "part": task.part, "cell": dataclasses.asdict(task.cell), "accumulate": task.accumulate,
        "kernels": {way.name: made[0].choice.kernel.name for way, made in task.ways},
        "wrong": checked(bench, task), "us": {},
    }  # fmt: skip
    count = len(framed.places) * framed.layout.nbytes // dtype.itemsize
    bench.frames.fill("random", dtype, bench.frames.base, count)
    calls = {
        way.name: [bench.our_call(framed, made, place) for place in framed.places]
        for way, made in task.ways
        if way.is_timed
    }
    times = dict.fromkeys(calls, [1e-6])  # in the simulator
    if bench.clock is not None:
        times = bench.clock.race(calls, ROUNDS)
    row["us"] = {name: round(statistics.median(own) * 1e6, 3) for name, own in times.items()}
    return row


def measure(file: Path, wanted: Sequence[str], seconds: float, jobs: int) -> list[dict[str, Any]]:
    """Time what `file` does not have yet, and write it every second."""
    end, saved = time.monotonic() + seconds, time.monotonic()
    stored = json.loads(file.read_text("utf-8")) if file.exists() else []
    done = [(row["part"], row["cell"], row["accumulate"]) for row in stored]
    left = [
        (part, cell, accumulate)
        for part in wanted
        for cell, accumulate in cells(part)
        if (part, dataclasses.asdict(cell), accumulate) not in done
    ]
    bench = Bench([cell for _, cell, _ in left])
    compilers = Compilers(jobs, bench.device.compute_capability)
    tasks = [planned(bench, *each) for each in left]
    needed = [[part.choice for _, made in task.ways for part in made] for task in tasks]
    if bench.clock is None:
        needed = [[] for _ in tasks]  # nothing is compiled for the simulator
    for made in needed:
        compilers.order(made)
    for task, made in zip(tasks, needed, strict=True):
        if time.monotonic() > end or not compilers.wait(made, end):
            break
        stored.append(timed(bench, task))
        if time.monotonic() > saved + 1:
            saved = time.monotonic()
            write_text(file, _text(stored))
    write_text(file, _text(stored))
    compilers.close()
    print(f"{bench.device.name}: {len(stored)} of {len(done) + len(left)} cells")
    return stored


def _text(rows: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def named(row: dict[str, Any]) -> str:
    cell = Cell(**row["cell"])
    count = f" x{cell.items}" if cell.items > 1 else ""
    where = f"{cell.m}x{cell.n} {cell.dtype}{cell.order}{cell.op}{count}"
    return f"{where} [{cell.view}]" if cell.view else where


def report(rows: list[dict[str, Any]]) -> None:
    """A table: each way beside the first one of its part, in the mean and at worst."""
    for row in rows:
        if row["wrong"]:
            print("WRONG", named(row), row["wrong"])
    singles = [row for row in rows if row["part"] == "single"]
    print("\nsmall_matrix over the formula's choice: mean, worst; means of one block and STEPS 4")
    for letter, order in itertools.product("sdhbcz", "CF"):
        own = [r for r in singles if (r["cell"]["dtype"], r["cell"]["order"]) == (letter, order)]
        own = [r for r in own if "formula" in r["us"]]
        if not own:
            continue
        ratios = {named(r): r["us"]["small_matrix"] / r["us"]["formula"] for r in own}
        worst = max(ratios, key=ratios.__getitem__)
        others = [_mean(own, name, "small_matrix") for name in ("one block", "STEPS 4")]
        print(
            f"  {letter} {order}: {statistics.geometric_mean(ratios.values()):.3f}"
            f" {ratios[worst]:.3f} at {worst} ({_us(own, worst)}); {' '.join(others)}"
        )
    for part in ("few", "vectors", "wide"):
        own = [row for row in rows if row["part"] == part]
        if own:
            print(f"\n{part}: us of {', '.join(way.name for way in WAYS[part])}")
        groups: dict[tuple, list[dict[str, Any]]] = {}
        for row in own:
            key = row["cell"]["dtype"], row["cell"]["m"], row["cell"]["n"], row["cell"]["order"]
            groups.setdefault(key, []).append(row)
        for (letter, m, n, order), several in groups.items():
            cells_ = (
                f"{Cell(**row['cell']).items}: "
                + "/".join(f"{row['us'].get(way.name, math.nan):.2f}" for way in WAYS[part])
                for row in several
            )
            print(f"  {m}x{n} {letter}{order}  " + "  ".join(cells_))


def _mean(rows: list[dict[str, Any]], name: str, over: str) -> str:
    ratios = [row["us"][name] / row["us"][over] for row in rows if name in row["us"]]
    return f"{statistics.geometric_mean(ratios):.3f}" if ratios else "-"


def _us(rows: list[dict[str, Any]], name: str) -> str:
    (row,) = (each["us"] for each in rows if named(each) == name)
    return f"{row['small_matrix']:.2f} us, before {row['formula']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    report(measure(options.file, options.parts.split(","), options.seconds, options.jobs))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
