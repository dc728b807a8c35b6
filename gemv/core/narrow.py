"""float16 and bfloat16 for NumPy on the host: arrays cast to and fro, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.dtypes import BFLOAT16


def bits_of(values: np.ndarray) -> np.ndarray:
    """float32 or float64 rounded to bfloat16, as the 16 bits of each number."""
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
    """Bits of float32 that remember, in the last one, whether anything was cut off.

    Rounding to nearest twice could go wrong at a tie; after this, the second time is right.
    """
    bits = single.view(np.uint32)
    away = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = bits - away.astype(np.uint32)  # towards zero
    exact = bits.view(np.float32).astype(np.float64) == values
    return bits | (~exact & np.isfinite(values)).astype(np.uint32)


def cast(values: Any, dtype: np.dtype) -> np.ndarray:
    """`values` as an array of `dtype`, from or to bfloat16 as well."""
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
