"""How near the formula for batches of columns comes to the best constants.

    python -m benchmarks.fit.columns_of_items FILE.json --measure 90 [--seed 1] [--seconds 120]
    python -m benchmarks.fit.columns_of_items FILE.json

The first form times :data:`gemv.kernels.columns_of_items.CANDIDATES` on a GPU, on batches that are
drawn at random, and adds them to FILE.json: 32 to 512 rows and columns in five dtypes, 136 MB each.
Both forms then print how much longer the choice of the formula took than the best candidate, and
the batches where it took longest.

A batch has the threads and lanes that a single product got when it was timed. All results are
compared on whole numbers before anything is timed. The last two candidates came later: their times
of the first 123 batches are of another run, in which one candidate of the first run was timed as
well, and are scaled by what that took in both.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fit.samples import ADDRESS
from gemv.core.batch import OPERANDS
from gemv.core.dtypes import DTYPES
from gemv.core.files import write_text
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.columns_of_items import (
    CANDIDATES,
    Columns,
    arguments_of,
    possible,
    squared_time,
)
from gemv.kernels.items import geometry_of_items
from gemv.measure.cells import Cell
from gemv.measure.checks import WholeNumbers, equal
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import Bench
from gemv.selection.batches import select_item
from gemv.selection.parts import Part, aligned
from gemv.selection.select import Choice

#: The dtypes that are drawn, each as often as it is here.
LETTERS = "dddccssszb"
LEAST, MOST, BYTES = 32, 512, 136_000_000
#: The most items of a launch along z, with some room.
MOST_ITEMS = 65_000
WORST = 10


class Judged(NamedTuple):
    """How much longer the choice took than the best candidate, and which both are."""

    ratio: float
    row: dict[str, Any]
    chosen: Columns
    best: Columns


def drawn(seed: int) -> Iterator[Cell]:
    """Batches without end: a third has sides that are multiples of 16, a third is square."""
    draw = random.Random(seed)
    while True:
        letter, way = draw.choice(LETTERS), draw.randrange(3)
        m, n = (round(LEAST * (MOST / LEAST) ** draw.random()) for _ in range(2))
        if way == 0:
            m, n = max(m // 16, 3) * 16, max(n // 16, 3) * 16
        elif way == 1:
            n = m
        nbytes = m * n * DTYPES[letter].itemsize
        yield Cell(m, n, letter, "T", batch=min(BYTES // nbytes, MOST_ITEMS))


def problem_of(cell: Cell) -> Problem:
    """An item, with the alignment that all items have."""
    framed = FramedCell.at(cell, ADDRESS, 1)
    return aligned(framed.problem, framed.layout.batch)


def judged(row: Mapping[str, Any]) -> Judged:
    """The choice of the formula among the candidates that were timed."""
    cell = Cell(**row["cell"])
    problem = problem_of(cell)
    knobs = get("vector_columns").knobs | {"PIECES": 1} | row["knobs"]
    lanes, threads, again = arguments_of(problem, knobs)
    usable = set(possible(problem, lanes, threads))
    times = {
        constants: us
        for constants, us in zip(CANDIDATES, row["us"], strict=True)
        if us is not None and constants in usable
    }
    chosen = min(times, key=lambda each: squared_time(problem, lanes, threads, again, each))
    best = min(times, key=times.__getitem__)
    return Judged(times[chosen] / times[best], dict(row), chosen, best)


def report(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Print the mean, what 95 % stay below, and the worst batches."""
    found = sorted((judged(row) for row in rows), key=lambda each: -each.ratio)
    ratios = np.array([each.ratio for each in found])
    summary = {
        "batches": len(ratios),
        "times": sum(us is not None for row in rows for us in row["us"]),
        "mean": round(float(np.exp(np.log(ratios).mean())), 4),
        "most_of_95": round(float(np.percentile(ratios, 95)), 4),
        "worst": round(float(ratios.max()), 4),
    }
    print(json.dumps(summary))
    for each in found[:WORST]:
        cell = each.row["cell"]
        print(
            f"{each.ratio:.3f}  {cell['batch']} of {cell['m']} x {cell['n']} {cell['dtype']}:"
            f" {tuple(each.chosen)}, best {tuple(each.best)}"
        )
    return summary


class ItemsBench(Bench):
    """Times of all candidates for a batch."""

    def times(self, cell: Cell, rounds: int = 7) -> dict[str, Any] | None:
        """A row of the file; None if another kernel computes the items."""
        framed = FramedCell.at(cell, self.frames.base, self.frame_count(cell, lay_out(cell)))
        batch, device = framed.layout.batch, self.device
        problem = aligned(framed.problem, batch)
        single = select_item(problem, batch, device)
        if single.kernel.name != "vector_columns" or single.geometry.scratch:
            return None
        lanes, threads, _ = arguments_of(problem, single.knobs)
        usable = set(possible(problem, lanes, threads))
        first = (0,) * len(OPERANDS)
        parts = {
            each: [Part(batch, first, self._made(single, problem, batch, each))]
            for each in CANDIDATES
            if each in usable
        }
        stream = 0 if self.clock is None else self.clock.stream
        numbers = WholeNumbers(self.frames, framed, stream)
        expected = numbers.by_numpy()
        calls: dict[Any, Any] = {}
        for each, part in parts.items():
            if not equal(numbers.result(self.our_call(framed, part, framed.places[0])), expected):
                raise ArithmeticError(f"{cell}: {each} gives a wrong result")
            calls[each] = [self.our_call(framed, part, place) for place in framed.places]
        us: list[float | None] = [None] * len(CANDIDATES)
        if self.clock is not None:
            count = len(framed.places) * framed.layout.nbytes // problem.dtype.itemsize
            self.frames.fill("random", problem.dtype, self.frames.base, count)
            for each, times in self.clock.race(calls, rounds).items():
                us[CANDIDATES.index(each)] = round(float(np.median(times)) * 1e6, 2)
        kept = ("LANES", "THREADS_PER_BLOCK")
        usual = Cell(0, 0, "")
        short = {name: value for name, value in dataclasses.asdict(cell).items()
                 if value != getattr(usual, name)}  # fmt: skip
        return {"cell": short, "knobs": {name: single.knobs[name] for name in kept}, "us": us}

    def _made(self, single: Choice, problem: Problem, batch: Any, constants: Columns) -> Choice:
        knobs = single.knobs | constants._asdict() | {"BLOCKS_PER_SM": 0}
        spec = dataclasses.replace(
            single.spec, knobs=tuple(sorted(knobs.items())), levels=len(batch.shape)
        )
        geometry = single.kernel.geometry(problem, self.device, knobs)
        return single._replace(spec=spec, geometry=geometry_of_items(geometry, batch))


def measure(
    path: Path, stored: dict[str, Any], cells: list[Cell], seconds: float = math.inf
) -> None:
    """Add the times of `cells` to a file, one after the other, until the time is over."""
    done = {json.dumps(row["cell"]) for row in stored["rows"]}
    bench, end = ItemsBench(cells), time.monotonic() + seconds
    if stored.setdefault("device", bench.device.name) != bench.device.name:
        raise ValueError(f"{path} was measured on {stored['device']}, not {bench.device.name}")
    stored["versions"] = bench.versions()
    for cell in cells:
        if time.monotonic() > end:
            break
        row = bench.times(cell)
        if row is not None and json.dumps(row["cell"]) not in done:
            stored["rows"].append(row)
            write(path, stored)


def write(path: Path, stored: Mapping[str, Any]) -> None:
    """One line for each batch."""
    head = {name: value for name, value in stored.items() if name != "rows"}
    rows = ",\n".join(json.dumps(row) for row in stored["rows"])
    write_text(path, f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n')


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--measure", type=int, default=0, metavar="BATCHES")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args(arguments)
    stored: dict[str, Any] = {"rows": []}
    if options.file.exists():
        stored = json.loads(options.file.read_text(encoding="utf-8"))
    if options.measure:
        several = drawn(options.seed)
        cells = [next(several) for _ in range(options.measure)]
        measure(options.file, stored, cells, options.seconds)
    report(stored["rows"])


if __name__ == "__main__":
    main()
