"""Copies of rows of A into rings of shared memory, one for each warp.

A ring has room for several *stages*: what the lanes of a warp multiply at a time. While a warp
computes with one stage, its copies for the next ones are on their way. No other warp reads them, so
a barrier of the warp is enough.

A lane of a row has one vector of 16 bytes in each of its loads, and `parts` threads may share it.
They share its copies, too: thread `part` takes every `parts`-th one. In a stage, the vectors of all
lanes of a warp for one load of one row are neighbours, so that lanes read and write different
banks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from gemv.core.geometry import LOAD_BYTES


def across(vectors: int, parts: int) -> int:
    """Of the threads of a lane, how many take different vectors of one row; others take rows."""
    return gcd(vectors, parts)


def _source(rows: int, vectors: int, parts: int) -> str:
    """The source of the two functions of :func:`row_copies`."""
    wide = across(vectors, parts)
    all_of, some = [], []
    for row in range(0, rows, parts // wide):
        for vector in range(0, vectors, wide):
            there = f"place + {row * vectors + vector} * COPIED, a, at + {row} * stride"
            copy = f"ring, {there} + {vector} * STEP"
            all_of.append(f"    copy_async({copy})")
            some.append(f"    present = {vector} * STEP <= room and {row} * APART < rows_left")
            some.append(f"    copy_or_zeros({copy}, present)")
    lines = ["def all_copies(ring, place, a, at, stride):", *all_of]
    lines += ["def some_copies(ring, place, a, at, stride, room, rows_left):", *some]
    return "\n".join(lines)


def row_copies(
    rows: int, vectors: int, parts: int, step: int, apart: int, copied: int
) -> tuple[Callable, Callable]:
    """Two functions that begin what a thread copies of a stage of `rows` rows, `apart` apart.

    A lane has `vectors` vectors of a row, `step` elements apart. ``all_copies(ring, place, a, at,
    stride)`` takes the places of the thread's first one in the ring and in A, and the elements
    between rows of a lane. ``some_copies(..., room, rows_left)`` writes zeros for vectors that
    begin more than `room` columns behind the first one, and for rows that are at least `rows_left`
    rows behind it.
    """
    from gemv.language import copy_async, copy_or_zeros, device

    scope = {
        "STEP": step, "APART": apart, "COPIED": copied, "copy_async": copy_async,
        "copy_or_zeros": copy_or_zeros,
    }  # fmt: skip
    exec(_source(rows, vectors, parts), scope)
    return device(scope["all_copies"]), device(scope["some_copies"])


def shares_copies(rows: int, vectors: int, parts: int) -> bool:
    """Whether the threads of a lane can share its copies evenly."""
    return rows % (parts // across(vectors, parts)) == 0


def stage_vectors(rows: int, vectors: int, parts: int) -> int:
    """Vectors of 16 bytes that a stage of a warp has."""
    return rows * vectors * (32 // parts)


def ring_bytes(stages: int, rows: int, vectors: int, parts: int, threads: int) -> int:
    """Bytes of the rings of a block."""
    return threads // 32 * stages * stage_vectors(rows, vectors, parts) * LOAD_BYTES
