"""CuPy's arrays: how they are recognised, read and made; listed in ``libraries.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemv.arrays.base import Library, Place, View, element_type, imported, is_instance


class CuPy(Library):
    name = "cupy"
    allocates_in_capture = True

    def place(self, obj: Any) -> Place | None:
        return "device" if is_instance(obj, "cupy", "ndarray") else None

    def read(self, obj: Any) -> View:
        dtype = element_type(obj.dtype)
        return View(dtype, obj.shape, obj.strides, obj.data.ptr, device=obj.data.device_id)

    def stream_getter(self) -> Callable[[int], int]:
        current_stream = imported("cupy").cuda.get_current_stream
        return lambda device: current_stream(device).ptr

    def shared(self, array: Any, device: int) -> Any:
        return imported("cupy").asarray(array)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        cupy = imported("cupy")
        with cupy.cuda.Device(device):
            return cupy.empty(length, like.dtype if dtype == element_type(like.dtype) else dtype)
