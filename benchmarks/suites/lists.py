"""How near to the floor comes one plan for matrices of different sizes: 64 MiB of them a dtype.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks.

One process measures all of it, in ``setup_cache``; the sets of parameters look their figure up. A
wrong answer fails its set. Under the simulator (NUMBA_ENABLE_CUDASIM=1) a few small matrices are
checked, and the figures are NaN.
"""

from __future__ import annotations

import math

#: Fixed, so that a result keeps its key.
DTYPES = ["float32", "float64", "bfloat16"]
PREFIXES = {"float32": "s", "float64": "d", "bfloat16": "b"}


class Missing(str):
    """Why there is no figure."""


class Wrong(str):
    """What went wrong where there should be one."""


def shares():
    """Share of the floor, by dtype; a :class:`Missing` without a GPU or a simulator."""
    import gemv

    backend = gemv.backend()
    if backend == "host":
        return Missing("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    from gemv.measure import ragged
    from gemv.measure.ragged_bench import Ours, RaggedBench

    small = backend == "simulator"
    count = ragged.SIMULATED_COUNT if small else None
    most = ragged.SIMULATED_MOST if small else ragged.MOST
    wanted = ragged.cells(count, PREFIXES.values(), "N", "C", most=most)
    try:
        bench = RaggedBench(wanted, Ours(gemv.Batch, gemv.gemv))
    except Exception as error:
        return dict.fromkeys(DTYPES, Wrong(f"{type(error).__name__}: {error}"))
    return {dtype: share(bench, cell) for dtype, cell in zip(DTYPES, wanted, strict=True)}


def share(bench, cell):
    """The figure of one list."""
    try:
        row = bench.measure(cell)
    except Exception as error:
        return Wrong(f"{type(error).__name__}: {error}")
    if row.wrong is not None:
        return Wrong(row.wrong)
    if "gemv" in row.refused:  # it does not fit
        return Missing(row.refused["gemv"])
    return math.nan if row.share is None else row.share


class Floor:
    """How near to the floor of the same run comes a plan of ``gemv.Batch``, cold?

    The floor is the time in which anything read the bytes of all matrices in the same run.
    """

    params = (DTYPES,)
    param_names = ("dtype",)

    def setup_cache(self):
        return shares()

    setup_cache.timeout = 300

    def setup(self, figures, dtype):
        found = figures if isinstance(figures, Missing) else figures[dtype]
        if isinstance(found, Missing):
            raise NotImplementedError(found)
        if isinstance(found, Wrong):
            raise AssertionError(found)
        self.share = found

    def track_share(self, figures, dtype):
        return 100 * self.share

    track_share.unit = "% of the floor"
    track_share.version = "1"
