"""What the choice of a kernel costs the host, without a GPU as well.

A new shape is one that no call had before. Its cell is known if another shape of the cell came
before, or new. A few shapes have no cell, because its middle is of another kind: the formula
decides for each of them. The data are what selection reads of a GPU. They are timed in processes of
their own, from the modules being imported to the number of the first cell. Times are the best of
several rounds, of means over many shapes.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.measure.calls_records import CallResults, CallRow
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.measure.inputs import make_problem
from gemv.selection import select as selection
from gemv.selection.cells import indices_of, kind_of
from gemv.selection.choices import EMPTY, choices
from gemv.selection.items import is_small
from gemv.selection.machine import REFERENCE

ROUNDS = 15
SHAPES = 8000

#: Prints the seconds until all is read that the first choice for a matrix of float32 needs.
_DATA = """
import time
from gemv.core.geometry import Device
from gemv.selection import compiled
from gemv.selection.cells import Kind
from gemv.selection.choices import choices
start = time.perf_counter()
found = choices(Device({name!r}, {capability!r}, {multiprocessors!r}))
number = found.numbers(Kind("s", "dot", 4, True, False, True))[3000]
found.machine.constants[found.entries[number].number]
print(time.perf_counter() - start)
"""


def measure(
    rounds: int = ROUNDS, shapes: int = SHAPES, progress: Callable[[str], None] | None = None
) -> CallResults:
    """Time choices and data of the GPU whose choices were made ahead."""
    device = REFERENCE
    table = CallResults(device.name)
    tell = progress or (lambda what: None)
    tell("data")
    table.rows.append(CallRow("data", "ready in a new process", _data_s(device, rounds)))
    tell("rows of 64 numbers")
    usual = known_s(rows_of_64(), device, rounds)
    table.rows.append(CallRow("a new shape, cell known", "rows of 64 float32", usual))
    by_kernel: dict[str, list[Problem]] = {}
    without = []
    for problem in drawn(shapes):
        if not _has_cell(problem, device):
            without.append(problem)
            continue
        name = selection.select(problem, device).kernel.name
        by_kernel.setdefault(name, []).append(problem)
    for name, problems in sorted(by_kernel.items()):
        tell(name)
        seconds = known_s(problems, device, rounds)
        note = f"{len(problems)} shapes of all dtypes"
        table.rows.append(CallRow("a new shape, cell known", name, seconds, note))
    tell("cells")
    table.rows.append(_of_cells(device, rounds))
    if without:
        tell("formula")
        seconds, note = known_s(without, device, 2), f"{len(without)} of {shapes} shapes"
        table.rows.append(CallRow("a new shape, no cell", "by the formula", seconds, note))
    return table


def rows_of_64() -> list[Problem]:
    """Matrices of one kind, with 100 to 2099 rows."""
    return [make_problem(m, 64, np.dtype(np.float32), "C", "N") for m in range(100, 2100)]


def drawn(shapes: int, seed: int = 0) -> list[Problem]:
    """Problems of all dtypes and storage orders, with lines of whole vectors and others."""
    chance = random.Random(seed)
    found = {}
    while len(found) < shapes:
        letter = chance.choice("sdczhb")
        rows, cols = (int(2 ** chance.uniform(0, 16)) for _ in range(2))
        if chance.random() < 0.5:
            rows, cols = -(-rows // 8) * 8, -(-cols // 8) * 8
        problem = make_problem(rows, cols, DTYPES[letter], chance.choice("CF"), "N")
        if chance.random() < 0.05:  # every other row and column of something
            row_stride, col_stride = 2 * problem.row_stride, 2 * problem.col_stride
            problem = problem._replace(row_stride=row_stride, col_stride=col_stride)
        found[problem.at(256, 256)] = None
    return list(found)


def _has_cell(problem: Problem, device: Device) -> bool:
    """Whether something was chosen for its cell; no problem of its kind may be in the middle."""
    kind = kind_of(problem)
    if kind is None or is_small(problem):
        return True
    return choices(device).number(kind, *indices_of(problem)) != EMPTY


def known_s(problems: Sequence[Problem], device: Device, rounds: int = ROUNDS) -> float:
    """Seconds of a choice whose cell is known, and which is not remembered itself."""
    parts = [
        problems[at : at + selection.MAX_CHOICES]
        for at in range(0, len(problems), selection.MAX_CHOICES)
    ]
    best = float("inf")
    for _ in range(rounds + 1):  # the first one makes the cells known
        seconds = 0.0
        for part in parts:
            selection.known_of(device).choices.clear()
            seconds += _timed(part, device)
        best = min(best, seconds / len(problems))
    return best


def _of_cells(device: Device, rounds: int) -> CallRow:
    """One shape of each cell of a kind of which nothing is known but the numbers of its cells."""
    sides = [16 * 2 ** (k / 4) for k in range(1, 40)]
    problems = [
        make_problem(int(m), int(n) // 4 * 4, np.dtype(np.float32), "C", "N").at(256, 256)
        for m in sides
        for n in sides
    ]
    best = float("inf")
    for _ in range(rounds + 1):
        selection.forget()
        best = min(best, _timed(problems, device) / len(problems))
    return CallRow("a new shape, cell new", "rows of float32", best, f"{len(problems)} cells")


def _timed(problems: Sequence[Problem], device: Device) -> float:
    select = selection.select
    gc.disable()  # the rest of the process decides what a collection takes
    try:
        start = time.perf_counter()
        for problem in problems:
            select(problem, device)
        return time.perf_counter() - start
    finally:
        gc.enable()


def _data_s(device: Device, rounds: int) -> float:
    """Least seconds of processes that read the machine of a GPU."""
    name, capability, multiprocessors = device[:3]
    code = _DATA.format(name=name, capability=capability, multiprocessors=multiprocessors)
    environment = {key: value for key, value in os.environ.items() if key != "GEMV_MACHINE"}
    found = []
    for _ in range(rounds):
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True
        )
        found.append(float(run.stdout))
    return min(found)
