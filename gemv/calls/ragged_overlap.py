"""Whether results that are written in place would change other arrays of the call."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NoReturn

import numpy as np

from gemv.core.operand import Operand, matrix_view, overlap, vector_view
from gemv.core.rules import of_item, value_error


def check_overwrite(
    routine: str,
    a: Sequence[Operand],
    x: Sequence[Operand],
    y: Sequence[Operand | None],
    in_place: Sequence[bool],
) -> None:
    """Refuse a y that is written to and shares elements with another array of the call.

    Arrays are taken in the order of their addresses, each beside those that it may overlap.
    """
    if not any(in_place):
        return
    #: By address, end, whether it is written, and where its elements are in between.
    stretches: dict[tuple, tuple[int, str, Operand]] = {}
    for k, (own_a, own_x, own_y) in enumerate(zip(a, x, y, strict=True)):
        for name, operand in (("a", own_a), ("x", own_x), ("y", own_y)):
            if operand is None or 0 in operand.shape:
                continue
            written = name == "y" and in_place[k]
            if name == "y" and not written:
                continue
            key = (*_bounds(operand), written, operand.shape, operand.strides)
            if key in stretches and written:
                _refuse(routine, k, stretches[key])
            stretches.setdefault(key, (k, name, operand))  # a matrix that several items have, once
    reaching: list[tuple[int, tuple]] = []  # beyond the address that is looked at, by their ends
    for key in sorted(stretches):
        first, end, written, *_ = key
        while reaching and reaching[0][0] <= first:
            heappop(reaching)
        k, _, operand = stretches[key]
        for _, other in reaching:
            if (written or other[2]) and overlap(_view(operand), _view(stretches[other][2])):
                if written:
                    _refuse(routine, k, stretches[other])
                _refuse(routine, stretches[other][0], stretches[key])
        heappush(reaching, (end, key))


def _refuse(routine: str, k: int, other: tuple[int, str, Operand]) -> NoReturn:
    raise value_error(
        of_item(routine, k), "y", f"y overlaps {other[1]} of item {other[0]} in memory,"
        " and writing to y would change it on the way",
    )  # fmt: skip


def _view(operand: Operand) -> np.ndarray:
    if operand.on_host:
        return np.asarray(operand.owner)
    if len(operand.shape) == 2:
        return matrix_view(operand)
    return vector_view(operand, operand.shape[0], 0, operand.strides[0])


def _bounds(operand: Operand) -> tuple[int, int]:
    """The addresses of its first byte and of the one behind its last."""
    if operand.on_host:
        low, high = np.lib.array_utils.byte_bounds(_view(operand))
        return int(low), int(high)
    size = operand.dtype.itemsize
    first = last = operand.pointer
    for length, step in zip(operand.shape, operand.strides, strict=True):
        reach = (length - 1) * step * size
        if reach < 0:
            first += reach
        else:
            last += reach
    return first, last + size
