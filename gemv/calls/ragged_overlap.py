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
    if True not in in_place or _are_apart(a, x, y, in_place):
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


def _are_apart(
    a: Sequence[Operand], x: Sequence[Operand], y: Sequence[Operand | None],
    in_place: Sequence[bool],
) -> bool:  # fmt: skip
    """Whether no y that is written to lies, from its first byte to its last, beside another array.

    False as well for arrays that have to be looked at one by one: those in host memory.
    """
    written = [own for own, kept in zip(y, in_place, strict=True) if kept and own is not None]
    written, vectors, matrices = (
        [own for own in operands if 0 not in own.shape] for operands in (written, x, a)
    )
    if not written:
        return True
    if any([own.kind == "numpy" for own in (*written, *vectors, *matrices)]):
        return False
    first, end = np.hstack([_extents(each) for each in (written, vectors, matrices) if each])
    is_written = np.arange(len(first)) < len(written)
    order = np.argsort(first, kind="stable")
    first, end, is_written = first[order], end[order], is_written[order]
    # How far those before reach, and how far those before do that are written.
    reached = np.maximum.accumulate(end)[:-1]
    reached_by_written = np.maximum.accumulate(np.where(is_written, end, 0))[:-1]
    beside = (first[1:] < reached) & is_written[1:] | (first[1:] < reached_by_written)
    return not beside.any()


def _extents(operands: Sequence[Operand]) -> np.ndarray:
    """The addresses of :func:`_bounds` of device operands of one rank, in two rows."""
    first = np.array([own.pointer for own in operands], np.int64)
    sizes = np.array([own.dtype.itemsize for own in operands], np.int64)
    lengths = np.array([own.shape for own in operands], np.int64)
    steps = np.array([own.strides for own in operands], np.int64)
    reach = (lengths - 1) * steps * sizes[:, None]
    end = first + np.maximum(reach, 0).sum(axis=1) + sizes
    return np.stack([first + np.minimum(reach, 0).sum(axis=1), end])


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
