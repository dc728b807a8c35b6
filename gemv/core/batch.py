"""A batch: one product after the other over leading dimensions, by strides; nothing is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.problem import Problem

#: The operands that may differ from item to item, in the order of :attr:`Batch.strides`.
OPERANDS = ("a", "x", "y", "alpha", "beta")

#: How many vectors are multiplied by a matrix at once, where a caller has more.
MOST_VECTORS = 16


def aligned_step(length: int) -> int:
    """Elements from one of several vectors to the next; each is then as aligned as the first.

    It is a multiple of :data:`LOAD_BYTES` elements, and so of as many bytes for any dtype. The
    padding of a wide dtype could be shorter, but this one is the same for all dtypes.
    """
    return ceil_div(length, LOAD_BYTES) * LOAD_BYTES


class Batch(NamedTuple):
    """The items of a batch, each of which is the same :class:`~gemv.core.problem.Problem`.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the leading dimensions, the outermost first.
    strides : tuple of tuple of int
        For each of :data:`OPERANDS`, the distance in elements from item to item along each of these
        dimensions. 0 where all items share the operand, as they do a number.
    conjugate_x : bool
        Whether the elements of x are conjugated as they are read.
    """

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    conjugate_x: bool = False

    @property
    def items(self) -> int:
        """The number of items."""
        return math.prod(self.shape)

    def of(self, name: str) -> tuple[int, ...]:
        """The strides of one of :data:`OPERANDS`."""
        return self.strides[OPERANDS.index(name)]

    def different(self, name: str) -> int:
        """How many different elements, vectors or matrices an operand has for all items."""
        pairs = zip(self.shape, self.of(name), strict=True)
        return math.prod(length if step or not length else 1 for length, step in pairs)

    def collapsed(self) -> Batch:
        """The same items in the same order, with as few dimensions as describe them, at least one.

        Two neighbouring dimensions are one if that leads every operand to the same places.
        """
        lengths: list[int] = []
        steps: list[tuple[int, ...]] = []
        for length, *own in zip(self.shape, *self.strides, strict=True):
            if length == 1:
                continue
            if lengths and all(
                outer == inner * length for outer, inner in zip(steps[-1], own, strict=True)
            ):
                lengths[-1] *= length
                steps[-1] = tuple(own)
            else:
                lengths.append(length)
                steps.append(tuple(own))
        if not lengths:
            lengths, steps = [1], [(0,) * len(self.strides)]
        return Batch(tuple(lengths), tuple(zip(*steps, strict=True)), self.conjugate_x)

    def with_longest_last(self) -> Batch:
        """The same items in another order: the longest dimension is the innermost one."""
        order = sorted(range(len(self.shape)), key=self.shape.__getitem__)
        strides = tuple(tuple(own[k] for k in order) for own in self.strides)
        return self._replace(shape=tuple(self.shape[k] for k in order), strides=strides)

    def parts(self, dimensions: int, most: int) -> Iterator[tuple[Batch, tuple[int, ...]]]:
        """Batches of so many dimensions and of at most so many items, which together are this one.

        Each comes with the distances in elements from the first item of this batch to its own, for
        each of :data:`OPERANDS`.
        """
        inner = self.items // self.shape[0] if self.shape[0] else 0
        if len(self.shape) <= dimensions and inner <= most:
            step = max(most // max(inner, 1), 1)
            for first in range(0, self.shape[0], step):
                length = min(step, self.shape[0] - first)
                part = self._replace(shape=(length, *self.shape[1:]))
                yield part, tuple(first * own[0] for own in self.strides)
            return
        rest = self._replace(shape=self.shape[1:], strides=tuple(own[1:] for own in self.strides))
        for index in range(self.shape[0]):
            for part, further in rest.parts(dimensions, most):
                start = (index * own[0] for own in self.strides)
                yield part, tuple(map(sum, zip(start, further, strict=True)))


def bytes_moved(problem: Problem, batch: Batch, beta_is_zero: bool) -> int:
    """Bytes that perfect products move: what items share once, y twice unless beta is 0.

    Arrays of factors count as well.
    """
    size, factor = problem.dtype.itemsize, problem.precision.factors.itemsize
    y_bytes = problem.rows * problem.y_dtype.itemsize * (1 if beta_is_zero else 2)
    return (
        batch.different("a") * problem.rows * problem.cols * size
        + batch.different("x") * problem.cols * size
        + batch.items * y_bytes
        + sum(batch.different(name) * factor for name in ("alpha", "beta") if any(batch.of(name)))
    )


def broadcast_shapes(named: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape of leading dimensions, by the rules of broadcasting.

    Raises
    ------
    ValueError
        With the names and lengths of the first two that disagree.
    """
    rank = max(map(len, named.values()))
    found: list[int] = []
    for place in range(-rank, 0):
        first, length = "", 1
        for name, shape in named.items():
            own = shape[place] if len(shape) >= -place else 1
            if own == 1 or own == length:
                continue
            if length != 1:
                raise ValueError(
                    f"dimension {place + rank} of the batch is {length} for {first} but {own} for"
                    f" {name}"
                )
            first, length = name, own
        found.append(length)
    return tuple(found)


def broadcast_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """The strides of an array with these leading dimensions as one with the `wanted` ones."""
    missing = len(wanted) - len(shape)
    own = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    return (0,) * missing + tuple(own)


def items_overlap(
    shape: tuple[int, ...], strides: tuple[int, ...], length: int, step: int, width: int = 1
) -> bool:
    """Whether vectors of `length` elements, `step` apart, may share memory between two items.

    An element takes `width` of the units that strides are counted in: 1 element, or some bytes.
    True as well for interleaved items of which that is not plain to see.
    """
    dimensions = [(abs(s), n) for n, s in zip((*shape, length), (*strides, step), strict=True)]
    reach = width - 1
    for stride, count in sorted((s, n) for s, n in dimensions if n > 1):
        if stride <= reach:
            return True
        reach += stride * (count - 1)
    return False
