"""Plans of batches: checked once, launched many times, with what plans of one product refuse."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.arrays import LIBRARIES, MUTABLE
from helpers.exporters import Interface

import gemv
from gemv.calls import batched, memory_check, plan_batch
from gemv.selection import batches

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)


@pytest.fixture(params=MUTABLE)
def library(request):
    if request.param != "numba" and gemv.backend() != "cuda":
        pytest.skip(f"{request.param} arrays need a GPU")
    return LIBRARIES[request.param]()


def whole(*shape, dtype="f", seed=0):
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-4, 5, shape).astype(dtype)
    return values + 1j * rng.integers(-4, 5, shape).astype("f") if dtype == "F" else values


def products(a, x):
    return np.matmul(a, x[..., None])[..., 0]


#: Shapes of a, x and y: small items, larger ones, several vectors, and two dimensions.
SHAPES = {
    "small": ((3, 4, 5), (3, 5), (3, 4)),
    "larger": ((2, 66, 2), (2, 2), (2, 66)),
    "vectors": ((6, 8), (3, 8), (3, 6)),
    "nested": ((2, 1, 4, 5), (3, 5), (2, 3, 4)),
}


@pytest.mark.parametrize("dtype", ["f", "F"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_of_a_batch(library, name, dtype):
    a, x, y = (whole(*shape, dtype=dtype) for shape in SHAPES[name])
    device = [library.array(each) for each in (a, x, y)]
    plan = gemv.plan(*device, routine="matvec")
    expected = y
    for alpha, beta in ((2.0, 1.0), (np.float32(3), 0), (0, 2), (-1, -1)):
        with gemv.trace() as calls:
            assert plan(alpha, beta) is device[2]
        expected = alpha * products(a, x) + beta * expected
        np.testing.assert_array_equal(library.host(device[2]), expected)
        told = gemv.explain(1, *device[:2], 0, device[2], routine="matvec")
        assert [call.geometry.launches[0] for call in calls] == list(told.launches)
    with gemv.trace() as calls:
        assert plan(0, 1) is device[2]
    assert not calls


def test_a_plan_of_a_batch_has_the_bits_of_its_call():
    library = LIBRARIES["numba"]()
    rng = np.random.default_rng(1)
    a, x = (library.array(rng.standard_normal(shape).astype("f")) for shape in ((3, 40, 33), (33,)))
    y = library.array(np.full((3, 40), np.nan, "f"))
    gemv.plan(a, x, y)(0.7)
    assert library.host(y).tobytes() == library.host(gemv.gemv(0.7, a, x)).tobytes()


def test_a_bound_plan_checks_no_arrays_again(monkeypatch):
    library = LIBRARIES["numba"]()
    (a, x, y) = (whole(*shape) for shape in SHAPES["small"])
    device = [library.array(each) for each in (a, x, y)]
    plan = gemv.plan(*device)
    monkeypatch.setattr(batched, "bind_blas", None)
    plan(2)
    np.testing.assert_array_equal(library.host(device[2]), 2 * products(a, x))
    with pytest.raises(TypeError, match="not callable"):
        plan(np.ones(3, "f"))


def test_parts_are_launched_in_order(monkeypatch):
    monkeypatch.setattr(batches, "MOST_ITEMS", 3)
    library = LIBRARIES["numba"]()
    a, x = whole(7, 70, 3), whole(7, 3)
    y = library.array(np.full((7, 70), np.nan, "f"))
    plan = gemv.plan(library.array(a), library.array(x), y)
    with gemv.trace() as calls:
        plan()
    assert [call.geometry.launches[0].grid[2] for call in calls] == [3, 3, 1]
    np.testing.assert_array_equal(library.host(y), products(a, x))


def test_other_vectors_factors_and_a_new_y():
    library = LIBRARIES["numba"]()
    a, x, y = (whole(*shape) for shape in SHAPES["small"])
    device = [library.array(each) for each in (a, x, y)]
    plan = gemv.plan(*device)
    assert plan(1, 0, library.array(x + 1)) is device[2]
    np.testing.assert_array_equal(library.host(device[2]), products(a, x + 1))
    alpha = np.array([1, 2, 3], "f")
    plan(library.array(alpha), 0)
    np.testing.assert_array_equal(library.host(device[2]), alpha[:, None] * products(a, x))
    before = library.host(device[2])
    other = library.array(y)
    assert plan(2, 1, device[1], other) is other
    np.testing.assert_array_equal(library.host(other), 2 * products(a, x) + y)
    plan(1, library.array(alpha), device[1], other)
    expected = products(a, x) + alpha[:, None] * (2 * products(a, x) + y)
    np.testing.assert_array_equal(library.host(other), expected)
    np.testing.assert_array_equal(library.host(device[2]), before)
    plan(0, library.array(alpha))
    np.testing.assert_array_equal(library.host(device[2]), alpha[:, None] * before)
    free = gemv.plan(*device[:2], trans="N")
    made = free(2)
    assert made is not device[2]
    np.testing.assert_array_equal(library.host(made), 2 * products(a, x))
    back = gemv.plan(device[0], device[2], device[1], trans=1)
    device[2].copy_to_device(y)
    back()
    np.testing.assert_array_equal(library.host(device[1]), products(a.swapaxes(1, 2), y))


def test_launches_are_in_the_order_of_the_stream_of_a_call(monkeypatch):
    """What fills x comes before them, and what reads y after them."""
    library = LIBRARIES["numba"]()
    device = [library.array(whole(*shape)) for shape in SHAPES["small"]]
    plan, told = gemv.plan(*device), []

    class Told:
        def __init__(self, call, engine, stream):
            told.append(stream)
            self.stream = None

        def before(self):
            told.append("before")

        def after(self):
            told.append("after")

    run = plan_batch.item_launches.run
    monkeypatch.setattr(plan_batch, "Order", Told)
    monkeypatch.setattr(
        plan_batch.item_launches, "run", lambda *each: told.append("launch") or run(*each)
    )
    plan(2.0, stream=0)
    plan(2.0)
    assert told == [0, "before", "launch", "after", None, "before", "launch", "after"]


def test_conjugates_and_items_without_columns():
    library = LIBRARIES["numba"]()
    a, x = whole(2, 3, 4, dtype="F"), whole(2, 3, dtype="F")
    y = library.array(np.zeros((2, 4), "F"))
    gemv.plan(library.array(a), library.array(x), y, routine="vecmat")()
    np.testing.assert_array_equal(library.host(y), products(a.swapaxes(1, 2), x.conj()))
    empty = [library.array(np.ones(shape)) for shape in ((2, 3, 0), (2, 0), (2, 3))]
    gemv.plan(*empty, routine="matvec")(1, 3)
    assert (library.host(empty[2]) == 3).all()


def test_a_plan_follows_a_change_of_settings(monkeypatch):
    library = LIBRARIES["numba"]()
    a, x, y = (library.array(whole(*shape)) for shape in SHAPES["small"])
    plan = gemv.plan(a, x, y, routine="matvec")
    chosen = gemv.engines.backend._chosen
    gemv.use_backend("host")
    try:
        with pytest.raises(TypeError, match="the backend is host"):
            plan()
    finally:
        gemv.use_backend(chosen)
    monkeypatch.setattr(batched, "bind_gufunc", None)
    with pytest.raises(TypeError, match="not callable"):
        plan()  # what was found out under the other setting is not used
    monkeypatch.undo()
    plan()
    monkeypatch.setattr(batched, "bind_gufunc", None)
    plan()
    np.testing.assert_array_equal(library.host(y), products(library.host(a), library.host(x)))


def test_plans_of_batches_are_checked_at_once():
    library = LIBRARIES["numba"]()
    a, x, y = (library.array(whole(*shape)) for shape in SHAPES["small"])
    with pytest.raises(TypeError, match="gemv: a is in host memory"):
        gemv.plan(np.ones((2, 2, 2)))
    with pytest.raises(TypeError, match="a plan of a batch is bound to its x"):
        gemv.plan(a)
    with pytest.raises(ValueError, match="matvec: x has 4 elements in its last dimension"):
        gemv.plan(a, y, routine="matvec")
    with pytest.raises(ValueError, match="known kernels: serial"):
        gemv.plan(a, x, y, kernel="none such")
    with pytest.raises(ValueError, match="peer is for a matrix of two dimensions"):
        gemv.plan(a, x, y, peer=True)
    with pytest.raises(ValueError, match="y overlaps x"):
        gemv.plan(library.array(np.ones((2, 3, 3), "f")), y[:2, :3], y[:2, :3])
    with pytest.raises(ValueError, match="incx is an argument of gemv"):
        gemv.plan(a, x, y, incx=2, routine="matvec")
    plan = gemv.plan(a, x, y)
    with pytest.raises(TypeError, match="alpha = 1j is complex"):
        plan(1j)
    with pytest.raises(ValueError, match="x is too short"):
        plan(1, 0, y)


def whose_check_counts(monkeypatch, device):
    """A plan, and how often arrays were bound and checked since it was made."""
    plan, checks, bind = gemv.plan(*device), [], batched.bind_blas
    monkeypatch.setattr(batched, "bind_blas", lambda *each: checks.append(1) or bind(*each))
    return plan, checks


def test_full_check_looks_at_the_arrays_in_each_call(monkeypatch):
    """They may lie in memory that was given back since the plan was made."""
    library = LIBRARIES["numba"]()
    (a, x, y) = (whole(*shape) for shape in SHAPES["small"])
    device = [library.array(each) for each in (a, x, y)]
    monkeypatch.setattr(memory_check, "FULL", True)
    plan, checks = whose_check_counts(monkeypatch, device)
    for _ in range(2):
        plan(2)
    assert len(checks) == 2
    np.testing.assert_array_equal(library.host(device[2]), 2 * products(a, x))


@pytest.mark.skipif(gemv.backend() != "simulator", reason="arrays in host memory")
@pytest.mark.parametrize("name", "axy")
def test_an_array_that_names_a_stream_is_asked_in_each_call(monkeypatch, name):
    """It may name another one by then, on which work on it is pending."""
    operands = {each: whole(*shape) for each, shape in zip("axy", SHAPES["small"], strict=True)}
    device = {each: Interface(array) for each, array in operands.items()}
    device[name] = Interface(operands[name], stream=7)
    plan, checks = whose_check_counts(monkeypatch, device.values())
    streams, order = [], plan_batch.items.Order

    def noted(call, engine, stream):
        streams.append(getattr(call, name).stream)
        return order(call, engine, stream)

    for module in (plan_batch, plan_batch.items):
        monkeypatch.setattr(module, "Order", noted)
    for stream in (7, 8):
        device[name].__cuda_array_interface__["stream"] = stream
        plan(2)
    assert streams == [7, 8] and len(checks) == 2
    np.testing.assert_array_equal(operands["y"], 2 * products(operands["a"], operands["x"]))
