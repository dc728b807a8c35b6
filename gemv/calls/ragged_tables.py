"""Products of different sizes: the tables of their launches in device memory, and the launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gemv.core import trace
from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.engines.tables import Tables
from gemv.selection.ragged import Group, groups
from gemv.selection.select import Choice

_WORD = np.dtype(np.int64)


class Packed(NamedTuple):
    """Arrays as one stretch of bytes, each from a multiple of 16 bytes on."""

    bytes: np.ndarray
    #: For each array where it begins, its length, and its dtype.
    places: list[tuple[int, int, np.dtype]]

    def part(self, number: int, memory: Operand) -> Operand:
        """One of the arrays in device memory that has a copy of the bytes."""
        first, count, dtype = self.places[number]
        owner = memory.owner
        if isinstance(owner, np.ndarray):  # the simulator's device memory
            owner = owner.view(np.uint8)[first : first + count * dtype.itemsize].view(dtype)
        return memory._replace(
            dtype=dtype, shape=(count,), strides=(1,), pointer=memory.pointer + first, owner=owner
        )


def packed(arrays: Sequence[np.ndarray]) -> Packed:
    """Copy arrays of one dimension into one stretch of bytes."""
    places, end = [], 0
    for array in arrays:
        places.append((end, array.size, array.dtype))
        end += ceil_div(array.nbytes, LOAD_BYTES) * LOAD_BYTES
    flat = np.zeros(end, np.uint8)
    for array, (first, _, _) in zip(arrays, places, strict=True):
        flat[first : first + array.nbytes] = array.view(np.uint8)
    return Packed(flat, places)


class Launches(NamedTuple):
    """What computes products of different sizes, as long as their matrices stay where they are.

    Attributes
    ----------
    groups : list of Group
        In the order in which they are launched; an item's number counts these products alone.
    a : list of Operand
        The matrices.
    constants : Packed
        For each group two arrays: its table, and the items of its blocks.
    """

    groups: list[Group]
    a: list[Operand]
    constants: Packed


def planned(
    engine: Any, routine: str, problems: Sequence[Problem], a: list[Operand], x: list[Operand],
    y: list[Operand],
) -> Launches:  # fmt: skip
    """Select and load kernels, and fill in tables, for `problems` at these places.

    Operands begin at element 0.
    """
    placed = [
        problem.at(own_a.pointer, own_x.pointer)
        for problem, own_a, own_x in zip(problems, a, x, strict=True)
    ]
    places = [
        tuple(operand.pointer % operand.dtype.itemsize for operand in own)
        for own in zip(a, x, y, strict=True)
    ]
    try:
        found = groups(placed, places, engine.device())
    except ValueError as error:
        raise ValueError(f"{routine}: {error}") from None
    arrays: list[np.ndarray] = []
    for group in found:
        table = group.table.copy()
        table[:, group.words.index("a")] = _distances([a[k] for k in group.items])
        arrays += [table.reshape(-1), np.zeros(0, _WORD) if group.blocks is None else group.blocks]
    if engine.name == "cuda":
        for choice in {group.choice.spec: group.choice for group in found}.values():
            engine.load(choice, engine.device())
    return Launches(found, a, packed(arrays))


def _distances(operands: Sequence[Operand]) -> np.ndarray:
    """How many elements behind the first of them each begins."""
    first, size = operands[0].pointer, operands[0].dtype.itemsize
    return np.array([(operand.pointer - first) // size for operand in operands], _WORD)


def variables(
    launches: Launches, x: Sequence[Operand], y: Sequence[Operand], alphas: Sequence[Any],
    betas: Sequence[Any],
) -> Packed:  # fmt: skip
    """For each group what a call brings: places of x and y, then alpha and beta of each item."""
    arrays: list[np.ndarray] = []
    for group in launches.groups:
        factors = group.problem.precision.factors
        own = [_distances([vectors[k] for k in group.items]) for vectors in (x, y)]
        arrays.append(np.stack(own, axis=1).reshape(-1))
        arrays += [np.array([each[k] for k in group.items], factors) for each in (alphas, betas)]
    return packed(arrays)


class BoundLaunch(NamedTuple):
    """One launch with everything it is given; both stretches of bytes are in device memory."""

    choice: Choice
    problem: Problem
    alpha: Operand
    a: Operand
    x: Operand
    beta: Operand
    y: Operand
    tables: Tables


def bound(
    launches: Launches, constants: Operand, changing: Packed, memory: Operand,
    x: Sequence[Operand], y: Sequence[Operand],
) -> list[BoundLaunch]:  # fmt: skip
    """The launches for these operands; `constants` and `memory` have copies of the tables.

    The first launch comes behind all work before it. So does one whose blocks leave sums in memory
    that the launches share; the others run beside each other.
    """
    made = []
    for number, group in enumerate(launches.groups):
        table, blocks = (launches.constants.part(2 * number + k, constants) for k in range(2))
        places, alpha, beta = (changing.part(3 * number + k, memory) for k in range(3))
        arrays = {"table": table, "places": places, "blocks": blocks}
        own = [[operands[k] for k in group.items] for operands in (launches.a, x, y)]
        first_a, first_x, first_y = (operands[0] for operands in own)
        has_sums = group.choice.geometry.scratch > 0
        made.append(
            BoundLaunch(
                group.choice,
                group.problem,
                alpha,
                first_a,
                first_x,
                beta,
                first_y,
                Tables(arrays, own[0], own[1], own[2], number > 0 and not has_sums),
            )  # fmt: skip
        )
    return made


def run(engine: Any, bound_launches: Sequence[BoundLaunch], stream: Any) -> None:
    """Enqueue the launches, with a number of calls that does not depend on that of the items."""
    for each in bound_launches:
        _enqueue(engine, each, stream)


def _enqueue(engine: Any, launch: BoundLaunch, stream: Any) -> None:
    choice, problem, alpha, a, x, beta, y, tables = launch
    engine.run(choice, problem, alpha, a, x, beta, y, stream=stream, tables=tables)


def branches(engine: Any, bound_launches: Sequence[BoundLaunch]) -> Any:
    """The launches as one graph, for calls that find everything where it is now.

    None where :func:`run` is to be used: for a single launch, for launches whose blocks leave sums
    in memory that they share, and in the simulator.
    """
    shares = any(each.choice.geometry.scratch for each in bound_launches)
    if len(bound_launches) < 2 or shares:
        return None
    with trace.silent():
        return engine.branches([partial(_enqueue, engine, each) for each in bound_launches])


def run_branches(
    engine: Any, bound_launches: Sequence[BoundLaunch], made: Any, stream: int
) -> None:
    """Enqueue the launches by their graph."""
    made.launch(stream)
    if trace.open_traces():
        for choice, *_ in bound_launches:
            trace.record(
                backend=engine.name, kernel=choice.kernel.name, knobs=choice.knobs,
                geometry=choice.geometry, coefficients=choice.coefficients,
            )  # fmt: skip
