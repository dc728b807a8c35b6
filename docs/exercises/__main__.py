"""Check a kernel without a GPU: ``python docs/exercises FILE``.

FILE ends in ``KERNEL = Kernel(...)``, as an exercise or a file of ``gemv/kernels`` does. It runs in
the simulator on sizes around its tile, in both storage orders, with real and complex numbers, and
under several orders of its threads and blocks. An exercise has a ``goal`` besides, which looks at
what the threads did.

The answer is one line: ``done``, or ``not yet`` with the first thing that is wrong. For a wrong
result that is the first element of y that differs, with the expected number and the one that came.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import traceback
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before Numba is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "figures"))

from watch import watch

from gemv.core.dtypes import DTYPES
from gemv.kernels.kernel import Kernel
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
    try:
        names = runpy.run_path(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except SyntaxError as error:
        code = (error.text or "").strip()
        return f"syntax error in {path}, line {error.lineno}: {error.msg}: {code}"
    except Exception as error:
        return told(error, path)
    kernel = names.get("KERNEL")
    if not isinstance(kernel, Kernel):
        return f"{path} has no kernel: it has to end in KERNEL = Kernel(...)"
    try:
        return wrong(kernel) or unmet(kernel, names.get("goal"))
    except SimulatorError as error:
        return str(error)
    except Exception as error:
        return told(error, path)


def wrong(kernel: Kernel) -> str | None:
    """The first size, dtype, storage and order of threads with a wrong result, or None."""
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
                    if found := record.first_wrong():
                        return f"{where}: {found}"
    return None


def unmet(kernel: Kernel, goal) -> str | None:
    """What an exercise's goal says of its kernel; None if it is met, or if there is no goal."""
    return goal(lambda m, n, **options: watch(kernel, m, n, **options)) if goal else None


def told(error: Exception, path: str) -> str:
    """An exception of the reader's own code, with the last of its lines that was running."""
    here = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == Path(path).resolve()
    ]
    where = f", line {here[-1].lineno}: {here[-1].line}" if here else ""
    return f"{type(error).__name__}: {error}; in {path}{where}"


def main(arguments: list[str]) -> int:
    asked = arguments in (["--help"], ["-h"])
    if asked or len(arguments) != 1:
        print(inspect.cleandoc(__doc__), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    problem = failure(arguments[0])
    print(f"not yet: {problem}" if problem else "done: right in every order of its threads")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
