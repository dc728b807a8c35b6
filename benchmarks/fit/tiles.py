"""Times of constants for several vectors, which their sums do not depend on, on a GPU.

    python -m benchmarks.fit.tiles FILE.json [--seconds S] [--most N] [--vectors K ...]

For each problem the most promising sets of constants (:mod:`benchmarks.fit.tile_sets`) are compiled
by other processes and timed with A from memory, beside the plain kernel, the product with one
vector, and PyTorch's. Those that the package has come first; a result that differs in a bit from
theirs is marked. The best become constants of the kernels in ``gemv/kernels/vectors``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit.compilers import Compilers
from benchmarks.fit.tile_sets import candidates
from gemv.core.files import write_text
from gemv.engines.binaries import binaries
from gemv.measure import peers_of_batches
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import Bench
from gemv.measure.plain import Mover
from gemv.measure.traffic import traffic
from gemv.selection.parts import Part, parts
from gemv.selection.select import select

#: Square, many short lines, few long ones, and a small one.
SHAPES = [(8192, 8192), (1048576, 64), (64, 1048576), (1000, 1000)]


def cells(vectors: Sequence[int] = (8, 4, 2)) -> list[Cell]:
    """The problems: shapes, both storage orders, five dtypes, 2, 4 and 8 vectors."""
    return [
        Cell(m, n, letter, "N", order, vectors=count)
        for count, letter, order, (m, n) in itertools.product(vectors, "bscdh", "CF", SHAPES)
    ]


def measure(
    file: Path, seconds: float, most: int, jobs: int, vectors: Sequence[int], dtypes: str
) -> None:
    """Time what `file` does not have yet, and write it after each problem."""
    end = time.monotonic() + seconds
    stored = json.loads(file.read_text("utf-8")) if file.exists() else []
    done = [row["cell"] for row in stored]
    wanted = [cell for cell in cells(vectors) if cell.dtype in dtypes]
    left = [cell for cell in wanted if dataclasses.asdict(cell) not in done]
    singles = [dataclasses.replace(cell, vectors=1) for cell in left]
    bench = Bench([*left, *singles])
    capability = bench.device.compute_capability
    compilers = Compilers(jobs, capability)
    tasks = [_task(bench, cell, most) for cell in left]
    compilers.order(part.choice for _, _, made in tasks for _, part in made)
    alone: dict[Cell, float] = {}
    gpu = {
        "name": bench.device.name, "compute_capability": capability,
        "multiprocessors": bench.device.multiprocessors, "chip": bench.device.chip._asdict(),
    }  # fmt: skip
    mover = Mover(bench.engine, bench.clock)
    for cell, framed, made in tasks:
        if not compilers.wait((part.choice for _, part in made), end):
            break
        fitting = [made[0], *(each for each in made[1:] if not _spills(each[1], capability))]
        single = dataclasses.replace(cell, vectors=1)
        if single not in alone:
            alone[single] = _alone(bench, single)
        row = {"device": gpu, **_timed(bench, mover, cell, framed, fitting)}
        stored.append(row | {"one_us": alone[single]})
        print(_line(stored[-1]), flush=True)
        write_text(file, "[\n" + ",\n".join(map(json.dumps, stored)) + "\n]\n")
    compilers.close()


def _task(bench: Bench, cell: Cell, most: int) -> tuple[Cell, FramedCell, list[Any]]:
    layout = lay_out(cell)
    framed = FramedCell.at(cell, bench.frames.base, bench.frame_count(cell, layout))
    (part, *_) = parts(framed.problem, layout.batch, bench.device)
    own, made = part.choice, []
    kernel = own.kernel
    for knobs in candidates(kernel.name, framed.problem, own.knobs, most):
        spec = dataclasses.replace(own.spec, knobs=tuple(sorted(knobs.items())))
        assert kernel.of_batch is not None
        geometry = kernel.of_batch(framed.problem, bench.device, knobs, layout.batch)
        made.append((knobs, part._replace(choice=own._replace(spec=spec, geometry=geometry))))
    return cell, framed, made


def _spills(part: Part, capability: tuple[int, int]) -> bool:
    """Whether the machine code needs local memory."""
    choice = part.choice
    return any(
        binary.resource("stack,") > 0 for binary in binaries(choice.kernel, choice.spec, capability)
    )


def _alone(bench: Bench, cell: Cell) -> float:
    """Microseconds of one product."""
    framed = FramedCell.at(cell, bench.frames.base, bench.frame_count(cell, lay_out(cell)))
    batch = framed.layout.batch
    part = Part(batch, (0,) * len(batch.strides), select(framed.problem, bench.device))
    calls = [bench.our_call(framed, [part], each) for each in framed.places]
    return round(bench.clock.time(calls, 3) * 1e6, 2)


def _timed(
    bench: Bench, mover: Mover, cell: Cell, framed: FramedCell, made: list[Any]
) -> dict[str, Any]:
    clock, frames, layout = bench.clock, bench.frames, framed.layout
    dtype, place = framed.problem.dtype, framed.places[0]
    elements = layout.items * framed.problem.rows
    starts = [(framed.start(each), each.y) for each in framed.places]
    frames.fill("random", dtype, frames.base, len(starts) * layout.nbytes // dtype.itemsize)
    moves = mover.calls(starts, *traffic(layout, cell.beta), cell.hot)
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
        "plain_us": round(plain * 1e6, 2), "peers": _peers(bench, framed), "sets": sets,
    }  # fmt: skip


def _peers(bench: Bench, framed: FramedCell) -> dict[str, float]:
    """Microseconds of PyTorch's product, where PyTorch is installed."""
    try:
        found, _ = peers_of_batches.peers("torch", framed, bench.frames.array)
    except ImportError:
        return {}
    return {
        peer.name: round(bench.clock.time([peer.at(each) for each in framed.places], 3) * 1e6, 2)
        for peer in found
    }


def _line(row: dict[str, Any]) -> str:
    """A problem, its times, and the best constants where these are not what the package has."""
    cell, sets = row["cell"], [each for each in row["sets"] if each["has_same_bits"]]
    own, best = sets[0], min(sets, key=lambda each: each["us"])
    found = [f"{k}={v}" for k, v in best["knobs"].items() if own["knobs"].get(k) != v]
    name = f"{cell['m']}x{cell['n']} {cell['dtype']}{cell['order']} k={cell['vectors']}"
    wrong = len(row["sets"]) - len(sets)
    peer = min(row["peers"].values(), default=None)
    return (
        f"{name:21} one {row.get('one_us', 0):6.1f} plain {row['plain_us']:6.1f} own"
        f" {own['us']:6.1f} best {best['us']:6.1f} share {row['plain_us'] / best['us']:.2f}"
        f" peer {peer} {row['kernel']} {' '.join(found) if best is not own else ''}"
        f"{f' WRONG BITS: {wrong}' if wrong else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--most", type=int, default=24, help="sets of constants for a problem")
    parser.add_argument("--vectors", type=int, nargs="+", default=[8, 4, 2])
    parser.add_argument("--dtypes", default="bscdh", help="their letters")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    measure(
        options.file, options.seconds, options.most, options.jobs, options.vectors, options.dtypes
    )


if __name__ == "__main__":
    main()
