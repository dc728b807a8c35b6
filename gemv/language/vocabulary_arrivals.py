"""Device functions for sums that one block leaves for another: see :mod:`.vocabulary`."""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def post(pointer, index, value):
    """Store a sum for another block, at a place that is empty; no fence is needed.

    Empty memory is all ones. Whoever takes the sum sees all of it or nothing.
    """


@declared
def take(zero, pointer, index, step, count, valid):
    """Wait for the first `valid` of `count` posted sums, `step` apart, and empty their places.

    The others are `zero`, and nothing is loaded for them. Nobody may take before all blocks that
    post are sure to be running: a block that waits could keep another one from beginning.
    """


@declared
def take_rows(zero, pointer, index, step, count, valid, apart, rows, present):
    """:func:`take` for the first `present` of `rows` rows, which are `apart`: one wait for all.

    The sums of a row are neighbours in the result. `count` and `rows` are constants.
    """


@declared
def peek(pointer, index):
    """The counter ``pointer[index]`` as it is in the L2 cache, where atomics change it."""
