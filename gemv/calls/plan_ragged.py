""":class:`BatchPlan`: products of different sizes, bound to their arrays, launched many times."""

from __future__ import annotations

from typing import Any

from gemv.calls import ragged_run
from gemv.calls.ragged import Product
from gemv.calls.result import note_written
from gemv.core import memo
from gemv.core.rules import of_item
from gemv.engines import backend as engines_backend


class BatchPlan:
    """A product of a :class:`gemv.Batch` with the same vectors each time; ``Batch.plan`` makes one.

    Calling it computes ``y := alpha*op(A)*x + beta*y`` for each item. Sizes, addresses and factors
    are in tables on the device, so a call copies nothing and may be captured into a graph. The plan
    keeps references to all arrays, and must live as long as a graph that contains its launches.
    """

    def __init__(
        self, product: Product, xs: list[Any], ys: list[Any], known: dict[Any, Any], stream: Any
    ) -> None:
        for k, (x, y) in enumerate(zip(product.x, product.y, strict=True)):
            self._check(product.matrices.routine, k, x, y, product.in_place[k])
        self._product, self._xs, self._ys = product, xs, ys
        self._y = [y for y in product.y if y is not None]
        self._known, self._stream = known, stream
        self._ready = self._prepared()

    @staticmethod
    def _check(routine: str, k: int, x: Any, y: Any, in_place: bool) -> None:
        item = of_item(routine, k)
        if x.conj or x.neg:
            raise TypeError(
                f"{item}: x is a lazy conjugate or negative: call its resolve_conj() and"
                " resolve_neg()"
            )
        if y is None or not in_place:
            raise TypeError(f"{item}: a plan writes to y, which cannot be written to")

    def _prepared(self) -> tuple[int, Any]:
        """The launches, with their tables on the device, and the settings they follow from."""
        generation = memo.generation()
        product = self._product
        if engines_backend.backend() == "host":
            raise ragged_run.needs_engine(product)
        engine = engines_backend.engine()
        with engine.on(product.matrices.device):
            order = ragged_run.order_of(product, engine, self._stream, each=False)
            ragged_run.refuse_capture(product.matrices.routine, order)
            prepared = ragged_run.prepare(product, self._y, engine, order, self._known)
            order.before()
            prepared.upload(engine, order, finish=True)
        return generation, prepared

    def __call__(self, *, stream: Any = None) -> list[Any]:
        """Launch the product.

        Parameters
        ----------
        stream : stream, optional
            In place of the stream of the plan. Without both it is the current one of the library
            of the first matrix.

        Returns
        -------
        list of arrays
            All of `ys`.
        """
        generation, prepared = self._ready
        if generation != memo.generation():
            self._ready = generation, prepared = self._prepared()
        product, engine = self._product, engines_backend.engine()
        with engine.on(product.matrices.device):
            named = self._stream if stream is None else stream
            order = ragged_run.order_of(product, engine, named, each=False)
            if prepared.kept is not None:
                order.uses(prepared.memory)
                order.uses(prepared.kept.constants)
            order.before()
            prepared.launch(engine, order.stream)
            order.after()
        for k in product.computed:
            note_written(self._y[k])
        return list(self._ys)

    def __repr__(self) -> str:
        return f"<gemv.BatchPlan of {len(self._ys)} products>"
