"""What a campaign tries on a cell: the present choice, its neighbours', and others at random.

Winners alone teach nothing: a model that never saw a choice lose trusts it everywhere. So half of
the candidates are drawn from a pool of constants with no regard to what they are for, as long as
their lanes find something to do.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, Device, ceil_div
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.selection.select import Choice, select
from gemv.selection.table import table

#: Kernel and constants. BLOCKS_PER_SM is 0 or 1 there: whether there is code for splits.
Set = tuple[str, tuple[tuple[str, int], ...]]
#: Blocks for each multiprocessor that columns are split for.
SPLITS = (1, 2, 4, 6, 8, 16)
#: Sets that random candidates come from, for each kernel: so few that their machine code is shared.
POOL = {
    "vector_rows": 40, "vector_columns": 34, "long_columns": 10, "short_columns": 6,
    "phased_rows": 16, "phased_columns": 12, "last_block": 1,
}  # fmt: skip


class Candidate(NamedTuple):
    """Constants to try, and the blocks a multiprocessor that columns are split for (0: none)."""

    constants: Set
    blocks: int


def normal(kernel: str, knobs: Mapping[str, int]) -> Candidate:
    """Constants as a candidate."""
    merged = {**REGISTRY[kernel].knobs, **knobs}
    blocks = merged.get("BLOCKS_PER_SM", 0)
    if blocks:
        merged["BLOCKS_PER_SM"] = 1
    return Candidate((kernel, tuple(sorted(merged.items()))), blocks)


def choice(candidate: Candidate, problem: Problem, device: Device) -> Choice:
    """The launch of a candidate.

    Raises
    ------
    ValueError
        If the kernel refuses the problem or the constants.
    """
    name, constants = candidate.constants
    kernel = REGISTRY[name]
    refusal = kernel.accepts(problem)
    if refusal:
        raise ValueError(refusal)
    knobs = dict(constants)
    spec = kernel.spec(problem, knobs)
    if candidate.blocks:
        knobs["BLOCKS_PER_SM"] = candidate.blocks
    return Choice(kernel, spec, kernel.geometry(problem, device, knobs), "a candidate")


@functools.cache
def pool() -> dict[str, list[Set]]:
    """For each kernel the sets that random candidates come from: far apart from each other."""
    everything: dict[str, dict[Set, int]] = {}
    for row in table():
        constants = normal(row.kernel, row.knobs).constants
        counts = everything.setdefault(row.kernel, {})
        counts[constants] = counts.get(constants, 0) + 1
    return {name: _spread(counts, POOL[name]) for name, counts in sorted(everything.items())}


def _spread(counts: Mapping[Set, int], most: int) -> list[Set]:
    """`most` sets: the one that most rows use, then always the one farthest from those taken."""
    left = sorted(counts, key=lambda each: (-counts[each], each))
    taken = [left.pop(0)]
    while left and len(taken) < most:
        farthest = max(left, key=lambda each: min(_distance(each, other) for other in taken))
        left.remove(farthest)
        taken.append(farthest)
    return taken


def _distance(one: Set, other: Set) -> float:
    pairs = zip(one[1], other[1], strict=True)
    return sum(abs(math.log2(1 + a) - math.log2(1 + b)) for (_, a), (_, b) in pairs)


def candidates(problem: Problem, device: Device, seed: int, count: int = 24) -> list[Candidate]:
    """Candidates for a problem, the present choice first; none of them launches what another does.

    Parameters
    ----------
    count : int
        Random candidates.
    """
    chosen = select(problem, device)
    found: dict[tuple, Candidate] = {}

    def add(candidate: Candidate) -> None:
        try:
            made = choice(candidate, problem, device)
        except ValueError:
            return
        if made.geometry.launches[0].threads_per_block <= 1024:
            found.setdefault((candidate.constants, made.geometry.launches), candidate)

    first = normal(chosen.kernel.name, chosen.knobs)
    add(first)
    for name, knobs in _neighbours(problem, device):
        add(normal(name, knobs))
    if first.blocks:
        for blocks in SPLITS:
            add(first._replace(blocks=blocks))
    number = random.Random(seed)
    fitting = [
        constants
        for name, sets in pool().items()
        if not REGISTRY[name].accepts(problem) and not _is_vain(name, problem)
        for constants in sets
        if _has_work(dict(constants[1]), problem)
    ]
    for constants in number.sample(fitting, min(count, len(fitting))):
        split = dict(constants[1]).get("BLOCKS_PER_SM", 0)
        add(Candidate(constants, number.choice(SPLITS) if split else 0))
    return list(found.values())


def _is_vain(name: str, problem: Problem) -> bool:
    """Whether a kernel for lines that begin anywhere meets lines that are all aligned."""
    return REGISTRY[name].phased and problem.a_alignment == LOAD_BYTES


def _has_work(knobs: Mapping[str, int], problem: Problem) -> bool:
    """Whether half of the lanes have a load of a line, and no lane has a whole long line."""
    loads = ceil_div(problem.line_bytes, LOAD_BYTES)
    lanes = knobs.get("LANES", 1)
    busy = lanes >= 32 or 32 * lanes >= loads or problem.lines < 4096
    return lanes <= max(2 * loads, 1) and busy


def _neighbours(problem: Problem, device: Device) -> Iterator[tuple[str, Mapping[str, int]]]:
    """What the table has for problems around this one: other sizes, and elements of other sizes."""
    down, along = ("cols", "rows") if problem.access == "axpy" else ("rows", "cols")
    lines, line = getattr(problem, down), getattr(problem, along)
    sizes = [(lines * f, line) for f in (0.25, 0.5, 2, 4)]
    sizes += [(lines, line * f) for f in (0.25, 0.5, 2, 4)]
    for count, length in sizes:
        other = problem._replace(**{down: max(1, int(count)), along: max(1, int(length))})
        chosen = select(other, device)
        yield chosen.kernel.name, chosen.knobs
    for letter in "sdh":
        dtype = DTYPES[letter]
        factor = problem.dtype.itemsize / dtype.itemsize
        other = problem._replace(
            dtype=dtype, conj=False, **{along: max(1, int(line * factor))}
        ).aligned(max(problem.a_alignment, dtype.itemsize), problem.x_alignment)
        chosen = select(other, device)
        yield chosen.kernel.name, chosen.knobs
