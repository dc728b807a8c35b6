"""Write 500 choices, which a test compares with what selection says on any machine.

python -m benchmarks.fit.golden tests/selection/golden.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.fit import draw
from benchmarks.fit.samples import ADDRESS
from gemv.core.dtypes import PREFIXES
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.measure.frames import FramedCell
from gemv.selection.select import select

COUNT = 500
#: Precisions of sums, in turn: most are plain.
_SUMS = ("plain", "plain", "plain", "wide")
DEVICE = Device("NVIDIA H200", (9, 0), 132)


def choices() -> list[dict]:
    """Problems of the draw, and the kernel, constants and launch of each."""
    found = []
    for number in range(COUNT):
        problem = FramedCell.at(draw.cell(number), ADDRESS, 1).problem
        problem = problem._replace(accumulate=_SUMS[number % len(_SUMS)])
        chosen = select(problem, DEVICE)
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
    file = parser.parse_args(arguments).file
    write_text(file, "[\n" + ",\n".join(map(json.dumps, choices())) + "\n]\n")


if __name__ == "__main__":
    main()
