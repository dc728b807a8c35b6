"""Which library an array belongs to, and the order in which the libraries are tried."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays.base import Library, Place
from gemv.arrays.cupy import CuPy
from gemv.arrays.jax import Jax
from gemv.arrays.numba import Numba
from gemv.arrays.protocols import DLPack, Interface
from gemv.arrays.torch import Torch

#: In the order in which they are asked; the protocols come last, since most libraries speak them.
LIBRARIES: tuple[Library, ...] = (Torch(), Jax(), CuPy(), Numba(), Interface(), DLPack())
BY_NAME: dict[str, Library] = {library.name: library for library in LIBRARIES}
#: The library of whatever no other one takes for its own: lists, numbers, NumPy's arrays.
NUMPY = Library()


def exporter_of(obj: Any) -> tuple[Library, Place]:
    """The library that `obj` is an array of, and where it lies."""
    if isinstance(obj, (np.ndarray, np.generic, list, tuple, int, float)):
        # Numba's mapped and managed arrays are NumPy's as well, and a kernel can read them where
        # they are. A slice of one is an array of that class too, but knows no address there.
        if not (getattr(type(obj), "__cuda_ndarray__", False) and hasattr(obj, "gpu_data")):
            return NUMPY, "host"
    for library in LIBRARIES:
        place = library.place(obj)
        if place is not None:
            return library, place
    return NUMPY, "host"


def device_library(obj: Any) -> Library | None:
    """The library whose device array `obj` is; None for host memory and for no array at all."""
    library, place = exporter_of(obj)
    return library if place == "device" else None
