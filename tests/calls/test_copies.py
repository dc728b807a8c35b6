"""Repeated calls with a y that stays: the values, the y, and what lies between its elements."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.arrays import LIBRARIES, MUTABLE

import gemv

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator to hold device arrays", allow_module_level=True)


@pytest.fixture(params=MUTABLE)
def library(request):
    if request.param != "numba" and gemv.backend() != "cuda":
        pytest.skip(f"{request.param} arrays need a GPU")
    return LIBRARIES[request.param]()


def whole(rng, size, dtype):
    values = rng.integers(-4, 5, size).astype(dtype)
    return values + 1j * rng.integers(-4, 5, size) if dtype in "FD" else values


@pytest.mark.parametrize("dtype", "fdF")
@pytest.mark.parametrize("step, offset, behind", [(1, 0, 0), (1, 0, 3), (2, 1, 0), (-2, 0, 1)])
def test_each_call_copies_y_and_leaves_it(library, dtype, step, offset, behind):
    rng = np.random.default_rng([step + 2, offset, behind])
    m, n = 21, 33
    a, x = whole(rng, (m, n), dtype), whole(rng, n, dtype)
    y = whole(rng, offset + (m - 1) * abs(step) + 1 + behind, dtype)
    y = y.astype(dtype)
    places = offset + abs(step) * np.arange(m)[:: -1 if step < 0 else 1]
    device = [library.array(each.astype(dtype)) for each in (a, x, y)]
    results = []
    for alpha, beta in 2 * [(1.0, 1.0), (2.0, 0.0), (-1.0, 0.5), (0.0, 1.0), (0.0, 2.0)]:
        wanted = y.copy()
        wanted[places] = alpha * (a @ x) + beta * y[places]
        result = gemv.gemv(alpha, *device[:2], beta, device[2], incy=step, offy=offset)
        assert library.is_mine(result) and result is not device[2]
        results.append((result, wanted))
    for result, wanted in results:  # a later call has not written to it
        np.testing.assert_array_equal(library.host(result), wanted)
    np.testing.assert_array_equal(library.host(device[2]), y)


def test_nan_in_y_is_not_read_where_beta_is_0(library):
    a, x = np.ones((9, 5), np.float32), np.ones(5, np.float32)
    y = np.full(9, np.nan, np.float32)
    device = [library.array(each) for each in (a, x, y)]
    for _ in range(3):
        assert (library.host(gemv.gemv(1.0, *device[:2], 0.0, device[2])) == 5).all()


def test_a_view_is_copied_element_by_element(library):
    a, x, y = np.eye(9, dtype=np.float32), np.ones(9, np.float32), np.arange(18, dtype=np.float32)
    on_device = library.array(y)
    for _ in range(3):
        result = gemv.gemv(1.0, library.array(a), library.array(x), 1.0, on_device[::2])
        np.testing.assert_array_equal(library.host(result), 1 + y[::2])
        shifted = gemv.gemv(1.0, library.array(a), library.array(x), 1.0, on_device[1:10])
        np.testing.assert_array_equal(library.host(shifted), 1 + y[1:10])
    np.testing.assert_array_equal(library.host(on_device), y)
