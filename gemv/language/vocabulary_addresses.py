"""The part of :mod:`gemv.language.vocabulary` for addresses, and pointers to other elements."""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def is_aligned(pointer, bytes_):
    """Whether the address `pointer` is a multiple of `bytes_`, a power of two."""


@declared
def elements_past(pointer, index, bytes_):
    """How many elements ``pointer[index]`` lies behind the last multiple of `bytes_` in memory.

    `bytes_` is a power of two, and elements are aligned to their own size.
    """


@declared
def moved(pointer, count):
    """A pointer to the element that lies `count` elements behind that of `pointer`."""


@declared
def conjugated(pointer):
    """A pointer to the same memory, through which complex elements are loaded as conjugates."""


@declared
def reading(pointer, old):
    """A pointer through which elements are stored like through `pointer`, and loaded from `old`.

    It is there for y, whose elements a kernel loads by ``pointer[index]``, :func:`load_back` or
    :func:`load_old`. It is aligned where both are.
    """
