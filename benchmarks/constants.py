"""Constant memory against its rivals, for alpha and beta and for x: device times in microseconds.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks. Under the
simulator (NUMBA_ENABLE_CUDASIM=1) each set runs on a tiny shape, is checked, and returns NaN.
"""

from __future__ import annotations

import math

#: Fixed, so that a result keeps its key; a test compares them with the package.
HOMES = ["arguments", "constant", "pointer", "global", "literal"]
X_HOMES = ["global", "read_only", "shared", "constant", "value"]
KERNELS = ["thread_per_row", "warp_per_row", "last_block", "vector_rows"]


def _race():
    import gemv

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    from gemv import _race

    clock = None
    if backend == "cuda":
        from gemv.engines.backend import engine

        clock = _race.Clock(engine())
    return _race, clock


def _checked(rows):
    (row,) = rows
    if row.refused if hasattr(row, "refused") else False:
        raise NotImplementedError(row.refused)
    if not row.error <= 1:
        raise AssertionError(f"x or alpha from {row.home}: error of {row.error} bounds")
    return math.nan if row.time_s is None else row.time_s * 1e6


class CoefficientHome:
    """What does a launch take with alpha and beta in this home?"""

    params = (KERNELS, HOMES, [64, 8192])
    param_names = ("kernel", "home", "size")

    def setup(self, kernel, home, size):
        race, clock = _race()
        order = dict(race.COEFFICIENT_KERNELS)[kernel]
        sizes = [size if clock is not None else 9]
        rows = race.coefficients(clock, kernels=[(kernel, order)], sizes=sizes, homes=[home])
        self.time_us = _checked(rows)

    def track_time(self, kernel, home, size):
        return self.time_us

    track_time.unit = "us"


class VectorHome:
    """What does gemv take with x in this home, one x[j] a warp or one a thread?"""

    params = (X_HOMES, ["one a warp", "one a thread"], [64, 1024, 8160])
    param_names = ("home", "index", "length")

    def setup(self, home, index, length):
        race, clock = _race()
        order, lanes = ("F", 1) if index == "one a warp" else ("C", 32)
        elements = race.ELEMENTS["L2"]
        if clock is None:
            length, elements = 33, 7 * 33
        cases = [("L2", elements, length, order, lanes, False)]
        self.time_us = _checked(race.vector(clock, cases=cases, homes=[home]))

    def track_time(self, home, index, length):
        return self.time_us

    track_time.unit = "us"


class Turns:
    """What does one load of a warp take that asks for so many addresses?"""

    params = (X_HOMES, [1, 2, 32])
    param_names = ("home", "addresses")

    def setup(self, home, addresses):
        race, clock = _race()
        self.load_ns = math.nan
        if clock is not None:
            (row,) = race.turns(clock, cases=[(home, "blocked", addresses)])
            self.load_ns = row.load_s * 1e9

    def track_load(self, home, addresses):
        return self.load_ns

    track_load.unit = "ns"
