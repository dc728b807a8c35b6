"""Numba's device arrays, real and simulated: how they are recognised, read and made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemv.arrays.base import (
    Library,
    Place,
    View,
    Views,
    element_type,
    imported,
    in_elements,
)
from gemv.arrays.protocols import read_interface
from gemv.core.dtypes import BFLOAT16


class Numba(Library):
    name = "numba"
    on_default_stream = True

    def place(self, obj: Any) -> Place | None:
        packages = {base.__module__.partition(".")[0] for base in type(obj).__mro__}
        named = packages & {"numba", "numba_cuda"} and hasattr(obj, "__cuda_array_interface__")
        return "device" if named or getattr(type(obj), "__cuda_ndarray__", False) else None

    def read(self, obj: Any) -> View:
        fake = getattr(obj, "_ary", None)
        if isinstance(fake, np.ndarray):
            # Numba's simulator: a wrapper around host memory.
            address = fake.__array_interface__["data"][0]
            readonly = not fake.flags.writeable
            return View(fake.dtype, fake.shape, fake.strides, address, readonly, keep=fake)
        view = read_interface(obj)
        # Its interface calls broadcast arrays contiguous and leaves their zero strides out.
        strides = getattr(obj, "strides", None)
        if strides is not None:
            view = view._replace(strides=tuple(strides))
        # Of bfloat16 it only says that a number has 2 bytes.
        is_bfloat16 = element_type(getattr(obj, "dtype", None)) == BFLOAT16
        return view._replace(dtype=BFLOAT16) if is_bfloat16 else view

    def read_all(self, arrays: Sequence[Any]) -> Views | None:
        (kind, *others), first = set(map(type, arrays)), arrays[0]
        plain = kind.__module__.startswith(("numba.", "numba_cuda."))
        if others or not plain or kind.__name__ not in ("DeviceNDArray", "FakeCUDAArray"):
            return None
        no = [False] * len(arrays)
        keeps: Sequence[Any] = [None] * len(arrays)
        readonly: Sequence[bool] = no
        if kind.__name__ == "FakeCUDAArray":
            arrays = keeps = [array._ary for array in arrays]
            if set(map(type, arrays)) != {np.ndarray}:
                return None
            first = arrays[0]
            pointers = [array.__array_interface__["data"][0] for array in arrays]
            readonly = [not array.flags.writeable for array in arrays]
        elif any([array.stream for array in arrays]):
            return None
        else:
            pointers = [array.gpu_data.device_ctypes_pointer.value or 0 for array in arrays]
        dtype = first.dtype
        if dtype.isbuiltin != 1 or any([array.dtype != dtype for array in arrays]):
            return None
        strides = in_elements([array.strides for array in arrays], dtype)
        if strides is None:
            return None
        shapes = [array.shape for array in arrays]
        return Views(dtype, shapes, strides, pointers, readonly, None, no, no, keeps)

    def parts(self, whole: Any, starts: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        if hasattr(whole, "_ary"):  # of the simulator
            return super().parts(whole, starts, lengths)
        # Numba's own slices take longer than a launch. What differs between two vectors of one
        # length is their memory alone, which keeps that of `whole` alive.
        new = imported("numba.cuda").MemoryPointer
        kind: Any = type(whole)
        dtype, memory = whole.dtype, whole.gpu_data
        first, address, size = (
            int(memory.device_pointer),
            type(memory.device_pointer),
            dtype.itemsize,
        )
        forms: dict[int, dict[str, Any]] = {}
        found = []
        for start, n in zip(starts, lengths, strict=True):
            own = new(memory.context, address(first + start * size), n * size, owner=memory)
            if n not in forms:
                forms[n] = vars(kind((n,), (size,), dtype, gpu_data=own))
            part = kind.__new__(kind)
            part.__dict__.update(forms[n])
            if n:  # one without elements has no memory
                part.gpu_data = own
            found.append(part)
        return found
