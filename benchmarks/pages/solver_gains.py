"""What whole solvers gain, beside what the product alone gains on the same matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.measure.records import CellResult

#: The op of the products of an iteration.
OPS = {"cg": "N", "gmres": "N", "pagerank": "N", "ridge": "NT"}
#: What CuPy's arrays multiply with.
PEER = "cuBLAS gemv"


class Gain(NamedTuple):
    """How many times as fast gemv is on one problem.

    Attributes
    ----------
    problem : str
    alone : float or None
        A product beside cuBLAS's: the geometric mean over the ops of an iteration; None where no
        grid has such a cell.
    cupy, scipy : float
        All of CuPy's solver beside CuPy's array, and of SciPy's beside NumPy's.
    """

    problem: str
    alone: float | None
    cupy: float
    scipy: float


def gains(solvers: dict[str, Any], cells: Iterable[CellResult]) -> list[Gain]:
    """The gain of each problem of the stored solvers; `cells` are those of a grid of that GPU."""
    rows = solvers["rows"]
    by = {(row["problem"], row["by"]): row["time_s"] for row in rows}
    first = {row["problem"]: row for row in reversed(rows)}
    known = {
        (row.m, row.n, DTYPES[row.dtype], row.op): row.peers[PEER] / row.time_s
        for row in cells
        if (row.order, row.view, row.hot, row.beta) == ("C", "", False, 0)
        and row.time_s
        and PEER in row.peers
    }
    found = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        m, n = first[problem]["shape"]
        dtype = np.dtype(first[problem]["dtype"])
        each = [known.get((m, n, dtype, op)) for op in OPS[problem]]
        alone = (
            None if None in each else math.prod(filter(None, each)) ** (1 / len(each))
        )  # no gain is zero
        found.append(
            Gain(
                problem,
                alone,
                by[problem, "CuPy"] / by[problem, "gemv, CuPy"],
                by[problem, "SciPy"] / by[problem, "gemv, SciPy"],
            )
        )
    return found
