"""The cells of a grid, where their operands lie, and the bytes that they touch."""

from __future__ import annotations

import numpy as np
import pytest

from gemv.core.dtypes import DTYPES
from gemv.measure.cells import RANDOM_BYTES, SHAPES, Cell, cells, cut, normal_view, random_cells
from gemv.measure.frames import lay_out
from gemv.measure.traffic import sectors, traffic


def test_cells_are_all_combinations_dtype_by_dtype():
    found = cells([(3, 4), (5, 6)], "sd", "NT", "CF", ["", "[:, 1:]"])
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 2 * 2
    assert found[0] == Cell(3, 4, "s", "N", "C", "", False, 0)
    assert [cell.dtype for cell in found] == ["s"] * 16 + ["d"] * 16


def test_default_shapes_are_those_of_the_grid():
    assert len(set(SHAPES)) == 24
    assert (1, 67108864) in SHAPES and (128256, 4096) in SHAPES


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"dtypes": ["q"]}, "dtype must be one of s, d, c, z"),
        ({"shapes": [(0, 3)]}, "at least 1, got 0 and 3"),
        ({"ops": ["H"]}, "op must be N, T or C"),
        ({"orders": ["K"]}, "order C or F, got 'N', 'K'"),
        ({"views": ["1:"]}, "a view is two slices"),
        ({"views": [":, ::-1"]}, "a view is two slices"),
        ({"views": [":, ::0"]}, "must be positive"),
    ],
)
def test_bad_cells(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        cells(**{"shapes": [(3, 4)], "dtypes": ["s"], **changes})


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("op", "NTC")
@pytest.mark.parametrize("view", ["", ":, 1:", "3:, 5:", ":, :-7", "::2, 1:-3:3"])
def test_a_layout_is_the_view_that_numpy_makes(order, op, view):
    cell = Cell(6, 5, "c", op, order, normal_view(view))
    layout = lay_out(cell)
    (r0, r_left, r_step), (c0, c_left, c_step) = cut(view)
    shape = (r0 + 6 * r_step + r_left, c0 + 5 * c_step + c_left)
    base = np.arange(shape[0] * shape[1]).reshape(shape, order=order)
    rows = slice(r0, shape[0] - r_left, r_step)
    a = base[rows, c0 : shape[1] - c_left : c_step]
    assert a.shape == (6, 5)
    op_a = a if op == "N" else a.T
    problem = layout.problem
    assert layout.elements == base.size and layout.first == a[0, 0]
    assert op_a.shape == (problem.rows, problem.cols)
    flat = base.ravel(order="K")
    i, j = np.indices(op_a.shape)
    places = layout.first + i * problem.row_stride + j * problem.col_stride
    assert (flat[places] == op_a).all()
    assert problem.conj == (op == "C")
    # A, x and y do not overlap, and each starts as memory of its own would
    assert layout.elements * 8 <= layout.x_at and layout.x_at % 256 == layout.y_at % 256 == 0
    assert layout.x_at + 8 * problem.cols <= layout.y_at
    assert layout.y_at + 8 * problem.rows <= layout.nbytes


def test_a_view_has_one_way_to_be_written():
    assert normal_view("[ : , 1: ]") == normal_view("0:,1:") == ":, 1:"
    assert normal_view("::1, :") == normal_view("") == ""
    assert normal_view("2::4,:-3") == "2::4, :-3"


def test_sectors_of_a_matrix_counted_one_by_one():
    rng = np.random.default_rng(3)
    for _ in range(600):
        size = int(rng.choice([2, 4, 8, 16]))
        rows, cols, step = (int(each) for each in rng.integers(1, (30, 30, 12)))
        distance = step * cols + int(rng.integers(0, 20))
        first = int(rng.integers(0, 20)) * size
        starts = first + (np.arange(rows)[:, None] * distance + np.arange(cols) * step) * size
        touched = {*(starts // 32).ravel(), *((starts + size - 1) // 32).ravel()}
        pieces = sorted([(rows, distance * size), (cols, step * size)], key=lambda piece: piece[1])
        assert sectors(first, size, pieces) == len(touched), (first, size, pieces)


def test_traffic_of_a_tall_matrix_by_hand():
    # 4 floats a row, rows of 8: each row touches one sector of two, x one, y 1000 * 4 / 32
    padded = lay_out(Cell(1000, 4, "s", view=":, :-4"))
    assert traffic(padded, beta=0) == (32 * (1000 + 1), 32 * 125)
    assert traffic(padded, beta=-1) == (32 * (1000 + 1 + 125), 32 * 125)
    assert traffic(lay_out(Cell(1000, 4, "s")), beta=0) == (32 * (500 + 1), 32 * 125)
    transposed = traffic(lay_out(Cell(1000, 4, "d", "T")), beta=0)
    assert transposed == (32 * (1000 + 250), 32)


def test_random_cells():
    """The same for one seed, on every Python; of all kinds, and of sizes that say something."""
    found = random_cells(300, 5)
    assert found == random_cells(300, 5) and len(set(found)) == 300
    assert found[:7] == random_cells(7, 5) != random_cells(7, 6)
    assert found[0] == Cell(2448, 60, "z", "T")
    for name, values in (("dtype", "sdczhb"), ("op", "NT"), ("order", "CF")):
        assert {getattr(cell, name) for cell in found} == set(values)
    assert {cell.view for cell in found} == {"", ":, 1:", ":, 4:"}
    low, high = RANDOM_BYTES
    assert all(low <= c.m * c.n * DTYPES[c.dtype].itemsize <= high for c in found)
    assert min(min(c.m, c.n) for c in found) == 1
    few = random_cells(20, 1, "h", "T", "C", -1, (1, 100))
    assert {(c.dtype, c.op, c.order, c.beta) for c in few} == {("h", "T", "C", -1)}
    assert max(2 * c.m * c.n for c in few) <= 100
    with pytest.raises(ValueError, match="at least 1 and their seed at least 0, got 0 and 0"):
        random_cells(0)
    with pytest.raises(ValueError, match="order C or F, got 'N', 'Z'"):
        random_cells(3, 0, "s", "N", "Z")
    with pytest.raises(ValueError, match="there are no 500 random cells, only about"):
        random_cells(500, 0, "z", "N", "C", sizes=(1, 64))
