"""Constant memory beside other homes of alpha, beta and x: device times in microseconds.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks. Under the
simulator (NUMBA_ENABLE_CUDASIM=1) each set runs on a tiny shape, is checked, and returns NaN.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

#: Fixed, so that a result keeps its key; a test compares them with the package.
HOMES = ["arguments", "constant", "pointer", "global", "literal"]
X_HOMES = ["global", "read_only", "shared", "constant", "value"]
#: Kernels and the storage order of A.
KERNELS = {"thread_per_row": "F", "warp_per_row": "C", "last_block": "C", "vector_rows": "C"}


def _parts():
    """The clock, or None under the simulator, and the functions that measure the three parts."""
    import gemv

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from benchmarks.measure.constants_coefficients import coefficients
    from benchmarks.measure.constants_turns import turns
    from benchmarks.measure.constants_vector import vector

    clock = None
    if backend == "cuda":
        from gemv.engines.backend import engine
        from gemv.measure.clock import Clock

        clock = Clock(engine())
    return clock, coefficients, vector, turns


def _checked(rows):
    (row,) = rows
    if row.refused if hasattr(row, "refused") else False:
        raise NotImplementedError(row.refused)
    if not row.error <= 1:
        raise AssertionError(f"x or alpha from {row.home}: error of {row.error} bounds")
    return math.nan if row.time_s is None else row.time_s * 1e6


class CoefficientHome:
    """What does a launch take with alpha and beta in this home?"""

    params = (list(KERNELS), HOMES, [64, 8192])
    param_names = ("kernel", "home", "size")

    def setup(self, kernel, home, size):
        clock, coefficients, _, _ = _parts()
        sizes = [size if clock is not None else 9]
        kernels = [(kernel, KERNELS[kernel])]
        rows = coefficients(clock, kernels=kernels, sizes=sizes, homes=[home])
        self.time_us = _checked(rows)

    def track_time(self, kernel, home, size):
        return self.time_us

    track_time.unit = "us"


class VectorHome:
    """What does gemv take with x in this home, one x[j] a warp or one a thread?"""

    params = (X_HOMES, ["one a warp", "one a thread"], [64, 1024, 8160])
    param_names = ("home", "index", "length")

    def setup(self, home, index, length):
        clock, _, vector, _ = _parts()
        order, lanes = ("F", 1) if index == "one a warp" else ("C", 32)
        elements = 1 << 23  # in the L2 cache
        if clock is None:
            length, elements = 33, 7 * 33
        cases = [("L2", elements, length, order, lanes, False)]
        self.time_us = _checked(vector(clock, cases=cases, homes=[home]))

    def track_time(self, home, index, length):
        return self.time_us

    track_time.unit = "us"


class Turns:
    """What does one load of a warp take that asks for so many addresses?"""

    params = (X_HOMES, [1, 2, 32])
    param_names = ("home", "addresses")

    def setup(self, home, addresses):
        clock, _, _, turns = _parts()
        self.load_ns = math.nan
        if clock is not None:
            (row,) = turns(clock, cases=[(home, "blocked", addresses)])
            self.load_ns = row.load_s * 1e9

    def track_load(self, home, addresses):
        return self.load_ns

    track_load.unit = "ns"
