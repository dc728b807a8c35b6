"""The parts of a batch: one launch of a kernel for each; by far most batches are one."""

from __future__ import annotations

import math
from typing import NamedTuple

from gemv.core.batch import OPERANDS, Batch
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.batches import for_few, limits, select_batch, select_item, that_fit
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


def aligned(problem: Problem, batch: Batch) -> Problem:
    """The problem of the first item, with the alignment that all items share."""
    size = problem.dtype.itemsize
    return problem.aligned(
        math.gcd(problem.a_alignment, *(step * size for step in batch.of("a"))),
        math.gcd(problem.x_alignment, *(step * size for step in batch.of("x"))),
    )


def parts(
    problem: Problem,
    batch: Batch,
    device: Device,
    kernel: str | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
) -> list[Part]:
    """The launches that compute a batch, in order.

    `problem` is that of :func:`aligned`, and `batch` is collapsed. An error as of
    :func:`gemv.selection.select.select`.
    """
    single = select_item(problem, batch, device, kernel, homes)
    single = for_few(problem, batch, device, kernel, single)
    if batch.items == 1 and not batch.conjugate_x and single.kernel.of_batch is None:
        return [Part(batch, (0,) * len(OPERANDS), single)]
    dimensions, most = limits(problem, single)
    if len(batch.shape) > dimensions:
        batch = batch.with_longest_last()
    while True:
        found = [
            Part(part, offsets, select_batch(problem, part, device, kernel, homes))
            for part, offsets in batch.parts(dimensions, most)
        ]
        if not found:
            return found
        first = found[0]  # no other part has more items
        most = that_fit(problem, first.choice, first.batch.items)
        if most == first.batch.items:
            return found
