"""A batch and one vector for all its items: what stays from call to call is found once.

The items of such a vector, and of its result, are always equally far apart. So the tables that a
call would bring are those of the call before it, if both vectors are aligned alike, and only the
addresses at which they begin differ.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from gemv.calls import memory_check, ragged, ragged_run, ragged_tables
from gemv.calls.bind import Call
from gemv.calls.order import Order
from gemv.calls.ragged import Matrices
from gemv.calls.ragged_run import Prepared
from gemv.calls.ragged_tables import BoundLaunch
from gemv.calls.result import NewY, make_y
from gemv.core import memo
from gemv.core.geometry import LOAD_BYTES
from gemv.core.operand import Operand, part_of
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.engines.tables import PackedLaunch


class _Ready(NamedTuple):
    """What a call needs whose vectors are aligned as those of an earlier one.

    Attributes
    ----------
    prepared : Prepared
    packed : list of PackedLaunch
        The launches, with all parameters but A, x and y where the driver reads them.
    call : Call
        An item, for what asks for one; its x is replaced.
    further : list of (str, Operand)
        One of the matrices: all are ordered alike, and the batch keeps them.
    problems : list of Problem
        Of the items that are computed.
    x_starts, y_starts : list of int
        For each of these, the elements before its own in the vectors.
    rows : int
        The length of the result.
    zeros : bool
        Whether it has elements that no launch writes.
    """

    prepared: Prepared
    packed: list[PackedLaunch]
    call: Call
    further: list[tuple[str, Operand]]
    problems: list[Problem]
    x_starts: list[int]
    y_starts: list[int]
    rows: int
    zeros: bool


def execute(matrices: Matrices, x: Any, known: dict[Any, Any]) -> Any:
    """The product of device arrays with the vector `x`; `known` is what the batch remembers."""
    whole = ragged.whole(matrices, x)
    key = (memo.generation(), "together", whole.strides, whole.pointer % LOAD_BYTES)
    ready = known.get(key)
    if ready is not None and _takes(ready, whole):
        found = _again(ready, matrices, whole)
        if found is not None:
            return found
    parts = ragged.parts(matrices, whole)
    y: list[Any] = [None] * len(parts)
    product = ragged.bind_product(matrices, 1, parts, 0, y, False)
    if not _alike(matrices):
        return ragged_run.execute(product, None, known, True)[0]

    def remember(prepared: Prepared) -> None:
        ragged_run.keep_newest(known, key, _ready(product, prepared))

    return ragged_run.execute(product, None, known, True, remember)[0]


def _alike(matrices: Matrices) -> bool:
    """Whether one matrix stands for all in the order of a call, which holds none of them."""
    kinds = {(id(a.exporter), a.stream) for a in matrices.a}
    devices = {a.device for a in matrices.a if 0 not in a.shape}  # what is empty is on none
    library = matrices.a[0].exporter
    held = library.ordered_by_export or library.held_until_done
    return len(kinds) == 1 and len(devices) <= 1 and not held


def _ready(product: ragged.Product, prepared: Prepared) -> _Ready:
    call, further = ragged_run.ordered(product)
    computed, problems = product.computed, product.matrices.problems
    x_starts = [0, *accumulate(problem.cols for problem in problems)]
    y_starts = [0, *accumulate(problem.rows for problem in problems)]
    matrices = [each for each in further if each[0] == "a"]
    launches = [
        launch._replace(
            x=_bare(launch.x), y=_bare(launch.y),
            tables=launch.tables._replace(x=[], y=[]),
        )
        for launch in prepared.launches
    ]  # fmt: skip
    return _Ready(
        prepared._replace(launches=launches),
        ragged_tables.packed_launches(engines_backend.engine(), launches),
        call._replace(x=_bare(call.x)),
        ragged_run.alike(matrices), [problems[k] for k in computed],
        [x_starts[k] for k in computed], [y_starts[k] for k in computed], y_starts[-1],
        any(problem.rows and not problem.cols for problem in problems),
    )  # fmt: skip


def _bare(vector: Operand) -> Operand:
    """The operand without its memory, which must not live as long as the batch."""
    return vector._replace(owner=None, origin=None, keep=None)


def _takes(ready: _Ready, whole: Operand) -> bool:
    """Whether a vector is as those before: if not, the long way says what is wrong with it."""
    before, a = ready.call.x, ready.call.a
    return (
        engines_backend.backend() != "host"
        and not memory_check.FULL  # then each array is looked at
        and not whole.on_host
        and whole.dtype == before.dtype
        and (whole.device == a.device or None in (whole.device, a.device))
    )


def _again(ready: _Ready, matrices: Matrices, whole: Operand) -> Any:
    """The result; None where its memory is aligned unlike that of the earlier call."""
    prepared, engine = ready.prepared, engines_backend.engine()
    with engine.on(matrices.device):
        call = ready.call._replace(x=whole)
        order = Order(call, engine, None, ready.further)
        ragged_run.refuse_capture(matrices.routine, order)
        problem = call.problem._replace(rows=max(ready.rows, 1))
        made = make_y(call._replace(problem=problem), engine, order)
        launches = _moved(ready, engine, whole, made)
        if launches is None:
            return None
        prepared.stay(order)
        order.before()
        if ready.zeros:
            made.fill(engine, order.stream)
        ragged_tables.run_packed(ready.packed, launches, order.stream)
        order.after()
        return made.finish(engine, order.stream)[: ready.rows]


def _moved(ready: _Ready, engine: Any, whole: Operand, made: NewY) -> list[BoundLaunch] | None:
    """The launches of the earlier call, on these vectors."""
    (step,), y, kept = whole.strides, made.operand, ready.prepared.kept
    moved: list[BoundLaunch] = []
    if kept is None:
        return moved
    for group, launch in zip(kept.launches.groups, ready.prepared.launches, strict=True):
        first = group.items[0]
        y_at = ready.y_starts[first] * y.dtype.itemsize
        if (y.pointer + y_at - launch.y.pointer) % LOAD_BYTES:
            return None

        def x_of(k: int) -> Operand:
            return part_of(whole, ready.x_starts[k] * step, (ready.problems[k].cols,), (step,))

        def y_of(k: int) -> Operand:
            return part_of(y, ready.y_starts[k], (ready.problems[k].rows,), (1,))

        tables = launch.tables
        if engine.in_host_memory():  # the simulator follows no address
            x_of_all, y_of_all = ([of(k) for k in group.items] for of in (x_of, y_of))
            tables = tables._replace(x=x_of_all, y=y_of_all)
        moved.append(launch._replace(x=x_of(first), y=y_of(first), tables=tables))
    return moved
