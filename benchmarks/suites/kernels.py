"""Device bandwidth of every kernel, how near to the read ceiling it comes, and cuBLAS beside it.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks, also where
Numba is unusable.

All is measured by two processes, in ``setup_cache`` of the classes; the sets of parameters only
look their figure up. So the context, the matrices that are made on the host and the code that is
compiled cost what they cost once, not once a set. What a set cannot have, because the kernel
refuses the shape or the machine lacks a library, is skipped with the reason. A wrong answer fails
its own sets, an exception those of the kernels that run with it.

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
    "short_columns",
    "cluster_rows",
    "cluster_columns",
]
DTYPES = ["float32", "float64", "float16"]
PREFIXES = {"float32": "s", "float64": "d", "float16": "h"}
#: One square, one tall and one wide shape, past every L2 cache: 128 MiB in float16, 512 in float64.
SHAPES = ["8192x8192", "1048576x64", "64x1048576"]
SHAPE_SIMULATED = (9, 70)
#: What takes seconds a call is measured once.
SLOW = {"serial": ("float32", "8192x8192")}


class Missing(str):
    """Why there is no figure."""


class Wrong(str):
    """What went wrong where there should be one."""


def attempt(measure, *arguments):
    """What `measure` gives; whatever goes wrong is for the sets of these figures to report."""
    try:
        return measure(*arguments)
    except Exception as error:
        return Wrong(f"{type(error).__name__}: {error}")


def problems():
    """Dtype, shape, and m and n as they are measured here, of each problem.

    On a machine without a GPU or a simulator a :class:`Missing` instead.
    """
    import gemv

    backend = gemv.backend()
    if backend == "host":
        return Missing("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    small = backend == "simulator"
    return [
        (dtype, shape, SHAPE_SIMULATED if small else tuple(map(int, shape.split("x"))))
        for dtype in DTYPES
        for shape in SHAPES
    ]


def ladders():
    """Bandwidth and share of the ceiling of all kernels on all problems."""
    wanted = problems()
    if isinstance(wanted, Missing):
        return wanted
    figures, measured = {}, {}
    for dtype, shape, size in wanted:
        kernels = [name for name in KERNELS if SLOW.get(name, (dtype, shape)) == (dtype, shape)]
        if (dtype, size) not in measured:  # under the simulator all shapes are one
            measured[dtype, size] = rungs(dtype, size, kernels)
        for name in KERNELS:
            if name in kernels:
                found = measured[dtype, size][name]
            else:
                only = ", ".join(SLOW[name])
                found = Missing(f"{name} takes seconds a call, and is timed on {only} alone")
            figures[name, dtype, shape] = found
    return figures


def rungs(dtype: str, size: tuple[int, int], kernels: list[str]) -> dict:
    """Bandwidth and share of the ceiling of the same run, checked, by the kernel's name."""
    from gemv.measure import ladder

    figures, wanted = {}, list(kernels)
    for op in "NT":  # a kernel for memory along y has its turn with the transpose
        run = attempt(ladder.ladder, *size, PREFIXES[dtype], "C", op, wanted)
        if isinstance(run, Wrong):
            return figures | dict.fromkeys(wanted, run)
        for row in run.rows:
            if row.refused:
                figures[row.name] = Missing(f"{row.name} refuses that: {row.refused}")
            elif not row.error <= 1:
                figures[row.name] = Wrong(f"{row.name} is wrong: {row.error} error bounds")
            else:
                figures[row.name] = row.gb_per_s, row.share
        wanted = [row.name for row in run.rows if row.refused]
        if not wanted:
            break
    return figures


def cells():
    """Share of the floor, and ratio to the peers, of the selected call on all problems."""
    wanted = problems()
    if isinstance(wanted, Missing):
        return wanted
    from gemv.measure import grid, peers
    from gemv.measure.cells import Cell

    places = {(dtype, shape): Cell(*size, PREFIXES[dtype]) for dtype, shape, size in wanted}
    libraries = tuple(filter(peers.installed, peers.LIBRARIES))
    if wanted[0][2] == SHAPE_SIMULATED:
        libraries = ()
    bench = attempt(grid.Bench, list(places.values()), libraries)
    if isinstance(bench, Wrong):
        return dict.fromkeys(places, bench)
    return {key: attempt(selected, bench, cell) for key, cell in places.items()}


def selected(bench, cell):
    """The two figures of a cell of the grid."""
    row = bench.measure(cell)
    if row.wrong is not None:
        return Wrong(row.wrong)
    if "gemv" in row.refused:  # it does not fit
        return Missing(row.refused["gemv"])
    if row.ratio is not None or row.time_s is None:
        return row.share, row.ratio
    why = "; ".join(row.refused.values()) or "neither PyTorch nor CuPy is there to call cuBLAS"
    return row.share, Missing(why)


def looked_up(figures, key, which):
    """A figure; a skip or a failure where there is none."""
    found = figures if isinstance(figures, Missing) else figures[key]
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
        return ladders()

    setup_cache.timeout = 400

    def setup(self, figures, *key):
        self.figures = [looked_up(figures, key, which) for which in (0, 1)]

    def track_bandwidth(self, figures, *key):
        return self.figures[0]

    def track_share(self, figures, *key):
        return 100 * self.figures[1]

    track_bandwidth.unit = "GB/s"
    track_share.unit = "% of the read ceiling"
    # asv compares points of one version, by default of one source. What is measured is still what
    # the first point measured.
    track_bandwidth.version = track_share.version = "1"


class _Cells:
    params = (DTYPES, SHAPES)
    param_names = ("dtype", "shape")

    def setup_cache(self):
        return cells()

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
