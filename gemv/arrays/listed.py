"""Many arrays of one library become operands together, without a call of Python for each.

An array that is unlike the others, or that must be refused, is left to :func:`gemv.arrays.adopt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from gemv.arrays import libraries
from gemv.arrays.adopt import Home, adopt
from gemv.core.operand import RANK, Operand
from gemv.core.rules import of_item

#: Addresses and lengths in bytes below this add up without an overflow of 64 bits.
_MOST_BYTES = 1 << 60


def adopt_all(routine: str, name: str, arrays: Sequence[Any], home: Home) -> list[Operand]:
    """The operands `name` of all items, as :func:`~gemv.arrays.adopt.adopt` makes each.

    Its errors name the item.
    """
    found = together(name, arrays, home)
    if found is not None:
        return found
    return [adopt(of_item(routine, k), name, each, None, home) for k, each in enumerate(arrays)]


def together(name: str, arrays: Sequence[Any], home: Home) -> list[Operand] | None:
    """The operands of device arrays of one class and dtype; None for any others."""
    if not arrays:
        return []
    try:
        library, place = libraries.exporter_of(arrays[0])
        views = library.read_all(arrays) if place == "device" else None
    except Exception:  # adopt() says which array it is, and what is wrong with it
        return None
    if views is None:
        return None
    dtype, shapes, strides, pointers, readonly, devices, conj, neg, keeps = views
    if not _exist(RANK[name], dtype, shapes, strides, pointers):
        return None
    owners = arrays if keeps[0] is None else keeps
    if devices is None and not isinstance(keeps[0], np.ndarray):
        devices = home.devices_of(pointers)
    return list(
        map(
            tuple.__new__, repeat(Operand),
            zip(
                repeat(library.name), repeat(dtype), shapes, strides, pointers, readonly, owners,
                repeat(None), repeat(None) if devices is None else devices, conj, neg, arrays,
                keeps, repeat(False), repeat(library),
            ),
        )
    )  # fmt: skip


def _exist(
    rank: int, dtype: np.dtype, shapes: list[tuple[int, ...]], strides: list[tuple[int, ...]],
    pointers: list[int],
) -> bool:  # fmt: skip
    """Whether arrays have the rank and lie where memory can be, aligned for their dtype."""
    if set(map(len, shapes)) != {rank} or set(map(len, strides)) != {rank}:
        return False
    lengths = np.array(shapes, np.int64)
    # In floats, which do not overflow: their rounding is far less than what is left to the limit.
    spans = (lengths - 1.0) * np.array(strides, np.int64) * dtype.itemsize
    first = np.array(pointers, np.int64)
    inside = (
        (first > 0)
        & (first < _MOST_BYTES)
        & (np.abs(spans).sum(axis=1) < _MOST_BYTES)
        & (first + np.minimum(spans, 0).sum(axis=1) > 0)
    )
    empty = (lengths == 0).any(axis=1) & (first >= 0)
    aligned = first % dtype.alignment == 0
    return bool(((inside | empty) & aligned & (lengths >= 0).all(axis=1)).all())
