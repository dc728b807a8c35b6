"""One product with all shards: planned and packed once, then enqueued with any vectors.

Every shard is a launch on the stream of its place, behind a copy of the x that it reads.

within
    Each shard writes its own elements of y: where they belong, if its kernels reach that memory, or
    else beside the shard, from where they are copied.
across, with the bits of the single call
    Each shard leaves the partial sums of its splits at its own place and counts them in counters
    that nobody asks for. The first shard holds back its first split. Once the sums of all others
    are copied to its own, where the single call would have them (:mod:`gemv.core.splits`), it sets
    the counters as if all these blocks had counted there, and launches that split: so its blocks
    count last, and add up the sums of all splits.
across, in the order of the shards
    Each shard computes a vector of its own, by a kernel of its own choice. They are written beside
    each other, or copied there if the kernels of a shard do not reach that memory, and a product of
    that matrix with a vector of ones adds them from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from gemv.core import trace
from gemv.core.batch import aligned_step
from gemv.core.operand import Operand, part_of
from gemv.core.rules import check_arguments
from gemv.core.splits import SumsOfSplits
from gemv.selection.select import Choice, select
from gemv.shards import cut, several
from gemv.shards.cut import Part, Whole
from gemv.shards.memory import Memory, Room, flat
from gemv.shards.places import Fabric
from gemv.shards.steps import Shard, Step, Target, as_one, as_vectors, copy, cut_vector, has_gaps


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
    objection : str or None
        Why they cannot be, as far as the shards themselves tell.
    memory : Memory
        For x and y beside the shards.
    vectors : int
        How many vectors it should multiply at once.

    Attributes
    ----------
    vectors : int
        How many it multiplies at once. That is 1 where no kernel for several vectors has the sums
        of the kernel for one.
    rows : int
        The length of a vector of y.

    Raises
    ------
    ValueError
        If the bits would be others than those of the single call, and must not be.
    """

    def __init__(
        self, whole: Whole, fabric: Fabric, shards: tuple[Shard, ...], trans: int,
        reproducible: bool, objection: str | None, memory: Memory, vectors: int = 1,
    ) -> None:  # fmt: skip
        self._whole, self._fabric, self._trans = whole, fabric, trans
        self._shards, self._memory = shards, memory
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
        self.rows = whole.problem(trans).rows
        self._single = self._choice = choice
        there = [number for number, shard in enumerate(shards) if shard.a is not None]
        self._used = [shards[number].place for number in there]
        #: How it runs: a function of the class, since a method of the product itself would keep
        #: the product in use until Python looks for cycles of garbage.
        self._way: Callable[[Product, Operand, list[Any], list[Target]], None]
        #: Whether each launch computes elements of y of its own.
        self._each_has_rows = whole.within(trans) or len(there) == 1
        self._plan_vectors(vectors, there)
        if self._each_has_rows:
            self._steps = [self._step(number) for number in there]
            self._way = Product._run_within
        elif self.alone:
            self._steps = [self._step(number) for number in there]
            self._way = Product._run_in_order
            self._together = self._sum_of(len(there))
        else:
            self._steps = [self._apart(number) for number in there[1:]]
            self._way = Product._run_across
            self._hold_back(there[0])

    # Preparation -----------------------------------------------------------------------------

    def _plan_vectors(self, vectors: int, there: list[int]) -> None:
        """Choose the kernels for several vectors, if there are some for all shards."""
        whole, self.vectors = self._whole, 1
        #: By the number of the shard; all the same unless each has a kernel of its own choice.
        self._choices: dict[int, Choice | None] = {}
        if vectors == 1:
            return
        parts = {number: self._part(number) for number in there} if self.alone else {}
        problem = whole.problem(self._trans)
        of_whole = several.choice_for(problem, self._single, vectors, whole.device, whole.kernel)
        for number in there:
            self._choices[number] = of_whole
            if self.alone:
                part, device = parts[number], self._shards[number].place.device
                self._choices[number] = several.choice_for(
                    part.problem, part.choice, vectors, device, whole.kernel
                )
        if None not in self._choices.values():
            self.vectors = vectors
            if of_whole is not None:
                self._choice = of_whole

    def _part(self, number: int) -> Part:
        """What a shard computes, for one vector."""
        shard, whole = self._shards[number], self._whole
        if self.alone:
            assert shard.a is not None
            return cut.part_alone(
                whole, number, shard.pitch, shard.a.pointer, self._trans, shard.place.device
            )
        return cut.part(whole, number, shard.pitch, self._trans, self._single, shard.place.device)

    def _for_vectors(self, number: int, part: Part, is_apart: bool = False) -> Part:
        """The same for all vectors."""
        choice, device = self._choices.get(number), self._shards[number].place.device
        if self.vectors == 1 or choice is None:
            return part
        rows = part.rows if self.alone else self.rows
        return several.part_for(part, choice, rows, device, is_apart)

    def _step(self, number: int) -> Step:
        shard = self._shards[number]
        assert shard.a is not None
        part = self._for_vectors(number, self._part(number))
        return Step(shard.place, part, shard.a, self._room(number), self.vectors)

    def _apart(self, number: int) -> Step:
        """A shard across which sums go: its partial sums begin its own scratch memory."""
        shard, part = self._shards[number], self._part(number)
        assert shard.a is not None
        sums = self._room_for_sums(shard, part.splits)
        part = self._for_vectors(number, part, is_apart=True)
        return Step(shard.place, part, shard.a, self._room(number), self.vectors, sums)

    def _room(self, number: int, role: str = "") -> Room:
        return self._memory.room(self._shards[number].place, number, role)

    @property
    def _all_rows(self) -> int:
        return self.vectors * self.rows

    @property
    def _sums(self) -> SumsOfSplits:
        """Where the single call has its partial sums, and each launch with some of its splits."""
        kernel, sizes = self._choice.kernel, self._choice.geometry.sizes
        return SumsOfSplits(kernel.steps_of_sums, self._all_rows, sizes["splits"])

    def _room_for_sums(self, shard: Shard, splits: int) -> Any:
        geometry = self._choice.geometry._replace(scratch=self._sums.size(splits))
        return shard.place.sums(geometry, self._choice.spec.precision.sums)

    def _hold_back(self, number: int) -> None:
        """Prepare the first shard: its first split adds up all, after its others."""
        shard, part = self._shards[number], self._part(number)
        a, splits = shard.a, self._choice.geometry.sizes["splits"]
        assert a is not None
        sums = self._room_for_sums(shard, splits)
        first, rest = (
            self._for_vectors(number, each, is_apart=True)
            for each in cut.without_first_split(self._whole, part, shard.pitch, self._trans)
        )
        self._last = Step(shard.place, first, a, self._room(number), self.vectors, sums)
        self._rest = None
        if rest.splits:
            along = rest.problem.access == "axpy"
            start = rest.start * (shard.pitch if along else 1)
            lines, length = a.shape
            shape = (lines - rest.start, length) if along else (lines, length - rest.start)
            behind = part_of(a, start, shape, a.strides)
            shift = self._sums.first(rest.split)
            room = self._room(number, "rest")
            self._rest = Step(shard.place, rest, behind, room, self.vectors, sums, shift)

    def _sum_of(self, count: int) -> tuple[Step, Room, int]:
        """The launch that adds the y of `count` shards, where they are copied, and their pitch.

        Several vectors of a shard are one long one here.
        """
        place, dtype, rows = self._steps[0].place, self._whole.dtype, self._all_rows
        pitch = aligned_step(rows)
        room = self._memory.room(place, 0, "sum")
        memory = room.sums(count, pitch, dtype)
        ones = place.store(np.ones((1, count), dtype), dtype, count, 0)
        problem = check_arguments("Matrix", dtype, (rows, count), (1, pitch), count, 1, rows, 1).at(
            memory.pointer, ones.pointer
        )
        chosen = select(problem, place.device, kernel="thread_per_row")
        step = Step(place, Part(chosen, problem, 0, count, 0, rows, 0, 1), None, room)
        self._ones = ones._replace(shape=(count,), strides=(1,), owner=flat(ones.owner))
        return step, room, pitch

    # Running ---------------------------------------------------------------------------------

    def run(self, x: Operand, targets: list[Target], streams: list[tuple[int | None, int]]) -> None:
        """Enqueue the product.

        Parameters
        ----------
        x : Operand
            On any device; a contiguous vector, or several of shape (vectors, cols), each of which
            is contiguous.
        targets : list of Target
            Each gets the whole y.
        streams : list of (device, stream)
            Those that x and the targets are used on: the product comes behind their work so far,
            and before their later work.
        """
        self._record()
        starts = self._fabric.starts(streams)
        with self._joined(streams):
            self._way(self, x, starts, targets)

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
        home = self._last if self._way is Product._run_across else self._steps[0]
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
        if not trace.open_traces():
            return
        choice = self._choice
        trace.record(
            backend="simulator" if self._shards[0].place.index is None else "cuda",
            kernel=choice.kernel.name,
            knobs=choice.knobs,
            geometry=choice.geometry,
            coefficients=choice.coefficients,
        )

    def _is_here(self, step: Step, x: Operand) -> bool:
        """Whether a step reads x where it lies; in the simulator only the first place does."""
        if x.device is None:
            return step.place is self._fabric.places[0]
        return step.place.index == x.device

    def apart(self, x: Operand, targets: list[Target]) -> list[tuple[Step, Callable[[], None]]]:
        """Its launches, each with what enqueues it alone; none where one needs another one."""
        steps = self._steps if self._each_has_rows else []
        return [(step, partial(self._run_within, x, [], targets, (step,))) for step in steps]

    def _run_within(
        self, x: Operand, starts: list[Any], targets: list[Target], only: tuple[Step, ...] = ()
    ) -> None:
        for step in only or reversed(self._steps):  # that beside x can begin last: it copies no x
            row, rows = step.part.row, step.part.rows
            with step.place.turn(starts):
                mine = step.x_of(x, self._is_here(step, x))
                self._finish(step, mine, [(cut_vector(t.y, row, rows), t.own) for t in targets])

    def _finish(
        self, step: Step, x: Operand, targets: list[tuple[Operand, bool]], a: Operand | None = None
    ) -> None:
        """Launch what computes elements of y, and bring them to all targets."""
        place = step.place
        local = [y for y, _ in targets if y.device == place.index]
        if local:
            made = local[0]
        elif len(targets) == 1 and place.reaches(*targets[0]):
            made = targets[0][0]
        else:
            made = step.own_y(self._whole.dtype)
        step.launch(x, made, a)
        for y, _ in targets:
            if y is not made:
                copy(place, made, y)

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
                there, here = (
                    self._sums.lines(first, step.part.splits) for first in (0, step.part.split)
                )
                source = step.sums.sums(there, step.place.index)
                copy(home, source, last.sums.sums(here, home.index))
            last.sums.count(self._choice.geometry.sizes["splits"] - 1, home.stream)
            mine = last.x_of(x, self._is_here(last, x))
            self._finish(last, mine, [(target.y, target.own) for target in targets])

    def _run_in_order(self, x: Operand, starts: list[Any], targets: list[Target]) -> None:
        together, room, pitch = self._together
        home = together.place
        # Not kept, so that it can be freed for products of more vectors.
        memory = room.sums(len(self._steps), pitch, x.dtype)
        copied: list[tuple[Operand, Operand]] = []
        for number, step in reversed([*enumerate(self._steps)]):  # that of `home` comes last
            column = cut_vector(memory, number * pitch, self._all_rows)
            if self.vectors > 1:
                column = as_vectors(column, self.vectors, self.rows, self.rows)
            made = column
            if not step.place.reaches(column, own=True):
                made = step.own_y(x.dtype)
                copied.append((made, column))
            with step.place.turn(starts, home):  # the vectors of the product before are added up
                step.launch(step.x_of(x, self._is_here(step, x)), made)
        others = [step.place for step in self._steps if step.place is not home]
        with home.turn((), *others):
            for made, column in copied:
                copy(home, made, column)
            if self.vectors == 1:
                self._finish(together, self._ones, [(y, own) for y, own in targets], memory)
                return
            without = [(as_one(y), own) for y, own in targets if not has_gaps(y)]
            if len(without) == len(targets):
                self._finish(together, self._ones, without, memory)
                return
            summed = together.own_y(x.dtype)
            together.launch(self._ones, summed, memory)
            for y, _ in targets:
                copy(home, as_vectors(summed, self.vectors, self.rows, self.rows), y)
