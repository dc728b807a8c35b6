"""Our calls beside ``torch.mv`` as ``torch.compile`` compiles it: a kernel that Triton makes.

    python -m benchmarks.measure.compiled FILE.json [--shapes 8192x8192,...] [--dtypes h,s]

Cells are those of ``python -m gemv bench``, and so are our calls, the floor, the check and the
other peers. ``torch.compile`` tries kernels for each shape, which takes long, so it is no peer of
the grid. A run that was cut short goes on where it stopped. It needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from pathlib import Path
from typing import Any

from gemv.core.dtypes import dtype_name
from gemv.core.problem import Problem
from gemv.measure import grid, peers
from gemv.measure.cells import cells
from gemv.measure.frames import FramedCell, Place
from gemv.measure.peers import Peer, TorchMemory
from gemv.measure.plain import Enqueue
from gemv.measure.records import CellResult, GridResults

#: What PyTorch calls it, and with what it finds the fastest kernel.
NAME = "torch.compile"
MODE = "max-autotune-no-cudagraphs"
SHAPES = "8192x8192,1048576x64,64x1048576"


def peer(torch: Any, tensors: TorchMemory, problem: Problem) -> Peer:
    """``torch.mv``, compiled for one problem; y is a new vector, as in every compiled program.

    Its result is copied to y where it is checked, and nothing is copied where it is timed.
    """
    torch.compiler.reset()  # PyTorch compiles a function for a few shapes only
    multiply = torch.compile(lambda a, x: torch.mv(a, x), mode=MODE, dynamic=False)

    def product(place: Place, keep: bool) -> Enqueue:
        shape, strides = (problem.rows, problem.cols), (problem.row_stride, problem.col_stride)
        a = tensors.at(place.a, shape, strides)
        x, y = (
            tensors.at(address, (length,), (1,))
            for address, length in ((place.x, problem.cols), (place.y, problem.rows))
        )

        def call(stream: int) -> None:
            with tensors.on(stream):
                result = multiply(a, x)
                if keep:
                    y.copy_(result)

        return call

    return Peer(NAME, lambda place: product(place, False), lambda place: product(place, True))


class CompiledBench(grid.Bench):
    """The bench of the grid, with one more peer."""

    def contenders(self, framed: FramedCell) -> tuple[list[Peer], dict[str, str]]:
        found, refused = super().contenders(framed)
        problem = framed.problem
        if problem.dtype.kind == "c":
            return found, refused | {NAME: "it makes no kernels for complex numbers"}
        torch = importlib.import_module("torch")
        dtype = getattr(torch, dtype_name(problem.dtype))
        tensors = TorchMemory(torch, self.frames.array, dtype, problem.dtype.itemsize)
        return [*found, peer(torch, tensors, problem)], refused

    def versions(self) -> dict[str, str]:
        return super().versions() | {"triton": str(importlib.import_module("triton").__version__)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtypes", default="h,s", help="default h,s: float16 and float32")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin nothing after so long"
    )
    options = parser.parse_args(arguments)
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    wanted = cells(shapes, options.dtypes.split(","))
    stored = GridResults.load(options.file) if options.file.exists() else None

    from gemv.engines import backend

    if backend.backend() != "cuda":
        print("torch.compile can only be measured on a GPU", file=sys.stderr)
        return 1
    libraries = [library for library in peers.LIBRARIES if peers.installed(library)]
    bench = CompiledBench(grid.open_cells(wanted, stored), libraries)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    told, wrong = 0, False
    for found in grid.each_cell(bench, wanted, stored, options.seconds, None):
        found.store(options.file)
        for row in found.rows[told:]:
            print(said(row), flush=True)
            wrong |= row.wrong is not None
        told = len(found.rows)
    return int(wrong)


def said(row: CellResult) -> str:
    """A line of what was measured of a cell: microseconds, and why a peer has none."""
    times = {"gemv": row.time_s, **row.peers}
    us = ", ".join(f"{name} {time_s * 1e6:.1f}" for name, time_s in times.items() if time_s)
    reasons = "".join(f"; {name}: {why}" for name, why in row.refused.items())
    wrong = "" if row.wrong is None else f"WRONG: {row.wrong} "
    return f"{wrong}{row.dtype} {row.m}x{row.n} {row.op}: {us} us{reasons}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
