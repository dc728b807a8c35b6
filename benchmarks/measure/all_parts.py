"""The whole grid, part by part, into one file: what the roofline page is made of.

    python -m benchmarks.measure.all_parts FILE.json [--parts cold,hot,...] [--seconds S]

Each part is a call of ``python -m gemv bench``, in the order of what matters most. Cells that the
file has are skipped, so a run that was cut short goes on where it stopped; after a change of the
kernels, remove the file first. ``make grid`` does this and rebuilds what is made from the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

#: Odd sizes that nobody tuned for, 64 MiB of float32 and more.
ODD = "8191x8193,3001x70001,100003x1001"
VIEWS = ("[:, 1:]", "[3:, 5:]", "[:, :-7]", "[::2, ::2]")
PARTS = {
    "cold": [],
    "hot": ["--hot"],
    "columns": ["--order", "F"],
    "views": ["--shapes", ODD, *(word for view in VIEWS for word in ("--view", view))],
    "conjugate": ["--dtypes", "c,z", "--ops", "C"],
    "c128": ["--dtypes", "z"],
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help="default all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so long")
    options = parser.parse_args(arguments)
    chosen = options.parts.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")

    from gemv.cli.main import main as run
    from gemv.engines import backend

    # a grid without a GPU carries no figures, and belongs in no folder of results
    small = [] if backend.backend() == "cuda" else ["--shapes", "5x7", "--dtypes", "s"]
    options.file.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    status = 0
    for part in chosen:
        left = max(0.0, end - time.monotonic())
        started = time.monotonic()
        command = ["bench", "--json", str(options.file), "--resume", f"--seconds={left}"]
        status |= run([*command, *PARTS[part], *small])
        print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
