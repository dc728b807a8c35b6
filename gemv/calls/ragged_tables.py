"""Products of different sizes: the tables of their launches in device memory, and the launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.operand import Operand
from gemv.core.problem import Problem, all_at
from gemv.engines.tables import PackedLaunch, Tables
from gemv.kernels.tables import BY_WARP
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
    y: list[Operand], find: Callable[..., list[Group]] = groups,
) -> Launches:  # fmt: skip
    """Select and load kernels, and fill in tables, for `problems` at these places.

    Operands begin at element 0. `find` is :func:`gemv.selection.ragged.groups`, or a function that
    remembers what it found.
    """
    starts = [[own.pointer for own in operands] for operands in (a, x, y)]
    sizes = [operands[0].dtype.itemsize for operands in (a, x, y)]
    placed = all_at(problems, *starts[:2])
    rests = [[start % size for start in own] for own, size in zip(starts, sizes, strict=True)]
    places = list(zip(*rests, strict=True))
    try:
        found = find(placed, places, engine.device())
    except ValueError as error:
        raise ValueError(f"{routine}: {error}") from None
    arrays: list[np.ndarray] = []
    a_starts = np.array(starts[0], np.int64)
    for group in found:
        table = group.table.copy()
        starts_of_rows = a_starts[group.items][group.slots]
        table[:, group.words.index("a")] = (starts_of_rows - a_starts[group.items[0]]) // sizes[0]
        arrays += [table.reshape(-1), np.zeros(0, _WORD) if group.blocks is None else group.blocks]
    if engine.name == "cuda":
        for choice in {group.choice.spec: group.choice for group in found}.values():
            engine.load(choice, engine.device())
    return Launches(found, a, packed(arrays))


def _distances(starts: np.ndarray, size: int) -> np.ndarray:
    """How many elements of `size` bytes behind the first of these addresses each of them is."""
    return (starts - starts[0]) // size


def variables(
    launches: Launches, x: Sequence[Operand], y: Sequence[Operand], alphas: Sequence[Any],
    betas: Sequence[Any],
) -> Packed:  # fmt: skip
    """For each group what a call brings: places of x and y, then alpha and beta of each item."""
    arrays: list[np.ndarray] = []
    starts = [np.array([own.pointer for own in vectors], np.int64) for vectors in (x, y)]
    sizes = [vectors[0].dtype.itemsize for vectors in (x, y)]
    factors = launches.groups[0].problem.precision.factors
    numbers = [np.asarray(each, factors) for each in (alphas, betas)]
    for group in launches.groups:
        items = np.array(group.items)[group.slots]
        of_both = zip(starts, sizes, strict=True)
        own = [_distances(each[items], size) for each, size in of_both]
        if group.choice.spec.table == BY_WARP:
            own.append((numbers[0][items] != 0).astype(_WORD))
        arrays.append(np.stack(own, axis=1).reshape(-1))
        arrays += [each[items] for each in numbers]
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
    for choice, problem, alpha, a, x, beta, y, tables in bound_launches:
        engine.run(choice, problem, alpha, a, x, beta, y, stream=stream, tables=tables)


def packed_launches(engine: Any, bound_launches: Sequence[BoundLaunch]) -> list[PackedLaunch]:
    """The launches packed, for calls that are made again: see :func:`run_packed`."""
    return [
        engine.packed(each.choice, each.problem, each.alpha, each.beta, each.tables)
        for each in bound_launches
    ]


def run_packed(
    packed: Sequence[PackedLaunch], bound_launches: Sequence[BoundLaunch], stream: int
) -> None:
    """As :func:`run`; A, x and y may be others than those that the launches were packed with."""
    for launch, bound in zip(packed, bound_launches, strict=True):
        launch(stream, bound.a, bound.x, bound.y, bound.tables)
