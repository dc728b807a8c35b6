"""The climb: which rungs are steps on one problem, and what the simulator counts of each of them.

A rung is a step if it is faster than every rung before it on the same problem, and a side step if
it is not. The times are those of ``benchmarks/results/ladder``, so a new measurement may turn one
into the other. The words are in ``docs/course/climb.toml``.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from watch import Record, watch

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel
from gemv.measure.inputs import make_problem
from gemv.selection.select import select

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks.pages.ladder_table import load  # noqa: E402

WORDS = Path(__file__).resolve().parents[1] / "course" / "climb.toml"
#: The GPU of the stored times: launches are those that it gets. Its multiprocessors have room for
#: so many threads at a time.
GPU = Device("NVIDIA H200", (9, 0), 132)
ROOM = GPU.multiprocessors * GPU.chip.threads


@dataclass(frozen=True)
class Step:
    """One rung on one problem."""

    kernel: Kernel
    #: Of its row in the stored ladder.
    gb_per_s: float
    share: float
    #: The fastest rung before it, and how many times as fast this one is; None for the first.
    before: Kernel | None
    ratio: float

    @property
    def is_aside(self) -> bool:
        """Whether it is slower than a rung before it."""
        return self.before is not None and self.ratio <= 1


def words() -> dict[str, dict]:
    """The acts of the story by name."""
    return tomllib.loads(WORDS.read_text(encoding="utf-8"))


def steps(case: dict) -> list[Step]:
    """Every rung that was measured on a problem, in reading order."""
    made: list[Step] = []
    best: dict | None = None
    for row in case["rows"]:
        kernel = REGISTRY.get(row["name"])
        if kernel is None or kernel.beside or not row.get("time_s"):
            continue
        before = REGISTRY[best["name"]] if best else None
        ratio = best["time_s"] / row["time_s"] if best else 1.0
        made.append(Step(kernel, row["gb_per_s"], row["share"], before, ratio))
        if best is None or ratio > 1:
            best = row
    return made


# --- Counting -------------------------------------------------------------------------------------


def counted(kernel: Kernel, case: dict, part: tuple[int, int] | None) -> dict:
    """What the launch of the whole problem is, and what the simulator counts on a part of it.

    Without a `part`, rows and columns of it, only the launch is told. A kernel with wide loads gets
    the part that one of its blocks takes in one step.
    """
    whole = make_problem(case["m"], case["n"], DTYPES[case["dtype"]], case["order"], case["op"])
    choice = select(whole.at(0, 0), GPU, kernel.name)
    (x, y, z), block, _ = choice.geometry.launches[0]
    threads = x * y * z * block[0] * block[1] * block[2]
    told = {
        "launches": len(choice.geometry.launches),
        "threads": threads,
        "fill": min(1.0, threads / ROOM),
        "knobs": choice.knobs,
    }
    if part is None:
        return told
    if kernel.wide:
        rows, columns = kernel.tile(choice.knobs)
        part = rows, columns * choice.knobs.get("VECTORS", 1)
    m, n = min(part[0], case["m"]), min(part[1], case["n"])
    record = watch(kernel, m, n, order=case["order"], dtype=case["dtype"], knobs=choice.knobs)
    readers = {(one.block, one.tid) for one in record.of("a")}
    return told | {
        "reading": len(readers) / record.blocks / record.geometry.launches[0].threads_per_block,
        "lines": record.lines(),
        "sectors": record.sectors(),
        "useful": record.useful(),
        "in_a_row": bytes_in_a_row(record),
        "barriers": record.barriers / m,
        "banks": record.bank_ways,
    }


def bytes_in_a_row(record: Record) -> int:
    """The most bytes of A that a thread asks for without another access between them.

    The program as written; a compiler may put the loads of several turns of a loop together.
    """
    own = sorted(record.accesses, key=lambda one: (one.launch, one.block, one.tid))
    longest = 0
    for _, thread in itertools.groupby(own, key=lambda one: (one.launch, one.block, one.tid)):
        for array, together in itertools.groupby(thread, key=lambda one: one.array):
            if array == "a":
                longest = max(longest, sum(one.itemsize for one in together))
    return longest


def counts(act: str) -> dict[str, dict]:
    """:func:`counted` of every rung of an act that was measured."""
    text = words()[act]
    case = load()[text["results"]]
    part = text.get("part")
    return {step.kernel.name: counted(step.kernel, case, part) for step in steps(case)}
