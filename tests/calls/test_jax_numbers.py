"""Call frames of XLA with alpha, beta and y in memory, made by hand, without JAX."""

from __future__ import annotations

from ctypes import addressof

import numpy as np
import pytest
from helpers.xla_frames import STREAM, HandMade, call

import gemv
from gemv.calls import jax_handlers
from gemv.core.dtypes import DTYPES, Precision
from gemv.core.narrow import cast


def numbers_in_memory(letter, blended):
    """A call with numbers in memory as XLA makes it: arguments, their numbers, the result."""
    dtype = DTYPES[letter]
    factors = Precision.of(dtype).factors
    alpha, beta = (2 - 1j, 0.5j) if dtype.kind == "c" else (2.0, -0.5)
    numbers = [np.array(each, factors) for each in (alpha, beta)[: 1 + blended]]
    a, x = np.arange(20).reshape(4, 5) % 7 - 3, np.arange(4) - 1
    if dtype.kind == "c":
        a, x = a + 1j * a[::-1], x - 2j * x
    y = np.full(5, 4, np.float32)
    cast_to = [cast(np.asarray(each, np.float32), dtype) if dtype.itemsize == 2 else
               each.astype(dtype) for each in (a, x, y)]  # fmt: skip
    a, x, y = (each.copy() for each in cast_to)
    return [a, x, *numbers, *([y] if blended else [])], y


def without_numbers(count, trans=1, accumulate="plain"):
    return {"call": jax_handlers.written_without_numbers(count, trans, accumulate)}


@pytest.mark.parametrize("handle", [jax_handlers.on_host, jax_handlers.on_gpu])
@pytest.mark.parametrize("trans", [1, 2])
@pytest.mark.parametrize("letter", [*"sdcz", "b"])
@pytest.mark.parametrize("blended", [False, True], ids=["alpha", "alpha, beta and y"])
def test_products_with_numbers_in_memory(handle, trans, letter, blended):
    if handle is jax_handlers.on_gpu and gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    arguments, y = numbers_in_memory(letter, blended)
    wide = [
        cast(each, np.dtype(np.float32)) if each.dtype.itemsize == 2 else each.copy()
        for each in arguments
    ]
    matrix = wide[0].conj().T if trans == 2 else wide[0].T
    expected = wide[2] * (matrix @ wide[1]) + (wide[3] * wide[4] if blended else 0)
    made, old = HandMade(arguments, [y], without_numbers(len(arguments) - 2, trans)), y.copy()
    for _ in range(2):
        with gemv.trace() as calls:
            assert call(handle, made.frame) is None, made.errors
        found = cast(y, np.dtype(np.float32)) if y.dtype.itemsize == 2 else y
        assert np.array_equal(found, expected)
        assert len(calls) == 1
        assert calls[0].backend == ("host" if handle is jax_handlers.on_host else "simulator")
        if blended:
            y[:] = old


@pytest.mark.parametrize("letter", [*"sdcz", "b"])
@pytest.mark.parametrize("blended", [False, True], ids=["alpha", "alpha, beta and y"])
def test_numbers_in_memory_are_those_of_each_call(launches, letter, blended):
    """Machine code hands over their addresses, with which nothing is compared."""
    for time in range(3):
        arguments, y = numbers_in_memory(letter, blended)
        spare = [np.zeros(1 + time) for _ in range(9)]  # other addresses
        made = HandMade(arguments, [y], without_numbers(len(arguments) - 2))
        places = [each.ctypes.data for each in arguments]
        assert launches.function(addressof(made.frame)) is None, made.errors
        if not time:
            assert launches.engine.run_by_engine == [(places[2], places[3] if blended else 0)]
            continue
        stream, *launched = launches.engine.launched[-1]
        assert stream == STREAM
        words = [int.from_bytes(each, "little") for each in launched[:5]]
        assert words == [*places[:2], y.ctypes.data, places[2], places[3] if blended else 0]
        del spare
    assert len(launches.pythonic) == 1


def test_what_is_not_as_many_arguments_as_known_goes_to_python(launches):
    arguments, y = numbers_in_memory("s", True)
    for count in (1, 3, 1, 3):
        given = arguments if count == 3 else arguments[:3]
        made = HandMade(given, [y], without_numbers(count))
        assert launches.function(addressof(made.frame)) is None, made.errors
    assert len(launches.pythonic) == 2
    made = HandMade(arguments[:4], [y], without_numbers(2))
    assert launches.function(addressof(made.frame)) == 1
    assert len(launches.pythonic) == 3


def test_an_old_y_in_another_place_is_refused(launches):
    """XLA is told where it should be; where it is not, nothing is computed."""
    arguments, y = numbers_in_memory("s", True)
    errors = []
    for old, status in ((y, None), (y, None), (y.copy(), 1), (y, None)):
        made = HandMade([*arguments[:4], old], [y], without_numbers(3))
        assert launches.function(addressof(made.frame)) == status
        errors += made.errors
    assert len(launches.engine.run_by_engine) == 1 and len(launches.engine.launched) == 2
    assert errors == [(13, "RuntimeError: XLA has the result in another place than the old y")]
