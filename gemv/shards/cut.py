"""Where a matrix is cut into shards, and which part of the single call each of them computes.

A shard is some rows of A, or some columns. In a product whose y is cut at the same places, each sum
lies *within* a shard; in the other one, of A or of its transpose, sums go *across* the shards, and
each shard has a part of every sum. Either way a shard runs some blocks of the launch that would
compute the whole product on one device, as the panels of :mod:`gemv.streaming.cut` do, so every sum
is added in the same order:

within
    A shard has whole tiles of rows of op(A). Where memory runs along the rows it may begin at any
    row, because no sum depends on its neighbours there.
across
    A shard has whole splits of the columns of op(A), which only exist where the kernel splits sums.

The lines of a shard begin at the same address modulo 16 bytes as in the whole matrix, so loads are
as wide as they are there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gemv.core.geometry import LOAD_BYTES, Device, ceil_div
from gemv.core.problem import Problem
from gemv.core.rules import check_arguments
from gemv.selection.select import Choice, select
from gemv.streaming.cut import STRIP, Panel, choice_for, part_of, splits_apart, tile_rows

#: The largest shard may have so many times its even share of the lines for the sake of the bits of
#: the transposed product.
_MOST_UNEVEN = 1.1
#: Beyond so many times, the other way to split the matrix is considered.
_TOO_UNEVEN = 1.5
#: With fewer tiles than this for each shard, rows are cut inside of tiles where they may be.
_FEW_TILES = 4


class Whole(NamedTuple):
    """A matrix as it would lie on one device, and where it is cut.

    Attributes
    ----------
    shape : (int, int)
    strides : (int, int)
        In elements; one of them is 1.
    dtype : numpy.dtype
    address : int
        Of its first element, modulo 16 bytes.
    device : Device
        What kernels are chosen for.
    split : str
        ``"rows"`` or ``"columns"`` of A.
    bounds : tuple of int
        The first row or column of each shard, and the end of the last one.
    kernel : str or None
        The name of the kernel; by default one is selected.
    """

    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: np.dtype
    address: int
    device: Device
    split: str = "rows"
    bounds: tuple[int, ...] = ()
    kernel: str | None = None

    def problem(self, trans: int) -> Problem:
        """The product of the whole matrix, or of its transpose, with contiguous vectors."""
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        problem = check_arguments(
            "Matrix", self.dtype, self.shape, self.strides, cols, 1, rows, 1, trans=trans
        )
        return problem.at(self.address, 0)

    def choice(self, trans: int) -> Choice:
        """What the single call would launch; a ValueError for a kernel that moves x first."""
        choice = select(self.problem(trans), self.device, kernel=self.kernel)
        if choice.kernel.x_home(choice.knobs) != "pointer":
            name = choice.kernel.name
            raise ValueError(f"Matrix: kernel {name!r} moves x, so it multiplies no shards")
        return choice

    def within(self, trans: int) -> bool:
        """Whether each sum of such a product lies within a shard."""
        return (self.split == "rows") == (trans == 0)

    @property
    def extent(self) -> int:
        """How many rows or columns there are to be cut."""
        return self.shape[self.split == "columns"]

    @property
    def along(self) -> bool:
        """Whether shards are stretches of memory; else each has a piece of every line."""
        return self.lines_are_rows == (self.split == "rows")

    @property
    def lines_are_rows(self) -> bool:
        """Whether memory runs along the rows."""
        return self.problem(0).access == "dot"

    def stored(self, number: int) -> tuple[int, int, int, int]:
        """How a shard is stored: lines, their length, their pitch, and bytes before the first.

        The bytes are those from a multiple of 16 to its first element.
        """
        start, end = self.bounds[number : number + 2]
        size = self.dtype.itemsize
        lines, line = self.shape if self.lines_are_rows else self.shape[::-1]
        step = self.strides[0] if self.lines_are_rows else self.strides[1]
        if self.along:
            return end - start, line, line, (self.address + start * step * size) % LOAD_BYTES
        length = end - start
        pitch = length + (step - length) % STRIP
        return lines, length, pitch, (self.address + start * size) % LOAD_BYTES

    def objection(self, trans: int, choice: Choice) -> str | None:
        """Why such a product with these shards has not the bits of the single call, or None."""
        inner = [each for each in self.bounds[1:-1] if 0 < each < self.extent]
        if not inner:
            return None
        step = self._step(trans, choice)
        if step is None:
            return f"the single call does not split the sums that go across {self.split} of A"
        wrong = [each for each in inner if each % step]
        if wrong:
            return (
                f"{self.split} are cut at {wrong[0]}, and the single call could be cut at multiples"
                f" of {step}"
            )
        return None

    def _step(self, trans: int, choice: Choice) -> int | None:
        """Lines between places where a product may be cut; None if it must not be cut at all."""
        problem = self.problem(trans)
        if not self.within(trans):
            return choice.geometry.sizes["cols_per_split"] if splits_apart(choice) else None
        if problem.access == "dot":
            return 1
        return math.lcm(tile_rows(choice, problem), STRIP)

    def cut_evenly(self, count: int, adjoint: int, reproducible: bool = True) -> Whole:
        """This matrix cut into `count` shards, as evenly as its kernels allow.

        The cuts suit the product and the one with trans = `adjoint`, unless the largest shard would
        be too large for that; then they suit only the product whose sums lie within a shard. It may
        be as large as it has to if the product itself must be `reproducible`.
        """
        within, across = (0, adjoint) if self.split == "rows" else (adjoint, 0)
        step = self._known_step(within) or 1
        other = self._known_step(across)
        if other is not None:
            both = _even(self.extent, count, math.lcm(step, other))
            asked = across == 0 and reproducible
            if asked or _largest(both) <= _MOST_UNEVEN * ceil_div(self.extent, count):
                return self._replace(bounds=both)
        if step == 1 and self.kernel is None:
            tile = tile_rows(self.choice(within), self.problem(within))
            if self.extent >= _FEW_TILES * tile * count:
                step = tile
        return self._replace(bounds=_even(self.extent, count, step))

    def _known_step(self, trans: int) -> int | None:
        """As `_step`; None as well where the kernel that was asked for refuses the product."""
        try:
            return self._step(trans, self.choice(trans))
        except ValueError:
            if self.kernel is None:
                raise
            return None

    @property
    def uneven(self) -> bool:
        """Whether the largest shard has much more than its even share."""
        even = ceil_div(self.extent, len(self.bounds) - 1)
        return _largest(self.bounds) > _TOO_UNEVEN * even

    def has_bits(self, trans: int) -> bool:
        """Whether such a product with these shards has the bits of the single call."""
        try:
            return self.objection(trans, self.choice(trans)) is None
        except ValueError:  # the kernel that was asked for refuses the product
            return False


def _even(extent: int, count: int, step: int) -> tuple[int, ...]:
    """Bounds near even ones, at multiples of `step`."""
    bounds = [0]
    for number in range(1, count):
        nearest = (2 * number * extent + step * count) // (2 * step * count) * step
        bounds.append(max(bounds[-1], min(nearest, extent)))
    return (*bounds, extent)


def _largest(bounds: tuple[int, ...]) -> int:
    return max(end - start for start, end in zip(bounds[:-1], bounds[1:], strict=True))


class Part(NamedTuple):
    """A launch that computes the share of one shard, or some splits of it.

    Attributes
    ----------
    choice, problem
        What is launched. The problem's vectors begin with the elements that it uses.
    start, length : int
        Elements of x that it reads, within the whole x.
    row, rows : int
        Elements of y that it computes, or to whose sums it adds.
    split, splits : int
        Its splits of the columns.
    """

    choice: Choice
    problem: Problem
    start: int
    length: int
    row: int
    rows: int
    split: int
    splits: int


def part(whole: Whole, number: int, pitch: int, trans: int, choice: Choice, device: Device) -> Part:
    """What shard `number`, whose lines are `pitch` apart, computes of the single call."""
    problem = whole.problem(trans)
    start, end = whole.bounds[number : number + 2]
    splits = choice.geometry.sizes.get("splits", 1)
    if end - start == whole.extent:
        panel = Panel(0, problem.rows, 0, problem.cols, 0, splits, pitch)
        made = part_of(problem, panel)
        return Part(choice, made, 0, problem.cols, 0, problem.rows, 0, splits)
    if whole.within(trans):
        panel = Panel(start, end - start, 0, problem.cols, 0, splits, pitch)
        return _part(problem, choice, panel, device, "rows")
    step = choice.geometry.sizes["cols_per_split"]
    panel = Panel(
        0, problem.rows, start, end - start, start // step, ceil_div(end - start, step), pitch
    )
    return _part(problem, choice, panel, device, "columns")


def without_first_split(whole: Whole, part_: Part, pitch: int, trans: int) -> tuple[Part, Part]:
    """The first split of a part across shards, and the rest of it, which may have no splits."""
    problem, choice = whole.problem(trans), whole.choice(trans)
    step = min(choice.geometry.sizes["cols_per_split"], part_.length)
    first = Panel(0, problem.rows, part_.start, step, part_.split, 1, pitch)
    rest = Panel(
        0, problem.rows, part_.start + step, part_.length - step, part_.split + 1,
        part_.splits - 1, pitch,
    )  # fmt: skip
    one, others = (_part(problem, choice, each, whole.device, "columns") for each in (first, rest))
    return one, others


def _part(problem: Problem, choice: Choice, panel: Panel, device: Device, way: str) -> Part:
    made = part_of(problem, panel)._replace(x_offset=0, y_offset=0)
    one = choice_for(choice, problem, panel, made, device, way)
    return Part(one, made, panel.col, panel.cols, panel.row, panel.rows, panel.split, panel.splits)


def part_alone(
    whole: Whole, number: int, pitch: int, address: int, trans: int, device: Device
) -> Part:
    """What a shard computes with a kernel of its own choice, in whatever order of sums."""
    problem = whole.problem(trans)
    start, count = whole.bounds[number], whole.bounds[number + 1] - whole.bounds[number]
    if whole.within(trans):
        panel = Panel(start, count, 0, problem.cols, 0, 1, pitch)
    else:
        panel = Panel(0, problem.rows, start, count, 0, 1, pitch)
    made = part_of(problem, panel)._replace(x_offset=0, y_offset=0)
    made = made.at(address, panel.col * whole.dtype.itemsize)
    choice = select(made, device, kernel=whole.kernel)
    return Part(choice, made, panel.col, panel.cols, panel.row, panel.rows, 0, 1)
