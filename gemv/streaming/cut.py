"""Cut a matrix in host memory into panels, which are copied to the device one by one.

The result has the bits of the call on a device array of the same shape and order. Every panel runs
the kernel, the compile-time constants and the split of the columns that were chosen for the whole
matrix, on a part of the blocks of its launch: only pointers and the number of rows or columns
differ, so every block adds the same numbers in the same order. There are two ways to cut.

Panels of rows of op(A)
    hold whole tiles of the grid's x. They do not depend on each other. If memory runs along the
    rows, such a panel is one stretch of memory; otherwise it is a strip of each column.

Panels of columns
    hold whole splits of the grid's y, where the kernel splits the sum. Their blocks leave partial
    sums in scratch memory, whose address is shifted for each panel, and count themselves. The panel
    of split 0 comes last: its address is not shifted, so the block that counts last finds the sums
    of all splits and adds them up as in a single launch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemv.core.dtypes import BFLOAT16
from gemv.core.geometry import PANEL_BYTES, Device, Geometry, ceil_div
from gemv.core.narrow import cast
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.selection.select import Choice

#: Rows of a strip are a multiple of this, so that wide loads of any width stay aligned.
STRIP = 16


@dataclass(frozen=True, slots=True)
class Panel:
    """Some rows or some columns of op(A).

    Attributes
    ----------
    row, rows, col, cols : int
        Its first row and how many it has; the same for columns.
    split, splits : int
        Its first split of the columns, and how many it has.
    pitch : int
        Elements from the start of one of its lines on the device to that of the next.
    """

    row: int
    rows: int
    col: int
    cols: int
    split: int
    splits: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Panels in the order in which they run.

    Attributes
    ----------
    way : str
        ``"whole"``, ``"rows"`` or ``"columns"``.
    panels : tuple of Panel
    panel_bytes : int
        Bytes of the largest panel on the device.
    """

    way: str
    panels: tuple[Panel, ...]
    panel_bytes: int

    @property
    def buffers(self) -> int:
        """Panels that are on the device at a time: one is copied while the other is read."""
        return min(2, len(self.panels))

    def describe(self, nbytes: int) -> str:
        """How A is copied to the device, in words."""
        if self.way == "whole":
            return f"A is copied from host memory in this call, {nbytes} bytes"
        return (
            f"A is streamed from host memory in this call, {nbytes} bytes in {len(self.panels)}"
            f" panels of {self.way}"
        )


def cut(
    problem: Problem, choice: Choice, room: int | None = None, target: int = PANEL_BYTES
) -> Cut | int:
    """The cut of a matrix in host memory; if none fits, how many bytes `room` lacks, as an int.

    Parameters
    ----------
    problem, choice
        Those of the whole product.
    room : int, optional
        Bytes of device memory for A, or for the two panels that are on the device.
    target : int
        Bytes that a panel should have.
    """
    size = problem.dtype.itemsize
    whole_bytes = problem.rows * problem.cols * size
    splits = choice.geometry.sizes.get("splits", 1)
    line = problem.cols if problem.access == "dot" else problem.rows
    whole = Panel(0, problem.rows, 0, problem.cols, 0, splits, line)
    fits = room is None or whole_bytes <= room
    if fits and whole_bytes <= target:
        return Cut("whole", (whole,), whole_bytes)
    ways = [_by_rows(problem, choice, whole, room, target)]
    if splits_apart(choice):
        ways.append(_by_columns(problem, choice, whole, room, target))
    # Panels that are one stretch of memory are copied fastest, so that way is tried first.
    in_stretches = "rows" if problem.access == "dot" else "columns"
    ways.sort(key=lambda each: 2 if isinstance(each, int) else each.way != in_stretches)
    best = ways[0]
    if fits and (isinstance(best, int) or best.way != in_stretches):
        return Cut("whole", (whole,), whole_bytes)
    if isinstance(best, int):
        return min(each for each in (*ways, whole_bytes - (room or 0)) if isinstance(each, int))
    return best


def tile_rows(choice: Choice, problem: Problem) -> int:
    """Rows that one block in the grid's x covers; a panel begins where a block does.

    If a block takes the rows of one phase, these are the rows of one block for each phase.
    """
    knobs = dict(choice.spec.knobs)
    phases = choice.geometry.sizes.get("phases", 1) if problem.access == "dot" else 1

    def blocks(rows: int) -> int:
        # Neither the device, which decides the split of the columns, nor a second launch, which has
        # a thread for each row, matters for this.
        geometry = choice.kernel.geometry(problem._replace(rows=rows * phases), _ANY, knobs)
        return geometry.launches[0].grid[0] // phases

    low, high = 1, ceil_div(problem.rows, phases)
    if blocks(high) == 1:
        return phases * (1 if blocks(_MANY) == 1 else high)
    while high - low > 1:  # the kernel only tells the number of blocks for a number of rows
        middle = (low + high) // 2
        low, high = (middle, high) if blocks(middle) == 1 else (low, middle)
    return phases * low


def _by_rows(
    problem: Problem, choice: Choice, whole: Panel, room: int | None, target: int
) -> Cut | int:
    step = tile_rows(choice, problem)
    along = problem.access == "dot"
    if not along:
        step = math.lcm(step, STRIP)
    widest = min(step, problem.rows) if along else step + _between(choice)
    unit = widest * problem.cols * problem.dtype.itemsize
    if room is not None and 2 * unit > room:
        return 2 * unit - room
    budget = target if room is None else min(target, room // 2)
    count = step * max(1, budget // unit)
    panels = []
    for row in range(0, problem.rows, count):
        rows = min(count, problem.rows - row)
        pitch = problem.cols if along else _pitch(rows, problem.rows, choice)
        panels.append(dataclasses.replace(whole, row=row, rows=rows, pitch=pitch))
    return Cut("rows", tuple(panels), _largest(problem, panels))


def _pitch(length: int, line: int, choice: Choice) -> int:
    """The pitch of a panel whose lines hold `length` elements of a whole `line`."""
    if not choice.kernel.phased:
        return ceil_div(length, STRIP) * STRIP
    return length + (line - length) % STRIP  # lines begin at the same phases as in the whole


def _between(choice: Choice) -> int:
    """The most elements that may lie between two lines of a panel."""
    return STRIP if choice.kernel.phased else 0


def _largest(problem: Problem, panels: list[Panel]) -> int:
    """Bytes of the largest of these panels on the device."""
    along = problem.access == "dot"
    return problem.dtype.itemsize * max(
        (panel.rows if along else panel.cols) * panel.pitch for panel in panels
    )


def _by_columns(
    problem: Problem, choice: Choice, whole: Panel, room: int | None, target: int
) -> Cut | int:
    step = choice.geometry.sizes["cols_per_split"]
    along = problem.access == "axpy"
    widest = step if along else step + _between(choice)
    unit = widest * problem.rows * problem.dtype.itemsize
    if room is not None and 2 * unit > room:
        return 2 * unit - room
    budget = target if room is None else min(target, room // 2)
    count = max(1, budget // unit)
    panels = []
    for split in range(0, whole.splits, count):
        splits = min(count, whole.splits - split)
        col = split * step
        cols = min(splits * step, problem.cols - col)
        pitch = problem.rows if along else _pitch(cols, problem.cols, choice)
        panels.append(Panel(0, problem.rows, col, cols, split, splits, pitch))
    return Cut("columns", (*panels[1:], panels[0]), _largest(problem, panels))


def splits_apart(choice: Choice) -> bool:
    """Whether the blocks of a split can run in a launch of their own."""
    geometry = choice.geometry
    return (
        choice.kernel.splits_apart
        and geometry.sizes.get("splits", 1) > 1
        and len(geometry.launches) == 1
        and geometry.launches[0].grid[1] == geometry.sizes["splits"]
    )


def part_of(problem: Problem, panel: Panel) -> Problem:
    """The problem of one panel, with the strides that it has on the device."""
    along = problem.access == "dot"
    return problem._replace(
        rows=panel.rows,
        cols=panel.cols,
        row_stride=panel.pitch if along else 1,
        col_stride=1 if along else panel.pitch,
        x_offset=problem.x_offset + panel.col * problem.incx,
        y_offset=problem.y_offset + panel.row * problem.incy,
    )


def choice_for(
    choice: Choice, whole: Problem, panel: Panel, part: Problem, device: Any, way: str
) -> Choice:
    """The whole choice, but with only those blocks of its launch that read the panel."""
    geometry = choice.geometry
    if way == "columns":
        (launch,) = geometry.launches
        grid = (launch.grid[0], panel.splits, launch.grid[2])
        made = Geometry((launch._replace(grid=grid),), geometry.sizes)
        return choice._replace(geometry=made)
    own = choice.kernel.geometry(part, device, dict(choice.spec.knobs))
    shared = {name: geometry.sizes[name] for name in _SPLIT if name in geometry.sizes}
    launches = tuple(
        all_._replace(grid=(mine.grid[0], *all_.grid[1:]))
        for mine, all_ in zip(own.launches, geometry.launches, strict=True)
    )
    made = Geometry(
        launches,
        sizes={**own.sizes, **shared},
        scratch=geometry.scratch // whole.rows * panel.rows,
        counters=geometry.counters,
        posts=geometry.posts,
    )
    return choice._replace(geometry=made)


_ANY = Device("any", (0, 0), 1)
#: More rows than a block covers, unless the kernel always launches just one block.
_MANY = 2**40

#: Sizes that say how the sum of a row is split; they are the same for all panels.
_SPLIT = ("splits", "cols_per_split")


class Source:
    """A matrix in host memory, as the lines that its contiguous copy on the device has.

    Its memory may have any strides, alignment, byte order and dtype: copying converts all of that.
    """

    def __init__(self, operand: Operand, problem: Problem) -> None:
        array = np.asarray(operand.owner)
        if array.dtype == BFLOAT16 != problem.dtype:
            array = cast(array, problem.dtype)  # which NumPy cannot do on the way
        rows_first = array if problem.trans == 0 else array.T
        self.along = problem.access == "dot"
        self.lines = rows_first if self.along else rows_first.T
        self.dtype = problem.dtype

    def block(self, panel: Panel) -> np.ndarray:
        """The lines of a panel, in host memory."""
        rows = slice(panel.row, panel.row + panel.rows)
        cols = slice(panel.col, panel.col + panel.cols)
        return self.lines[rows, cols] if self.along else self.lines[cols, rows]
