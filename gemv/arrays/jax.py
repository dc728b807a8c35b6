"""JAX's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays import dlpack
from gemv.arrays.library import Library, Refusal, View, element_type, imported, is_instance
from gemv.core.dtypes import BFLOAT16


class Jax(Library):
    name = "jax"
    immutable = True
    ordered_by_export = True

    def owns(self, obj: Any) -> bool:
        core = getattr(imported("jax"), "core", None)
        tracer = getattr(core, "Tracer", None)
        if isinstance(tracer, type) and isinstance(obj, tracer):
            raise Refusal(
                "is traced by JAX (jit, grad, vmap, ...), where arrays have no values yet: call"
                " this product outside of the transformation"
            )
        if not is_instance(obj, "jax", "Array"):
            return False
        devices = obj.devices()
        if len(devices) != 1:
            raise Refusal(f"lies on {len(devices)} devices; all of it must be on one")
        (device,) = devices
        if device.platform not in ("gpu", "cuda", "cpu"):
            raise Refusal(f"is an array on {device}, which is no CUDA GPU")
        return device.platform != "cpu"

    def read(self, obj: Any) -> View:
        dtype = element_type(np.dtype(obj.dtype))
        (device,) = obj.devices()
        ordinal = device.local_hardware_id
        # JAX lays arrays out along rows, which is what None says, unless it is told otherwise.
        layout = getattr(getattr(obj, "format", None), "layout", None)
        strides = None
        if tuple(getattr(layout, "major_to_minor", None) or ()) == (1, 0):
            strides = (dtype.itemsize, dtype.itemsize * obj.shape[0])
        return View(dtype, obj.shape, strides, obj.unsafe_buffer_pointer(), True, ordinal or 0)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        code = dlpack.BFLOAT if dtype == BFLOAT16 else None
        return dlpack.Export(super().empty(like, length, dtype, device), device, code)

    @staticmethod
    def finish(export: Any) -> Any:
        """The array that JAX makes of our memory, which it frees in the end."""
        return imported("jax").dlpack.from_dlpack(export)
