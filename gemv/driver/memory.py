"""Device memory: how much is free, and what several launches of one call share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda


def room_left() -> int:
    """Bytes of the current GPU's memory that are free, or will be when Numba is asked for them."""
    context = cuda.current_context()
    context.deallocations.clear()
    return int(context.get_memory_info().free)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error of Numba or of the driver says that the GPU's memory is all taken."""
    out = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    return getattr(error, "code", None) == out or out.name in str(error)


class Shared:
    """Scratch memory and counters that several launches of one product share.

    They are new in each call, so one that is interrupted between two launches leaves counters
    behind that are not zero, but no other call ever sees them.
    """

    def __init__(
        self,
        fill: Callable[[int, int, int, int], None],
        geometry: Any,
        dtype: np.dtype,
        stream: int,
    ) -> None:
        self._itemsize = dtype.itemsize
        # Both live as long as this object.
        self._scratch = cuda.device_array(max(1, geometry.scratch), dtype)
        self._counters = cuda.device_array(max(1, geometry.counters), np.uint32)
        self._first = int(self._scratch.__cuda_array_interface__["data"][0])
        self._counted = int(self._counters.__cuda_array_interface__["data"][0])
        fill(self._counted, self._counters.nbytes, 0, stream)
        if geometry.posts:
            fill(self._first, self._scratch.nbytes, 0xFF, stream)

    def at(self, shift: int) -> dict[str, int]:
        """Addresses of both, that of the scratch memory shifted by so many elements."""
        return {
            "scratch": self._first + shift * self._itemsize,
            "counters": self._counted,
        }
