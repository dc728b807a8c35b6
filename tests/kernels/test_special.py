"""NaN, infinities, zeros of both signs, denormals and empty shapes, as SciPy's BLAS has them.

All sums here are exact, so that results are compared as they are, the sign of a zero included.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.linalg import blas

import gemv

pytestmark = pytest.mark.skipif(gemv.backend() == "host", reason="SciPy's BLAS would be compared")

DTYPES = {"sgemv": "f", "dgemv": "d", "cgemv": "F", "zgemv": "D"}
NAN, INF = np.nan, np.inf
PAIRS = [
    (1, 0), (-1, 0), (1, -0.0), (1, 1), (-1, 1), (2, -1), (0, 0), (-0.0, 0), (0, -2), (NAN, 1),
    (1, NAN), (0, NAN), (0, INF), (2, INF),
]  # fmt: skip


def specials(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    return np.array([NAN, INF, -INF, 0.0, -0.0, tiny, -tiny, 1.0], dtype)


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def computed(name, where, alpha, a, x, beta, y, **options):
    """By our routine, from arrays on the host, on the device, or there with alpha and beta too."""
    if where == "host":
        return getattr(gemv, name)(alpha, a, x, beta, y, **options)
    dtype = np.dtype(DTYPES[name])
    if where == "device scalars":
        alpha, beta = to_device(np.array(alpha, dtype)), to_device(np.array(beta, dtype))
    a, x, y = (None if each is None else to_device(each) for each in (a, x, y))
    return getattr(gemv, name)(alpha, a, x, beta, y, **options).copy_to_host()


def expected(name, alpha, a, x, beta, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return getattr(blas, name)(alpha, a, x, beta, y, **options)


def assert_same(name, got, theirs, told):
    if DTYPES[name] in "FD":
        # What an infinity times a complex number is, in its two parts, differs between compilers.
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=str(told))
        np.testing.assert_array_equal(got[finite], theirs[finite], err_msg=str(told))
        return
    np.testing.assert_array_equal(got, theirs, err_msg=str(told))
    number = ~np.isnan(theirs)
    np.testing.assert_array_equal(
        np.signbit(got)[number], np.signbit(theirs)[number], err_msg=str(told)
    )


every_routine = pytest.mark.parametrize("name", DTYPES)
everywhere = pytest.mark.parametrize("where", ["host", "device", "device scalars"])


@every_routine
@everywhere
@pytest.mark.parametrize("place", ["A", "y"])
@pytest.mark.parametrize("trans", [0, 1])
def test_special_values_in_A_and_y(name, where, place, trans):
    """Each value in a row of its own."""
    dtype = DTYPES[name]
    values = specials(dtype)
    second = values if place == "A" else np.full_like(values, 2)
    a = np.stack([np.ones_like(values), second], axis=1)
    a = np.asfortranarray(a.T) if trans else a
    x = np.array([0, 1], dtype)
    y = values if place == "y" else np.arange(1, 9).astype(dtype)
    for alpha, beta in PAIRS:
        told = (alpha, beta)
        got = computed(name, where, alpha, a, x, beta, y, trans=trans)
        assert_same(name, got, expected(name, alpha, a, x, beta, y, trans=trans), told)


@every_routine
@everywhere
@pytest.mark.parametrize("value", range(8))
def test_special_values_in_x(name, where, value):
    dtype = DTYPES[name]
    a = np.array([[1, 0], [0, 1], [2, 1]], dtype)
    x, y = np.array([specials(dtype)[value], 1], dtype), np.array([1, 2, -0.0], dtype)
    for alpha, beta in ((1, 0), (-1, 1), (0, 0), (0, 3), (2, -1)):
        got = computed(name, where, alpha, a, x, beta, y)
        assert_same(name, got, expected(name, alpha, a, x, beta, y), (alpha, beta))


@every_routine
@everywhere
def test_zeros_have_the_sign_of_a_blas(name, where):
    dtype = DTYPES[name]
    a, x = np.zeros((2, 2), dtype), np.ones(2, dtype)
    for y in (None, np.array([0.0, -0.0], dtype), np.array([-0.0, 7], dtype)):
        for alpha, beta in ((1, 0), (-1, 0), (1, 1), (0, 2), (0, -2), (-0.0, 1), (0, -0.0)):
            if where == "device scalars" and alpha == 0 and beta == 1:
                continue  # SciPy returns at once; what is in device memory is not known then
            got = computed(name, where, alpha, a, x, beta, y)
            assert_same(name, got, expected(name, alpha, a, x, beta, y), (alpha, beta, y))


@everywhere
@pytest.mark.parametrize("name", ["cgemv", "zgemv"])
def test_a_complex_infinity_in_y_is_what_it_was_where_beta_is_1(name, where):
    """1 times it would have a part that is 0 times an infinity."""
    dtype = DTYPES[name]
    y = np.array([complex(INF, 0), complex(0, -INF)], dtype)
    a, x = np.array([[0, 0], [1, 1]], dtype), np.ones(2, dtype)
    got = computed(name, where, 1, a, x, 1, y)
    assert got.tolist() == [complex(INF, 0), complex(2, -INF)]


@every_routine
@everywhere
def test_a_product_that_underflows(name, where):
    dtype = DTYPES[name]
    tiny = np.finfo(dtype).smallest_subnormal
    a = np.array([[tiny * 4], [-tiny], [tiny * 3]], dtype)
    for alpha in (1, -1, 0.5, 0.25, -0.125):
        got = computed(name, where, alpha, a, np.ones(1, dtype), 0, None)
        exact = np.array([4, -1, 3]) * alpha
        units = (got.real / tiny).astype("d")
        assert (abs(units - exact) <= 0.5).all(), "denormal numbers were flushed to zero"


@every_routine
@everywhere
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_gaps_and_padding_are_neither_read_nor_written(name, where, trans):
    dtype = DTYPES[name]
    memory = np.full((5, 7), NAN, dtype)
    memory[1:4, 2:4] = [[1, 2], [3, 4], [5, 6]]
    a = memory[1:4, 2:4]
    rows, cols = (2, 3) if trans else (3, 2)
    x, y = np.full(9, NAN, dtype), np.full(11, INF, dtype)
    x[1 : 1 + 3 * cols : 3], y[2 : 2 + 2 * rows : 2] = np.arange(cols), 1
    y[[0, 3]] = -0.0, NAN
    for beta in (0, 1, 3):
        arguments = (2, a, x, beta, y)
        options = dict(offx=1, incx=-3, offy=2, incy=2, trans=trans)
        if where == "host":
            got = getattr(gemv, name)(*arguments, **options)
        else:
            view = to_device(memory)[1:4, 2:4]
            scalar = (lambda v: to_device(np.array(v, dtype))) if "scalar" in where else float
            got = getattr(gemv, name)(
                scalar(2), view, to_device(x), scalar(beta), to_device(y), **options
            ).copy_to_host()
        theirs = expected(name, *arguments, **options)
        assert got.tobytes() == theirs.tobytes()


@every_routine
@everywhere
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_shapes_leave_every_bit(name, where, shape):
    dtype = DTYPES[name]
    a, x = np.ones(shape, dtype), np.ones(3, dtype)
    y = specials(dtype)
    for trans in (0, 1):
        for alpha, beta in ((1, 0), (NAN, 2), (0, NAN)):
            got = computed(name, where, alpha, a, x, beta, y, trans=trans)
            assert got.tobytes() == y.tobytes()
            assert got.tobytes() == expected(name, alpha, a, x, beta, y, trans=trans).tobytes()
