"""The part of :mod:`gemv.language.vocabulary` for lanes that add up what several groups have.

The sums of a group, such as the rows that it computes, are a piece of `width` numbers.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def fold_pieces(sums, width):
    """One piece of `width` sums from several pieces, which are added in pairs as by ``fold``.

    Sum k of a piece is added to sum k of another. There are as many pieces as a power of two.
    """


@declared
def add_trees(total, sums, groups):
    """`total` plus trees of `groups` pieces, in order, each added up as by :func:`fold_pieces`."""


@declared
def add_each(left, right):
    """``left[k] + right[k]`` for each k."""


@declared
def sums_of_lane(values, lane):
    """`values` of another lane of the warp. All 32 lanes must come here together."""
