""":class:`BatchPlan`: products of different sizes, bound to their arrays, launched many times."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemv.calls import ragged_run, ragged_tables
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.calls.ragged import Product
from gemv.calls.ragged_run import Prepared
from gemv.calls.result import notes_written
from gemv.core import memo
from gemv.core.operand import Operand
from gemv.core.rules import of_item
from gemv.engines import backend as engines_backend
from gemv.engines.tables import PackedLaunch


class _Ready(NamedTuple):
    """What a call of the plan needs, found once for all calls.

    Attributes
    ----------
    generation : int
        Of the settings from which the launches follow.
    prepared : Prepared
        The launches, with their tables on the device.
    packed : list of PackedLaunch
        The same, with all parameters but A, x and y where the driver reads them.
    """

    generation: int
    prepared: Prepared
    packed: list[PackedLaunch]


class BatchPlan:
    """A product of a :class:`gemv.Batch` with the same vectors each time; ``Batch.plan`` makes one.

    Calling it computes ``y := alpha*op(A)*x + beta*y`` for each item. Sizes, addresses and factors
    are in tables on the device, so a call copies nothing and may be captured into a graph. Its
    launches run beside each other. The plan
    keeps references to all arrays. It must live as long as a graph that contains its launches, and
    until its work on a stream that was named is done.
    """

    def __init__(
        self, product: Product, xs: list[Any], ys: list[Any], known: dict[Any, Any], stream: Any
    ) -> None:
        for k, (x, y) in enumerate(zip(product.x, product.y, strict=True)):
            self._check(product.matrices.routine, k, x, y, product.in_place[k])
        self._product, self._xs, self._ys = product, xs, ys
        self._y = [y for y in product.y if y is not None]
        self._known, self._stream = known, stream
        # No call looks at all operands: their number would be that of its steps.
        self._ordered = _ordered(product)
        self._device = product.matrices.device
        self._written = notes_written([self._y[k] for k in product.computed])
        self._before: list[_Ready] = []
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

    def _prepared(self) -> _Ready:
        """The launches for the settings as they are now."""
        generation = memo.generation()
        product = self._product
        if engines_backend.backend() == "host":
            raise ragged_run.needs_engine(product)
        engine = engines_backend.engine()
        with engine.on(self._device):
            order = self._order(engine, self._stream)
            ragged_run.refuse_capture(product.matrices.routine, order)
            prepared = ragged_run.prepare(product, self._y, engine, order, self._known)
            order.before()
            prepared.upload(engine, order, finish=True)
            packed = ragged_tables.packed_launches(engine, prepared.launches)
        return _Ready(generation, prepared, packed)

    def _order(self, engine: Any, stream: Any) -> Order:
        call, further = self._ordered
        return Order(call, engine, stream, further)

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
        ready = self._ready
        if ready.generation != memo.generation():
            self._before.append(ready)  # a graph may have captured its launches
            self._ready = ready = self._prepared()
        prepared, engine = ready.prepared, engines_backend.engine()
        with engine.on(self._device):
            order = self._order(engine, self._stream if stream is None else stream)
            prepared.stay(order)
            order.before()
            ragged_tables.run_packed(ready.packed, prepared.launches, order.stream)
            order.after()
        for note in self._written:
            note()
        return list(self._ys)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a gemv.BatchPlan can be neither pickled nor copied: it holds addresses of this"
            " process's GPU memory. Make another one with Batch.plan where it is needed"
        )

    def __repr__(self) -> str:
        return f"<gemv.BatchPlan of {len(self._ys)} products>"


def _ordered(product: Product) -> tuple[Call, list[tuple[str, Operand]]]:
    """An item, and one of all operands that are ordered alike: the plan keeps the others."""
    call, further = ragged_run.ordered(product)
    return call, ragged_run.alike(further)
