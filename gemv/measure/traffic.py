"""The bytes that a call has to move, in whole 32-byte sectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemv.core.geometry import SECTOR_BYTES as SECTOR
from gemv.measure.frames import Layout


def sectors(first: int, nbytes: int, pieces: Sequence[tuple[int, int]] = ()) -> int:
    """32-byte sectors that an array touches.

    Parameters
    ----------
    first : int
        Address of its first byte.
    nbytes : int
        Of one contiguous piece.
    pieces : sequence of (count, distance), optional
        How often that is repeated, at how many bytes from one to the next, the smallest distance
        first: ``[(cols, 8), (rows, 4096)]`` for a matrix. Pieces do not overlap.
    """
    pieces = [(count, distance) for count, distance in pieces if count > 1]
    while pieces and pieces[0][1] <= nbytes + SECTOR - 1 and _seamless(first, nbytes, pieces[0]):
        count, distance = pieces.pop(0)
        nbytes += (count - 1) * distance
    if not pieces:
        return (first + nbytes - 1) // SECTOR - first // SECTOR + 1
    *inner, (count, distance) = pieces
    # The pattern of addresses repeats after so many pieces.
    period = SECTOR // math.gcd(SECTOR, distance)
    total = sectors(first, nbytes, inner)
    reach = nbytes + sum((number - 1) * step for number, step in inner)
    for phase in range(1, min(period, count - 1) + 1):
        start = first + phase * distance
        before = start - distance
        shared = (before + reach - 1) // SECTOR == start // SECTOR
        total += (sectors(start, nbytes, inner) - shared) * ((count - 1 - phase) // period + 1)
    return total


def _seamless(first: int, nbytes: int, piece: tuple[int, int]) -> bool:
    """Whether the gaps between pieces are too short to leave a sector untouched."""
    count, distance = piece
    period = SECTOR // math.gcd(SECTOR, distance)
    return all(
        (first + k * distance) // SECTOR - (first + (k - 1) * distance + nbytes - 1) // SECTOR <= 1
        for k in range(1, min(period, count - 1) + 1)
    )


def traffic(layout: Layout, beta: int) -> tuple[int, int]:
    """Bytes that a call has to read and to write, in whole sectors.

    Of a batch, that is ``items * (m*n + len(x) + len(y))`` numbers where nothing lies between
    them. A matrix that several vectors share is read once.
    """
    problem = layout.problem
    size = problem.dtype.itemsize
    steps = sorted(
        [(problem.rows, problem.row_stride * size), (problem.cols, problem.col_stride * size)],
        key=lambda piece: piece[1],
    )
    if layout.a_step:
        steps.append((layout.items, layout.a_step * size))
    a = sectors(layout.first * size, size, steps)
    x = sectors(layout.x_at, layout.items * problem.cols * size)
    y = sectors(layout.y_at, layout.items * problem.rows * size)
    return SECTOR * (a + x + (y if beta else 0)), SECTOR * y
