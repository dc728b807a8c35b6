"""The part of :mod:`gemv.language.vocabulary` for what stays in registers, and in no cache."""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def pass_tile(pointer, starts, index, step, count, width):
    """Load a tile as ``stream_tile`` does, by short loads that do not settle in the L1 cache.

    Its own short loads do, where a later load finds the rest of what came with them. Here other
    threads of the warp load the neighbours of a short vector at the same time, so that nothing is
    left for later, and the cache can keep x.
    """


@declared
def pass_some(pointer, starts, index, step, count, width, valid):
    """:func:`pass_tile` with zeros in place of vector `valid` of each row and those behind it."""


@declared
def kept(values):
    """`values`, once and for all: a loop that uses them does not compute them again in each turn.

    A compiler that is short of registers may keep numbers as they were loaded, and convert them
    wherever they are used.
    """


@declared
def gather_stored(pointer, index, step, count, increment, valid):
    """The numbers of ``gather_some`` with width 1, in registers as they are in memory.

    Whoever converts a number waits for it. A loop that loads numbers for a later turn keeps them as
    they are until then, and :func:`from_stored` converts them. Nothing else may be done with them.
    """


@declared
def from_stored(pointer, values):
    """The numbers that kernels compute with, of what `gather_stored` loaded by this pointer."""
