"""The launch of one shard's part of a product, with the memory for vectors that it needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemv.core.geometry import LOAD_BYTES
from gemv.core.operand import Operand, part_of
from gemv.shards.cut import Part
from gemv.shards.memory import Room
from gemv.shards.places import Launch


class Shard(NamedTuple):
    """Some rows or columns of the matrix, where they lie.

    Attributes
    ----------
    place : Place
    a : Operand or None
        None for a shard without elements.
    pitch : int
        Elements from one of its lines to the next.
    """

    place: Any
    a: Operand | None
    pitch: int


class Target(NamedTuple):
    """Where a y is wanted, whole or in parts.

    Attributes
    ----------
    y : Operand
        Of shape (rows,), or (vectors, rows) for several vectors; its last stride is 1.
    own : bool
        Whether this package has allocated its memory.
    """

    y: Operand
    own: bool = False


def cut_vector(operand: Operand, first: int, count: int) -> Operand:
    """Some elements of a contiguous vector, or the same ones of several vectors."""
    shape, strides = (*operand.shape[:-1], count), (*operand.strides[:-1], 1)
    return part_of(operand, first, shape, strides)


def as_vectors(flat: Operand, vectors: int, length: int, step: int) -> Operand:
    """Memory as so many vectors, which begin `step` elements apart."""
    return part_of(flat, 0, (vectors, length), (step, 1))


def as_one(several: Operand) -> Operand:
    """Several vectors without gaps as one long vector."""
    vectors, rows = several.shape
    return part_of(several, 0, (vectors * rows,), (1,))


def has_gaps(y: Operand) -> bool:
    """Whether there is memory between vectors that belongs to none of them."""
    return len(y.shape) == 2 and y.strides[0] != y.shape[1]


def copy(place: Any, source: Operand, target: Operand) -> None:
    """Enqueue a copy of a vector, or of each of several, on the stream of `place`."""
    if len(source.shape) == 1:
        place.copy(source, target)
    elif not has_gaps(source) and not has_gaps(target):
        place.copy(as_one(source), as_one(target))
    else:
        place.copy_lines(source, target)


class Step:
    """The launch of one part, with the memory that it needs.

    Parameters
    ----------
    place : Place
    part : Part
    a : Operand or None
        The shard, or what the part has of it; None if each launch names it.
    room : Room
        Its memory for x and for y, made when first needed.
    vectors : int
        How many vectors it multiplies at once.
    sums : Sums, optional
        Memory for partial sums that it shares; the part's begin `shift` elements behind the first.
    """

    def __init__(
        self, place: Any, part: Part, a: Operand | None, room: Room, vectors: int = 1,
        sums: Any = None, shift: int = 0,
    ) -> None:  # fmt: skip
        self.place, self.part, self.a = place, part, a
        self._room, self._vectors = room, vectors
        choice = part.choice
        geometry = choice.geometry
        if sums is None and (geometry.scratch or geometry.counters):
            sums = place.sums(geometry, choice.spec.precision.sums)
        if sums is not None:
            sizes = {**geometry.sizes, **sums.at(shift)}
            geometry = geometry._replace(sizes=sizes, scratch=0, counters=0)
        self.sums = sums
        self._choice = choice._replace(geometry=geometry)
        #: By the elements from one vector of y to the next.
        self._launches: dict[int, Launch] = {}
        self._launch_of(part.rows)  # which compiles and loads the kernel

    def _launch_of(self, y_step: int) -> Launch:
        launch = self._launches.get(y_step)
        if launch is None:
            choice = self._choice
            if self._vectors > 1:
                sizes = {**choice.geometry.sizes, "y_step": y_step}
                choice = choice._replace(geometry=choice.geometry._replace(sizes=sizes))
            launch = self._launches[y_step] = self.place.packed(choice, self.part.problem)
        return launch

    def x_of(self, x: Operand, is_here: bool) -> Operand:
        """The elements of x that it reads; a copy of them at its place unless x is there."""
        part = self.part
        mine = cut_vector(x, part.start, part.length)
        if is_here and not self._must_be_copied(x):
            return mine
        # As aligned as in the whole x, which begins at a multiple of 16 bytes.
        offset = part.start * x.dtype.itemsize % LOAD_BYTES
        step = self._x_step if self._vectors > 1 else part.length
        made = self._room.vectors("x", self._vectors, part.length, step, x.dtype, offset)
        copy(self.place, mine, made)
        return made

    @property
    def _x_step(self) -> int:
        return int(self._choice.geometry.sizes["x_step"])

    def _must_be_copied(self, x: Operand) -> bool:
        """Whether x is not aligned, or several vectors have another distance than it expects."""
        apart = self._vectors > 1 and x.strides[0] != self._x_step
        return apart or x.pointer % LOAD_BYTES != 0

    def own_y(self, dtype: np.dtype) -> Operand:
        """Memory for its elements of y, at its place."""
        rows = self.part.rows
        return self._room.vectors("y", self._vectors, rows, rows, dtype)

    def launch(self, x: Operand, y: Operand, a: Operand | None = None) -> None:
        launch = self._launch_of(y.strides[0] if self._vectors > 1 else self.part.rows)
        a = self.a if a is None else a
        assert a is not None
        launch(a, x, y)
