"""The candidates of a cell: the present choice, choices for similar problems, and random ones.

A campaign needs slow candidates as well: a model that has only seen a choice where it is fast
would predict that it is fast everywhere. So many candidates are drawn at random from a pool of
constants, whatever problems those constants were tuned for. The draw only leaves out constants with
which most lanes would have no load, or far too many.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, Device, ceil_div
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.selection import ranking
from gemv.selection.items import is_small
from gemv.selection.machine import MachineFile, machine
from gemv.selection.ranking import MOST_THREADS, is_vain, knobs_of, predictions
from gemv.selection.select import Choice, select

#: Kernel and constants. BLOCKS_PER_SM is 0 or 1 here, which says if the code for splits is there.
Set = tuple[str, tuple[tuple[str, int], ...]]
#: Values of BLOCKS_PER_SM that are tried: the columns are split into so many blocks per SM.
SPLITS = (1, 2, 4, 6, 8, 16)
#: Kernels and constants; a line each.
_POOL = Path(__file__).with_name("pool.json")


class Candidate(NamedTuple):
    """Constants to try, and BLOCKS_PER_SM (0: columns are not split)."""

    constants: Set
    blocks: int


def normal(kernel: str, knobs: Mapping[str, int]) -> Candidate:
    """The candidate with these knobs, and the kernel's defaults for the others."""
    merged = {**REGISTRY[kernel].knobs, **knobs}
    blocks = merged.get("BLOCKS_PER_SM", 0)
    if blocks:
        merged["BLOCKS_PER_SM"] = 1
    return Candidate((kernel, tuple(sorted(merged.items()))), blocks)


def of_machine(used: MachineFile, candidate: ranking.Candidate) -> Candidate:
    """A candidate of a machine as a campaign's file has it."""
    constants = used.constants[candidate.number]
    return normal(constants.name, knobs_of(constants, candidate.blocks))


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


def is_taken(candidate: Candidate, problem: Problem, device: Device) -> bool:
    """Whether the kernel takes the problem and the constants."""
    try:
        choice(candidate, problem, device)
    except ValueError:
        return False
    return True


@functools.cache
def pool() -> dict[str, list[Set]]:
    """The sets of each kernel that random candidates come from."""
    found: dict[str, list[Set]] = {}
    for name, knobs in json.loads(_POOL.read_text("utf-8")):
        merged = {**REGISTRY[name].knobs, **knobs}
        found.setdefault(name, []).append((name, tuple(sorted(merged.items()))))
    return found


def candidates(
    problem: Problem, device: Device, seed: int, first: Iterable[Candidate] = (), count: int = 24
) -> list[Candidate]:
    """Candidates for a problem, the present choice first; no two of them have the same launch.

    For a small matrix there is no choice, and what it gets is no candidate.

    Parameters
    ----------
    first : iterable of Candidate
        Candidates that are tried in any case.
    count : int
        The most random candidates.
    """
    present = _chosen(problem, device)
    found: dict[tuple, Candidate] = {}

    def add(candidate: Candidate) -> None:
        try:
            made = choice(candidate, problem, device)
        except ValueError:
            return
        if made.geometry.launches[0].threads_per_block <= MOST_THREADS:
            found.setdefault((candidate.constants, made.geometry.launches), candidate)

    for each in (*present, *first, *_neighbours(problem, device)):
        add(each)
    for each in present:
        for blocks in SPLITS if each.blocks else ():
            add(each._replace(blocks=blocks))
    number = random.Random(seed)
    fitting = [
        constants
        for name, sets in pool().items()
        if not REGISTRY[name].accepts(problem) and not is_vain(REGISTRY[name], problem)
        for constants in sets
        if has_work(dict(constants[1]), problem) and has_passes(dict(constants[1]), problem)
    ]
    for constants in number.sample(fitting, min(count, len(fitting))):
        split = dict(constants[1]).get("BLOCKS_PER_SM", 0)
        add(Candidate(constants, number.choice(SPLITS) if split else 0))
    return list(found.values())


def of_kernels(
    names: Collection[str], problem: Problem, device: Device, seed: int, count: int
) -> list[Candidate]:
    """Random candidates of these kernels, if the formula does not expect them to be hopeless."""
    number = random.Random(seed)
    found = []
    for name in names:
        kernel = REGISTRY[name]
        if kernel.accepts(problem) or is_vain(kernel, problem):
            continue
        for constants in pool()[name]:
            knobs = dict(constants[1])
            if has_work(knobs, problem) and has_passes(knobs, problem):
                split = knobs.get("BLOCKS_PER_SM", 0)
                found.append(Candidate(constants, number.choice(SPLITS) if split else 0))
    return number.sample(found, min(count, len(found)))


def has_passes(knobs: Mapping[str, int], problem: Problem) -> bool:
    """Whether a thread of a cluster has a third of a load to do, and no more than 48."""
    cluster = knobs.get("CLUSTER")
    if cluster is None:
        return True
    lanes = knobs["LANES"]
    if problem.access == "dot":
        each = problem.line_bytes / (LOAD_BYTES * cluster * lanes)
    else:
        each = problem.lines / (cluster * knobs["THREADS_PER_BLOCK"] / lanes)
    return 0.3 <= each <= 48


def has_work(knobs: Mapping[str, int], problem: Problem) -> bool:
    """Whether at least half of the lanes of a line have a load, and none has more than 32.

    The limit of 32 holds for rows, 4096 or more of them, and less than 32 lanes. Lanes along a
    column have a load of it each, and other blocks have the rest of its rows.
    """
    loads = ceil_div(problem.line_bytes, LOAD_BYTES)
    lanes = knobs.get("LANES", 1)
    in_turn = problem.access == "dot" and lanes < 32 and problem.lines >= 4096
    return lanes <= max(2 * loads, 1) and (not in_turn or 32 * lanes >= loads)


def _chosen(problem: Problem, device: Device) -> list[Candidate]:
    """What is selected now, unless the problem is a small one."""
    if is_small(problem):
        return []
    chosen = select(problem, device)
    return [normal(chosen.kernel.name, chosen.knobs)]


def expected(problem: Problem, device: Device, count: int) -> list[Candidate]:
    """The present choice, and what the machine's formula expects to be fastest of its constants."""
    ranked = sorted(
        predictions(machine(device), problem, device), key=lambda each: each.parts.seconds
    )
    first = (
        normal(each.constants.kernel.name, knobs_of(each.constants, each.candidate.blocks))
        for each in ranked[:count]
    )
    return list(dict.fromkeys([*_chosen(problem, device), *first]))


def _neighbours(problem: Problem, device: Device) -> Iterator[Candidate]:
    """What is chosen for similar problems: of other sizes, or with other elements."""
    down, along = ("cols", "rows") if problem.access == "axpy" else ("rows", "cols")
    lines, line = getattr(problem, down), getattr(problem, along)
    sizes = [(lines * f, line) for f in (0.25, 0.5, 2, 4)]
    sizes += [(lines, line * f) for f in (0.25, 0.5, 2, 4)]
    for count, length in sizes:
        other = problem._replace(**{down: max(1, int(count)), along: max(1, int(length))})
        yield from _chosen(other, device)
    for letter in "sdh":
        dtype = DTYPES[letter]
        factor = problem.dtype.itemsize / dtype.itemsize
        other = problem._replace(
            dtype=dtype, conj=False, **{along: max(1, int(line * factor))}
        ).aligned(max(problem.a_alignment, dtype.itemsize), problem.x_alignment)
        yield from _chosen(other, device)
