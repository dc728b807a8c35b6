"""Which library an array belongs to, and the order in which they are asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays.cupy import CuPy
from gemv.arrays.jax import Jax
from gemv.arrays.library import Library, imported, is_instance
from gemv.arrays.numba import Numba
from gemv.arrays.protocols import DLPack, Interface
from gemv.arrays.torch import Torch
from gemv.core.dtypes import BFLOAT16

#: In the order in which they are asked; the protocols come last, since most libraries speak them.
LIBRARIES: tuple[Library, ...] = (Torch(), Jax(), CuPy(), Numba(), Interface(), DLPack())
BY_NAME: dict[str, Library] = {library.name: library for library in LIBRARIES}


def exporter_of(obj: Any) -> Library | None:
    """The library whose device array `obj` is; None for host memory and for no array at all."""
    if isinstance(obj, (np.ndarray, np.generic, list, tuple, int, float)):
        # Numba's mapped and managed arrays are NumPy's as well, and a kernel can read them where
        # they are. A slice of one is an array of that class too, but knows no address there.
        if not (getattr(type(obj), "__cuda_ndarray__", False) and hasattr(obj, "gpu_data")):
            return None
    for library in LIBRARIES:
        if library.owns(obj):
            return library
        if library.name == "torch" and is_instance(obj, "torch", "Tensor"):
            return None  # in host memory
        if library.name == "jax" and is_instance(obj, "jax", "Array"):
            return None
    return None


def host_array(obj: Any) -> Any:
    """A tensor in host memory as a NumPy array that shares it; anything else as it is."""
    if is_instance(obj, "torch", "Tensor"):
        # Lazy conjugates and negatives have no NumPy form; others are not copied by this.
        values = obj.resolve_conj().resolve_neg()
        torch = imported("torch")
        if values.dtype is torch.bfloat16:
            return values.view(torch.int16).numpy().view(BFLOAT16)
        return values.numpy()
    plain = ("__array__", "__array_interface__", "__array_struct__", "__len__")
    if hasattr(obj, "__dlpack__") and not any(hasattr(obj, name) for name in plain):
        return np.from_dlpack(obj)
    return obj


def is_host_array(obj: Any) -> bool:
    """Whether a host operand is an array itself, and not a list or the like that was read."""
    return isinstance(obj, np.ndarray) or is_instance(obj, "torch", "Tensor")


def note_written(obj: Any) -> None:
    """A host array was overwritten: whoever counts that is told."""
    if is_instance(obj, "torch", "Tensor"):
        note = BY_NAME["torch"].notes_writes
        if note is not None:
            note(obj)


def written_through(obj: Any) -> bool:
    """Whether a host array can be overwritten through :func:`host_array`.

    A tensor that is a lazy conjugate or negative is read from a copy, and JAX's arrays never
    change.
    """
    if is_instance(obj, "torch", "Tensor"):
        return not (obj.is_conj() or obj.is_neg())
    return not is_instance(obj, "jax", "Array")


def host_result(like: Any, result: np.ndarray) -> Any:
    """`result` in the kind of the host array `like`: a tensor for a tensor, else a NumPy array."""
    if is_instance(like, "torch", "Tensor"):
        torch = imported("torch")
        if result.dtype == BFLOAT16:
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    theirs = getattr(like, "dtype", None)
    if result.dtype == BFLOAT16 and theirs is not None:
        result = result.view(theirs)
    if is_instance(like, "jax", "Array"):
        return imported("jax").numpy.asarray(result)
    return result
