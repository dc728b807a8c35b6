"""JAX's arrays, on a GPU and in host memory: how they are recognised, read and made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.arrays import dlpack
from gemv.arrays.base import Library, Place, Refusal, View, element_type, imported, is_instance


def is_traced(*objects: Any) -> bool:
    """Whether JAX traces one of these, which then has a shape and a dtype but no values."""
    core = getattr(imported("jax"), "core", None)
    tracer = getattr(core, "Tracer", None)
    return isinstance(tracer, type) and any(isinstance(obj, tracer) for obj in objects)


class Jax(Library):
    name = "jax"
    immutable = True
    ordered_by_export = True

    def place(self, obj: Any) -> Place | None:
        if is_traced(obj):
            raise Refusal(
                "is traced by JAX (jit, grad, vmap, ...), where arrays have no values yet: call"
                " gemv.gemv or gemv.jax.matvec with one matrix, which can be traced, and jax.vmap"
                " for several"
            )
        if not is_instance(obj, "jax", "Array"):
            return None
        devices = obj.devices()
        if len(devices) != 1:
            raise Refusal(f"lies on {len(devices)} devices; all of it must be on one")
        (device,) = devices
        if device.platform not in ("gpu", "cuda", "cpu"):
            raise Refusal(f"is an array on {device}, which is no CUDA GPU")
        return "host" if device.platform == "cpu" else "device"

    def is_array(self, obj: Any) -> bool:
        return True

    def written_through(self, obj: Any) -> bool:
        return False

    def from_numpy(self, like: Any, result: np.ndarray) -> Any:
        return imported("jax").numpy.asarray(super().from_numpy(like, result))

    def read(self, obj: Any) -> View:
        dtype = element_type(np.dtype(obj.dtype))
        (device,) = obj.devices()
        ordinal = device.local_hardware_id
        # Unless JAX was told otherwise, arrays are C-contiguous, for which None stands.
        layout = getattr(getattr(obj, "format", None), "layout", None)
        strides = None
        if tuple(getattr(layout, "major_to_minor", None) or ()) == (1, 0):
            strides = (dtype.itemsize, dtype.itemsize * obj.shape[0])
        return View(dtype, obj.shape, strides, obj.unsafe_buffer_pointer(), True, ordinal or 0)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        return dlpack.Export(super().empty(like, length, dtype, device), device, dtype)

    def finished(self, made: Any, wait: Callable[[int], None]) -> Any:
        # JAX's arrays cannot be written to: it takes over our memory, and frees it in the end.
        made.before_export = wait
        return imported("jax").dlpack.from_dlpack(made)
