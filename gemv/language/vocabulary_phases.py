"""The part of :mod:`gemv.language.vocabulary` for columns that begin anywhere in memory.

The *phase* of an address is how many elements it lies behind the last multiple of 16 bytes. A lane
loads the 16 aligned bytes around an element, whatever its phase, and multiplies all that they
bring. Its sums are then those of rows that lie `phase` before the ones it is to compute; the others
are in the next lane.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def stream_around(pointer, index, step, count, width, valid):
    """Load the vectors of 16 bytes around `count` elements, ``pointer[index + k*step]`` for all k.

    `width` is the elements of 16 bytes. Vector `valid` and those behind it are zeros, for which
    nothing is loaded. Memory is given out from multiples of 16 bytes on, so what a vector has
    before the array is in memory all the same, and may be anything. Behind the array there may be
    none: what a vector has there is loaded element by element, by
    :func:`~gemv.language.rows_inside`.
    """


@declared
def sums_from(sums, pointer, index, step, count, width):
    """`sums` of `count` vectors of :func:`stream_around`, moved to the rows from its elements on.

    Sum r of a vector becomes that of number ``phase + r`` of its own vector and that of the next
    lane, one after the other. The lane has the phase of ``pointer[index + k*step]`` for vector k,
    and the next lane has the same one. All 32 lanes of the warp must come here together.
    """
