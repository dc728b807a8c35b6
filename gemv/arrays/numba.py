"""Numba's device arrays, real and simulated: how they are recognised, read and made."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.arrays.base import Library, Place, View, element_type
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
