"""Device bandwidth of every kernel, how near to the read ceiling it comes, and cuBLAS beside it.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks, also where
Numba is unusable.

All is measured by two processes, in ``setup_cache`` of the classes; the sets of parameters only
look their figure up. So the context, the matrices that are made on the host and the code that is
compiled cost what they cost once, not once a set. What a set cannot have, because the kernel
refuses the shape or the machine lacks a library, is skipped with the reason; an answer that is
wrong fails its own sets and no others.

Under the simulator (NUMBA_ENABLE_CUDASIM=1) everything runs on a tiny shape, which proves the suite
alive, and gives NaN: a simulator's time says nothing.
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
DTYPES = ["float32", "float64", "float16"]
PREFIXES = {"float32": "s", "float64": "d", "float16": "h"}
#: One square, one tall and one wide shape, past every L2 cache: 128 MiB in float16, 512 in float64.
SHAPES = ["8192x8192", "1048576x64", "64x1048576"]
SHAPE_SIMULATED = (33, 70)
#: What takes seconds a call is measured once.
SLOW = {"serial": ("float32", "8192x8192")}


class Missing(str):
    """Why there is no figure."""


class Wrong(str):
    """What is wrong with an answer, so that nothing was timed."""


def attempt(measure, *arguments):
    """What `measure` gives; whatever goes wrong is for the sets of these figures to report."""
    try:
        return measure(*arguments)
    except Exception as error:
        return Wrong(f"{type(error).__name__}: {error}")


def for_all_problems(measure):
    """What `measure` gives for each dtype and shape, together; or why nothing can be measured."""
    import gemv

    backend = gemv.backend()
    if backend == "host":
        return Missing("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    figures = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            figures |= measure(dtype, shape, backend)
    return figures


def rungs(dtype: str, shape: str, backend: str) -> dict:
    """Bandwidth and share of the ceiling of the same run, checked, of every kernel."""
    from gemv import _measure

    m, n = SHAPE_SIMULATED if backend == "simulator" else map(int, shape.split("x"))
    figures, wanted = {}, []
    for kernel in KERNELS:
        here = SLOW.get(kernel, (dtype, shape))
        if here == (dtype, shape):
            wanted.append(kernel)
        else:
            why = f"{kernel} takes seconds a call: {here[0]}, {here[1]} is all that it is timed on"
            figures[kernel, dtype, shape] = Missing(why)
    for op in "NT":  # a kernel for memory along y has its turn with the transpose
        if not wanted:
            break
        run = attempt(_measure.ladder, m, n, PREFIXES[dtype], "C", op, wanted)
        if isinstance(run, Wrong):
            figures |= {(kernel, dtype, shape): run for kernel in wanted}
            break
        for row in run.rows:
            key = row.name, dtype, shape
            if row.refused:
                figures[key] = Missing(f"{row.name} refuses {shape}: {row.refused}")
                continue
            wanted.remove(row.name)
            if not row.error <= 1:
                figures[key] = Wrong(f"{row.name}: {row.error} error bounds")
            else:
                figures[key] = row.gb_per_s, row.share
    return figures


def cell(dtype: str, shape: str, backend: str) -> dict:
    return {(dtype, shape): attempt(selected, dtype, shape, backend)}


def selected(dtype: str, shape: str, backend: str):
    """A cell of the grid: share of the floor, and ratio to the peers, of the selected call."""
    from gemv import _grid, _peers

    libraries = tuple(filter(_peers.installed, _peers.LIBRARIES))
    m, n = map(int, shape.split("x"))
    if backend == "simulator":
        (m, n), libraries = SHAPE_SIMULATED, ()
    cell = _grid.Cell(m, n, PREFIXES[dtype])
    row = _grid.Bench([cell], libraries).row(cell)
    if row.wrong is not None:
        return Wrong(f"{shape} {dtype}: {row.wrong}")
    if row.ratio is not None or backend == "simulator":
        return row.share, row.ratio
    why = "; ".join(row.refused.values()) or "neither PyTorch nor CuPy is there to call cuBLAS"
    return row.share, Missing(why)


def looked_up(figures, key, which):
    """A figure; a skip or a failure where there is none."""
    found = figures if isinstance(figures, str) else figures[key]
    if isinstance(found, tuple):
        found = found[which]
    if isinstance(found, Missing):
        raise NotImplementedError(found)
    if isinstance(found, Wrong):
        raise AssertionError(found)
    return math.nan if found is None else found


class Bandwidth:
    """How many bytes of A, x and y does a kernel move in a second, and what share of the ceiling?

    The share is of the fastest that anything read these bytes in the same run.
    """

    params = (KERNELS, DTYPES, SHAPES)
    param_names = ("kernel", "dtype", "shape")

    def setup_cache(self):
        return for_all_problems(rungs)

    setup_cache.timeout = 400

    def setup(self, figures, *key):
        self.figures = [looked_up(figures, key, which) for which in (0, 1)]

    def track_bandwidth(self, figures, *key):
        return self.figures[0]

    def track_share(self, figures, *key):
        return 100 * self.figures[1]

    track_bandwidth.unit = "GB/s"
    track_share.unit = "% of the read ceiling"
    # What is measured is what the first point measured, so asv may compare: see the commit.
    track_bandwidth.version = track_share.version = "1"


class _Cells:
    params = (DTYPES, SHAPES)
    param_names = ("dtype", "shape")

    def setup_cache(self):
        return for_all_problems(cell)

    setup_cache.timeout = 200


class Floor(_Cells):
    """How near to the floor of the same run comes the call that gemv selects, cold?"""

    def setup(self, figures, *key):
        self.share = looked_up(figures, key, 0)

    def track_share(self, figures, *key):
        return 100 * self.share

    track_share.unit = "% of the floor"
    track_share.version = "1"


class Neighbour(_Cells):
    """How many times as fast as cuBLAS is the call that gemv selects, in one run?"""

    def setup(self, figures, *key):
        self.ratio = looked_up(figures, key, 1)

    def track_ratio(self, figures, *key):
        return self.ratio

    track_ratio.unit = "times as fast as cuBLAS"
    track_ratio.version = "1"
