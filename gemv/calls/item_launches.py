"""Batches: the launches that compute the items of a checked batch; by far most batches are one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from gemv.calls.bind import Call
from gemv.core.batch import OPERANDS, Batch
from gemv.core.operand import RANK, Operand, part_of
from gemv.core.problem import Problem
from gemv.selection import batches
from gemv.selection.select import Choice


class Part(NamedTuple):
    """The items of one launch of a kernel.

    Attributes
    ----------
    batch : Batch
        These items, as they lie behind the first of them.
    offsets : tuple of int
        The distances in elements from the first item of all to the first of these, for each of
        :data:`~gemv.core.batch.OPERANDS`.
    choice : Choice
        The kernel. All parts of a batch have the same order of sums.
    """

    batch: Batch
    offsets: tuple[int, ...]
    choice: Choice


class Launches(NamedTuple):
    """What computes a batch.

    Attributes
    ----------
    problem : Problem
        That of an item, with the alignment that all items share.
    parts : list of Part
        In the order in which they are launched.
    """

    problem: Problem
    parts: list[Part]


def planned(engine: Any, call: Call, batch: Batch, kernel: str | None) -> Launches:
    """Select the kernels for a batch whose operands are on the device."""
    batch = batch.collapsed()
    problem = _placed(call, batch)
    device = engine.device()
    try:
        single = batches.select_item(problem, batch, device, kernel, call.homes)
        if batch.items == 1 and not batch.conjugate_x and single.kernel.of_batch is None:
            return Launches(problem, [Part(batch, (0,) * len(OPERANDS), single)])
        limits = batches.limits(problem, single)
        if len(batch.shape) > limits[0]:
            batch = batch.with_longest_last()
        parts = [
            Part(part, offsets, batches.select_batch(problem, part, device, kernel, call.homes))
            for part, offsets in batch.parts(*limits)
        ]
    except ValueError as error:
        raise ValueError(f"{call.routine}: {error}") from None
    return Launches(problem, parts)


def load(engine: Any, launches: Launches, stream: int | None = None) -> None:
    """Compile and load the kernels on the current GPU, where there is one."""
    if engine.name == "cuda":
        for choice in {part.choice.spec: part.choice for part in launches.parts}.values():
            engine.load(choice, engine.device(), stream)


def operands(
    launches: Launches, call: Call, y: Operand
) -> Iterator[tuple[Choice, tuple[Any, ...]]]:
    """The choice of each part with its operands, in the order of OPERANDS; numbers as they are."""
    whole = {"a": call.a, "x": call.x, "y": y, "alpha": call.alpha, "beta": call.beta}
    for part in launches.parts:
        yield (
            part.choice,
            tuple(
                _part(whole[name], offset, part.batch, name)
                for name, offset in zip(OPERANDS, part.offsets, strict=True)
            ),
        )


def run(
    engine: Any, problem: Problem, choice: Choice, of_part: tuple[Any, ...], stream: Any
) -> None:
    """Enqueue the launches of one part."""
    a, x, y, alpha, beta = of_part
    engine.run(choice, problem, alpha, a, x, beta, y, stream=stream)


def _part(operand: Any, offset: int, part: Batch, name: str) -> Any:
    """What the items of a part have of an operand; a number as it is."""
    if not isinstance(operand, Operand):
        return operand
    first = len(operand.shape) - RANK[name]
    shape, strides = operand.shape[first:], operand.strides[first:]
    return part_of(operand, offset, (*part.shape, *shape), (*part.of(name), *strides))


def _placed(call: Call, batch: Batch) -> Problem:
    """The problem of an item, with the alignment that all items share."""
    size = call.problem.dtype.itemsize
    problem = call.problem.at(call.a.pointer, call.x.pointer)
    return problem.aligned(
        math.gcd(problem.a_alignment, *(step * size for step in batch.of("a"))),
        math.gcd(problem.x_alignment, *(step * size for step in batch.of("x"))),
    )
