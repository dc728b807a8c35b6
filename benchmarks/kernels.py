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

    params = (KERNELS, DTYPES, SHAPES)
    param_names = ("kernel", "dtype", "shape")

    def setup(self, kernel, dtype, shape):
        self.row = measure(kernel, dtype, shape)

    def track_bandwidth(self, kernel, dtype, shape):
        return math.nan if self.row.gb_per_s is None else self.row.gb_per_s

    track_bandwidth.unit = "GB/s"


class Ceiling:
    """What share of the rate at which the same run could read memory is that?"""

    params = (["coalesced", "last_block", "vector_rows", "vector_columns"],)
    param_names = ("kernel",)

    def setup(self, kernel):
        self.row = measure(kernel, "float32", SHAPES[0])

    def track_share(self, kernel):
        return math.nan if self.row.share is None else 100 * self.row.share

    track_share.unit = "% of ceiling"


class Neighbour:
    """How many times as fast as cuBLAS is the kernel that gemv selects, in one run?"""

    params = (DTYPES, SHAPES)
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        self.ratio = against_cublas(dtype, shape)

    def track_ratio(self, dtype, shape):
        return self.ratio

    track_ratio.unit = "times as fast as cuBLAS"


def against_cublas(dtype: str, shape: str) -> float:
    """Time of cuBLAS over that of gemv, both cold and both inside a graph; NaN when simulated."""
    import numpy as np

    import gemv
    from gemv import _measure

    m, n = map(int, shape.split("x"))
    if gemv.backend() == "simulator":
        m, n = SHAPE_SIMULATED
    name = gemv.backend() != "host" and gemv.explain(
        _measure.ALPHA, np.empty((m, n), dtype), np.empty(n, dtype), _measure.BETA,
        np.empty(m, dtype),
    ).kernel  # fmt: skip
    row = measure(name, dtype, shape)
    if gemv.backend() == "simulator":
        return math.nan
    library, call_of = _cublas()
    return cublas_time_s(call_of, m, n, dtype, library) / row.time_s


def _cublas():
    """PyTorch's way to cuBLAS or CuPy's: the name, and a function that makes calls of it."""
    from gemv import _measure

    try:
        import torch
    except ImportError:
        pass
    else:

        def torch_calls(a, x, y, copies):
            all_a = [torch.from_numpy(a).cuda() for _ in range(copies)]
            x, y = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()

            def call(stream, each):
                with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                    torch.addmv(y, each, x, beta=_measure.BETA, alpha=_measure.ALPHA, out=y)

            def answer():
                torch.cuda.synchronize()
                return y.cpu().numpy()

            return call, all_a, answer

        return "PyTorch", torch_calls
    try:
        import cupy
        import cupy.cublas
    except ImportError:
        raise NotImplementedError("neither PyTorch nor CuPy is there to call cuBLAS") from None

    def cupy_calls(a, x, y, copies):
        all_a = [cupy.asarray(a) for _ in range(copies)]
        x, y = cupy.asarray(x), cupy.asarray(y)

        def call(stream, each):
            with cupy.cuda.ExternalStream(stream):
                # cuBLAS reads columns, and a matrix in rows is its own transpose in columns
                cupy.cublas.gemv("T", _measure.ALPHA, each.T, x, _measure.BETA, y)

        def answer():
            cupy.cuda.runtime.deviceSynchronize()
            return cupy.asnumpy(y)

        return call, all_a, answer

    return "CuPy", cupy_calls


def cublas_time_s(call_of, m: int, n: int, dtype: str, library: str) -> float:
    """Device time of one cuBLAS call as the ladder times ours; its answer is checked too."""
    from functools import partial

    import numpy as np

    from gemv import _backend, _measure
    from gemv._problem import ceil_div
    from gemv._reference import error_in_bounds, reference

    element = np.dtype(dtype)
    rng = np.random.default_rng(20240501)
    a, x, y = (_measure.random_array(rng, size, element) for size in ((m, n), (n,), (m,)))
    clock = _measure.Clock(_backend.engine())
    copies = max(2, ceil_div(_measure._L2_TIMES * clock.l2_bytes, a.nbytes))
    copies = min(copies, _measure._MOST_COPIES)
    call, all_a, answer = call_of(a, x, y, copies)
    exact, magnitude = reference(_measure.ALPHA, a, x, _measure.BETA, y)
    call(clock.stream, all_a[0])
    error = error_in_bounds(answer(), exact, magnitude, n)
    if not error <= 1:
        raise AssertionError(f"cuBLAS through {library} is {error} bounds off")
    return clock.time([partial(call, each=each) for each in all_a])
