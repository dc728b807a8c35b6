"""What solvers gain, beside the products that they make."""

import pytest
from helpers.programs import program

from gemv.measure.records import CellResult


def cell(op, ours, theirs, order="C"):
    found = CellResult(1000, 10, "d", op, order, "", False, 0, 80_000, 3, "tile2d", {})
    found.time_s, found.peers = ours, {"torch.mv": 9.0, "cuBLAS gemv": theirs}
    return found


def solved(problem, **times):
    shape = [1000, 10] if problem == "ridge" else [10, 10]
    return [
        {"problem": problem, "shape": shape, "dtype": "float64", "by": by, "time_s": time_s}
        for by, time_s in times.items()
    ]


def test_gains_of_solvers_stand_beside_those_of_their_products():
    gains = program("pages.solver_gains").gains
    times = {"gemv, SciPy": 2.0, "gemv, CuPy": 4.0, "CuPy": 5.0, "SciPy": 20.0}
    solvers = {"rows": [*solved("ridge", **times), *solved("cg", **times)]}
    cells = [cell("N", 1.0, 2.0), cell("T", 1.0, 8.0), cell("N", 1.0, 100.0, order="F")]
    ridge, cg = gains(solvers, cells)
    assert (ridge.problem, ridge.cupy, ridge.scipy) == ("ridge", 1.25, 10.0)
    assert ridge.alone == pytest.approx(4.0)  # the mean of both products of an iteration
    assert cg.alone is None  # no grid has its shape
    assert gains(solvers, cells[1:])[0].alone is None, "one of the two products is not enough"
