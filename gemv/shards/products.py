"""The products of one form of the matrix, for each number of vectors that is asked for."""

from __future__ import annotations

from gemv.shards.cut import Whole
from gemv.shards.memory import Memory
from gemv.shards.places import Fabric
from gemv.shards.product import Product
from gemv.shards.steps import Shard


class Products:
    """Products that are planned at first use and share memory for vectors; see :class:`Product`."""

    def __init__(
        self, whole: Whole, fabric: Fabric, shards: tuple[Shard, ...], trans: int,
        reproducible: bool, objection: str | None,
    ) -> None:  # fmt: skip
        self._arguments = (whole, fabric, shards, trans, reproducible, objection)
        self._memory = Memory()
        #: By the number of vectors that was asked for.
        self._known: dict[int, Product] = {}

    def of(self, vectors: int) -> Product:
        """The product of so many vectors at once, or of one where there is no kernel for that."""
        product = self._known.get(vectors)
        if product is None:
            product = Product(*self._arguments, self._memory, vectors)
            if product.vectors < vectors:
                product = self.of(1)
            self._known[vectors] = product
        return product
