"""What a call costs on the host: per kind of array, the first one, and the import.

Nothing is imported from gemv at the top: asv imports this file to list the benchmarks.
"""

from __future__ import annotations


def _backend():
    import gemv

    backend = gemv.backend()
    if backend == "host":
        raise NotImplementedError("no GPU, and the simulator is off (NUMBA_ENABLE_CUDASIM=1)")
    return backend


class Call:
    """How long does Python wait for one call on a matrix too small to matter?

    On NumPy arrays that includes the copies; on device arrays it is the cost of putting the
    work into the stream, not the work.
    """

    params = (["numpy", "numba"], ["float32", "float64"])
    param_names = ("arrays", "dtype")

    def setup(self, arrays, dtype):
        backend = _backend()
        import numpy as np

        import gemv

        size = 8 if backend == "simulator" else 64
        rng = np.random.default_rng(0)
        self.a = rng.integers(-4, 5, (size, size)).astype(dtype)
        self.x = rng.integers(-4, 5, size).astype(dtype)
        self.y = np.zeros(size, dtype)
        expected = self.a @ self.x
        self.finish = lambda: None
        if arrays == "numba":
            from numba import cuda

            self.a, self.x, self.y = map(cuda.to_device, (self.a, self.x, self.y))
            self.finish = cuda.synchronize
        self.gemv = gemv.gemv
        got = self.time_call(arrays, dtype)
        got = got.copy_to_host() if arrays == "numba" else got
        if not np.array_equal(got, expected):
            raise AssertionError(f"gemv on {arrays} arrays differs from NumPy")
        self.finish()

    def time_call(self, arrays, dtype):
        return self.gemv(1.0, self.a, self.x, y=self.y, overwrite_y=True)

    def teardown(self, arrays, dtype):
        if hasattr(self, "finish"):
            self.finish()


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

        gemv.sgemv(1.0, np.ones((8, 8), np.float32), np.ones(8, np.float32))
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
