"""The short way of NumPy's arrays on the host: right, uncopied, gone where it does not apply."""

import itertools
import os
import pickle
import sys
import tracemalloc
import types
import warnings

import numpy as np
import pytest
from helpers import processes

import gemv
from gemv.calls import execute, faster, short, short_host
from gemv.core.dtypes import DTYPES
from gemv.engines.cache_folder import CacheWarning
from gemv.measure.inputs import random_array

ROUTINES = {"s": gemv.sgemv, "d": gemv.dgemv, "c": gemv.cgemv, "z": gemv.zgemv}


@pytest.fixture
def rng():
    return np.random.default_rng(24)


def prepare(machine_code):
    """Make the short way anew."""
    gemv.use_backend("host")
    gemv.dgemv(1.0, np.eye(2), np.ones(2))  # the long way, which makes the short one
    if machine_code:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(short_host, "MANY", 1)
            gemv.dgemv(1.0, np.eye(2), np.ones(2))
    way = short.short_ways[np.ndarray]
    assert type(way) is (types.BuiltinFunctionType if machine_code else types.FunctionType)


@pytest.fixture(autouse=True, params=[False, True], ids=["python", "machine_code"])
def machine_code(request):
    """The host backend, with a short way of either kind."""
    prepare(request.param)
    yield request.param
    gemv.use_backend(None)


def by_rows(a):
    return np.ascontiguousarray(a)


def by_columns(a):
    return np.asfortranarray(a)


def rows_with_gaps(a):
    m, n = a.shape
    wider = np.full((m, n + 3), np.nan, a.dtype)
    wider[:, 2 : 2 + n] = a
    return wider[:, 2 : 2 + n]


def columns_with_gaps(a):
    return rows_with_gaps(a.T).T


def neither(a):
    m, n = a.shape
    wider = np.full((2 * m, 3 * n), np.nan, a.dtype)
    wider[::2, ::3] = a
    return wider[::2, ::3]


LAYOUTS = (by_rows, by_columns, rows_with_gaps, columns_with_gaps, neither)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("letter", ROUTINES)
def test_every_layout_and_way(letter, layout, rng, long_way):
    dtype, routine = DTYPES[letter], ROUTINES[letter]
    ops = {0: lambda a: a, "N": lambda a: a, "T": lambda a: a.T, 2: lambda a: a.conj().T}
    shapes = ((5, 7), (7, 5), (1, 6), (6, 1), (1, 1), (40, 33))
    for (m, n), (trans, op) in itertools.product(shapes, ops.items()):
        values = np.round(8 * random_array(rng, (m, n), dtype))  # sums of these are exact
        a = layout(values)
        x = np.round(8 * random_array(rng, (op(values).shape[1],), dtype))
        y = np.round(8 * random_array(rng, (op(values).shape[0],), dtype))
        product = op(values) @ x
        factors = [(1.0, 0.0), (2, 0), (-2.0, 1.0), (1, -3)]
        if values.dtype.kind == "c":
            factors += [(2j, 0.0), (1 - 2j, 3 + 1j), (np.complex64(1j), 1)]
        for alpha, beta in factors:
            expected = dtype.type(alpha) * product + dtype.type(beta) * y
            for call in (routine, gemv.gemv):
                before = y.copy()
                kept = call(alpha, a, x, beta, y, trans=trans)
                assert np.array_equal(kept, expected) and np.array_equal(y, before)
                assert kept.dtype == dtype and kept.flags.owndata
                target = y.copy()
                assert call(alpha, a, x, beta, target, trans=trans, overwrite_y=1) is target
                assert np.array_equal(target, expected)
            assert np.array_equal(routine(alpha, a, x, trans=trans), dtype.type(alpha) * product)
    assert not long_way


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_stays_within_the_bound(layout, rng):
    for letter, routine in ROUTINES.items():
        dtype = DTYPES[letter]
        values, x = random_array(rng, (60, 80), dtype), random_array(rng, (80,), dtype)
        y = random_array(rng, (60,), dtype)
        wide = np.complex128 if dtype.kind == "c" else np.float64
        exact = 0.3 * values.astype(wide) @ x.astype(wide) - 0.7 * y.astype(wide)
        size = 0.3 * np.abs(values) @ np.abs(x) + 0.7 * np.abs(y)
        found = routine(0.3, layout(values), x, -0.7, y)
        unit = np.finfo(dtype).eps / 2
        # a complex product has two more roundings; 80 additions and two factors
        allowed = (80 + 6) * unit * size.astype(np.float64)
        assert np.all(np.abs(found - exact) <= allowed)


@pytest.mark.parametrize("letter", ROUTINES)
@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_nothing_is_copied(letter, layout, rng):
    """Neither by the short way nor by the long one, which the increments need."""
    dtype, routine = DTYPES[letter], ROUTINES[letter]
    a = layout(np.ones((600, 500), dtype))
    for trans, incx in itertools.product((0, 1, 2), (1, 2)):
        n = 600 if trans else 500
        x = np.ones(n * incx, dtype)
        routine(1, a, x, incx=incx, trans=trans)
        tracemalloc.start()
        try:
            result = routine(1, a, x, incx=incx, trans=trans)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert np.all(result == n)
        assert most < 0.2 * a.nbytes, f"{most} bytes for A of {a.nbytes}, trans {trans}"


def test_nothing_is_read_that_must_not_be():
    for layout, letter, trans in itertools.product(LAYOUTS, ROUTINES, (0, 1, 2)):
        dtype = DTYPES[letter]
        routine = ROUTINES[letter]
        a, x = layout(np.full((3, 3), np.nan, dtype)), np.full(3, np.nan, dtype)
        y = np.arange(3).astype(dtype)
        assert np.array_equal(routine(0.0, a, x, 2.0, y, trans=trans), 2 * y)
        a, x = layout(np.ones((3, 3), dtype)), np.ones(3, dtype)
        y = np.full(3, np.nan, dtype)
        assert np.array_equal(routine(1.0, a, x, 0.0, y, trans=trans), np.full(3, 3, dtype))


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("letter", "sc")
def test_a_factor_that_rounds_to_zero_is_zero(letter, layout, trans):
    """Of views with gaps as well, which are large enough to be read where they lie."""
    dtype, routine = DTYPES[letter], ROUTINES[letter]
    a, x = layout(np.full((150, 150), np.nan, dtype)), np.full(150, np.nan, dtype)
    y = np.ones(150, dtype)
    assert np.array_equal(routine(1e-60, a, x, 2.0, y, trans=trans), 2 * y)
    assert not np.any(routine(1e-60, a, x, trans=trans))
    assert not np.any(routine(1e-60, a, x, 1e-60, y * np.nan, trans=trans))
    a, x = layout(np.ones((150, 150), dtype)), np.ones(150, dtype)
    assert np.all(routine(1.0, a, x, 1e-60, y * np.nan, trans=trans) == 150)


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("letter", ROUTINES)
def test_a_zero_has_no_sign(letter, layout, trans):
    """A BLAS adds up from 0, so -0 is no result where beta is 0."""
    dtype, routine = DTYPES[letter], ROUTINES[letter]
    for side, alpha, value in itertools.product((3, 120), (-1.0, 0.0, 1.0), (0, -1)):
        a, x = layout(np.full((side, side), value, dtype)), np.ones(side, dtype)
        for y in (None, np.full(side, -0.0, dtype)):
            result = routine(alpha, a, x, 0.0, y, trans=trans)
            parts = result.view(result.real.dtype)
            assert not np.any(np.signbit(parts[parts == 0])), (side, alpha, value)


def test_y_that_is_not_aligned_is_copied_and_left_alone(long_way):
    for letter, trans, side in itertools.product("dz", (0, 1, 2), (2, 150)):
        dtype, routine = DTYPES[letter], ROUTINES[letter]
        for layout in LAYOUTS:
            memory = np.zeros(1 + side * dtype.itemsize, np.uint8)
            y = memory[1:].view(dtype)
            y[:] = 1 + 1j if letter == "z" else 1
            before = memory.copy()
            a, x = layout(np.zeros((side, side), dtype)), np.zeros(side, dtype)
            result = routine(1.0, a, x, 1.0, y, trans=trans, overwrite_y=1)
            assert result is not y and np.array_equal(result, y)
            assert np.array_equal(memory, before)


def test_arrays_that_were_pickled_take_the_short_way(long_way):
    a, x, y = pickle.loads(pickle.dumps((np.eye(3), np.ones(3), np.ones(3))))
    assert gemv.dgemv(2.0, a, x, 1.0, y, overwrite_y=1) is y
    assert y.tolist() == [3.0] * 3 and not long_way


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_vectors_in_reverse_order_are_right_and_alpha_of_zero_copies_nothing(trans, rng):
    a = rows_with_gaps(np.round(8 * random_array(rng, (200, 200), DTYPES["z"])))
    x = np.round(8 * random_array(rng, (200,), DTYPES["z"]))[::-1]
    op = (a, a.T, a.conj().T)[trans]
    assert np.array_equal(gemv.zgemv(1.0, a, x, trans=trans), op @ x)
    tracemalloc.start()
    try:
        gemv.zgemv(0.0, a, x, 2.0, np.ones(200, complex), trans=trans)
        assert tracemalloc.get_traced_memory()[1] < 0.2 * a.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_that_overflow_give_no_warning(layout):
    a, x = layout(np.full((4, 5), 1e38, np.float32)), np.full(5, 1e38, np.float32)
    y = np.full(4, np.inf, np.float32)
    for trans, x_here, y_here in ((0, x, y), (1, x[:4], np.full(5, -np.inf, np.float32))):
        # Warnings are errors in tests; 1e300 is infinite in float32.
        assert np.all(np.isposinf(gemv.sgemv(1.0, a, x_here, trans=trans)))
        assert np.all(np.isneginf(gemv.sgemv(-1e300, a, x_here, trans=trans)))
        assert np.all(
            np.isnan(
                gemv.sgemv(1.0, a, x_here, -1.0, y_here if trans == 0 else -y_here, trans=trans)
            )
        )


class Own(np.ndarray):
    """Somebody's own class."""


def unusual(rng):
    """Calls that have to be checked: keyword arguments of dgemv."""
    a, x, y = random_array(rng, (4, 3), DTYPES["d"]), np.ones(3), np.ones(4)
    fine = {"alpha": 1.0, "a": a, "x": x}
    beyond = np.lib.stride_tricks.as_strided(a[:2], (6, 3), a.strides)
    read_only = np.ones(4)
    read_only.flags.writeable = False
    shared = np.ones(12)
    yield {**fine, "x": np.ones(4)}
    yield {**fine, "x": np.ones((3, 2))}
    yield {**fine, "x": [1.0, 1.0, 1.0]}
    yield {**fine, "x": x.view(Own)}
    yield {**fine, "x": np.ones(3, np.float32)}
    yield {**fine, "x": np.ones(3, ">f8")}
    yield {**fine, "a": a.astype(">f8")}
    yield {**fine, "a": a.astype(np.int64)}
    yield {**fine, "a": a.astype(complex)}
    yield {**fine, "a": a[0]}
    yield {**fine, "a": beyond}
    yield {**fine, "a": beyond[1:]}
    far = np.lib.stride_tricks.as_strided(np.zeros(2), (4,), (8,))
    yield {**fine, "y": far[:], "overwrite_y": 1}
    yield {**fine, "x": np.lib.stride_tricks.as_strided(np.zeros(2), (3,), (8,))[:]}
    yield {**fine, "overwrite_y": "yes"}
    yield {**fine, "overwrite_y": None}
    yield {**fine, "a": np.ones((0, 3))}
    yield {**fine, "a": np.ones((4, 0)), "x": np.ones(0)}
    yield {**fine, "alpha": 1j}
    yield {**fine, "alpha": "1"}
    yield {**fine, "alpha": True}
    yield {**fine, "alpha": 10**400}
    yield {**fine, "alpha": np.array(2.0)}
    yield {**fine, "beta": 1.0}
    yield {**fine, "beta": None, "y": y}
    yield {**fine, "trans": True}
    yield {**fine, "trans": 3}
    yield {**fine, "trans": "X"}
    yield {**fine, "trans": 1.0}
    yield {**fine, "incx": -1}
    yield {**fine, "offx": 1}
    yield {**fine, "y": np.ones(5), "beta": 1.0}
    yield {**fine, "y": np.ones(4, np.float32), "beta": 1.0}
    yield {**fine, "y": y, "alpha": 0, "beta": 1}
    yield {**fine, "y": read_only, "beta": 1.0, "overwrite_y": 1}
    yield {**fine, "y": np.ones(8)[::2], "beta": 1.0, "overwrite_y": 1}
    yield {**fine, "y": y, "overwrite_y": 2}
    yield {**fine, "a": shared.reshape(4, 3), "y": shared[4:8], "overwrite_y": 1}
    yield {"alpha": 1.0, "a": np.eye(3), "x": x, "y": x, "overwrite_y": 1}
    yield {**fine, "kernel": "vector_rows"}
    yield {**fine, "kernel": "no such"}
    yield {**fine, "stream": 0}
    yield {**fine, "coefficients": "constant"}
    yield {**fine, "accumulate": "wide"}
    yield {**fine, "device_memory_limit": 100}


def outcome(call, arguments):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(**arguments).tobytes()
    except Exception as error:
        return type(error), str(error)


def test_what_is_unusual_goes_the_long_way_with_its_own_answer(rng, long_way, machine_code):
    for arguments in unusual(rng):
        of_short = outcome(gemv.dgemv, arguments)
        assert len(long_way) == 1, f"a short way was taken for {arguments}"
        long_way.clear()
        short.short_ways.pop(np.ndarray)
        assert outcome(gemv.dgemv, arguments) == of_short
        prepare(machine_code)
        long_way.clear()


def test_views_of_one_array_that_do_not_overlap_may_be_overwritten(long_way):
    memory = np.zeros(64)
    a, x, y = memory[:12].reshape(4, 3), memory[12:15], memory[20:24]
    a[:], x[:] = 1, 2
    assert gemv.dgemv(1.0, a, x, 0.0, y, overwrite_y=True) is y
    assert y.tolist() == [6.0] * 4 and not long_way


def test_calls_are_traced():
    with gemv.trace() as calls:
        gemv.gemv(1.0, np.ones((2, 3), np.float32), np.ones(3, np.float32))
    (call,) = calls
    assert (call.backend, call.kernel, call.geometry) == ("host", "sgemv", None)


def test_another_backend_is_heeded_at_once():
    gemv.use_backend(None)
    assert np.ndarray not in short.short_ways
    if gemv.backend() != "host":
        gemv.dgemv(1.0, np.eye(2), np.ones(2))
        assert np.ndarray not in short.short_ways
    gemv.use_backend("host")
    gemv.dgemv(1.0, np.eye(2), np.ones(2))
    assert np.ndarray in short.short_ways


def test_a_setting_that_changes_during_the_call_is_heeded(monkeypatch):
    gemv.use_backend("host")
    real = execute.run

    def changing(*arguments):
        gemv.use_backend("host")
        return real(*arguments)

    monkeypatch.setattr(execute, "run", changing)
    gemv.dgemv(1.0, np.eye(2), np.ones(2))
    assert np.ndarray not in short.short_ways


@pytest.mark.skipif(gemv.backend() == "host", reason="the host computes here in any case")
def test_the_environment_is_heeded_at_once(monkeypatch):
    gemv.use_backend(None)
    monkeypatch.setenv("GEMV_BACKEND", "host")
    gemv.dgemv(1.0, np.eye(2), np.ones(2))
    with gemv.trace() as calls:
        gemv.dgemv(1.0, np.eye(2), np.ones(2))
        monkeypatch.undo()
        gemv.dgemv(1.0, np.eye(2), np.ones(2))
    assert [call.backend for call in calls] == ["host", gemv.backend()]


def test_a_warning_that_is_an_error_stays_one_in_every_call():
    code = """
import warnings, numpy, gemv
warnings.simplefilter("error")
for _ in range(3):
    try:
        gemv.dgemv(1.0, numpy.eye(2), numpy.ones(2))
    except gemv.HostFallbackWarning:
        print("refused")
warnings.simplefilter("ignore")
print(gemv.dgemv(1.0, numpy.eye(2), numpy.ones(2)))
"""
    environment = {key: value for key, value in os.environ.items() if "CUDASIM" not in key}
    done = processes.run(
        [sys.executable, "-c", code],
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["refused"] * 3 + ["[1. 1.]"]


@pytest.mark.parametrize("by_environment", [False, True])
def test_machine_code_is_made_once_there_were_many_calls(by_environment, monkeypatch):
    """Unless each call has to ask the environment, which only Python does."""
    monkeypatch.setattr(short_host, "MANY", 3)
    monkeypatch.setenv("GEMV_BACKEND", "host")
    installed = []
    reach = faster.Reach(compares=False, most=2**40, most_gathered=2**40)
    ways = short_host.short_ways(by_environment, reach, installed.append)
    plain = ("gemv", 1.0, np.eye(2), np.ones(2), 0, None, 0, 1, 0, 1, 0, 0, None, None, None)
    counts = []
    for _ in range(6):
        assert ways[np.ndarray](*plain).tolist() == [1.0, 1.0]
        counts.append(len(installed))
    assert counts == ([0] * 6 if by_environment else [0, 0, 1, 1, 1, 1])


def test_python_makes_the_calls_where_machine_code_cannot(monkeypatch):
    """BLAS with other integers, or a process without LLVM and without a folder to keep code in."""
    reach = faster.Reach(compares=False, most=2**40, most_gathered=2**40)
    monkeypatch.setattr(short_host, "address_of", lambda letter: None)
    assert short_host.in_machine_code(print, reach) is None
    monkeypatch.undo()
    for error in (CacheWarning("nowhere to keep it"), ImportError("no LLVM")):

        def failing(call, kept, error=error):
            raise error

        monkeypatch.setattr(short_host.host_call, "make", failing)
        assert short_host.in_machine_code(print, reach) is None


def test_integers_are_numbers_where_they_are_exact():
    assert short_host.is_number(2**53 - 1, short_host.REAL_NUMBERS)
    assert not short_host.is_number(2**53, short_host.REAL_NUMBERS)
    assert not short_host.is_number(True, short_host.REAL_NUMBERS)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_a_large_view_without_lines_is_copied_in_the_order_of_memory(dtype, trans, monkeypatch):
    from scipy.linalg import blas

    from gemv.engines import host

    rng = np.random.default_rng(5)
    whole = rng.integers(-4, 5, (200, 300)) + (1j * rng.integers(-4, 5, (200, 300)))
    whole = whole.astype(dtype) if dtype in "FD" else whole.real.astype(dtype)
    routine = getattr(blas, {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype] + "gemv")
    given = []

    def watched(alpha, a, *rest, **options):
        given.append(a)
        return routine(alpha, a, *rest, **options)

    for view in (whole[:, ::2], whole.T[::2], whole[::2, ::-1], whole[:, 1::2][::-1]):
        op = (view, view.T, view.conj().T)[trans]
        x = rng.integers(-4, 5, op.shape[1]).astype(dtype)
        y = rng.integers(-4, 5, op.shape[0]).astype(dtype)
        found = host.product(watched, trans, 2.0, view, x, 3.0, y.copy())
        assert np.array_equal(found, 2 * (op @ x) + 3 * y)
        assert given.pop().flags.f_contiguous or abs(view.strides[0]) < abs(view.strides[1])
