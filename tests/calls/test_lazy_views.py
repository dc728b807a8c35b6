"""Batches and lists of lazy views: arrays of values that are not in memory, but their negatives.

Only PyTorch has such arrays, and on a GPU alone are they read as they lie. Here arrays of the
simulator say the same of themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import random_array
from numba import cuda

import gemv
from gemv.arrays import libraries
from gemv.calls import plan_batch
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("arrays of the simulator stand in for PyTorch's", allow_module_level=True)


@pytest.fixture
def lazy(monkeypatch):
    """Makes device arrays of values that differ from what is in memory."""
    library = type(libraries.BY_NAME["numba"])
    read, told = library.read, {}
    monkeypatch.setattr(library, "read_all", lambda self, arrays: None)
    monkeypatch.setattr(
        library, "read", lambda self, obj: read(self, obj)._replace(**told.get(id(obj), {}))
    )
    kept = []  # so that no other array gets the same id

    def make(values, **how):
        made = cuda.to_device(np.conj(values) if how.get("conj") else -values)
        kept.append(made)
        told[id(made)] = how
        return made

    return make


def operands(dtype="f8", count=3):
    rng = np.random.default_rng(4)
    shapes = (count, 5, 4), (count, 4), (count, 5)
    return [random_array(rng, shape, np.dtype(dtype)) for shape in shapes]


def product(a, x):
    return np.matmul(a, x[..., None])[..., 0]


@pytest.mark.parametrize("which", ["a", "x", "ax"])
def test_signs_of_batches(lazy, which):
    a, x, y = operands()
    lazy_a = lazy(a, neg=True) if "a" in which else cuda.to_device(a)
    lazy_x = lazy(x, neg=True) if "x" in which else cuda.to_device(x)
    found = gemv.gemv(2, lazy_a, lazy_x, 3, cuda.to_device(y)).copy_to_host()
    np.testing.assert_allclose(found, 2 * product(a, x) + 3 * y)
    found = gemv.matvec(lazy_a, lazy_x).copy_to_host()
    np.testing.assert_allclose(found, product(a, x))


@pytest.mark.parametrize("which", ["a", "x", "ax"])
def test_conjugates_of_batches(lazy, which):
    a, x, z = operands("c16")
    lazy_a = lazy(a, conj=True) if "a" in which else cuda.to_device(a)
    lazy_x, lazy_z = (
        lazy(each, conj=True) if "x" in which else cuda.to_device(each) for each in (x, z)
    )
    np.testing.assert_allclose(gemv.matvec(lazy_a, lazy_x).copy_to_host(), product(a, x))
    expected = product(a.swapaxes(1, 2), z.conj())
    np.testing.assert_allclose(gemv.vecmat(lazy_z, lazy_a).copy_to_host(), expected)


@pytest.mark.parametrize("which", ["a", "x", "ax"])
def test_signs_of_plans(lazy, which):
    a, x, _ = operands()
    y = cuda.to_device(np.zeros((3, 5)))
    lazy_a = lazy(a, neg=True) if "a" in which else cuda.to_device(a)
    lazy_x = lazy(x, neg=True) if "x" in which else cuda.to_device(x)
    plan = gemv.plan(lazy_a, lazy_x, y)
    for alpha in (1.0, -2.0):
        plan(alpha)
        np.testing.assert_allclose(y.copy_to_host(), alpha * product(a, x))


def test_plans_tell_of_each_y_that_they_overwrite(monkeypatch):
    a, x, _ = operands()
    y, told = cuda.to_device(np.zeros((3, 5))), []
    plan = gemv.plan(*map(cuda.to_device, (a, x)), y)
    monkeypatch.setattr(plan_batch, "note_written", lambda operand: told.append(operand.origin))
    plan(1.0), plan(2.0)
    assert [each is y for each in told] == [True, True]
    plan(0.0, 1.0)  # which writes nothing
    assert len(told) == 2


def test_signs_of_lists(lazy):
    a, x, y = operands()
    expected = 2 * product(a, x) + y
    matrices = [lazy(a[0], neg=True), cuda.to_device(a[1]), lazy(a[2], neg=True)]
    vectors = [cuda.to_device(each) for each in x]
    olds = [cuda.to_device(each) for each in y]
    found = gemv.gemv_batched(2, matrices, vectors, 1, olds)
    for got, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.copy_to_host(), exact)
    plain = gemv.Batch(matrices) @ vectors
    for got, exact in zip(plain, product(a, x), strict=True):
        np.testing.assert_allclose(got.copy_to_host(), exact)
