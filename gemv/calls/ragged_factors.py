"""Arguments of a list of products with one value for all items, or with one for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gemv.arrays.adopt import is_device_array, rank_of
from gemv.core.rules import coefficient, number, of_item, type_error, value_error


def for_each(routine: str, name: str, value: Any, count: int) -> list[Any]:
    """One value for all items, or a sequence with one for each."""
    if isinstance(value, str) or not (isinstance(value, range) or rank_of(value) == 1):
        return [value] * count
    if is_device_array(value):
        raise type_error(
            routine,
            name,
            f"{name} is an array on a device; pass a number, or a sequence of {count} numbers on"
            " the host",
        )
    if len(value) != count:
        raise value_error(
            routine, name, f"{name} has {len(value)} values, but there are {count} matrices"
        )
    return list(value)


def converted(
    routine: str, name: str, values: list[Any], convert: Callable[[str, str, Any], Any]
) -> list[Any]:
    """``convert(item, name, value)`` of each value; once for items that have the same object."""
    known: dict[int, Any] = {}
    for k, value in enumerate(values):
        if id(value) not in known:
            known[id(value)] = convert(of_item(routine, k), name, value)
    return [known[id(value)] for value in values]


#: Types of numbers that :func:`~gemv.core.rules.number` gives back as they are.
_NUMBERS = frozenset((int, float, complex, np.float32, np.float64, np.complex64, np.complex128))
#: Those that NumPy converts to any dtype of factors one by one as it does many; for complex ones.
_REAL = frozenset((float, np.float32, np.float64))
_ANY = _REAL | {complex, np.complex64, np.complex128}


def number_of(routine: str, name: str, values: Any, count: int) -> list[Any]:
    """Factors as numbers, before the dtype of the products is known."""
    listed = for_each(routine, name, values, count)
    if _NUMBERS.issuperset(map(type, listed)):
        return listed
    return converted(routine, name, listed, number)


def coefficients(routine: str, name: str, values: list[Any], dtype: np.dtype) -> np.ndarray:
    """Factors of all items in the dtype that they are computed with."""
    if (_ANY if dtype.kind == "c" else _REAL).issuperset(map(type, values)):
        with np.errstate(all="ignore"):
            return np.array(values, dtype)
    convert = partial(coefficient, dtype=dtype)
    return np.array(converted(routine, name, values, convert), dtype)
