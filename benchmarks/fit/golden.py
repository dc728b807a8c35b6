"""Write choices, which tests compare with what selection says on any machine.

python -m benchmarks.fit.golden tests/selection/golden.json
python -m benchmarks.fit.golden tests/selection/golden_h100.json --gpu h100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.fit import draw
from benchmarks.fit.samples import ADDRESS
from gemv.core.dtypes import PREFIXES
from gemv.core.files import write_text
from gemv.core.geometry import Chip, Device
from gemv.measure.frames import FramedCell
from gemv.selection.select import select

#: Precisions of sums, in turn: most are plain.
_SUMS = ("plain", "plain", "plain", "wide")
#: GPUs by name, each with the number of choices that are kept.
GPUS = {
    "h200": (Device("NVIDIA H200", (9, 0), 132), 500),
    "h100": (
        Device(
            "NVIDIA H100 80GB HBM3", (9, 0), 132,
            chip=Chip(memory_khz=2_619_000, bus_bits=5120, cache_bytes=50 << 20),
        ),
        100,
    ),
}  # fmt: skip


def choices(device: Device, count: int) -> list[dict]:
    """Problems of the draw, and the kernel, constants and launch of each."""
    found = []
    for number in range(count):
        problem = FramedCell.at(draw.cell(number), ADDRESS, 1).problem
        problem = problem._replace(accumulate=_SUMS[number % len(_SUMS)])
        chosen = select(problem, device)
        launch = chosen.geometry.launches[0]
        found.append({
            "problem": {**problem._asdict(), "dtype": PREFIXES[problem.dtype]},
            "kernel": chosen.kernel.name,
            "knobs": chosen.knobs,
            "grid": list(launch.grid),
            "block": list(launch.block),
        })  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", choices=GPUS, default="h200")
    options = parser.parse_args(arguments)
    found = choices(*GPUS[options.gpu])
    write_text(options.file, "[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")


if __name__ == "__main__":
    main()
