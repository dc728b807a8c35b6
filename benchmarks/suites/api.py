"""What a call costs on the host: per kind of array, the first one, and the import.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks.
"""

from __future__ import annotations

import math
import os
import statistics
import time


def _backend():
    import gemv

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    if backend == "cuda":
        # NumPy arrays are copied to the GPU here, in processes that this one starts as well. Of
        # themselves, arrays so small stay on the host.
        os.environ["GEMV_BACKEND"] = "cuda"
    return backend


def _to_cupy(array):
    import cupy

    return cupy.asarray(array), cupy.asnumpy, cupy.cuda.Device().synchronize


def _to_torch(array):
    import torch

    return torch.from_numpy(array).cuda(), lambda y: y.cpu().numpy(), torch.cuda.synchronize


def _to_jax(array):
    import jax
    import numpy as np

    return jax.device_put(array, jax.devices("gpu")[0]), np.asarray, lambda: None


def _to_numba(array):
    from numba import cuda

    return cuda.to_device(array), lambda y: y.copy_to_host(), cuda.synchronize


#: An array of each kind, how its values come back, and how to wait for all work.
KINDS = {
    "numpy": lambda array: (array, lambda y: y, lambda: None),
    "numba": _to_numba,
    "cupy": _to_cupy,
    "torch": _to_torch,
    "jax": _to_jax,
}


class Call:
    """How long does Python wait for one call on a matrix too small to matter?

    On NumPy arrays that includes the copies; on device arrays it is the cost of putting the
    work into the stream, not the work. The calls of a batch follow each other, which asv's own
    timer does not allow where there is a setup.
    """

    params = (list(KINDS),)
    param_names = ("arrays",)

    def setup(self, arrays):
        backend = _backend()
        import numpy as np

        import gemv

        if backend == "simulator" and arrays not in ("numpy", "numba"):
            raise NotImplementedError(f"arrays of {arrays} need a GPU")
        size = 8 if backend == "simulator" else 64
        self.simulated = backend == "simulator"
        self.calls = 20 if arrays == "numpy" else 500
        rng = np.random.default_rng(0)
        a = rng.integers(-4, 5, (size, size)).astype(np.float32)
        x = rng.integers(-4, 5, size).astype(np.float32)
        expected = a @ x
        try:
            moved = [KINDS[arrays](each) for each in (a, x, np.zeros(size, np.float32))]
        except ImportError as error:
            raise NotImplementedError(f"{arrays} cannot be imported: {error}") from error
        (self.a, back, self.finish), (self.x, *_), (self.y, *_) = moved
        self.gemv = gemv.gemv
        if not np.array_equal(back(self.call()), expected):
            raise AssertionError(f"gemv on {arrays} arrays differs from NumPy")
        self.finish()

    def call(self):
        return self.gemv(1.0, self.a, self.x, y=self.y, overwrite_y=True)

    def track_call(self, arrays):
        if self.simulated:
            return math.nan  # it ran once; a simulator's time says nothing
        batches = []
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(self.calls):
                self.call()
            batches.append((time.perf_counter() - start) / self.calls)
            self.finish()
        return 1e6 * statistics.median(batches)

    track_call.unit = "us"


class Start:
    """How long until a program has gemv, and until it has its first answer?"""

    # each sample is a new interpreter, so few of them
    repeat = (2, 5, 20.0)
    number = 1
    timeout = 240

    def timeraw_import(self):
        return "import gemv"

    def timeraw_import_with_numpy(self):
        # the neighbour: what NumPy alone costs
        return "import numpy"


class FirstCall:
    """The first call of a process: imports, context, compilation, copies."""

    repeat = (2, 5, 20.0)
    number = 1
    timeout = 240

    def setup(self):
        _backend()

    def timeraw_first_call(self):
        return """
        import numpy as np
        import gemv

        y = gemv.sgemv(1.0, np.ones((8, 8), np.float32), np.ones(8, np.float32))
        assert (y == 8).all(), y
        """


class Memory:
    """How much host memory does a process have that imports, and one that computes?"""

    def peakmem_import(self):
        import gemv  # noqa: F401

    def peakmem_first_call(self):
        _backend()
        import numpy as np

        import gemv

        gemv.sgemv(1.0, np.ones((8, 8), np.float32), np.ones(8, np.float32))
