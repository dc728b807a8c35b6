"""Several vectors at once: a shard reads its part of the matrix once for all of them.

The kernels of :mod:`gemv.kernels.vectors` have the sums of the kernel for one vector, and so do
some of their blocks: a shard runs those that have its rows, or its splits, as it does for one
vector. A block has its place among the vectors along z or y of the grid, where nothing is cut.
"""

from __future__ import annotations

import dataclasses

from gemv.core.batch import Batch, aligned_step
from gemv.core.geometry import Device, Geometry
from gemv.core.problem import Problem
from gemv.selection.batches import select_batch
from gemv.selection.select import Choice
from gemv.shards.cut import Part


def choice_for(
    problem: Problem, single: Choice, vectors: int, device: Device, kernel: str | None
) -> Choice | None:
    """The kernel for so many vectors of x; None if none has the sums of `single`.

    `problem` is that of one vector.
    """
    x_step = aligned_step(problem.cols)
    steps = ((0,), (x_step,), (problem.rows,), (0,), (0,))
    found = select_batch(problem, Batch((vectors,), steps), device, kernel)
    return found if found.kernel.for_vectors and _same_sums(found, single) else None


def _same_sums(several: Choice, single: Choice) -> bool:
    """Whether the kernel for several vectors has the loads and splits of the one for one vector."""
    splits = single.geometry.sizes.get("splits", 1)
    sizes = ("splits", "cols_per_split") if splits > 1 else ()
    return (
        several.spec.widths[0] == single.spec.widths[0]
        and several.spec.accumulate == single.spec.accumulate
        and all(several.geometry.sizes[name] == single.geometry.sizes[name] for name in sizes)
    )


def part_for(part: Part, choice: Choice, rows: int, device: Device, is_apart: bool) -> Part:
    """What a shard computes for several vectors, where `part` is what it computes for one.

    Parameters
    ----------
    choice : Choice
        The one for several vectors and the whole matrix, which has so many `rows`.
    is_apart : bool
        Whether the part has some of the splits of all rows; its sums then belong to nobody yet.
    """
    geometry = choice.geometry
    (launch,) = geometry.launches
    own = choice.kernel.geometry(part.problem, device, choice.knobs)
    _, along, turns = launch.grid
    across = own.launches[0].grid[0]
    launch = launch._replace(grid=(across, part.splits if is_apart else along, turns))
    if is_apart:
        # Blocks that began just before the last one are those of other launches: they do not help.
        made = Geometry((launch,), {**geometry.sizes, "helpers": 1})
        choice = choice._replace(spec=dataclasses.replace(choice.spec, helpers=1))
    else:
        # Blocks that take tile after tile, or task after task, end behind those of the shard.
        ends = {name: own.sizes[name] for name in geometry.sizes if name in ("tiles", "tasks")}
        sizes = {**geometry.sizes, **ends}
        # Sums of splits are counted by the row. Those of tasks are counted by the tile, for COUNT
        # vectors each, and the last tile may have more of them than the shard has rows.
        by_tile = "tasks" in ends
        scratch = own.scratch * turns if by_tile else geometry.scratch // rows * part.rows
        made = geometry._replace(launches=(launch,), sizes=sizes, scratch=scratch)
    return part._replace(choice=choice._replace(geometry=made))
