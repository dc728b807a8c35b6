"""The part of :mod:`gemv.language.vocabulary` for copies of A that no thread waits for.

A load brings numbers to registers, and the registers are taken from when the load begins. A copy
goes from memory to shared memory by itself. A thread begins as many as it likes, closes them in
*groups*, and waits for the oldest groups only when their numbers are needed.

The shared array is a *stage*: bytes, in which elements have the format that they have in memory. An
index counts elements of the array that is copied. Kernels need compute capability 8.0 for this.
"""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def copy_async(stage, index, pointer, at):
    """Begin to copy 16 bytes, the elements from ``pointer[at]`` on, to `index` of a stage.

    Both addresses are multiples of 16 bytes. Until the copy has been waited for, nothing may read
    or write its place.
    """


@declared
def copy_or_zeros(stage, index, pointer, at, present):
    """:func:`copy_async` where `present` is true; else 16 bytes of zeros, and nothing is read."""


@declared
def copy_one(stage, index, pointer, at):
    """Copy the element ``pointer[at]`` to `index` of a stage, by a load and a store."""


@declared
def copies_commit():
    """Close the group of the copies that this thread has begun since the group before.

    It may be empty, so that threads can count groups without asking what is in them.
    """


@declared
def copies_wait(pending):
    """Wait until only the last `pending` groups of this thread may still be on their way.

    `pending` is a constant. What other threads have copied is there behind a barrier.
    """


@declared
def prefetch(pointer, index, bytes_):
    """Ask for `bytes_` bytes from ``pointer[index]`` on in the L2 cache; nothing waits for them.

    The address and `bytes_` are multiples of 16. It needs compute capability 9.0.
    """


@declared
def staged_tile(stage, pointer, starts, index, step, count, width):
    """:func:`stream_tile` from a stage: the numbers that `pointer` would have loaded.

    Vector k of a row begins at ``start + index + k*step`` of the stage, a multiple of `width` in
    bytes as in elements.
    """


@declared
def staged_some(stage, pointer, starts, index, step, count, width, valid):
    """:func:`staged_tile` with zeros in place of vector `valid` of each row and those behind it.

    The stage is not read for these.
    """
