"""Launches for products of different sizes: those of one kernel and one set of constants together.

Each product has the kernel of a batch of one item, and so its bits. Products whose kernels are
compiled alike share a launch. Its blocks find their item in tables that this module fills in, all
but the addresses: see :mod:`gemv.kernels.tables`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gemv.core.batch import OPERANDS, Batch
from gemv.core.geometry import MAX_GRID_X, Device, Geometry
from gemv.core.problem import Problem
from gemv.kernels.tables import (
    BY_BLOCK,
    BY_GRID,
    columns,
    geometry_by_block,
    geometry_by_grid,
)
from gemv.selection.batches import MOST_COUNTERS, MOST_ITEMS, MOST_SCRATCH_BYTES, select_item
from gemv.selection.select import Choice, as_computed

#: A batch of one item, for which the kernel is chosen.
_ONE = Batch((1,), ((0,),) * len(OPERANDS))
_HOMES = ("pointer", "pointer")
#: Rows of all items of a launch together, which are counted in 31 bits.
MOST_ROWS = MAX_GRID_X


class Group(NamedTuple):
    """The products of one launch.

    Attributes
    ----------
    choice : Choice
        The kernel with the launch for all of them.
    problem : Problem
        One of them.
    items : list of int
        Their numbers, in the order of the table.
    words : tuple of str
        Columns of the table: see :func:`gemv.kernels.tables.columns`.
    table : ndarray of int64, shape (len(items), len(words))
        The word ``a`` is 0: the addresses decide it.
    blocks : ndarray of int64 or None
        The place in `items` of the product of each block, where blocks are listed.
    """

    choice: Choice
    problem: Problem
    items: list[int]
    words: tuple[str, ...]
    table: np.ndarray
    blocks: np.ndarray | None


class _Item(NamedTuple):
    """A product with its kernel, before it is known who shares the launch."""

    number: int
    problem: Problem
    choice: Choice
    repeats: tuple[int, int] | None


def groups(
    problems: Sequence[Problem], places: Sequence[tuple[int, ...]], device: Device
) -> list[Group]:
    """The launches that compute `problems`, those with most bytes first.

    `places` tells for each problem what its addresses must have in common with those of its group:
    distances between A's, x's and y's are counted in elements.
    """
    found: dict[tuple, list[_Item]] = {}
    known: dict[Problem, tuple[Choice, tuple[int, int] | None]] = {}
    for number, (problem, place) in enumerate(zip(problems, places, strict=True)):
        problem = as_computed(problem, device)
        if problem not in known:
            known[problem] = _of_one(problem, device)
        choice, repeats = known[problem]
        # Blocks of a grid find their item by blockIdx.z, so that all have the same grid.
        launches = choice.geometry.launches
        grid = launches if repeats is None else launches[0].grid[1:]
        key = (choice.kernel.name, choice.spec, grid, place)
        found.setdefault(key, []).append(_Item(number, problem, choice, repeats))
    made = [group for items in found.values() for group in _of_items(items)]
    return sorted(made, key=lambda group: -_bytes(group, problems))


def _of_one(problem: Problem, device: Device) -> tuple[Choice, tuple[int, int] | None]:
    """The choice for one product, with constants that many share; how its grid repeats."""
    choice = select_item(problem, _ONE, device, None, _HOMES)
    kernel, repeats = choice.kernel, None
    if kernel.x_home(choice.knobs) != "pointer":
        raise ValueError(f"kernel {kernel.name!r} moves x, so it computes no batches")
    in_one_pass = not choice.geometry.scratch and len(choice.geometry.launches) == 1
    if in_one_pass and kernel.in_tables is not None:
        knobs = kernel.in_tables(problem, choice.knobs)
        spec = dataclasses.replace(choice.spec, knobs=tuple(sorted(knobs.items())))
        choice = choice._replace(spec=spec, geometry=kernel.geometry(problem, device, knobs))
    if in_one_pass and kernel.repeats is not None:
        repeats = kernel.repeats(problem, choice.knobs)
    by = BY_BLOCK if repeats else BY_GRID
    return choice._replace(spec=dataclasses.replace(choice.spec, table=by)), repeats


def _of_items(items: list[_Item]) -> list[Group]:
    """The launches for items whose kernels are compiled alike."""
    made: list[Group] = []
    while items:
        group = _by_grid(items) if items[0].repeats is None else _by_block(items)
        made.append(group)
        items = items[len(group.items) :]
    return made


def _by_grid(items: list[_Item]) -> Group:
    """A launch for as many of these items, the first ones, as one can take."""
    words = _words(items[0].choice)
    size = items[0].problem.precision.sums.itemsize
    own: list[list[int]] = []
    scratch = counters = 0
    for item in items[:MOST_ITEMS]:
        geometry = item.choice.geometry
        own_scratch, own_counters = scratch, counters
        scratch, counters = scratch + geometry.scratch, counters + geometry.counters
        if own and (scratch * size > MOST_SCRATCH_BYTES or counters > MOST_COUNTERS):
            break
        own.append(_row(words, item, scratch=own_scratch, counters=own_counters))
    taken = items[: len(own)]
    geometry = geometry_by_grid([item.choice.geometry for item in taken])
    return _group(taken, geometry, words, own, None)


def _by_block(items: list[_Item]) -> Group:
    """A launch for as many of these items, the first ones, as one can take."""
    words = _words(items[0].choice)
    own: list[list[int]] = []
    ends: list[int] = []
    end = 0
    for item in items:
        assert item.repeats is not None
        blocks, rows = item.repeats
        begin = -(-end // blocks) * blocks  # those left free see that they have no rows
        turns = begin // blocks
        (launch,) = item.choice.geometry.launches
        if own and max(begin + launch.grid[0], turns * rows + item.problem.rows) > MOST_ROWS:
            break
        own.append(_row(words, item, rows_before=turns * rows))
        if ends:
            ends[-1] = begin
        end = begin + launch.grid[0]
        ends.append(end)
    counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    listed = np.repeat(np.arange(len(own), dtype=np.int64), counts)
    geometry = geometry_by_block(items[0].choice.geometry, end)
    return _group(items[: len(own)], geometry, words, own, listed)


def _row(
    words: tuple[str, ...], item: _Item, rows_before: int = 0, scratch: int = 0, counters: int = 0
) -> list[int]:
    """The words of an item whose first row is number `rows_before` of its blocks."""
    problem, geometry = item.problem, item.choice.geometry
    values = {
        **problem.arguments(geometry),
        "rows": problem.rows + rows_before,
        "a": 0,
        "a_shift": -rows_before * problem.row_stride,
        "y_shift": -rows_before * problem.incy,
        "scratch": scratch,
        "counters": counters,
    }
    return [values[word] for word in words]


def _words(choice: Choice) -> tuple[str, ...]:
    """The columns of the table."""
    spec = dataclasses.replace(choice.spec, table="")
    return columns(choice.kernel.functions(spec), choice.spec.table)


def _group(
    items: list[_Item], geometry: Geometry, words: tuple[str, ...], own: list[list[int]],
    blocks: np.ndarray | None,
) -> Group:  # fmt: skip
    choice = items[0].choice
    choice = choice._replace(
        geometry=geometry, reason=f"{choice.reason}; {len(items)} items in one launch"
    )
    numbers = [item.number for item in items]
    table = np.array(own, np.int64).reshape(len(own), len(words))
    return Group(choice, items[0].problem, numbers, words, table, blocks)


def _bytes(group: Group, problems: Sequence[Problem]) -> int:
    return sum(problems[k].bytes_moved(True) for k in group.items)
