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
    "vector_rows",
    "vector_columns",
    "long_columns",
    "phased_rows",
    "phased_columns",
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
    for op in "NT":  # a kernel for memory along y has its turn with the transpose
        (row,) = _measure.ladder(m, n, prefix, "C", op, kernels=[kernel]).rows
        if not row.refused:
            break
    else:
        raise NotImplementedError(f"{kernel} refuses {shape}: {row.refused}")
    if not row.error <= 1:
        raise AssertionError(f"{kernel} is wrong on {shape} {dtype}: {row.error} bounds")
    return row


class Bandwidth:
    """How many bytes of A, x and y does a kernel move in a second?"""

    params = (KERNELS, SHAPES)
    param_names = ("kernel", "shape")

    def setup(self, kernel, shape):
        self.row = measure(kernel, "float32", shape)

    def track_bandwidth(self, kernel, shape):
        return math.nan if self.row.gb_per_s is None else self.row.gb_per_s

    track_bandwidth.unit = "GB/s"


class Floor:
    """How near to the floor of the same run comes the call that gemv selects, cold?"""

    params = (DTYPES, SHAPES)
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        self.row = selected(dtype, shape, ())

    def track_share(self, dtype, shape):
        return math.nan if self.row.share is None else 100 * self.row.share

    track_share.unit = "% of the floor"


class Neighbour:
    """How many times as fast as cuBLAS is the call that gemv selects, in one run?"""

    params = (DTYPES, SHAPES)
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        from gemv import _peers

        libraries = tuple(filter(_peers.installed, _peers.LIBRARIES))
        if not libraries:
            raise NotImplementedError("neither PyTorch nor CuPy is there to call cuBLAS")
        self.row = selected(dtype, shape, libraries)

    def track_ratio(self, dtype, shape):
        return math.nan if self.row.ratio is None else self.row.ratio

    track_ratio.unit = "times as fast as cuBLAS"


def selected(dtype: str, shape: str, libraries: tuple[str, ...]):
    """A cell of the grid: the selected call, checked, beside the floor and the peers."""
    import gemv
    from gemv import _grid

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    m, n = map(int, shape.split("x"))
    if backend == "simulator":
        (m, n), libraries = SHAPE_SIMULATED, ()
    cell = _grid.Cell(m, n, {"float32": "s", "float64": "d"}[dtype])
    row = _grid.Bench([cell], libraries).row(cell)
    if row.wrong is not None:
        raise AssertionError(f"{shape} {dtype}: {row.wrong}")
    if row.refused and not row.peers:
        raise NotImplementedError("; ".join(row.refused.values()))
    return row
