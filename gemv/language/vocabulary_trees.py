"""The part of :mod:`gemv.language.vocabulary` for sums that a lane adds up, and takes from others.

The sums of a group of columns, one for each row of a lane, are a piece of `width` numbers.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def fold(sums, rows):
    """One sum for each of `rows` from its partial sums, which are added in pairs."""


@declared
def fold_pieces(sums, width):
    """One piece of `width` sums from several pieces, which are added in pairs as by :func:`fold`.

    Sum k of a piece is added to sum k of another. There are as many pieces as a power of two.
    """


@declared
def pieces_of(sums, first, count, width):
    """`count` pieces of `width` sums from piece `first` on; both are constants."""


@declared
def add_each(left, right):
    """``left[k] + right[k]`` for each k."""


@declared
def sums_of_lane(values, lane):
    """`values` of another lane of the warp. All 32 lanes must come here together."""
