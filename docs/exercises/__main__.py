"""Check a kernel without a GPU: ``python docs/exercises FILE``.

FILE ends in ``KERNEL = Kernel(...)``, as an exercise or a file of ``gemv/kernels`` does. It runs in
the simulator on sizes around its tile, in both storage orders, with real and complex numbers, and
under several orders of its threads and blocks. An exercise has a ``goal`` besides, which looks at
what the threads did.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before Numba is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "figures"))

from watch import watch

from gemv.core.dtypes import DTYPES
from gemv.language.simulator.scheduler import Schedule
from gemv.language.simulator.thread import SimulatorError
from gemv.measure.inputs import make_problem

SCHEDULES = [Schedule("forward"), Schedule("reversed"), *(Schedule("random", s) for s in range(2))]


def sizes(kernel, knobs) -> list[tuple[int, int]]:
    """Around the tile, where tails go wrong."""
    rows, cols = kernel.tile({**kernel.knobs, **knobs})
    return [(1, 1), (rows, cols), (rows + 1, 2 * cols + 3), (2 * rows + 1, cols + 1)]


def failure(path: str) -> str | None:
    """What is wrong with the kernel in `path`, or None."""
    names = runpy.run_path(path)
    kernel = names["KERNEL"]
    knobs = dict(kernel.small_knobs)
    around = sizes(kernel, knobs)
    for m, n in around:
        for order in "CF":
            for dtype in "sz" if (m, n) == around[-1] else "s":
                if kernel.accepts(make_problem(m, n, DTYPES[dtype], order, "N")):
                    continue
                what = f"{m} x {n}, A in {'rows' if order == 'C' else 'columns'}, {DTYPES[dtype]}"
                for schedule in SCHEDULES:
                    where = f"{what}, threads in {schedule.order} order"
                    try:
                        record = watch(
                            kernel, m, n, order=order, dtype=dtype, knobs=knobs, schedule=schedule
                        )
                    except SimulatorError as error:
                        return f"{where}: {error}"
                    # written so that NaN counts as wrong
                    if not record.error <= 1:
                        return f"{where}: the result is wrong"
    goal = names.get("goal")
    return goal(lambda m, n, **options: watch(kernel, m, n, **options)) if goal else None


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(inspect.cleandoc(__doc__), file=sys.stderr)
        return 2
    problem = failure(arguments[0])
    print(f"not yet: {problem}" if problem else "done: right in every order of its threads")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
