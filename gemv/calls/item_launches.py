"""Batches: the launches that compute the items of a checked batch, and their operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gemv.calls.bind import Call
from gemv.core.batch import OPERANDS, Batch
from gemv.core.operand import RANK, Operand, part_of
from gemv.core.problem import Problem
from gemv.selection.parts import Part, aligned, parts
from gemv.selection.select import Choice


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
    problem = aligned(call.problem.at(call.a.pointer, call.x.pointer), batch)
    try:
        found = parts(problem, batch, engine.device(), kernel, call.homes)
    except ValueError as error:
        raise ValueError(f"{call.routine}: {error}") from None
    return Launches(problem, found)


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
