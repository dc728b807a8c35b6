"""Calls on NumPy's arrays where SciPy's BLAS computes, beside SciPy's own functions.

SciPy's time is that of its function for the same numbers in the order that it likes best,
contiguous by columns; and once more for the array as it is, which it may have to copy.
"""

from __future__ import annotations

import json
import os
import platform
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.engines import backend
from gemv.measure.inputs import random_array

#: Sides of the squares that are measured.
SIDES = (4, 16, 64, 256, 1024, 2048, 4096, 8192)
#: Time of a batch of calls, and rounds, in each of which all contenders have a batch.
_BATCH_S, ROUNDS = 0.002, 9
#: Elements between two lines of a view.
_GAP = 8
#: Bytes of a page of memory.
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class HostRow:
    """One matrix: seconds of our call, of SciPy's in its best order, and of SciPy's on this array.

    `layout` says how the n x n matrix lies in memory, `op` is "N" or "T".
    """

    n: int
    dtype: str
    layout: str
    op: str
    ours_s: float
    best_s: float
    same_s: float

    @property
    def ratio(self) -> float:
        """Our time over SciPy's in its best order."""
        return self.ours_s / self.best_s


@dataclass(slots=True)
class HostResults:
    """All rows of a run and where it was made."""

    machine: str
    cores: int
    versions: dict[str, str]
    rows: list[HostRow] = field(default_factory=list)

    def to_json(self) -> str:
        rows = ",\n  ".join(json.dumps(asdict(row)) for row in self.rows)
        head = {"machine": self.machine, "cores": self.cores, "versions": self.versions}
        return f'{json.dumps(head)[:-1]},\n "rows": [\n  {rows}\n ]}}\n'


def here() -> HostResults:
    """Results of this machine, without rows yet."""
    from importlib.metadata import version

    versions = {name: version(name) for name in ("numpy", "scipy")}
    return HostResults(platform.machine(), os.cpu_count() or 1, versions)


def _by_rows(a: np.ndarray, gap: int = 0) -> np.ndarray:
    """A copy that begins at a page.

    Where it does not, two copies of one float32 matrix of 256 x 256 took SciPy 3.5 us and 4.7.
    """
    m, n = a.shape
    nbytes = m * (n + gap) * a.itemsize
    memory = np.empty(nbytes + _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE
    wide = memory[start : start + nbytes].view(a.dtype).reshape(m, n + gap)
    wide[:, :n] = a
    return wide[:, :n]


#: By name, how a matrix comes to lie in memory.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "by columns": lambda a: _by_rows(a.T).T,
    "by rows": _by_rows,
    "by columns, gaps": lambda a: _by_rows(a.T, _GAP).T,
    "by rows, gaps": lambda a: _by_rows(a, _GAP),
}


def _fastest(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Least seconds of each call, batch by batch in turn."""
    timers = [timeit.Timer(call) for call in calls]
    counts = [max(1, int(_BATCH_S / max(timer.timeit(3) / 3, 1e-9))) for timer in timers]
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for place, (timer, count) in enumerate(zip(timers, counts, strict=True)):
            best[place] = min(best[place], timer.timeit(count) / count)
    return best


def measure(
    routines: Mapping[str, Callable[..., Any]],
    sides: Sequence[int] = SIDES,
    dtypes: Sequence[str] = "sdcz",
) -> Iterator[HostRow]:
    """A row for each square, dtype, op and layout, on the host backend of this process.

    Parameters
    ----------
    routines : mapping of str to callable
        What is measured: our routine for each dtype, by its letter.
    """
    from scipy.linalg import blas

    with backend.using("host"):
        rng = np.random.default_rng(1)
        for letter in dtypes:
            ours, theirs = routines[letter], getattr(blas, f"{letter}gemv")
            for n in sides:
                values = random_array(rng, (n, n), DTYPES[letter])
                x = random_array(rng, (n,), DTYPES[letter])
                best = LAYOUTS["by columns"](values)
                for layout, laid in LAYOUTS.items():
                    a = laid(values)
                    for trans, op in enumerate("NT"):
                        calls = [
                            partial(ours, 1.0, a, x, trans=trans),
                            partial(theirs, 1.0, best, x, trans=trans),
                            partial(theirs, 1.0, a, x, trans=trans),
                        ]
                        calls[0]()  # the long way
                        yield HostRow(n, letter, layout, op, *_fastest(calls))
