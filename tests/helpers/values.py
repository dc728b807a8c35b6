"""Numbers that leave no doubt about a result."""

from __future__ import annotations

import numpy as np

from gemv.core.dtypes import BFLOAT16
from gemv.core.narrow import cast


def whole(rng, shape, dtype, most=4):
    """Small whole numbers, whose products every order adds up to the same sum."""
    values = rng.integers(-most, most + 1, shape).astype(np.float64)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-4, 5, shape)
    return cast(values, np.dtype(dtype))


def plain(array):
    """The values in a dtype that NumPy computes in."""
    array = np.asarray(array)
    return cast(array, np.dtype("d")) if array.dtype in ("e", BFLOAT16) else array
