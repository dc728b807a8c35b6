"""BLAS with a leading dimension: the numbers of SciPy's wrappers, from views that they copy."""

import itertools

import numpy as np
import pytest
from scipy.linalg import blas

from gemv.core.dtypes import DTYPES
from gemv.engines import host, leading
from gemv.measure.inputs import random_array

SHAPES = ((5, 7), (7, 5), (1, 6), (6, 1), (1, 1), (40, 33))


def with_gaps(a, before=2, after=1):
    """A view by columns whose gaps are no numbers."""
    m, n = a.shape
    wide = np.full((before + m + after, n), np.nan, a.dtype, order="F")
    wide[before : before + m] = a
    return wide[before : before + m]


def whole(rng, shape, dtype):
    """Numbers whose sums are exact."""
    return np.round(8 * random_array(rng, np.atleast_1d(shape), dtype))


@pytest.mark.parametrize("gaps", [(0, 0), (0, 3), (2, 1)])
@pytest.mark.parametrize("letter", "sdcz")
def test_all_arguments_reach_blas(letter, gaps):
    rng, dtype = np.random.default_rng(3), DTYPES[letter]
    factors = [(1.0, 0.0), (2, 0), (-2.0, 1), (np.float32(0.5), -3), (0, 2), (True, 1.0)]
    if dtype.kind == "c":
        factors += [(1 - 2j, 3 + 1j), (np.complex64(2j), 0.0)]
    for (m, n), trans, (alpha, beta) in itertools.product(SHAPES, (0, 1, 2), factors):
        values = whole(rng, (m, n), dtype)
        a = with_gaps(values, *gaps)
        op = (values, values.T, values.conj().T)[trans]
        x, y = whole(rng, op.shape[1], dtype), whole(rng, op.shape[0], dtype)
        alpha_here, beta_here = dtype.type(alpha), dtype.type(beta)
        product = alpha_here * (op @ x)
        target = y.copy()
        assert leading.takes(a)
        assert leading.gemv(alpha, a, x, beta, target, 0, 1, 0, 1, trans, 1) is target
        assert np.array_equal(target, product + beta_here * y)
        found = leading.gemv(alpha, a, x, 0.0, None, 0, 1, 0, 1, trans, 1)
        assert np.array_equal(found, product) and found.dtype == dtype


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("letter", "sdcz")
def test_rows_go_as_the_transpose(letter, trans, monkeypatch):
    monkeypatch.setattr(host, "_COPIED_BYTES", 0)
    rng, dtype = np.random.default_rng(4), DTYPES[letter]
    routine = getattr(blas, f"{letter}gemv")

    def never(*arguments):
        raise AssertionError("SciPy's wrapper would copy A")

    for m, n in ((5, 7), (40, 33)):
        values = whole(rng, (m, n), dtype)
        for a in (with_gaps(values), with_gaps(values.T).T):
            op = (values, values.T, values.conj().T)[trans]
            x, y = whole(rng, op.shape[1], dtype), whole(rng, op.shape[0], dtype)
            alpha, beta = (2 - 1j, 1j) if dtype.kind == "c" else (2.0, -3.0)
            expected = alpha * (op @ x) + beta * y
            assert np.array_equal(host.product(never, trans, alpha, a, x, beta, y.copy()), expected)
            by_scipy = routine(alpha, a, x, beta, y, trans=trans)
            assert np.array_equal(by_scipy, expected)


def test_x_with_gaps_backwards_or_between_bytes_is_copied():
    rng = np.random.default_rng(5)
    a = with_gaps(whole(rng, (6, 9), DTYPES["d"]))
    memory = np.zeros(9 * 8 + 1, np.uint8)
    between = memory[1:].view(np.float64)
    between[:] = whole(rng, 9, DTYPES["d"])
    assert not between.flags.aligned
    for x in (np.arange(18.0)[::2], np.arange(9.0)[::-1], between):
        assert np.array_equal(leading.gemv(1, a, x, 0, None, 0, 1, 0, 1, 0, 1), a @ np.array(x))


@pytest.mark.parametrize("letter", "sc")
def test_factors_beyond_the_dtype_are_infinite(letter):
    """Warnings are errors in tests."""
    dtype = DTYPES[letter]
    a, x = with_gaps(np.ones((3, 2), dtype)), np.ones(2, dtype)
    found = leading.gemv(-1e300, a, x, 0, None, 0, 1, 0, 1, 0, 1)
    assert np.all(found.real == -np.inf)
    assert np.all(leading.gemv(1e-300, a, x, 0, None, 0, 1, 0, 1, 0, 1) == 0)


def test_lines():
    a = np.zeros((6, 8))
    lines = (a, a.T, a[:, 1:5], a[1:4, 2:6].T, a[::2], a[:, :1], a[:1, :3], a[2:3, 2:3])
    assert all(map(leading.has_lines, lines))
    overlapping = np.lib.stride_tricks.as_strided(a, (3, 4), (8, 16))
    uneven = np.lib.stride_tricks.as_strided(a, (3, 4), (36, 8))
    assert not any(map(leading.has_lines, (a[:, ::2], a[::-1], a[:, ::-1], overlapping, uneven)))


def test_what_blas_does_not_take():
    wide = np.zeros((6, 8 * 9 + 1), np.uint8)[:, 1:].view(np.float64)
    assert not leading.takes(wide[:, :3])
    far = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 2), (8, 8 * 2**31))  # never read
    assert leading.has_lines(far) and not leading.takes(far)
    near = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 2), (8, 8 * (2**31 - 1)))
    assert leading.takes(near)


def test_a_blas_with_other_integers_is_not_called(monkeypatch):
    """SciPy's wrapper copies the view then, and the product is the same."""
    monkeypatch.setattr(host, "_COPIED_BYTES", 0)
    monkeypatch.setattr(leading, "_INTEGERS", {1, 2})
    leading.function_of.cache_clear()
    try:
        a = with_gaps(np.arange(12.0).reshape(3, 4))
        assert leading.function_of("d") is None and not leading.takes(a)
        assert np.array_equal(host.product(blas.dgemv, 0, 1, a, np.ones(4), 0, None), a.sum(axis=1))
    finally:
        leading.function_of.cache_clear()


def test_both_ways_to_an_address_agree():
    for array in (np.ones(3), np.ones((4, 5))[1:, 2:], np.ones(4, "F")[::-1]):
        expected = array.__array_interface__["data"][0]
        assert leading._address(array).value == expected
        assert leading._address_by_attribute(array).value == expected
