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


def view_of(array, place):
    """A device array of Numba's with the values of `array`, at the places of a view of memory.

    `place` is that view of a host array, and the array.
    """
    from numba import cuda

    from gemv.engines import backend

    view, whole = place
    view[...] = array
    if backend.backend() == "simulator":
        return type(cuda.to_device(np.zeros(1)))(view)  # without a copy, which would be contiguous
    on_device = cuda.to_device(whole)
    addresses = [each.__array_interface__["data"][0] for each in (view, whole)]
    if whole.dtype.fields is not None:  # bfloat16, which the interface cannot name
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        memory = on_device.gpu_data.view(addresses[0] - addresses[1])
        return DeviceNDArray(view.shape, view.strides, whole.dtype, gpu_data=memory)
    interface = {
        **on_device.__cuda_array_interface__,
        "shape": view.shape,
        "strides": view.strides,
        "data": (on_device.device_ctypes_pointer.value + addresses[0] - addresses[1], False),
    }
    return type("View", (), {"__cuda_array_interface__": interface, "keep": on_device})()


def host_of(view):
    """The values of what :func:`view_of` makes."""
    from numba import cuda

    known = hasattr(view, "copy_to_host")
    return (view if known else cuda.as_cuda_array(view)).copy_to_host()
