"""float16 and bfloat16 for NumPy on the host: casts that round to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.dtypes import BFLOAT16


def bits_of(values: np.ndarray) -> np.ndarray:
    """The 16 bits of each of `values`, float32 or float64, rounded to bfloat16."""
    with np.errstate(all="ignore"):
        single = np.asarray(values, np.float32)
        bits = single.view(np.uint32)
        if np.asarray(values).dtype == np.float64:
            bits = _rounded_to_odd(np.asarray(values), single)
        # Half of the last bit that stays, less a little where that bit is 0: ties go to even.
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # The carry would make an infinity of a NaN, or a zero.
    return np.where(np.isnan(single), (bits >> 16).astype(np.uint16) | 0x40, rounded)


def _rounded_to_odd(values: np.ndarray, single: np.ndarray) -> np.ndarray:
    """Bits of float32 whose last bit is set if the conversion from `values` lost anything.

    Rounding to nearest a second time, to bfloat16, is then right; after a first rounding to nearest
    it could be wrong at a tie.
    """
    bits = single.view(np.uint32)
    away = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = bits - away.astype(np.uint32)  # towards zero
    exact = bits.view(np.float32).astype(np.float64) == values
    return bits | (~exact & np.isfinite(values)).astype(np.uint32)


def cast(values: Any, dtype: np.dtype) -> np.ndarray:
    """`values` as an array of `dtype`; either may be bfloat16, which NumPy cannot cast."""
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == BFLOAT16:
        if array.dtype != np.float64:
            array = array.astype(np.float32)
        return bits_of(array).view(BFLOAT16)
    with np.errstate(all="ignore"):
        return array.astype(dtype)
