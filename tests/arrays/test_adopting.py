"""A library that nobody knew is adopted by one class: it is made here, entered, and used."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import gemv
from gemv.arrays import libraries
from gemv.arrays.base import Library, Refusal, View
from gemv.calls.order import Order
from gemv.calls.result import make_y


class ToyArray:
    """An array of the library: rows of numbers, of which some are said to lie on a GPU."""

    def __init__(self, values, on_gpu=False, sealed=False):
        self.values, self.on_gpu, self.sealed = np.asarray(values, "f"), on_gpu, sealed
        self.written = 0


class Toy(Library):
    """All that has to be written for it."""

    name = "toy"

    def place(self, obj):
        if not isinstance(obj, ToyArray):
            return None
        if obj.values.size > 1000:
            raise Refusal("is larger than a toy")
        return "device" if obj.on_gpu else "host"

    def as_numpy(self, obj):
        return obj.values.copy() if obj.sealed else obj.values

    def is_array(self, obj):
        return True

    def written_through(self, obj):
        return not obj.sealed

    def from_numpy(self, like, result):
        return ToyArray(result)

    @property
    def notes_writes(self):
        def note(array):
            array.written += 1

        return note

    def read(self, obj):
        values = obj.values
        return View(values.dtype, values.shape, values.strides, values.ctypes.data, device=0)

    def stream_getter(self):
        return lambda device: 0x70 + device

    def empty(self, like, length, dtype, device):
        return ToyArray(np.full(length, np.nan, dtype), on_gpu=True)

    def finished(self, made, wait):
        wait(0x99)
        return made


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    made = Toy()
    monkeypatch.setattr(libraries, "LIBRARIES", (made, *libraries.LIBRARIES))
    return made


A, X, Y = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0])
SUM = A @ X


def test_host_arrays_give_arrays_of_the_library():
    a, x, y = ToyArray(A), ToyArray(X), ToyArray(Y)
    result = gemv.gemv(2.0, a, x)
    assert isinstance(result, ToyArray) and result.values.tolist() == (2 * SUM).tolist()
    assert isinstance(gemv.gemv(1.0, a, X.astype("f"), 1.0, y), ToyArray)
    assert isinstance(gemv.gemv(1.0, A, x), np.ndarray), "of the kind of a"
    assert y.values.tolist() == Y.tolist() and not y.written


def test_host_arrays_are_overwritten_if_they_can_be():
    y = ToyArray(Y)
    assert gemv.gemv(1.0, ToyArray(A), X, 1.0, y, overwrite_y=1) is not y, "x is of float64"
    x = ToyArray(X)
    assert gemv.gemv(1.0, ToyArray(A), x, 1.0, y, overwrite_y=1) is y
    assert y.values.tolist() == (SUM + Y).tolist() and y.written == 1
    sealed = ToyArray(Y, sealed=True)
    result = gemv.gemv(1.0, ToyArray(A), x, 1.0, sealed, overwrite_y=1)
    assert result is not sealed and sealed.values.tolist() == Y.tolist() and not sealed.written


def test_a_refusal_names_routine_and_argument():
    with pytest.raises(TypeError, match="^gemv: x is larger than a toy .failed for 3rd argument x"):
        gemv.gemv(1.0, A, ToyArray(np.ones(1001)))


@pytest.mark.skipif(gemv.backend() != "simulator", reason="its device memory is the host's")
def test_device_arrays_are_computed_where_they_lie():
    a, x, y = (ToyArray(each, on_gpu=True) for each in (A, X, Y))
    assert gemv.gemv(1.0, a, x, 1.0, y, overwrite_y=1) is y
    assert y.values.tolist() == (SUM + Y).tolist() and y.written == 1
    with pytest.raises(TypeError, match=r"a is on cuda:0 \(toy\) but x is in host memory"):
        gemv.gemv(1.0, a, ToyArray(X))
    product = gemv.get_blas_funcs("gemv", (a,))
    assert product is gemv.sgemv


@pytest.mark.skipif(gemv.backend() != "simulator", reason="its device memory is the host's")
def test_a_new_y_is_made_by_the_library_on_its_stream(toy):
    """As on a GPU: an engine that only says so."""
    from gemv.arrays.adopt import adopt
    from gemv.engines.backend import HOME

    waits, cleared = [], []
    engine = SimpleNamespace(
        name="cuda", default_stream=lambda: 0, capture_of=lambda stream: None,
        wait=lambda *streams: waits.append(streams), clear=lambda *what: cleared.append(what),
    )  # fmt: skip
    a, x = (ToyArray(each, on_gpu=True) for each in (A, X))
    call = SimpleNamespace(
        routine="gemv", a=adopt("gemv", "a", a, None, HOME), x=adopt("gemv", "x", x, None, HOME),
        y=None, alpha=1, beta=0, device=0, offy=0, incy=1,
        problem=SimpleNamespace(rows=2, y_dtype=np.dtype("f")),
    )  # fmt: skip
    order = Order(call, engine, None)
    assert order.stream == 0x70 and order.plain
    made = make_y(call, engine, order)
    made.fill(engine, order.stream)
    y = made.finish(engine, order.stream)
    assert isinstance(y, ToyArray) and y.values.shape == (2,)
    assert cleared == [(y.values.ctypes.data, 8, 0x70)] and waits == [(0x99, 0x70)]
