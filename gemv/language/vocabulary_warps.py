"""The part of :mod:`gemv.language.vocabulary` for what all lanes of a warp decide alike.

The compiler knows that the lanes of a warp agree about a parameter, or about the number of the
block. It does not know that they agree about a word that a shuffle gave all of them. Then it takes
a branch for one that some lanes take and others do not: before each shuffle behind the branch, it
collects the lanes, and numbers that are the same in all lanes stay in the registers of each lane.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def of_warp(condition):
    """`condition`, about which all lanes of the warp agree: a vote, whose result is that of all.

    The compiler so learns that the whole warp takes a branch or none of it does. All 32 lanes must
    come here together.
    """


@declared
def any_of_warp(condition):
    """Whether `condition` is true in any lane of the warp, by the same vote."""
