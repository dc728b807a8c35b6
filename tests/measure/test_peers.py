"""cuBLAS is asked for the same product, by a stand-in that computes it with NumPy."""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from gemv.core.dtypes import DTYPES
from gemv.measure import peers
from gemv.measure.cells import Cell, normal_view
from gemv.measure.frames import Place, lay_out


def at(address, dtype, count):
    kind = (ctypes.c_char * (count * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(kind, dtype)


class FakeCublas:
    """cuBLAS's argument lists on the host: what reads columns, from addresses."""

    def __init__(self):
        self.stream = self.mode = self.workspace = None
        for letter, prefix in zip("SDCZ", "sdcz", strict=True):
            gemv = functools.partial(self.gemv, DTYPES[prefix])
            setattr(self, f"cublas{letter}gemv_v2", gemv)
            for kind in [""] if prefix in "sd" else ["u", "c"]:
                dot = functools.partial(self.dot, DTYPES[prefix], kind)
                setattr(self, f"cublas{letter}dot{kind}_v2", dot)

    def cublasCreate_v2(self, handle):
        handle._obj.value = 77
        return 0

    def cublasSetStream_v2(self, handle, stream):
        self.stream, self.workspace = stream.value, None
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        assert size.value == peers.Cublas.WORKSPACE_BYTES
        self.workspace = address.value
        return 0

    def cublasSetPointerMode_v2(self, handle, mode):
        self.mode = mode
        return 0

    def gemv(self, dtype, handle, trans, m, n, alpha, a, lda, x, incx, beta, y, incy):
        assert handle.value == 77 and (self.stream, self.mode, self.workspace) == (5, 0, 4096)
        assert (incx, incy) == (1, 1)
        if lda < m:
            return 7
        columns = np.lib.stride_tricks.as_strided(
            at(a, dtype, lda * (n - 1) + m), (m, n), (dtype.itemsize, lda * dtype.itemsize)
        )
        op_a = [columns, columns.T, columns.conj().T][trans]
        rows, cols = op_a.shape
        target = at(y, dtype, rows)
        alpha, beta = at(alpha, dtype, 1)[0], at(beta, dtype, 1)[0]
        target[:] = alpha * (op_a @ at(x, dtype, cols)) + (beta * target if beta else 0)
        return 0

    def dot(self, dtype, kind, handle, n, x, incx, y, incy, result):
        assert (self.stream, self.mode) == (5, 1) and incy == 1
        row = at(x, dtype, incx * (n - 1) + 1)[::incx]
        at(result, dtype, 1)[:] = (row.conj() if kind == "c" else row) @ at(y, dtype, n)
        return 0


@pytest.fixture
def fake_cublas(monkeypatch):
    workspace = SimpleNamespace(__cuda_array_interface__={"data": (4096, False)})
    cublas = peers.Cublas(FakeCublas(), workspace)
    monkeypatch.setattr(peers, "cublas", lambda: cublas)
    return cublas


@pytest.mark.parametrize("shape", [(6, 5), (1, 9), (9, 1)], ids=str)
@pytest.mark.parametrize("view", ["", "2:, 1:", ":, :-3"])
@pytest.mark.parametrize("dtype, order, op, beta", [
    ("s", "C", "N", 0), ("d", "F", "T", -1), ("c", "C", "T", 0), ("z", "F", "C", 0),
    ("c", "F", "N", -1),
])  # fmt: skip
def test_cublas_is_asked_for_the_same_product(fake_cublas, shape, view, dtype, order, op, beta):
    cell = Cell(*shape, dtype, op, order, normal_view(view), beta=beta)
    layout = lay_out(cell)
    problem = layout.problem
    memory = np.zeros(layout.nbytes // problem.dtype.itemsize, problem.dtype)
    rng = np.random.default_rng(1)
    memory[:] = rng.integers(-4, 5, memory.size)
    if problem.dtype.kind == "c":
        memory += 1j * rng.integers(-4, 5, memory.size)
    base, size = memory.ctypes.data, problem.dtype.itemsize
    place = Place(base + layout.first * size, base + layout.x_at, base + layout.y_at)
    steps = (problem.row_stride * size, problem.col_stride * size)
    op_a = np.lib.stride_tricks.as_strided(
        memory[layout.first :], (problem.rows, problem.cols), steps
    )
    op_a = op_a.conj() if problem.conj else op_a
    x = memory[layout.x_at // size :][: problem.cols]
    y = memory[layout.y_at // size :][: problem.rows]
    expected = op_a @ x + (beta * y if beta else 0)
    found, refused = peers.peers("cupy", problem, beta, memory)
    names = {peer.name for peer in found}
    if refused:
        assert problem.conj and problem.access == "axpy"
        assert refused == {"cuBLAS gemv": "no conjugate without a transpose"}
        return
    assert ("cuBLAS dot" in names) == (problem.rows == 1 and beta == 0)
    before = y.copy()
    for peer in found:
        y[:] = before if beta else np.nan
        peer.at(place)(5)
        assert np.array_equal(y, expected), peer.name


def test_cublas_refuses_what_it_cannot_take(fake_cublas):
    strided = lay_out(Cell(6, 5, "s", view="::2, ::2")).problem
    assert peers.peers("cupy", strided, 0, None) == (
        [],
        {"cuBLAS gemv": "neither rows nor columns of A are contiguous"},
    )


def test_what_cublas_says_is_not_ignored(fake_cublas):
    zero = ctypes.c_void_p(0)
    with pytest.raises(RuntimeError, match="cublasSgemv_v2: status 7"):
        fake_cublas.on(5, results_on_host=True)
        fake_cublas.call("cublasSgemv_v2", 0, 6, 5, zero, zero, 4, zero, 1, zero, zero, 1)
