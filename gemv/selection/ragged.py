"""Launches for products of different sizes: those of one kernel and one set of constants together.

Each product has the kernel of a batch of one item, and so its bits. Most have a kernel of
:mod:`gemv.kernels.lists` in its place, which has the same order of sums and takes items of all
sizes in one launch. Of the others, those whose kernels are compiled alike share a launch. Blocks
find their item in tables that this module fills in, all but the addresses: see
:mod:`gemv.kernels.tables`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gemv.core.batch import OPERANDS, Batch
from gemv.core.geometry import MAX_GRID_X, Device, Geometry, Launch
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.kernel import Kernel
from gemv.kernels.list_blocks import shared_out_to_blocks
from gemv.kernels.list_shares import BLOCKS_FIRST, shared_out
from gemv.kernels.spec import Spec
from gemv.kernels.tables import (
    BY_BLOCK,
    BY_GRID,
    BY_WARP,
    columns,
    geometry_by_block,
    geometry_by_grid,
)
from gemv.selection.batches import MOST_COUNTERS, MOST_ITEMS, MOST_SCRATCH_BYTES, select_item
from gemv.selection.select import Choice, as_computed

#: A batch of one item, for which the kernel is chosen.
_ONE = Batch((1,), ((0,),) * len(OPERANDS))
_HOMES = ("pointer", "pointer")
#: Why most products have a kernel for lists.
_TOGETHER = "products of many sizes: each warp has an equal stretch of them"
#: Rows of all items of a launch together, which are counted in 31 bits. Those of one item, and its
#: columns, with a kernel for lists.
MOST_ROWS = MAX_GRID_X


#: Words of a table that are fields of a problem.
_OF_PROBLEM = ("rows", "cols", "row_stride", "col_stride", "incx", "incy")


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
    table : ndarray of int64, shape (len(slots), len(words))
        The word ``a`` is 0: the addresses decide it.
    blocks : ndarray of int64 or None
        The place in `items` of the product of each block, where blocks are listed. Of a kernel for
        lists, what each warp does in each turn: a row of the table, times 2**32, and a row of y.
    slots : ndarray of int64
        For each row of the table, the place in `items` of its product. It has its x and y, its
        alpha and beta.
    singles : list of Choice
        For each item, the kernel of a single product whose sums it has.
    """

    choice: Choice
    problem: Problem
    items: list[int]
    words: tuple[str, ...]
    table: np.ndarray
    blocks: np.ndarray | None
    slots: np.ndarray
    singles: list[Choice]


class _Item(NamedTuple):
    """A product with its kernel, before it is known who shares the launch.

    `together` are the choice of a kernel for lists with the same sums, and the words of its table
    that follow from these.
    """

    number: int
    problem: Problem
    choice: Choice
    repeats: tuple[int, int] | None
    together: tuple[Choice, list[dict[str, int]]] | None


def groups(
    problems: Sequence[Problem], places: Sequence[tuple[int, ...]], device: Device
) -> list[Group]:
    """The launches that compute `problems`, those with most bytes first.

    `places` tells for each problem what its addresses must have in common with those of its group:
    distances between A's, x's and y's are counted in elements.
    """
    found: dict[tuple, list[_Item]] = {}
    known: dict[Problem, _Item] = {}
    specs = _Specs()
    for number, (given, place) in enumerate(zip(problems, places, strict=True)):
        if given not in known:
            problem = as_computed(given, device)
            known[given] = _Item(0, problem, *_of_one(problem, device, specs))
        _, *rest = item = known[given]
        choice, grid = item.choice, None
        if item.together is not None:
            choice, _ = item.together
        else:
            # Blocks of a grid find their item by blockIdx.z, so that all have the same grid.
            launches = choice.geometry.launches
            grid = launches if item.repeats is None else launches[0].grid[1:]
        # Equal specs are one object, which is compared faster than its fields.
        key = (choice.kernel.name, id(choice.spec), grid, place)
        found.setdefault(key, []).append(tuple.__new__(_Item, (number, *rest)))
    made = [group for items in found.values() for group in _of_items(items, device)]
    return sorted(made, key=lambda group: -_bytes(group, problems))


class _Specs:
    """Specs for tables, made once for all items whose kernels are compiled alike."""

    def __init__(self) -> None:
        #: By the id of the spec that it is made from, which is kept beside it; and by itself.
        self._from: dict[tuple, tuple[Spec, Spec]] = {}
        self._made: dict[Spec, Spec] = {}

    def of(self, spec: Spec, by: str, knobs: tuple[tuple[str, int], ...]) -> Spec:
        key = (id(spec), by, knobs)
        if key not in self._from:
            made = dataclasses.replace(spec, knobs=knobs, table=by)
            self._from[key] = spec, self._made.setdefault(made, made)
        return self._from[key][1]

    def of_list(self, kernel: Kernel, problem: Problem) -> Spec:
        """The spec of a kernel for lists, which depends on nothing but dtypes and conjugation."""
        own = kernel.spec(problem, None, _HOMES)
        made = dataclasses.replace(own, table=BY_WARP, sparse=False)
        return self._made.setdefault(made, made)


def _of_one(
    problem: Problem, device: Device, specs: _Specs
) -> tuple[Choice, tuple[int, int] | None, tuple[Choice, list[dict[str, int]]] | None]:
    """The choice for one product, with constants that many share; how its grid repeats.

    And the choice for a list of such products, if there is one.
    """
    kernel, spec, geometry, reason = select_item(problem, _ONE, device, None, _HOMES)
    knobs, pairs, repeats = dict(spec.knobs), spec.knobs, None
    if kernel.x_home(knobs) != "pointer":
        raise ValueError(f"kernel {kernel.name!r} moves x, so it computes no batches")
    in_one_pass = not geometry.scratch and len(geometry.launches) == 1
    is_counted = max(problem.rows, problem.cols) <= MOST_ROWS
    if in_one_pass and is_counted and kernel.in_lists is not None:
        found = kernel.in_lists(problem, knobs)
        if found is not None:
            of_list, words = get(found[0]), found[1]
            together = Choice(of_list, specs.of_list(of_list, problem), geometry, _TOGETHER)
            return Choice(kernel, spec, geometry, reason), None, (together, words)
    if in_one_pass and kernel.in_tables is not None:
        knobs = kernel.in_tables(problem, knobs)
        pairs, geometry = tuple(sorted(knobs.items())), kernel.geometry(problem, device, knobs)
    if in_one_pass and kernel.repeats is not None:
        repeats = kernel.repeats(problem, knobs)
    by = BY_BLOCK if repeats else BY_GRID
    return Choice(kernel, specs.of(spec, by, pairs), geometry, reason), repeats, None


def _of_items(items: list[_Item], device: Device) -> list[Group]:
    """The launches for items whose kernels are compiled alike."""
    if items[0].together is not None:
        return [_by_warp(items, device)]
    made: list[Group] = []
    while items:
        group = _by_grid(items) if items[0].repeats is None else _by_block(items)
        made.append(group)
        items = items[len(group.items) :]
    return made


def _by_grid(items: list[_Item]) -> Group:
    """A launch for as many of these items, the first ones, as one can take."""
    size = items[0].problem.precision.sums.itemsize
    starts: list[tuple[int, int]] = []
    scratch = counters = 0
    for item in items[:MOST_ITEMS]:
        geometry, before = item.choice.geometry, (scratch, counters)
        scratch, counters = scratch + geometry.scratch, counters + geometry.counters
        if starts and (scratch * size > MOST_SCRATCH_BYTES or counters > MOST_COUNTERS):
            break
        starts.append(before)
    taken = items[: len(starts)]
    geometry = geometry_by_grid([item.choice.geometry for item in taken])
    of_scratch, of_counters = np.array(starts, np.int64).T
    return _group(taken, geometry, None, {"scratch": of_scratch, "counters": of_counters})


def _by_block(items: list[_Item]) -> Group:
    """A launch for as many of these items, the first ones, as one can take."""
    rows_before: list[int] = []
    ends: list[int] = []
    end = 0
    for item in items:
        assert item.repeats is not None
        blocks, rows = item.repeats
        begin = -(-end // blocks) * blocks  # those left free see that they have no rows
        before = begin // blocks * rows
        (launch,) = item.choice.geometry.launches
        if ends and max(begin + launch.grid[0], before + item.problem.rows) > MOST_ROWS:
            break
        rows_before.append(before)
        if ends:
            ends[-1] = begin
        end = begin + launch.grid[0]
        ends.append(end)
    taken = items[: len(ends)]
    listed = np.repeat(np.arange(len(ends), dtype=np.int64), np.diff(ends, prepend=0))
    geometry = geometry_by_block(items[0].choice.geometry, end)
    return _group(taken, geometry, listed, {"rows_before": np.array(rows_before, np.int64)})


def _by_warp(items: list[_Item], device: Device) -> Group:
    """The launch of a kernel for lists: its tiles are shared out to what fits on the GPU."""
    assert items[0].together is not None
    choice = items[0].together[0]
    kernel, knobs = choice.kernel, choice.knobs
    # Rows of the table: for each item, one or more with words of their own.
    own = [words for item in items if item.together is not None for words in item.together[1]]
    counts = [len(item.together[1]) for item in items if item.together is not None]
    slots = np.repeat(np.arange(len(items), dtype=np.int64), counts)
    problems = [item.problem for item in items]
    columns = {
        name: np.array([getattr(problem, name) for problem in problems], np.int64)[slots]
        for name in _OF_PROBLEM
    }
    columns |= {name: np.array([each[name] for each in own], np.int64) for name in own[0]}
    columns["a"] = np.zeros(len(own), np.int64)
    assert kernel.tiles_of is not None
    tiles = kernel.tiles_of(columns, choice.spec)
    begin = columns.get("begin", np.zeros_like(tiles.tiles))
    row_bytes = columns["cols"] * problems[0].dtype.itemsize
    costs = tiles.rows * row_bytes // tiles.warps + tiles.wait * tiles.passes
    (launch,) = kernel.geometry(problems[0], device, knobs).launches
    of_block = launch.block[0] // 32
    fitting = device.multiprocessors * tiles.blocks * of_block
    if tiles.order == BLOCKS_FIRST:
        begun, row, each = shared_out_to_blocks(
            tiles.tiles, tiles.rows, costs, tiles.warps, fitting, tiles.together
        )
    else:
        begun, row, each = shared_out(
            tiles.tiles, tiles.rows, costs, fitting, tiles.together, tiles.order
        )
    entries = np.where(begun < 0, -1, (begun << 32) + row + begin[begun])
    takers, turns = begun.shape
    table = np.stack([columns[word] for word in kernel.words], axis=1)
    # Behind the items come those with which warps begin, so that each finds its own at once.
    starts = np.maximum(begun[:, 0], 0)
    geometry = Geometry(
        (Launch((-(-takers // of_block), 1, 1), launch.block),),
        {"takers": takers, "turns": turns, "items": len(own), "each": each},
    )
    said = "one item" if len(items) == 1 else f"{len(items)} items"
    choice = choice._replace(geometry=geometry, reason=f"{choice.reason}; {said} in one launch")
    return Group(
        choice, problems[0], [item.number for item in items], kernel.words,
        np.concatenate([table, table[starts]]), entries.reshape(-1),
        np.concatenate([slots, slots[starts]]), [item.choice for item in items],
    )  # fmt: skip


def _table(
    words: tuple[str, ...], items: list[_Item], given: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The words of all items.

    `given` has the word ``scratch`` and ``counters``, or ``rows_before``: the number of the first
    row that the blocks of an item compute.
    """
    problems = [item.problem for item in items]
    none = np.zeros(len(items), np.int64)
    before = given.get("rows_before", none)
    columns = {
        name: np.array([getattr(problem, name) for problem in problems], np.int64)
        for name in _OF_PROBLEM
    }
    sizes = [item.choice.geometry.sizes for item in items]
    columns |= {name: np.array([own[name] for own in sizes], np.int64) for name in sizes[0]}
    columns |= {
        "a": none,
        "scratch": given.get("scratch", none),
        "counters": given.get("counters", none),
        "a_shift": -before * columns["row_stride"],
        "y_shift": -before * columns["incy"],
        "rows": columns["rows"] + before,
    }
    return np.stack([columns[word] for word in words], axis=1)


def _words(choice: Choice) -> tuple[str, ...]:
    """The columns of the table."""
    spec = dataclasses.replace(choice.spec, table="")
    return columns(choice.kernel.functions(spec), choice.spec.table)


def _group(
    items: list[_Item], geometry: Geometry, blocks: np.ndarray | None,
    given: Mapping[str, np.ndarray],
) -> Group:  # fmt: skip
    choice = items[0].choice
    words = _words(choice)
    table = _table(words, items, given)
    said = "one item" if len(items) == 1 else f"{len(items)} items"
    choice = choice._replace(geometry=geometry, reason=f"{choice.reason}; {said} in one launch")
    numbers, slots = [item.number for item in items], np.arange(len(items), dtype=np.int64)
    singles = [item.choice for item in items]
    return Group(choice, items[0].problem, numbers, words, table, blocks, slots, singles)


def _bytes(group: Group, problems: Sequence[Problem]) -> int:
    return sum(problems[k].bytes_moved(True) for k in group.items)
