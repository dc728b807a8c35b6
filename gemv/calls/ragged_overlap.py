"""Whether results that are written in place would change other arrays of the call."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

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
    stretches: dict[tuple[int, int, bool], tuple[int, str, Operand]] = {}
    for k, (own_a, own_x, own_y) in enumerate(zip(a, x, y, strict=True)):
        for name, operand in (("a", own_a), ("x", own_x), ("y", own_y)):
            if operand is None or 0 in operand.shape:
                continue
            written = name == "y" and in_place[k]
            if name == "y" and not written:
                continue
            key = (*_bounds(operand), written)
            if key in stretches and written:
                _refuse(routine, k, "y", stretches[key])
            stretches.setdefault(key, (k, name, operand))
    open_: list[tuple[int, int, bool]] = []
    for key in sorted(stretches):
        while open_ and open_[0][0] <= key[0]:
            heappop(open_)
        k, name, operand = stretches[key]
        for end, first, written in open_:
            other = stretches[first, end, written]
            if not (written or key[2]) or not overlap(_view(operand), _view(other[2])):
                continue
            if key[2]:
                _refuse(routine, k, name, other)
            _refuse(routine, other[0], other[1], (k, name, operand))
        heappush(open_, (key[1], key[0], key[2]))


def _refuse(routine: str, k: int, name: str, other: tuple[int, str, Operand]) -> None:
    raise value_error(
        of_item(routine, k), "y", f"y overlaps {other[1]} of item {other[0]} in memory, so"
        " overwrite_y=1 would change it on the way",
    )  # fmt: skip


def _view(operand: Operand) -> np.ndarray:
    if operand.on_host:
        return np.asarray(operand.owner)
    if len(operand.shape) == 2:
        return matrix_view(operand)
    return vector_view(operand, operand.shape[0], 0, operand.strides[0])


def _bounds(operand: Operand) -> tuple[int, int]:
    """The addresses of its first byte and of the one behind its last."""
    view = _view(operand)
    low, high = np.lib.array_utils.byte_bounds(view)
    return int(low), int(high)
