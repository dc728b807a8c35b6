"""Stand-ins for device arrays of other libraries, in host memory or without any memory."""

from __future__ import annotations

import ctypes

from gemv.arrays import dlpack


class Exporter:
    """A device array of an unknown library, or, renamed, one that looks like Numba's."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "strides": None,
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            **changes,
        }


class Interface:
    """Host memory, exported as if it were a device's by ``__cuda_array_interface__``."""

    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "version": 3,
            **changes,
        }


class Export:
    """The same by DLPack, with a capsule of each form."""

    def __init__(self, array, device_type=2, versioned=False, readonly=False, code=None, device=0):
        self.array, self.device_type = array, device_type
        self.versioned, self.readonly, self.code = versioned, readonly, code
        self.device = device
        self.streams = []

    def __dlpack_device__(self):
        return (self.device_type, self.device)

    def __dlpack__(self, *, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        array = self.array
        managed = dlpack._ManagedVersioned() if self.versioned else dlpack._Managed()
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        tensor = managed.tensor
        # The offset must be added, as some exporters leave the pointer at their allocation.
        tensor.data, tensor.byte_offset = array.ctypes.data - 64, 64
        tensor.device_type, tensor.ndim, tensor.lanes = self.device_type, array.ndim, 1
        tensor.device_id = self.device
        tensor.bits = array.itemsize * 8
        tensor.code = dlpack._KINDS[array.dtype.kind] if self.code is None else self.code
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
        if self.versioned:
            managed.major, managed.flags = 1, int(self.readonly)
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self.keep = (managed, shape, steps)
        return dlpack._capsule_new(ctypes.addressof(managed), name, None)
