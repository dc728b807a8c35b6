import numpy as np
import pytest

from gemv.measure.reference import error_in_bounds, reference, wider


@pytest.mark.parametrize(
    "dtype, wide",
    [
        (np.float32, np.float64),
        (np.complex64, np.complex128),
        (np.float64, np.longdouble),
        (np.complex128, np.clongdouble),
    ],
)
def test_wider(dtype, wide):
    assert wider(np.dtype(dtype)) == np.dtype(wide)


def test_values_and_magnitude_by_hand():
    a = np.array([[1, -2], [3, 4]], np.float32)
    x = np.array([10, -1], np.float32)
    y = np.array([5, -6], np.float32)
    exact, magnitude = reference(2, a, x, -3, y)
    np.testing.assert_array_equal(exact, [2 * 12 - 15, 2 * 26 + 18])
    np.testing.assert_array_equal(magnitude, [2 * 12 + 15, 2 * 34 + 18])


def test_zero_coefficients_do_not_read():
    bad = np.full((2, 2), np.nan)
    exact, magnitude = reference(0, bad, bad[0], 1, np.ones(2))
    np.testing.assert_array_equal(exact, [1, 1])
    exact, magnitude = reference(1, np.eye(2), np.ones(2), 0, bad[0])
    np.testing.assert_array_equal(exact, [1, 1])
    np.testing.assert_array_equal(magnitude, [1, 1])


def test_chunks_agree_with_one_pass(monkeypatch):
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((11, 5)), rng.standard_normal(5)
    whole = reference(1.5, a, x, 0, None)
    monkeypatch.setattr("gemv.measure.reference._CHUNK", 12)
    for part, expected in zip(reference(1.5, a, x, 0, None), whole, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-17)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_the_bound_accepts_rounding_and_rejects_more(dtype):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((4, 50)).astype(dtype)
    x = rng.standard_normal(50).astype(dtype)
    exact, magnitude = reference(dtype(1), a, x, dtype(0), None)
    good = (a @ x).astype(dtype)
    assert 0 <= error_in_bounds(good, exact, magnitude, 50, 1) < 1
    bad = good.copy()
    bad[2] += dtype(300 * np.finfo(dtype).eps * magnitude[2])
    assert error_in_bounds(bad, exact, magnitude, 50, 1) > 1


def test_nan_never_passes_and_zero_must_be_exact():
    one = np.ones(1)
    assert error_in_bounds(np.array([np.nan]), one, one, 3, 1) == np.inf
    assert error_in_bounds(np.zeros(1), np.zeros(1), np.zeros(1), 3, 1) == 0
    assert error_in_bounds(np.array([1e-300]), np.zeros(1), np.zeros(1), 3, 1) > 1
    assert error_in_bounds(np.zeros(0), np.zeros(0), np.zeros(0), 3, 1) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("power", [0, 60, -60])
def test_products_that_underflow_are_lost_as_often_as_alpha_is_large(dtype, power):
    alpha, n = dtype(2.0**power), 40
    half = {4: 2.0**-75, 8: 2.0**-537}[dtype(0).real.dtype.itemsize] * 0.99
    a, x = np.full((1, n), half, dtype), np.full(n, half, dtype)
    exact, magnitude = reference(alpha, a, x, dtype(0), None)
    assert exact[0] > 0
    lost = error_in_bounds(np.zeros(1, dtype), exact, magnitude, n, alpha)
    assert lost <= 1
    if power > 0:
        assert lost > 0.1
        assert error_in_bounds(np.zeros(1, dtype), exact, magnitude, n, dtype(1)) > 1
