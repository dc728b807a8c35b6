"""Device bandwidth of every kernel, and how near to the read ceiling it comes.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks, also where
Numba is unusable. Every parameter set runs in a process of its own.

Under the simulator (NUMBA_ENABLE_CUDASIM=1) each set runs on a tiny shape, which proves the suite
alive, and returns NaN: a simulator's time says nothing.
"""

from __future__ import annotations

import math

#: Fixed, so that a result keeps its key; a test compares the list with the registry.
KERNELS = [
    "serial",
    "thread_per_row",
    "block_per_row",
    "tile2d",
    "coalesced",
    "warp_per_row",
    "last_block",
]
DTYPES = ["float32", "float64"]
#: One square, one tall and one wide shape of 256 MiB and more in float32: past every L2 cache.
SHAPES = ["8192x8192", "1048576x64", "64x1048576"]
SHAPE_SIMULATED = (33, 70)


def measure(kernel: str, dtype: str, shape: str):
    """One row of the ladder and the ceiling of the same run; the answer is checked as well."""
    import gemv
    from gemv import _measure

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    m, n = map(int, shape.split("x"))
    if backend == "simulator":
        m, n = SHAPE_SIMULATED
    prefix = {"float32": "s", "float64": "d"}[dtype]
    measured = _measure.ladder(m, n, prefix, "C", "N", kernels=[kernel])
    (row,) = measured.rows
    if row.refused:
        raise NotImplementedError(f"{kernel} refuses {shape}: {row.refused}")
    if not row.error <= 1:
        raise AssertionError(f"{kernel} is wrong on {shape} {dtype}: {row.error} bounds")
    return row


class Bandwidth:
    """How many bytes of A, x and y does a kernel move in a second?"""

    params = (KERNELS, DTYPES, SHAPES)
    param_names = ("kernel", "dtype", "shape")

    def setup(self, kernel, dtype, shape):
        self.row = measure(kernel, dtype, shape)

    def track_bandwidth(self, kernel, dtype, shape):
        return math.nan if self.row.gb_per_s is None else self.row.gb_per_s

    track_bandwidth.unit = "GB/s"


class Ceiling:
    """What share of the rate at which the same run could read memory is that?"""

    params = (KERNELS,)
    param_names = ("kernel",)

    def setup(self, kernel):
        self.row = measure(kernel, "float32", SHAPES[0])

    def track_share(self, kernel):
        return math.nan if self.row.share is None else 100 * self.row.share

    track_share.unit = "% of ceiling"
