"""Plans: what they are bound to, what they do without asking again, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.arrays import LIBRARIES, MUTABLE

import gemv

needs_device_arrays = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)
pytestmark = needs_device_arrays


@pytest.fixture(params=MUTABLE)
def library(request):
    if request.param != "numba" and gemv.backend() != "cuda":
        pytest.skip(f"{request.param} arrays need a GPU")
    return LIBRARIES[request.param]()


def case(library, dtype="f", m=5, n=7):
    rng = np.random.default_rng(0)
    host = [rng.integers(-4, 5, size).astype(dtype) for size in ((m, n), n, m)]
    return host, [library.array(each) for each in host]


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_bound_plan(library, dtype):
    (a, x, y), device = case(library, dtype)
    plan = gemv.plan(*device)
    expected = y
    for alpha, beta in ((1, 0), (2.0, 1.0), (np.float32(3), 0), (0, 2), (-1, -1)):
        with gemv.trace() as calls:
            assert plan(alpha, beta) is device[2]
        assert len(calls) == 1
        expected = alpha * (a @ x) + beta * expected
        np.testing.assert_array_equal(library.host(device[2]), expected)
    with gemv.trace() as calls:
        assert plan(0, 1) is device[2]
    assert not calls


def test_plan_reads_new_contents(library):
    (a, x, _), device = case(library)
    plan = gemv.plan(*device)
    plan()
    replacement = library.array(x + 1)
    assert plan(1, 0, replacement) is device[2]
    np.testing.assert_array_equal(library.host(device[2]), a @ (x + 1))
    plan()
    np.testing.assert_array_equal(library.host(device[2]), a @ x)


def test_plan_with_other_vectors(library):
    (a, x, y), (da, dx, dy) = case(library)
    plan = gemv.plan(da)
    for _ in range(2):
        made = plan(2, 0, dx)
        assert library.is_mine(made)
        np.testing.assert_array_equal(library.host(made), 2 * a @ x)
    target = library.array(y)
    for k in range(1, 3):
        assert plan(1, 1, dx, target) is target
        np.testing.assert_array_equal(library.host(target), k * (a @ x) + y)
    np.testing.assert_array_equal(library.host(dy), y)


def test_plan_with_options(library):
    (a, x, y), (da, dx, dy) = case(library)
    plan = gemv.plan(da, dy, dx, trans="T", kernel="serial")
    with gemv.trace() as calls:
        plan(1, 2)
    assert calls[0].kernel == "serial"
    np.testing.assert_array_equal(library.host(dx), a.T @ y + 2 * x)


def test_plan_checks_at_once():
    library = LIBRARIES["numba"]()
    _, (a, x, y) = case(library)
    with pytest.raises(TypeError, match="plan: a is in host memory"):
        gemv.plan(np.ones((2, 2)))
    with pytest.raises(ValueError, match="plan: x is too short"):
        gemv.plan(a, y, y)
    with pytest.raises(TypeError, match="plan: a has dtype float32 but x has dtype float64"):
        gemv.plan(a, library.array(np.ones(7)), y)
    with pytest.raises(ValueError, match="known kernels"):
        gemv.plan(a, x, y, kernel="none such")
    with pytest.raises(ValueError, match="y overlaps x"):
        square = library.array(np.ones((7, 7), "f"))
        gemv.plan(square, x, x)
    with pytest.raises(TypeError, match="bound to no x"):
        gemv.plan(a)(1, 0)


def test_plan_checks_factors_and_vectors():
    library = LIBRARIES["numba"]()
    _, (a, x, y) = case(library)
    plan = gemv.plan(a, x, y)
    with pytest.raises(TypeError, match="alpha = 1j is complex"):
        plan(1j)
    with pytest.raises(TypeError, match="beta must be a number"):
        plan(1, "0")
    with pytest.raises(ValueError, match="x is too short"):
        plan(1, 0, y)
    assert repr(plan) == "<gemv.Plan, bound to a, x, y>"
    assert repr(gemv.plan(a)) == "<gemv.Plan, bound to a>"


def test_plan_number_too_large():
    library = LIBRARIES["numba"]()
    a, x, y = (library.array(np.ones(size, "f")) for size in ((2, 2), 2, 2))
    plan = gemv.plan(a, x, y)
    plan(1e300)
    assert library.host(y).tolist() == [np.inf] * 2
    plan(2)
    assert library.host(y).tolist() == [4] * 2


def test_plan_keeps_its_arrays_alive():
    library = LIBRARIES["numba"]()
    host, device = case(library)
    plan = gemv.plan(*device)
    del device
    np.testing.assert_array_equal(library.host(plan()), host[0] @ host[1])


def test_plan_stays_bound_to_its_arrays():
    """Its packed launch has their addresses: another array would never be looked at."""
    library = LIBRARIES["numba"]()
    host, device = case(library)
    plan, free = gemv.plan(*device), gemv.plan(device[0])
    assert all(getattr(plan, name) is each for name, each in zip("axy", device, strict=True))
    assert free.x is None and free.y is None
    for each in (plan, free):
        for name, other in zip("axy", device, strict=True):
            with pytest.raises(AttributeError, match=f"a plan stays bound to its {name}: make"):
                setattr(each, name, other)
            with pytest.raises(AttributeError, match=f"a plan stays bound to its {name}: make"):
                delattr(each, name)
    np.testing.assert_array_equal(library.host(plan()), host[0] @ host[1])


def test_precompile_computes_nothing():
    library = LIBRARIES["numba"]()
    (_, _, y), device = case(library)
    with gemv.trace() as calls:
        assert gemv.precompile(1, device[0], device[1], 0, device[2], overwrite_y=1) is None
        assert gemv.precompile(1, np.ones((2, 3)), [1, 2, 3]) is None
        assert gemv.precompile(0, device[0], device[1], 1, device[2]) is None
    assert not calls
    np.testing.assert_array_equal(library.host(device[2]), y)
    with pytest.raises(ValueError, match="x is too short"):
        gemv.precompile(1, device[0], device[2])


@pytest.mark.gpu
def test_plan_on_the_current_stream():
    torch = LIBRARIES["torch"]().torch
    a, x, y = torch.eye(64, device="cuda"), torch.zeros(64, device="cuda"), None
    y = torch.zeros(64, device="cuda")
    plan = gemv.plan(a, x, y)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)
        x.fill_(3)
        plan()
        x.fill_(7)
        assert not side.query(), "the host has waited"
    side.synchronize()
    assert y.unique().tolist() == [3]


def test_a_bound_plan_asks_again_after_a_change_of_backend():
    """It launches without asking anybody, so somebody has to tell it."""
    from gemv.calls import plan as calls_plan
    from gemv.calls import remembered
    from gemv.calls.plan import Plan

    asked, launched = [], []
    plan = Plan(lambda *arguments: asked.append(arguments), "a", "x", "y", (0, 1, 0, 1, 0))
    machine = SimpleNamespace(enqueue=lambda *arguments: launched.append(arguments) or 0)
    known = SimpleNamespace(
        numbers=remembered.REAL_NUMBERS, engine=SimpleNamespace(several=False), plain=True,
        machine=machine, address=7, launch=None, record=lambda: None,
    )  # fmt: skip
    plan._bind(known, lambda: 5, (1, 2, 3), None)
    calls_plan.bound_plans.add(plan)
    assert plan(2.0, 1.0) == "y"
    assert launched == [(7, 5, 1, 2, 3, 2.0, 1.0)] and not asked
    chosen = gemv.engines.backend._chosen
    gemv.use_backend("host")
    try:
        plan(2.0, 1.0)
    finally:
        gemv.use_backend(chosen)
    assert len(launched) == 1 and asked == [(2.0, 1.0, "x", "y", None)]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"accumulate": "more"},
            ValueError,
            "plan: accumulate must be one of 'plain', 'wide', 'pairs'",
        ),
        ({"out_dtype": "float32"}, TypeError, "plan: out_dtype must be float64, the dtype compu"),
        ({"kernel": "nope"}, ValueError, "plan: no kernel 'nope'; known kernels: serial, "),
        ({"trans": 7}, ValueError, "plan: trans must be 0 or 'N'"),
        ({"incx": 0}, ValueError, "plan: incx must not be zero"),
        ({"offy": -1}, ValueError, "plan: offy must not be negative"),
        ({"incy": 1.0}, TypeError, "plan: incy must be an integer, got float 1.0"),
        ({"peer": "yes"}, TypeError, "plan: peer must be an integer"),
        (
            {"y": np.ones(3)},
            TypeError,
            "plan: a is on (the device|cuda:0) .* but y is in host memory",
        ),
        ({"y": 2}, ValueError, "plan: y is too short"),
        ({"y": "f"}, TypeError, "plan: a has dtype float64 but y has dtype float32"),
    ],
)
def test_a_plan_without_x_is_checked_at_once(options, error, match):
    library = LIBRARIES["numba"]()
    a = library.array(np.ones((3, 2)))
    y = options.get("y")
    if isinstance(y, (int, str)):
        y = library.array(np.ones(*((3, y) if isinstance(y, str) else (y,))))
        options = {**options, "y": y}
    with pytest.raises(error, match=match):
        gemv.plan(a, **options)


@pytest.mark.parametrize("shape", [(3, 2), (0, 2), (3, 0)])
def test_a_plan_without_x_takes_what_each_call_can(shape):
    library = LIBRARIES["numba"]()
    a, y = (library.array(np.ones(size)) for size in (shape, shape[0] + 4))
    plan = gemv.plan(a, offx=1, incx=-2, offy=1, incy=-1, accumulate="wide", peer=True)
    x = np.arange(1.0, 2 * shape[1] + 3)
    result = plan(1.0, 1.0, library.array(x), y)
    expected = np.ones(shape[0] + 4)
    if 0 not in shape:
        expected[1 : 1 + shape[0]] += x[1:][: 2 * shape[1] - 1 : 2].sum()
    np.testing.assert_array_equal(library.host(result), expected)


def test_what_was_found_out_before_calls_were_forgotten_is_not_remembered(monkeypatch):
    """Another thread may change the backend in the middle of a call."""
    from gemv.calls import plan as calls_plan
    from gemv.calls import remembered
    from gemv.core import memo

    monkeypatch.setattr(remembered, "packable", lambda *arguments: True)
    monkeypatch.setattr(remembered, "RememberedCall", lambda *arguments: "found")
    call = SimpleNamespace(y=0, problem=SimpleNamespace(rows=1))
    plan, since = gemv.plan(LIBRARIES["numba"]().array(np.ones((2, 2)))), memo.generation()
    known = SimpleNamespace(
        numbers=remembered.REAL_NUMBERS,
        engine=SimpleNamespace(several=False),
        plain=False,
        launch=print,
    )
    try:
        remembered.remember(("key",), since, None, None, call)
        calls_plan.bind_plan(plan, since, known, int, (0, 0, 0), None)
        assert remembered.remembered_calls[("key",)] == "found" and plan in calls_plan.bound_plans
        memo.forget()
        remembered.remember(("key",), since, None, None, call)
        calls_plan.bind_plan(plan, since, known, int, (0, 0, 0), None)
        assert ("key",) not in remembered.remembered_calls and plan not in calls_plan.bound_plans
        assert plan._launch is None
    finally:
        memo.forget()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_plan_stays_in_its_process(library, copied):
    _, arrays = case(library)
    with pytest.raises(TypeError, match="gemv.Plan can be neither pickled nor copied"):
        copied(gemv.plan(*arrays))
