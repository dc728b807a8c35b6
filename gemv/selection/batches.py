"""Which kernel a batch gets: the one of a single item, run for all of them by one launch."""

from __future__ import annotations

import dataclasses

from gemv.core.batch import Batch
from gemv.core.geometry import MAX_GRID_Y, Device
from gemv.core.problem import Problem
from gemv.kernels.items import geometry_of_items
from gemv.selection.select import Choice, select

#: Items that one launch may take: a grid has no more blocks along z.
MOST_ITEMS = MAX_GRID_Y
#: Scratch memory that one launch may take; a batch that needs more takes several launches.
MOST_SCRATCH_BYTES = 1 << 28
#: Counters that one launch may take: a part of those that a captured graph can have.
MOST_COUNTERS = 1 << 16


def select_batch(
    problem: Problem,
    batch: Batch,
    device: Device,
    kernel: str | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
) -> Choice:
    """The kernel for `batch`, whose items are all `problem`.

    It is the choice for one item, and so the order of its sums. An error as of :func:`select`.
    """
    single = select(problem, device, kernel=kernel, homes=homes)
    if single.kernel.x_home(single.knobs) != "pointer":
        raise ValueError(f"kernel {single.kernel.name!r} moves x, so it computes no batches")
    spec = dataclasses.replace(single.spec, levels=len(batch.shape), conjugate_x=batch.conjugate_x)
    return single._replace(spec=spec, geometry=geometry_of_items(single.geometry, batch))


def most_items(problem: Problem, choice: Choice) -> int:
    """How many items one launch takes, from the choice for one item."""
    geometry = choice.geometry
    most = MOST_ITEMS
    if geometry.scratch:
        each = geometry.scratch * problem.precision.sums.itemsize
        most = min(most, MOST_SCRATCH_BYTES // each)
    if geometry.counters:
        most = min(most, MOST_COUNTERS // geometry.counters)
    return max(most, 1)
