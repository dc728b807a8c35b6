"""Cells of several products: where operands lie, the bytes counted, the checks, and the peers."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gemv.core.dtypes import DTYPES
from gemv.engines import backend
from gemv.measure import peers, peers_of_batches
from gemv.measure.cells import BATCH_SHAPES, Cell, cells, normal_view
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import measure
from gemv.measure.traffic import traffic
from gemv.selection import batches


def test_cells_of_batches():
    (cell,) = cells([(3, 4)], "s", "N", batch=5)
    assert cell == Cell(3, 4, "s", batch=5) and cell.items == 5
    (cell,) = cells([(3, 4)], "s", "N", vectors=6)
    assert (cell.batch, cell.vectors, cell.items) == (1, 6, 6)
    with pytest.raises(ValueError, match="one vector for each matrix, got 2 matrices and 3 vec"):
        cells([(3, 4)], "s", batch=2, vectors=3)
    assert {5, 17, 33} < {n for _, n in BATCH_SHAPES}


def test_bytes_of_a_batch_by_hand():
    """Items times m*n + len(x) + len(y) numbers, in whole sectors of 32 bytes."""
    read, written = traffic(lay_out(Cell(16, 8, "s", batch=10)), 0)
    assert (read, written) == (10 * (16 * 8 + 8) * 4, 10 * 16 * 4)
    read, written = traffic(lay_out(Cell(16, 8, "s", batch=10)), -1)
    assert read == 10 * (16 * 8 + 8 + 16) * 4
    read, written = traffic(lay_out(Cell(16, 8, "d", "T", vectors=12)), 0)
    assert (read, written) == ((16 * 8 + 12 * 16) * 8, 12 * 8 * 8)
    # 5 x 5 float32 lie side by side: 7 of them are 700 bytes, 22 sectors.
    assert traffic(lay_out(Cell(5, 5, "s", batch=7)), 0) == (32 * (22 + 5), 32 * 5)
    # Half of each row of 16 float32 is read, and half of each 64 bytes.
    assert traffic(lay_out(Cell(4, 8, "s", view=":, :-8", batch=3)), 0)[0] == 32 * (12 + 3)


@pytest.mark.parametrize("view", ["", ":, 1:"])
def test_a_layout_of_a_batch(view):
    layout = lay_out(Cell(6, 5, "s", "N", "C", view, batch=7))
    columns = 5 + (view != "")
    assert layout.a_step == 6 * columns and layout.elements == 7 * layout.a_step
    assert layout.batch.shape == (7,)
    assert layout.batch.strides == ((layout.a_step,), (5,), (6,), (0,), (0,))
    assert layout.y_at >= layout.x_at + 7 * 5 * 4 and layout.nbytes >= layout.y_at + 7 * 6 * 4
    layout = lay_out(Cell(6, 5, "s", "T", "C", view, vectors=7))
    assert (layout.a_step, layout.elements) == (0, 6 * columns)
    assert layout.batch.strides == ((0,), (6,), (5,), (0,), (0,))


def test_alignment_is_what_all_items_share():
    base = 1 << 20
    assert FramedCell.at(Cell(4, 4, "s", batch=3), base, 1).problem.a_alignment == 16
    odd = FramedCell.at(Cell(3, 4, "s", batch=3), base, 1).problem
    assert (odd.a_alignment, odd.x_alignment) == (16, 16)
    odd = FramedCell.at(Cell(3, 2, "s", batch=3), base, 1).problem
    assert (odd.a_alignment, odd.x_alignment) == (8, 8)
    vectors = FramedCell.at(Cell(4, 5, "s", "T", "C", vectors=3), base, 1).problem
    assert (vectors.a_alignment, vectors.x_alignment) == (4, 16)


WANTED = [
    Cell(5, 7, "s", batch=4),
    Cell(5, 7, "c", "C", "F", batch=3, beta=-1),
    Cell(66, 3, "d", view=":, 1:", batch=3),
    Cell(9, 12, "s", vectors=3),
    Cell(9, 6, "h", "T", vectors=2, beta=-1),
    Cell(9, 36, "s", vectors=3),
]


def test_cells_of_batches_are_right(monkeypatch):
    monkeypatch.setattr(batches, "MOST_ITEMS", 2)
    (*_, grid) = measure(WANTED)
    assert [each.cell for each in grid.rows] == WANTED
    for each in grid.rows:
        assert each.wrong is None and each.kernel, each
    kernels = {each.kernel for each in grid.rows}
    assert {"small_items", "several_small", "several_rows"} < kernels


@pytest.mark.parametrize("second", [False, True], ids=["numpy", "second-kernel"])
@pytest.mark.parametrize("mistake", ["a", "x", "y", "swapped"])
def test_mistakes_in_items_are_found(mistake, second, monkeypatch):
    """Items that lie elsewhere, or in another order, are wrong results."""
    if second:
        monkeypatch.setattr("gemv.measure.grid.NUMPY_ELEMENTS", 0)
    engine = backend.engine()
    run = type(engine).run

    def wrong(self, choice, problem, alpha, a, x, beta, y, stream=None, **more):
        if choice.kernel.name == "small_items":
            geometry = choice.geometry
            sizes = dict(geometry.sizes)
            if mistake == "swapped":
                x = x.__class__(np.roll(x.owner, problem.cols), x.pointer)
            else:
                sizes[f"{mistake}_step"] = 0
            choice = choice._replace(geometry=geometry._replace(sizes=sizes))
        return run(self, choice, problem, alpha, a, x, beta, y, stream, **more)

    if engine.name != "simulator":
        pytest.skip("vectors are swapped in the memory of the simulator")
    monkeypatch.setattr(type(engine), "run", wrong)
    (*_, grid) = measure([Cell(5, 7, "s", batch=3)])
    assert grid.rows[0].wrong == "small_items differs from what it should be"


# Peers ---------------------------------------------------------------------------------------


class Strided:
    """cuBLAS's gemvStridedBatched, on the host."""

    def __init__(self, dtype):
        self.dtype, self.streams = dtype, []

    def on(self, stream, results_on_host):
        assert results_on_host
        self.streams.append(stream)

    def call(self, name, trans, m, n, alpha, a, lda, a_step, x, incx, x_step, beta, y, incy,
             y_step, count):  # fmt: skip
        assert name == f"cublas{peers.LETTERS[self.dtype.name]}gemvStridedBatched"
        assert incx == incy == 1 and lda >= m
        size = self.dtype.itemsize

        def at(address, *pairs):
            reach = 1 + sum((length - 1) * step for length, step in pairs)
            raw = (ctypes.c_char * (reach * size)).from_address(address.value)
            shape, steps = zip(*pairs, strict=True)
            flat = np.frombuffer(raw, self.dtype)
            return np.lib.stride_tricks.as_strided(flat, shape, [step * size for step in steps])

        matrix = at(a, (count, a_step.value), (m, 1), (n, lda))
        op_a = [matrix, matrix.swapaxes(1, 2), matrix.conj().swapaxes(1, 2)][trans]
        rows, cols = op_a.shape[1:]
        source, target = at(x, (count, x_step.value), (cols, 1)), at(y, (count, y_step.value),
                                                                     (rows, 1))  # fmt: skip
        one, other = at(alpha, (1, 1))[0], at(beta, (1, 1))[0]
        old = other * target if other else 0
        target[:] = one * (op_a @ source[..., None])[..., 0] + old


class Memory:
    """Host memory with the attributes of a CuPy array that peers ask for."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False)}


@pytest.mark.parametrize("beta", [0, -1])
@pytest.mark.parametrize("count", [{"batch": 4}, {"vectors": 3}], ids=str)
@pytest.mark.parametrize("dtype, order, op, view", [
    ("s", "C", "N", ""), ("d", "F", "T", ":, 1:"), ("z", "F", "C", "2:, :"), ("c", "C", "T", ""),
])  # fmt: skip
def test_libraries_are_asked_for_the_same_products(
    dtype, order, op, view, count, beta, monkeypatch
):
    cell = Cell(6, 5, dtype, op, order, normal_view(view), beta=beta, **count)
    layout = lay_out(cell)
    problem = layout.problem
    rng = np.random.default_rng(1)
    values = rng.integers(-4, 5, layout.nbytes // problem.dtype.itemsize).astype(problem.dtype)
    memory = Memory(values.view(np.uint8))
    base, size = values.ctypes.data, problem.dtype.itemsize
    framed = FramedCell.at(cell, base, 1)
    steps = [step * size for step in (layout.a_step, problem.row_stride, problem.col_stride)]
    op_a = np.lib.stride_tricks.as_strided(
        values[layout.first :], (layout.items, problem.rows, problem.cols), steps
    )
    op_a = op_a.conj() if problem.conj else op_a
    x = values[layout.x_at // size :][: layout.items * problem.cols].reshape(layout.items, -1)
    y = values[layout.y_at // size :][: layout.items * problem.rows]
    expected = (op_a @ x[..., None]).reshape(-1) + (beta * y if beta else 0)
    strided = Strided(problem.dtype)
    monkeypatch.setattr(peers, "cublas", lambda: strided)
    cupy = SimpleNamespace(
        asarray=lambda memory: memory.array, matmul=np.matmul, lib=np.lib,
        cuda=SimpleNamespace(ExternalStream=lambda stream: nullcontext()),
    )  # fmt: skip
    monkeypatch.setattr(peers_of_batches.importlib, "import_module", lambda name: cupy)
    found, refused = peers_of_batches.peers("cupy", framed, memory)
    names = {peer.name for peer in found}
    assert "cuBLAS gemvStridedBatched" in names
    assert ("cupy.matmul" in names) == (beta == 0 and not problem.conj)
    assert set(refused) == {"cupy.matmul", "cuBLAS gemvStridedBatched"} - names
    before = y.copy()
    for peer in found:
        y[:] = before if beta else np.nan
        peer.at(framed.places[0])(5)
        assert np.array_equal(y, expected), peer.name
    assert strided.streams == [5]


def test_cublas_refuses_batches_that_it_cannot_take():
    framed = FramedCell.at(Cell(6, 5, "b", batch=3), 1 << 20, 1)
    found, refused = peers_of_batches.peers("cupy", framed, None)
    assert not found and refused == {
        "cupy.matmul": "CuPy has no bfloat16",
        "cuBLAS gemvStridedBatched": "cuBLAS has it not for bfloat16",
    }
    assert DTYPES["b"].itemsize == 2


@pytest.mark.gpu
def test_peers_of_batches_agree_with_us_on_the_gpu():
    libraries = [name for name in peers.LIBRARIES if peers.installed(name)]
    if not libraries:
        pytest.skip("neither PyTorch nor CuPy is installed")
    wanted = [
        cell
        for count in ({"batch": 300}, {"vectors": 8})
        for cell in cells([(16, 16), (130, 70)], "sc", "NT", "CF", ["", ":, 1:"], **count)
    ]
    (*_, grid) = measure(wanted, libraries)
    for each in grid.rows:
        assert each.wrong is None and each.peers and 0 < each.share <= 1
        assert not any("Error" in reason for reason in each.refused.values()), each
