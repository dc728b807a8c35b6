"""The part of :mod:`gemv.language.vocabulary` for rows that begin anywhere in memory.

A row is read by aligned vectors of 16 bytes, of which the first begins at the last multiple of 16
bytes before the row or at its start. The first and the last vector may have elements of no row,
which may be anything. No product with them goes to a sum.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def stream_rows(pointer, starts, index, step, count, width, valid):
    """Load aligned vectors of rows that begin at ``pointer[start]``, for each of `starts`.

    Vector k of a row begins ``index + k*step`` elements behind the last multiple of 16 bytes at the
    start of the row or before it; `width` is the elements of 16 bytes. Vector `valid` and those
    behind it are zeros, for which nothing is loaded. What a vector has before the array is in
    memory all the same, and may be anything: memory is given out from multiples of 16 bytes on.
    """


@declared
def rows_inside(pointer, starts, index, count, limit):
    """Load `count` neighbours of each row element by element, where memory may end behind the row.

    Element l is ``pointer[start + index + l]`` if ``0 <= index + l < limit``; otherwise it is zero,
    and nothing is loaded.
    """


@declared
def load_anywhere(pointer, index, step, count, width):
    """:func:`load_vectors` for vectors that begin at any element.

    Numbers of 2 bytes are loaded in pairs, aligned to 4 bytes. So the element before a vector may
    be read, or the one behind it, which must be inside the array.
    """


@declared
def load_inside(pointer, index, step, count, width, limit):
    """:func:`load_anywhere` with zeros for elements before ``pointer[0]``, and from `limit` on.

    Nothing at `limit` or behind it is read. `index` may be negative.
    """


@declared
def multiply_inside(sums, tile, x, index, step, width, limit, conjugate):
    """:func:`multiply_add` without the products of elements that belong to no row.

    Element l of vector k has the number ``index + k*step + l``, and belongs to a row if that is at
    least 0 and below `limit`.
    """


@declared
def add_across(sums, distance):
    """``sums[k] + sums[k ^ distance]`` for each k; the distance is a constant power of two."""


@declared
def fold_first(sums, rows, left):
    """The first of `left` sums of each of `rows`, to which its partial sums are added in pairs.

    It is :func:`fold` that ends when `left` sums are there, a power of two.
    """
