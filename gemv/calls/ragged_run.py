"""Lists of products of different sizes: a call is computed, and its results handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gemv.arrays.adopt import on_device
from gemv.calls import memory_check, ragged_known, ragged_tables
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.calls.ragged import Product
from gemv.calls.ragged_tables import BoundLaunch, Launches, Packed
from gemv.calls.result import NewY, make_y, new_vector, notes_written
from gemv.core import memo
from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.operand import Operand, parts_of, where
from gemv.core.problem import Problem
from gemv.core.rules import of_item
from gemv.engines import backend as engines_backend

#: Of the memory that tables lie in: a dtype that arrays of every library can have.
_WORD = np.dtype(np.float64)


def execute(
    product: Product, stream: Any, known: dict[Any, Any] | None = None, together: bool = False,
    remember: Callable[[Prepared], None] | None = None,
) -> list[Any]:  # fmt: skip
    """Compute a call with arrays on the device; y of each item, or the new ones.

    `known` are launches of earlier calls with the same matrices. `together` means one new y for all
    items, one behind the other, in a list. `remember` is told the launches, whose tables are on the
    device by then.
    """
    if not product.matrices.a:
        return []
    if engines_backend.backend() == "host":
        raise needs_engine(product)
    engine = engines_backend.engine()
    own = product.matrices
    with engine.on(own.device):
        product = plain(product)
        order = order_of(product, engine, stream)
        refuse_capture(own.routine, order)
        made, y = _targets(product, engine, order, 1 if together else LOAD_BYTES)
        if memory_check.FULL and engine.name == "cuda":
            memory_check.check(own.routine, order.operands, engine.memory_at)
        prepared = prepare(product, y, engine, order, known)
        order.before()
        prepared.upload(engine, order, finish=remember is not None)
        if remember is not None:
            remember(prepared)
        _fill(product, made, y, engine, order)
        prepared.launch(engine, order.stream)
        order.after()
        if together and made is not None:
            end = sum(problem.rows for problem in own.problems)
            return [made.vector.finish(engine, order.stream)[:end]]
        return _handed_out(product, made, engine, order)


def needs_engine(product: Product) -> TypeError:
    a = product.matrices.a[0]
    return TypeError(
        f"{of_item(product.matrices.routine, 0)}: a is {where(a)}, but the backend is host, which"
        ' takes host arrays only; call gemv.use_backend("cuda") or copy the arrays to the host'
    )


class Kept(NamedTuple):
    """The launches of a batch that stays, with their tables on the device.

    `made_on` is the stream of this memory: see :meth:`Order.made_on`.
    """

    launches: Launches
    constants: Operand
    made_on: int | None


class Prepared(NamedTuple):
    """A product of device arrays that is ready: its launches, with memory for their tables.

    Attributes
    ----------
    kept : Kept or None
        None where nothing is computed.
    is_new : bool
        Whether its tables have to be copied to the device.
    keep : callable or None
        Keeps `kept` for later calls; called once its tables are on the device.
    memory : Operand
        What varies from call to call.
    changing : Packed
        The same on the host.
    launches : list of BoundLaunch
    made_on : int or None
        The stream of `memory`: see :meth:`Order.made_on`.
    """

    kept: Kept | None
    is_new: bool = False
    keep: Callable[[], Any] | None = None
    memory: Any = None
    changing: Any = None
    launches: Sequence[BoundLaunch] = ()
    made_on: int | None = None

    def stay(self, order: Order) -> None:
        """Take the memory of an earlier call into the order of this one."""
        if self.kept is not None:
            order.stays(self.memory, self.made_on)
            order.stays(self.kept.constants, self.kept.made_on)

    def upload(self, engine: Any, order: Order, finish: bool = False) -> None:
        """Enqueue the copies of the tables, behind what the memory was used for before."""
        if self.kept is None:
            return
        if self.is_new:
            constants = self.kept.launches.constants.bytes
            # What stays is there for later calls on any stream; nobody waits for other tables.
            finish_all = finish or self.keep is not None
            engine.upload(constants, self.kept.constants, order.stream, finish_all)
        if self.keep is not None:
            self.keep()
        engine.upload(self.changing.bytes, self.memory, order.stream, finish)

    def launch(self, engine: Any, stream: int) -> None:
        """Enqueue all launches."""
        ragged_tables.run(engine, self.launches, stream)


def refuse_capture(routine: str, order: Order) -> None:
    """Refuse a stream that is being captured: a graph would copy the tables in every replay."""
    if order.capture_here() is not None:
        raise RuntimeError(
            f"{routine}: the stream is being captured, where sizes and addresses of the items"
            " cannot be copied to the device: make a plan of a gemv.Batch before, and call the plan"
        )


def plain(product: Product) -> Product:
    """The product with vectors that are as they lie in memory: lazy ones are written out."""
    if not any([own is not None and (own.conj or own.neg) for own in (*product.x, *product.y)]):
        return product
    y = [
        own if own is None or in_place else _written_out(own)
        for own, in_place in zip(product.y, product.in_place, strict=True)
    ]
    return product._replace(x=[_written_out(own) for own in product.x], y=y)


def _written_out(operand: Operand) -> Operand:
    if not (operand.conj or operand.neg):
        return operand
    return on_device(operand.exporter.resolved(operand.origin, False), engines_backend.HOME)


def order_of(product: Product, engine: Any, stream: Any) -> Order:
    """The stream of the call: that of the first A that has elements, or the one passed."""
    call, further = ordered(product)
    return Order(call, engine, stream, further)


def ordered(product: Product) -> tuple[Call, list[tuple[str, Operand]]]:
    """What the stream of a call follows from: an item, and the operands of all others."""
    own, first = product.matrices, _first(product)
    x, y = product.x, product.y
    operands = [
        (name, operand)
        for k, a in enumerate(own.a)
        if k != first
        for name, operand in (("a", a), ("x", x[k]), ("y", y[k]))
        if operand is not None
    ]
    return _call(product, first), operands


def alike(operands: Sequence[tuple[str, Operand]]) -> list[tuple[str, Operand]]:
    """One of all operands that are ordered alike, for a caller that keeps the others alive."""
    return list(
        {
            (id(o) if o.exporter.ordered_by_export else o.kind, o.stream, o.device): (name, o)
            for name, o in operands
        }.values()
    )


def _first(product: Product) -> int:
    """The number of the first A that has elements, or 0."""
    return next((k for k, a in enumerate(product.matrices.a) if 0 not in a.shape), 0)


def _call(product: Product, k: int) -> Call:
    """An item as a single call, for what asks for one."""
    own, y = product.matrices, product.y[k]
    return Call(
        routine=own.routine, blas_name="", problem=own.problems[k], alpha=product.alphas[k],
        beta=product.betas[k], a=own.a[k], x=product.x[k], y=y, y_object=None, offx=0, offy=0,
        incy=1, in_place=product.in_place[k], nothing=None, homes=("pointer", "pointer"),
        owner=None,
    )  # fmt: skip


class _Made(NamedTuple):
    """New memory for the results that are not written in place: where each begins, its length."""

    vector: NewY
    starts: list[int]
    lengths: list[int]


def _targets(
    product: Product, engine: Any, order: Order, step: int
) -> tuple[_Made | None, list[Operand]]:
    """Where each result goes: its y, or a part of one new vector, at multiples of `step`."""
    own = product.matrices
    starts, lengths, end = [], [], 0
    for problem, in_place in zip(own.problems, product.in_place, strict=True):
        if not in_place:
            starts.append(end)
            lengths.append(problem.rows)
            end += -(-problem.rows // step) * step
    if not starts:
        return None, [y for y in product.y if y is not None]
    call = _call(product, _first(product))
    whole = call.problem._replace(rows=max(end, 1))
    made = _Made(make_y(call._replace(y=None, problem=whole), engine, order), starts, lengths)
    new = iter(parts_of(made.vector.operand, starts, lengths))
    targets = [
        y if in_place and y is not None else next(new)
        for y, in_place in zip(product.y, product.in_place, strict=True)
    ]
    return made, targets


def prepare(
    product: Product, y: Sequence[Operand], engine: Any, order: Order,
    known: dict[Any, Any] | None,
) -> Prepared:  # fmt: skip
    """Select kernels, load them, and make memory for their tables; nothing is enqueued."""
    computed = product.computed
    if not computed:
        return Prepared(None)
    own = product.matrices
    a, x, y = ([each[k] for k in computed] for each in (own.a, product.x, y))
    problems = [own.problems[k] for k in computed]
    first = _call(product, computed[0])
    kept, keep = None, None
    if known is not None:
        signature = _signature(computed, problems, x, y)
        kept = known.get(signature)
    is_new = kept is None
    if kept is None:
        find = ragged_known.groups
        launches = ragged_tables.planned(engine, own.routine, problems, a, x, y, find)
        constants = _memory(first, engine, order, launches.constants)
        kept = Kept(launches, constants, order.made_on(constants))
        if known is not None:
            keep = partial(keep_newest, known, signature, kept)
    else:
        order.stays(kept.constants, kept.made_on)
    alphas, betas = ([each[k] for k in computed] for each in (product.alphas, product.betas))
    changing = ragged_tables.variables(kept.launches, x, y, alphas, betas)
    memory = _memory(first, engine, order, changing)
    bound = ragged_tables.bound(kept.launches, kept.constants, changing, memory, x, y)
    return Prepared(kept, is_new, keep, memory, changing, bound, order.made_on(memory))


#: Launches that a batch keeps, for vectors that lie otherwise in memory.
_MOST_KNOWN = 8


def keep_newest(known: dict[Any, Any], signature: tuple, kept: Any) -> None:
    """Keep launches for later calls, the newest few of the settings as they are now.

    A signature begins with :func:`gemv.core.memo.generation`.
    """
    for other in list(known):
        if other[0] != signature[0] or len(known) >= _MOST_KNOWN:
            known.pop(other, None)
    known.setdefault(signature, kept)


def _memory(call: Call, engine: Any, order: Order, packed: Packed) -> Operand:
    """Device memory for packed arrays, from the library of A."""
    return new_vector(call, engine, order, ceil_div(packed.bytes.size, _WORD.itemsize), _WORD)[1]


def _signature(
    computed: list[int], problems: list[Problem], x: list[Operand], y: list[Operand]
) -> tuple:
    """What the choice of kernels and their tables follow from, for the same matrices."""
    return (
        memo.generation(),
        tuple(computed),
        tuple(
            [
                (p.incx, p.incy, own_x.pointer % LOAD_BYTES, own_y.pointer % LOAD_BYTES)
                for p, own_x, own_y in zip(problems, x, y, strict=True)
            ]
        ),
    )


def _fill(
    product: Product, made: _Made | None, y: Sequence[Operand], engine: Any, order: Order
) -> None:
    """Enqueue the first values of new results: copies of the y that were passed, or zeros."""
    if made is None:
        return
    computed = set(product.computed)
    needed = [
        k
        for k, in_place in enumerate(product.in_place)
        if not in_place and (k not in computed or product.betas[k] != 0)
    ]
    if any(product.y[k] is None for k in needed):
        made.vector.fill(engine, order.stream)
    for k in needed:
        own = product.y[k]
        if own is not None and own.shape[0]:
            engine.copy(own, y[k], order.stream)


def _handed_out(product: Product, made: _Made | None, engine: Any, order: Order) -> list[Any]:
    """The results: each y that was overwritten, and parts of the new vector."""
    y, in_place = product.y, product.in_place
    written = [own for k in product.computed if in_place[k] and (own := y[k]) is not None]
    for note in notes_written(written):
        note()
    new: Iterator[Any] = iter(())
    if made is not None:
        whole, vector = made.vector.finish(engine, order.stream), made.vector
        new = iter(vector.exporter.parts(whole, made.starts, made.lengths))
    return [
        own.origin if is_written and own is not None else next(new)
        for own, is_written in zip(y, in_place, strict=True)
    ]
