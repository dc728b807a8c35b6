"""One product with all shards: planned and packed once, then enqueued with any vectors.

Every shard is a launch on the stream of its place, behind a copy of the x that it reads.

within
    Each shard writes its own elements of y: where they belong, if its kernels reach that memory, or
    else beside the shard, from where they are copied.
across, with the bits of the single call
    Each shard leaves the partial sums of its splits at its own place and counts them in counters
    that nobody asks for. The first shard holds back its first split. Once the sums of all others
    are copied behind its own, as in the scratch memory of the single call, it sets the counters as
    if all these blocks had counted there, and launches that split: so its blocks count last, and
    add up the sums of all splits.
across, in the order of the shards
    Each shard computes a vector of its own, by a kernel of its own choice. They are copied beside
    each other, and a product of that matrix with a vector of ones adds them from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from gemv.core import trace
from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.operand import Operand, part_of
from gemv.core.rules import check_arguments
from gemv.selection.select import select
from gemv.shards import cut
from gemv.shards.cut import Part, Whole
from gemv.shards.places import Fabric, Launch


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


def cut_vector(operand: Operand, first: int, count: int) -> Operand:
    """Some elements of a contiguous vector."""
    return part_of(operand, first, (count,), (1,))


class Target(NamedTuple):
    """Where a y is wanted, whole or in parts.

    Attributes
    ----------
    y : Operand
    own : bool
        Whether this package has allocated its memory.
    """

    y: Operand
    own: bool = False


class _Step:
    """The launch of one part, with the memory that it needs."""

    def __init__(
        self, place: Any, part: Part, a: Operand, sums: Any = None, shift: int = 0
    ) -> None:
        self.place, self.part, self.a = place, part, a
        #: Memory for x and for y, made when first needed.
        self._x: Operand | None = None
        self._y: Operand | None = None
        choice = part.choice
        geometry = choice.geometry
        if sums is None and (geometry.scratch or geometry.counters):
            sums = place.sums(geometry, choice.spec.precision.sums)
        if sums is not None:
            sizes = {**geometry.sizes, **sums.at(shift)}
            geometry = geometry._replace(sizes=sizes, scratch=0, counters=0)
        self.sums = sums
        self._launch: Launch = place.packed(choice._replace(geometry=geometry), part.problem)

    def x_of(self, x: Operand, is_here: bool) -> Operand:
        """The elements of x that it reads; a copy of them at its place unless x is there."""
        mine = cut_vector(x, self.part.start, self.part.length)
        if is_here:
            return mine
        if self._x is None:
            # As aligned as in the whole x, which begins at a multiple of 16 bytes.
            offset = self.part.start * x.dtype.itemsize % LOAD_BYTES
            self._x = self.place.vector(self.part.length, x.dtype, offset)
        self.place.copy(mine, self._x)
        return self._x

    def own_y(self, dtype: np.dtype) -> Operand:
        """Memory for its elements of y, at its place."""
        if self._y is None:
            self._y = self.place.vector(self.part.rows, dtype)
        return self._y

    def launch(self, x: Operand, y: Operand) -> None:
        self._launch(self.a, x, y)


class Product:
    """A product with all shards, for one form of the matrix.

    Parameters
    ----------
    whole, fabric
        Where the matrix is cut, and the places of the shards.
    shards : sequence of Shard
    trans : int
        BLAS's code of the form.
    reproducible : bool
        Whether the bits must be those of the single call.

    Raises
    ------
    ValueError
        If they cannot be, and must.
    """

    def __init__(
        self, whole: Whole, fabric: Fabric, shards: tuple[Shard, ...], trans: int,
        reproducible: bool, objection: str | None,
    ) -> None:  # fmt: skip
        self._whole, self._fabric, self._trans = whole, fabric, trans
        self._shards = shards
        choice = whole.choice(trans)
        objection = objection or whole.objection(trans, choice)
        if objection is not None and reproducible:
            form = "the matrix" if trans == 0 else "its transpose"
            raise ValueError(
                f"Matrix: a product with {form} would not have the bits of one device: {objection}."
                " Cut it in another way, or pass reproducible=False for sums in the order of the"
                " shards"
            )
        self.alone = objection is not None
        self._choice = choice
        self.rows = whole.problem(trans).rows
        self._y: Operand | None = None
        there = [number for number, shard in enumerate(shards) if shard.a is not None]
        self._used = [shards[number].place for number in there]
        self._run: Callable[[Operand, list[Any], list[Target]], None]
        #: Whether each launch computes elements of y of its own.
        self._each_has_rows = whole.within(trans) or len(there) == 1
        if self._each_has_rows:
            self._steps = [self._step(number) for number in there]
            self._run = self._run_within
        elif self.alone:
            self._steps = [self._step(number) for number in there]
            self._run = self._run_in_order
            self._together = self._sum_of(len(there))
        else:
            self._steps = [self._apart(number) for number in there[1:]]
            self._run = self._run_across
            self._hold_back(there[0])

    # Preparation -----------------------------------------------------------------------------

    def _part(self, number: int) -> Part:
        shard, whole = self._shards[number], self._whole
        if self.alone:
            assert shard.a is not None
            return cut.part_alone(
                whole, number, shard.pitch, shard.a.pointer, self._trans, shard.place.device
            )
        return cut.part(whole, number, shard.pitch, self._trans, self._choice, shard.place.device)

    def _step(self, number: int) -> _Step:
        shard = self._shards[number]
        assert shard.a is not None
        return _Step(shard.place, self._part(number), shard.a)

    def _apart(self, number: int) -> _Step:
        """A shard across which sums go: its partial sums begin its own scratch memory."""
        shard, part = self._shards[number], self._part(number)
        assert shard.a is not None
        return _Step(shard.place, part, shard.a, self._sums(shard, part.splits))

    def _sums(self, shard: Shard, splits: int) -> Any:
        geometry = self._choice.geometry
        sums = self._choice.spec.precision.sums
        mine = geometry._replace(scratch=splits * self.rows)
        return shard.place.sums(mine, sums)

    def _hold_back(self, number: int) -> None:
        """Prepare the first shard: its first split adds up all, after its others."""
        shard, part = self._shards[number], self._part(number)
        a, splits = shard.a, self._choice.geometry.sizes["splits"]
        assert a is not None
        sums = self._sums(shard, splits)
        first, rest = cut.without_first_split(self._whole, part, shard.pitch, self._trans)
        self._last = _Step(shard.place, first, a, sums)
        self._rest = None
        if rest.splits:
            along = rest.problem.access == "axpy"
            start = rest.start * (shard.pitch if along else 1)
            lines, length = a.shape
            shape = (lines - rest.start, length) if along else (lines, length - rest.start)
            behind = part_of(a, start, shape, a.strides)
            self._rest = _Step(shard.place, rest, behind, sums, rest.split * self.rows)

    def _sum_of(self, count: int) -> tuple[_Step, Operand, int]:
        """The launch that adds `count` vectors of y's length, their memory and its pitch."""
        place, dtype, rows = self._steps[0].place, self._whole.dtype, self.rows
        pitch = ceil_div(rows, LOAD_BYTES) * LOAD_BYTES
        partial = place.vector(count * pitch, dtype)
        ones = place.store(np.ones((1, count), dtype), dtype, count, 0)
        problem = check_arguments("Matrix", dtype, (rows, count), (1, pitch), count, 1, rows, 1).at(
            partial.pointer, ones.pointer
        )
        chosen = select(problem, place.device, kernel="thread_per_row")
        step = _Step(place, Part(chosen, problem, 0, count, 0, rows, 0, 1), partial)
        self._ones = ones._replace(shape=(count,), strides=(1,), owner=_flat(ones.owner))
        return step, partial, pitch

    # Running ---------------------------------------------------------------------------------

    def run(self, x: Operand, targets: list[Target], streams: list[tuple[int | None, int]]) -> None:
        """Enqueue the product.

        Parameters
        ----------
        x : Operand
            Contiguous, at a multiple of 16 bytes, on any device.
        targets : list of Target
            Each gets the whole y.
        streams : list of (device, stream)
            Those that x and the targets are used on: the product comes behind their work so far,
            and before their later work.
        """
        self._record()
        starts = self._fabric.starts(streams)
        with self._joined(streams):
            self._run(x, starts, targets)

    def run_in_parts(
        self, x: Operand, parts: list[Target], streams: list[tuple[int | None, int]]
    ) -> None:
        """Enqueue a product whose y stays where it is computed, in parts: see :attr:`in_parts`."""
        if not self._each_has_rows:
            self.run(x, parts, streams)
            return
        self._record()
        starts = self._fabric.starts(streams)
        with self._joined(streams):
            for step, target in zip(self._steps, parts, strict=True):
                with step.place.turn(starts):
                    step.launch(step.x_of(x, self._is_here(step, x)), target.y)

    @contextmanager
    def _joined(self, streams: list[tuple[int | None, int]]) -> Iterator[None]:
        """Let `streams` come after the turns inside the block.

        If an error ends the block, they come after the turns until then: the launches of other
        shards still read x and write to y.
        """
        turns = [place.turns for place in self._used]
        try:
            yield
        except BaseException:
            pairs = zip(self._used, turns, strict=True)
            begun = [place for place, before in pairs if place.turns != before]
            with suppress(RuntimeError):  # of a lost GPU; the first error says more
                self._fabric.join(streams, begun)
            raise
        self._fabric.join(streams, self._used)

    @property
    def in_parts(self) -> list[tuple[Any, int]]:
        """The place and the number of rows of each part of y; one where sums go across shards."""
        if self._each_has_rows:
            return [(step.place, step.part.rows) for step in self._steps]
        home = self._last if self._run == self._run_across else self._steps[0]
        return [(home.place, self.rows)]

    @property
    def places(self) -> list[Any]:
        """The places of its launches."""
        return [shard.place for shard in self._shards]

    def settle(self) -> None:
        """Wait until the memory of its launches is as these expect it."""
        for place in self.places:
            place.settle()

    def _record(self) -> None:
        choice = self._choice
        trace.record(
            backend="simulator" if self._shards[0].place.index is None else "cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )

    def _is_here(self, step: _Step, x: Operand) -> bool:
        """Whether a step reads x where it lies; in the simulator only the first place does."""
        if x.device is None:
            return step.place is self._fabric.places[0]
        return step.place.index == x.device

    def _run_within(self, x: Operand, starts: list[Any], targets: list[Target]) -> None:
        for step in reversed(self._steps):  # that beside x needs no copy, and can begin last
            row, rows = step.part.row, step.part.rows
            with step.place.turn(starts):
                mine = step.x_of(x, self._is_here(step, x))
                self._finish(step, mine, [(cut_vector(t.y, row, rows), t.own) for t in targets])

    def _finish(self, step: _Step, x: Operand, targets: list[tuple[Operand, bool]]) -> None:
        """Launch what computes elements of y, and bring them to all targets."""
        place = step.place
        local = [y for y, _ in targets if y.device == place.index]
        if local:
            made = local[0]
        elif len(targets) == 1 and place.reaches(*targets[0]):
            made = targets[0][0]
        else:
            made = step.own_y(self._whole.dtype)
        step.launch(x, made)
        for y, _ in targets:
            if y is not made:
                place.copy(made, y)

    def _run_across(self, x: Operand, starts: list[Any], targets: list[Target]) -> None:
        last, rest = self._last, self._rest
        home = last.place
        for step in self._steps:
            with step.place.turn(starts, home):  # the sums of the product before are taken
                step.sums.begin(0, step.place.stream)
                # Its blocks are not the last to count, so they write to no y.
                step.launch(step.x_of(x, self._is_here(step, x)), last.own_y(x.dtype))
        others = [step.place for step in self._steps]
        with home.turn(starts):
            last.sums.begin(0, home.stream)
            if rest is not None:
                rest.launch(rest.x_of(x, self._is_here(rest, x)), last.own_y(x.dtype))
        with home.turn((), *others):
            for step in self._steps:
                first, count = (each * self.rows for each in (step.part.split, step.part.splits))
                home.copy(
                    step.sums.sums(0, count, step.place.index),
                    last.sums.sums(first, count, home.index),
                )
            last.sums.count(self._choice.geometry.sizes["splits"] - 1, home.stream)
            mine = last.x_of(x, self._is_here(last, x))
            self._finish(last, mine, [(target.y, target.own) for target in targets])

    def _run_in_order(self, x: Operand, starts: list[Any], targets: list[Target]) -> None:
        together, partial, pitch = self._together
        home = together.place
        for step in reversed(self._steps):  # that of `home` comes last
            # The vectors of the product before are copied by then.
            with step.place.turn(starts, home):
                mine = step.x_of(x, self._is_here(step, x))
                step.launch(mine, step.own_y(x.dtype))
        others = [step.place for step in self._steps if step.place is not home]
        with home.turn((), *others):
            for number, step in enumerate(self._steps):
                column = cut_vector(partial, number * pitch, self.rows)
                home.copy(step.own_y(x.dtype), column)
            self._finish(together, self._ones, [(target.y, target.own) for target in targets])


def _flat(owner: Any) -> Any:
    """The simulator's memory of one line as a vector."""
    return owner.reshape(-1) if isinstance(owner, np.ndarray) else owner
