"""Products with any number of vectors, of which each shard multiplies up to 16 at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gemv.core.batch import MOST_VECTORS
from gemv.core.operand import Operand, part_of
from gemv.shards.cut import Whole
from gemv.shards.places import Fabric
from gemv.shards.product import Product
from gemv.shards.products import Products
from gemv.shards.steps import Shard, Step, Target


class _Group(NamedTuple):
    """A product, and which vectors it multiplies."""

    product: Product
    first: int
    vectors: int

    def of(self, operand: Operand) -> Operand:
        """The part of x or y with its vectors; a single vector has one dimension."""
        if len(operand.shape) == 1:
            return operand
        start, length = self.first * operand.strides[0], operand.shape[1]
        if self.vectors == 1:
            return part_of(operand, start, (length,), (1,))
        return part_of(operand, start, (self.vectors, length), operand.strides)


class Groups:
    """What multiplies a given number of vectors: one product after the other, each for a group.

    A group has at most :data:`MOST_VECTORS` vectors, or one where no kernel takes several.

    Parameters
    ----------
    products : Products
        From where each group gets its product.
    count : int
        The number of vectors.
    """

    def __init__(self, products: Products, count: int) -> None:
        self._groups: list[_Group] = []
        for first in range(0, count, MOST_VECTORS):
            some = min(MOST_VECTORS, count - first)
            product = products.of(some)
            step = product.vectors
            self._groups += [_Group(product, k, step) for k in range(first, first + some, step)]
        self._product = self._groups[0].product

    @property
    def rows(self) -> int:
        return self._product.rows

    @property
    def in_parts(self) -> list[tuple[Any, int]]:
        """As :attr:`Product.in_parts`, for each vector."""
        return self._product.in_parts

    @property
    def places(self) -> list[Any]:
        return self._product.places

    def settle(self) -> None:
        """Wait until the memory of all launches is as these expect it."""
        self._product.settle()

    def run(self, x: Operand, targets: list[Target], streams: list[tuple[int | None, int]]) -> None:
        """As :meth:`Product.run`."""
        for group in self._groups:
            group.product.run(group.of(x), _targets(group, targets), streams)

    def apart(self, x: Operand, targets: list[Target]) -> list[tuple[Step, Callable[[], None]]]:
        """As :meth:`Product.apart`; none as well where one product comes behind another."""
        return self._product.apart(x, targets) if len(self._groups) == 1 else []

    def run_in_parts(
        self, x: Operand, parts: list[Target], streams: list[tuple[int | None, int]]
    ) -> None:
        """As :meth:`Product.run_in_parts`."""
        for group in self._groups:
            group.product.run_in_parts(group.of(x), _targets(group, parts), streams)


def _targets(group: _Group, targets: list[Target]) -> list[Target]:
    return [Target(group.of(y), own) for y, own in targets]


def groups_apart(
    whole: Whole, fabric: Fabric, shards: tuple[Shard, ...], reproducible: bool,
    objection: str | None, trans: int, count: int,
) -> Groups:  # fmt: skip
    """Products with streams and memory of their own: others may run at the same time."""
    other = fabric.another()
    mine = tuple(
        shard._replace(place=place) for shard, place in zip(shards, other.places, strict=True)
    )
    return Groups(Products(whole, other, mine, trans, reproducible, objection), count)
