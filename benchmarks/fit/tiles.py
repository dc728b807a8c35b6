"""Times of constants for several vectors, which their sums do not depend on, on a GPU.

    python -m benchmarks.fit.tiles FILE.json [--seconds S] [--most N]

For each problem all sets of constants that fit the registers are compiled by other processes and
timed with A from memory, beside the plain kernel; those that the package has come first. A result
that differs in a bit from theirs is marked. The best are the tiles of
``gemv/kernels/vectors/b01_several_rows.py`` and the constants of ``b02_several_columns.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit.compilers import Compilers
from gemv.core.files import write_text
from gemv.core.geometry import ceil_div
from gemv.core.problem import Problem
from gemv.kernels.vectors.b01_several_rows import turns_of
from gemv.kernels.wide_tiles import lanes_and_pieces
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import Bench
from gemv.measure.plain import Mover
from gemv.measure.traffic import traffic
from gemv.selection.parts import parts

#: Along the rows, then down the columns: square, many short lines, few long ones.
SHAPES = [(8192, 8192), (1048576, 64), (64, 1048576)]
#: Registers of a multiprocessor, bytes of shared memory that a block gets for sums or for x, and
#: bytes that a multiprocessor should have in flight.
_REGISTERS, _SHARED, _FLIGHT = 65536, 40 << 10, 20_000


def cells() -> list[Cell]:
    """The problems: three shapes, both storage orders, five dtypes, 2, 4 and 8 vectors."""
    return [
        Cell(m, n, letter, "N", order, vectors=vectors)
        for vectors, order, letter, (m, n) in itertools.product((8, 4, 2), "CF", "sdbch", SHAPES)
    ]


def candidates(
    name: str, problem: Problem, own: Mapping[str, int], most: int
) -> list[dict[str, int]]:
    """Sets of constants with the sums of `own`, which comes first; those with least x first."""
    makers = {"several_rows": _rows, "several_columns": _columns}
    if name not in makers:
        return [dict(own)]
    rated = sorted(makers[name](problem, own), key=lambda pair: pair[0])
    found = [dict(own)]
    for _, knobs in rated:
        if knobs not in found and len(found) < most:
            found.append(knobs)
    return found


def _blocks(threads: int, registers: int) -> int:
    return max(1, min(16, _REGISTERS // (threads * ceil_div(registers, 8) * 8)))


def _rows(problem: Problem, own: Mapping[str, int]) -> Iterator[tuple[float, dict[str, int]]]:
    width, size = problem.widths[0], problem.dtype.itemsize
    sums, lanes, count = problem.precision.sums.itemsize, own["LANES"], own["COUNT"]
    for parts_, turns, rows, loads, threads in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (64, 128, 256, 512)
    ):
        row_threads, unit = lanes // turns * parts_, width // parts_
        if parts_ > width or turns != turns_of(turns, lanes) or row_threads > threads:
            continue
        flight = rows * loads * unit * size
        registers = rows * count * unit * sums // 4 + (rows + 1) * loads * max(1, unit * size // 4)
        registers += 3 * rows + 2 * count + 26
        spread = min(lanes, 32) * parts_ > 32
        slots = lanes // turns if spread else max(1, lanes // turns // 32)
        groups = threads // row_threads
        blocks = _blocks(threads, registers)
        if (
            registers > 180
            or groups * rows * count * (slots + (turns > 1)) * sums > _SHARED
            or problem.rows < groups * rows
            or blocks * threads * flight < _FLIGHT
        ):
            continue
        tile = {"PARTS": parts_, "TURNS": turns, "ROWS": rows, "VECTORS": loads}
        knobs = {**own, **tile, "THREADS_PER_BLOCK": threads, "MIN_BLOCKS": blocks}
        yield count / rows + 30_000 / (blocks * threads * flight), knobs


def _columns(problem: Problem, own: Mapping[str, int]) -> Iterator[tuple[float, dict[str, int]]]:
    width, threads, count = problem.widths[0], own["THREADS_PER_BLOCK"], own["COUNT"]
    lanes, pieces = lanes_and_pieces(own, width, problem.dtype.itemsize)
    sums = problem.precision.sums.itemsize
    for staged, loads, blocks in itertools.product((0, 1, 2, 4), (2, 4, 8, 16), (1, 2, 3, 4)):
        stage = 2 * staged * (threads // lanes) * loads * count * sums
        registers = pieces * width * count * sums // 4 + loads * pieces * 4 + 40
        registers += 0 if staged else loads
        if (
            stage > _SHARED
            or blocks * threads > 1024
            or registers > 1.1 * _REGISTERS / (blocks * threads)
            or loads * pieces * 16 * blocks * threads < _FLIGHT
        ):
            continue
        yield -loads * (1 + (staged > 0)), {
            **own, "STAGED": staged, "LOADS": loads, "MIN_BLOCKS": blocks,
        }  # fmt: skip


def measure(file: Path, seconds: float, most: int, jobs: int) -> None:
    """Time what `file` does not have yet, and write it after each problem."""
    end = time.monotonic() + seconds
    stored = json.loads(file.read_text("utf-8")) if file.exists() else []
    done = [row["cell"] for row in stored]
    left = [cell for cell in cells() if dataclasses.asdict(cell) not in done]
    bench = Bench(left)
    compilers = Compilers(jobs, bench.device.compute_capability)
    tasks = [_task(bench, cell, most) for cell in left]
    compilers.order(part.choice for _, _, made in tasks for _, part in made)
    for cell, framed, made in tasks:
        if not compilers.wait((part.choice for _, part in made), end):
            break
        stored.append(_timed(bench, cell, framed, made))
        best = min(stored[-1]["sets"], key=lambda each: each["us"])
        print(f"{cell}: {stored[-1]['sets'][0]['us']:.1f} us, best {best['us']:.1f}")
        write_text(file, "[\n" + ",\n".join(map(json.dumps, stored)) + "\n]\n")
    compilers.close()


def _task(bench: Bench, cell: Cell, most: int) -> tuple[Cell, FramedCell, list[Any]]:
    layout = lay_out(cell)
    framed = FramedCell.at(cell, bench.frames.base, bench.frame_count(cell, layout))
    (part, *_) = parts(framed.problem, layout.batch, bench.device)
    kernel, made = part.choice.kernel, []
    for knobs in candidates(kernel.name, framed.problem, part.choice.knobs, most):
        spec = dataclasses.replace(part.choice.spec, knobs=tuple(sorted(knobs.items())))
        assert kernel.of_batch is not None
        geometry = kernel.of_batch(framed.problem, layout.batch, bench.device, knobs)
        choice = part.choice._replace(spec=spec, geometry=geometry)
        made.append((knobs, part._replace(choice=choice)))
    return cell, framed, made


def _timed(bench: Bench, cell: Cell, framed: FramedCell, made: list[Any]) -> dict[str, Any]:
    clock, frames, layout = bench.clock, bench.frames, framed.layout
    dtype, place = framed.problem.dtype, framed.places[0]
    elements = layout.items * framed.problem.rows
    starts = [(framed.start(each), each.y) for each in framed.places]
    moves = Mover(bench.engine, clock).calls(starts, *traffic(layout, cell.beta), cell.hot)
    plain = min(clock.time(each, 3) for each in moves)
    frames.fill("random", dtype, frames.base, len(starts) * layout.nbytes // dtype.itemsize)
    right, sets = None, []
    for knobs, part in made:
        frames.spoil(place.y, elements * dtype.itemsize)
        bench.our_call(framed, [part], place)(clock.stream)
        found = frames.read(place.y, dtype, elements).view(np.uint8)
        right = found if right is None else right
        calls = [bench.our_call(framed, [part], each) for each in framed.places]
        sets.append({
            "knobs": knobs, "us": round(clock.time(calls, 3) * 1e6, 2),
            "has_same_bits": bool(np.array_equal(found, right)),
        })  # fmt: skip
    return {
        "cell": dataclasses.asdict(cell), "kernel": made[0][1].choice.kernel.name,
        "plain_us": round(plain * 1e6, 2), "sets": sets,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--most", type=int, default=24, help="sets of constants for a problem")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    measure(options.file, options.seconds, options.most, options.jobs)


if __name__ == "__main__":
    main()
