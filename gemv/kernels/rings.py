"""Copies of rows of A into rings of shared memory, one for each warp or for a few of them.

A ring has room for several *stages*: what the lanes of a warp multiply at a time. While a warp
computes with one stage, its copies for the next ones are on their way.

A lane of a row has one vector of 16 bytes in each of its loads, and several *sharers*, threads that
all need it. They share its copies: each takes some. In a stage, the vectors of all lanes of a warp
for one load of one row are neighbours, so that lanes read and write different banks.

Down the columns a block has one ring, of which each thread reads only what it has copied itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from gemv.core.geometry import LOAD_BYTES


def across(vectors: int, sharers: int) -> int:
    """Of the sharers of a lane, how many take different vectors of one row; others take rows."""
    return gcd(vectors, sharers)


def _source(rows: int, vectors: int, sharers: int, full: bool) -> str:
    """The source of the two functions of :func:`row_copies`."""
    wide = across(vectors, sharers)
    inner = ["def inner_copies(ring, place, a, at, stride, room):"]
    edge = ["def edge_copies(ring, place, a, at, stride, room, rows_left):"]
    for row in range(0, rows, sharers // wide):
        for vector in range(0, vectors, wide):
            there = f"place + {row * vectors + vector} * COPIED, a, at + {row} * stride"
            copy = f"ring, {there} + {vector} * STEP"
            # Columns end behind the first lane's last vector, so only the last ones may lack.
            whole = full or vector + wide < vectors
            within = "True" if whole else f"{vector} * STEP <= room"
            inner.append(
                f"    copy_async({copy})" if whole else f"    copy_or_zeros({copy}, {within})"
            )
            edge.append(f"    copy_or_zeros({copy}, {within} and {row} < rows_left)")
    return "\n".join(inner + edge)


def row_copies(
    rows: int, vectors: int, sharers: int, step: int, copied: int, full: bool
) -> tuple[Callable, Callable]:
    """Two functions that begin what a thread copies of a stage, in which a lane has `rows` rows.

    A lane has `vectors` vectors of a row, `step` elements apart in A and `copied` elements apart in
    the ring; without `full` some lanes lack the last one. ``inner_copies(ring, place, a, at,
    stride, room)`` takes the places of the thread's first vector in the ring and in A, and the
    elements between rows. It writes zeros for vectors that begin more than `room` columns behind
    the first one. So does ``edge_copies(..., rows_left)``, and for rows that are at least
    `rows_left` rows behind the first one.
    """
    from gemv.language import copy_async, copy_or_zeros, device

    scope = {
        "STEP": step, "COPIED": copied, "copy_async": copy_async, "copy_or_zeros": copy_or_zeros,
    }  # fmt: skip
    exec(_source(rows, vectors, sharers, full), scope)
    return device(scope["inner_copies"]), device(scope["edge_copies"])


def column_copies(columns: int, pieces: int, copied: int) -> tuple[Callable, Callable]:
    """Two functions that begin what a thread copies of `columns` columns, in which it has `pieces`.

    ``all_copies(ring, place, a, starts, at, step)`` takes the place of the thread's first vector in
    the ring, where those of a piece are `copied` elements apart for one column after the other; the
    rows where pieces start; and in A the first column and the elements between columns.
    ``some_copies(..., left)`` writes zeros from column `left` on.
    """
    from gemv.language import copy_async, copy_or_zeros, device

    whole = ["def all_copies(ring, place, a, starts, at, step):"]
    some = ["def some_copies(ring, place, a, starts, at, step, left):"]
    for k in range(columns):
        for piece in range(pieces):
            there = f"ring, place + {(piece * columns + k) * copied}, a, starts[{piece}] + at"
            whole.append(f"    copy_async({there})")
            some.append(f"    copy_or_zeros({there}, {k} < left)")
        for lines in (whole, some):
            lines.append("    at += step")
    scope: dict = {"copy_async": copy_async, "copy_or_zeros": copy_or_zeros}
    exec("\n".join(whole + some), scope)
    return device(scope["all_copies"]), device(scope["some_copies"])


def shares_copies(rows: int, vectors: int, sharers: int) -> bool:
    """Whether the sharers of a lane can share its copies evenly."""
    return rows % (sharers // across(vectors, sharers)) == 0


def stage_vectors(rows: int, vectors: int, sharers: int) -> int:
    """Vectors of 16 bytes in a stage, of the lanes of a warp in which each has so many sharers."""
    return rows * vectors * (32 // sharers)


def ring_bytes(stages: int, rows: int, vectors: int, sharers: int, rings: int) -> int:
    """Bytes of so many rings."""
    return rings * stages * stage_vectors(rows, vectors, sharers) * LOAD_BYTES
