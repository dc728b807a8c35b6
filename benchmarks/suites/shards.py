"""How much faster a product is on several GPUs than on one: figures of machines that have several.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks.

One process measures all of it, in ``setup_cache``; the sets of parameters look their figure up. A
set that needs more GPUs than the machine has is skipped with the reason, so a point of the history
that is measured on one GPU has none of these figures. A wrong answer fails its set.

Under the simulator (NUMBA_ENABLE_CUDASIM=1) one device plays all GPUs, on a tiny shape, and the
figures are NaN.
"""

from __future__ import annotations

import math

#: Fixed, so that a result keeps its key.
GPUS = ["2", "4"]
SIZES = ["64 MiB", "1 GiB", "16 GiB"]
WAYS = ["plan", "call"]
#: What they are called in :mod:`benchmarks.measure.shards`.
MEASURED = {"plan": "plan, shards of rows", "call": "shards of rows"}
ONE_GPU = "gemv.plan, one GPU"
SHAPE_SIMULATED = (32, 16, "float32")


class Missing(str):
    """Why there is no figure."""


class Wrong(str):
    """What went wrong where there should be one."""


def machine_with(gpus: int):
    """What :mod:`benchmarks.measure.shards` measures with, or a :class:`Missing`."""
    import gemv

    backend = gemv.backend()
    if backend == "host":
        return Missing("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    from benchmarks.measure.shards_arrays import Simulated, Torch

    if backend == "simulator":
        return Simulated([0] * gpus)
    from gemv.driver import devices
    from gemv.engines import backend as engines

    engines.engine()
    there = devices.count()
    if there < gpus:
        return Missing(f"{gpus} GPUs are needed, and this machine has {there}")
    try:
        return Torch(list(range(gpus)))
    except ImportError as error:
        return Missing(f"PyTorch copies to the other GPUs, and it is missing: {error}")


def scaling() -> dict:
    """How many times as fast as one GPU, by number of GPUs, way and size."""
    figures = {}
    for gpus in GPUS:
        machine = machine_with(int(gpus))
        for size in SIZES:
            if isinstance(machine, Missing):
                found = dict.fromkeys(WAYS, machine)
            else:
                try:
                    found = ratios(machine, size)
                except Exception as error:
                    full = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
                    words = f"{type(error).__name__}: {error}"
                    found = dict.fromkeys(WAYS, Missing(words) if full else Wrong(words))
            figures |= {(gpus, way, size): figure for way, figure in found.items()}
    return figures


def ratios(machine, size: str) -> dict:
    """The figures of one size, checked against float64 and, bit for bit, against one GPU."""
    import gemv
    from benchmarks.measure.shards import SIZES as SHAPES
    from benchmarks.measure.shards import cell, our_ways

    m, n, dtype = SHAPES[size] if machine.timed else SHAPE_SIMULATED
    a, x = machine.random((m, n), dtype, 1), machine.random((n,), dtype, 2)
    ways = our_ways(machine, a, x)
    bits = machine.bits(gemv.gemv(1, a, x))
    one = cell(machine, a, x, ways[ONE_GPU], None)
    figures = {}
    for way, measured in MEASURED.items():
        row = cell(machine, a, x, ways[measured], bits)
        if not (row["right"] and row["same_bits"]):
            figures[way] = Wrong(f"{measured}: error {row['error']}, same bits {row['same_bits']}")
        else:
            figures[way] = one["time_s"] / row["time_s"] if machine.timed else math.nan
    return figures


class Scaling:
    """How many times as fast as on one GPU is a product with a matrix in shards of rows?"""

    params = (GPUS, WAYS, SIZES)
    param_names = ("gpus", "way", "size")

    def setup_cache(self):
        return scaling()

    setup_cache.timeout = 300

    def setup(self, figures, *key):
        self.ratio = figures[key]
        if isinstance(self.ratio, Missing):
            raise NotImplementedError(self.ratio)
        if isinstance(self.ratio, Wrong):
            raise AssertionError(self.ratio)

    def track_ratio(self, figures, *key):
        return self.ratio

    track_ratio.unit = "times as fast as one GPU"
    track_ratio.version = "1"
