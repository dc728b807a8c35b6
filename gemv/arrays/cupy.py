"""CuPy's arrays: how they are recognised, read and made; listed in ``libraries.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemv.arrays.base import (
    Library,
    Place,
    View,
    Views,
    element_type,
    imported,
    in_elements,
    is_instance,
)


class CuPy(Library):
    name = "cupy"
    allocates_in_capture = True

    def place(self, obj: Any) -> Place | None:
        return "device" if is_instance(obj, "cupy", "ndarray") else None

    def read(self, obj: Any) -> View:
        dtype = element_type(obj.dtype)
        return View(dtype, obj.shape, obj.strides, obj.data.ptr, device=obj.data.device_id)

    def read_all(self, arrays: Sequence[Any]) -> Views | None:
        dtype = arrays[0].dtype
        plain = set(map(type, arrays)) == {imported("cupy").ndarray} and dtype.isbuiltin == 1
        if not plain or any([array.dtype != dtype for array in arrays]):
            return None
        strides = in_elements([array.strides for array in arrays], dtype)
        if strides is None:
            return None
        no = [False] * len(arrays)
        return Views(
            dtype, [array.shape for array in arrays], strides,
            [array.data.ptr for array in arrays], no, [array.data.device_id for array in arrays],
            no, no, [None] * len(arrays),
        )  # fmt: skip

    def stream_getter(self) -> Callable[[int], int]:
        current_stream = imported("cupy").cuda.get_current_stream
        return lambda device: current_stream(device).ptr

    def shared(self, array: Any, device: int) -> Any:
        return imported("cupy").asarray(array)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        cupy = imported("cupy")
        with cupy.cuda.Device(device):
            return cupy.empty(length, like.dtype if dtype == element_type(like.dtype) else dtype)
