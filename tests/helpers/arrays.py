"""Device arrays of every library that is installed, made and read in one way for the tests."""

from __future__ import annotations

import numpy as np
import pytest


class Numba:
    """Numba's own device arrays."""

    name = "numba"

    def __init__(self):
        from numba import cuda

        self.cuda = cuda

    def array(self, host):
        return self.cuda.to_device(np.array(host))

    def host(self, array):
        return array.copy_to_host()

    def is_mine(self, array):
        return hasattr(array, "copy_to_host")


class CuPy:
    """CuPy's arrays."""

    name = "cupy"

    def __init__(self):
        self.cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

    def array(self, host):
        return self.cupy.asarray(host)

    def host(self, array):
        return self.cupy.asnumpy(array)

    def is_mine(self, array):
        return type(array) is self.cupy.ndarray


class Torch:
    """PyTorch's tensors on the GPU."""

    name = "torch"

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def array(self, host):
        return self.torch.from_numpy(np.array(host)).cuda()

    def host(self, array):
        return array.cpu().resolve_conj().resolve_neg().numpy()

    def is_mine(self, array):
        return type(array) is self.torch.Tensor and array.is_cuda


class Jax:
    """JAX's arrays on the GPU."""

    name = "jax"

    def __init__(self):
        self.jax = pytest.importorskip("jax", reason="JAX is not installed")
        self.jax.config.update("jax_enable_x64", True)

    def array(self, host):
        return self.jax.numpy.asarray(np.array(host))

    def host(self, array):
        return np.asarray(array)

    def is_mine(self, array):
        return isinstance(array, self.jax.Array)


LIBRARIES = {library.name: library for library in (Numba, CuPy, Torch, Jax)}
MUTABLE = ("numba", "cupy", "torch")
