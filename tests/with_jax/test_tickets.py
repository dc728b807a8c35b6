"""The drop-in on JAX's arrays with numbers that come by a ticket, and batches: calls of XLA's."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemv  # noqa: E402
from gemv.calls import jax_tickets, remembered, short, short_jax  # noqa: E402
from gemv.core import memo  # noqa: E402
from gemv.driver import tickets  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_enable_async_dispatch", False)


@pytest.fixture(autouse=True)
def without_gpu():
    """Skips where JAX puts arrays on a GPU; asked late, since the answer starts JAX's backends."""
    if jax.default_backend() != "cpu":
        pytest.skip("JAX has a GPU, and this is about arrays in host memory")
    memo.forget()
    yield
    memo.forget()


@pytest.fixture
def ways(monkeypatch):
    """The short way of JAX's arrays, as the first array on a GPU makes it."""
    found = short_jax.short_ways(None)
    monkeypatch.setattr(short, "of_families", found)
    (way,) = found.values()

    def call(routine, alpha, a, x, beta=0, y=None, **changes):
        rest = {"offx": 0, "incx": 1, "offy": 0, "incy": 1, "trans": 0, "overwrite_y": 0}
        rest |= {"kernel": None, "stream": None, "coefficients": None} | changes
        return way(routine, alpha, a, x, beta, y, *rest.values())

    return call


def numbers(shape, dtype="f", seed=0):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == "F" else 0)
    return jnp.asarray(found.astype(dtype))


SHAPES = {
    "one": ((5, 7), (7,)),
    "a batch": ((3, 5, 7), (3, 7)),
    "one matrix": ((5, 7), (2, 3, 7)),
    "one vector": ((2, 3, 5, 7), (7,)),
    "broadcast": ((2, 1, 5, 7), (3, 7)),
}


@pytest.mark.parametrize("dtype", ["f", "d", "F"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_matvec_and_vecmat(ways, shapes, dtype):
    """The first call of a kind goes the long way; from the second on it is one of XLA's."""
    of_a, of_x = SHAPES[shapes]
    a, x = numbers(of_a, dtype), numbers(of_x, dtype, 1)
    left = numbers((*of_x[:-1], of_a[-2]), dtype, 2)
    dense, right = np.asarray(a), np.asarray(x)
    expected = {
        "matvec": np.einsum("...ij,...j->...i", dense, right),
        "vecmat": np.einsum("...ij,...i->...j", dense, np.asarray(left).conj()),
    }
    for routine, arguments in (("matvec", (a, x)), ("vecmat", (left, a))):
        function = getattr(gemv, routine)
        for alpha in (1, 2.5, -0.5, 2.5, *((0.5 - 2j,) if dtype == "F" else ())):
            found = function(*arguments, alpha=alpha)
            assert isinstance(found, jax.Array) and found.dtype == a.dtype
            np.testing.assert_allclose(found, alpha * expected[routine], rtol=2e-3, atol=1e-4)
        vector = arguments[1] if routine == "matvec" else arguments[0]
        assert isinstance(ways(routine, 3.0, a, vector), jax.Array)


@pytest.mark.parametrize("trans", [0, "T", 2])
@pytest.mark.parametrize("with_y", [False, True])
def test_batches_of_gemv(ways, trans, with_y):
    a = numbers((3, 5, 7), "F")
    x, y = numbers((3, 7), "F", 1), numbers((3, 5), "F", 2)
    x, y = (x, y) if trans == 0 else (y, x)
    form = {0: a, "T": a.swapaxes(1, 2), 2: a.conj().swapaxes(1, 2)}[trans]
    product = np.einsum("kij,kj->ki", np.asarray(form), np.asarray(x))
    given = y if with_y else None
    ways("gemv", None, a, x, None, given, trans=trans).expect(None, y)
    for alpha, beta in ((2.0, 0.5), (1.5 - 1j, 0), (3, 1j)):
        beta = beta if with_y else 0
        found = ways("gemv", alpha, a, x, beta, given, trans=trans)
        np.testing.assert_allclose(found, alpha * product + beta * np.asarray(y), 1e-3, 1e-4)
    assert np.array_equal(y, numbers(y.shape, "F", 1 if trans else 2)), "the old y is as it was"


def test_what_has_no_short_way(ways):
    a, x = numbers((3, 5, 7)), numbers((3, 7))
    for _ in range(2):
        gemv.matvec(a, x)
    with pytest.raises(ValueError, match="beta needs out"):
        gemv.matvec(a, x, beta=2.0)
    factors = jnp.arange(3.0, dtype="f")
    np.testing.assert_allclose(
        gemv.matvec(a, x, alpha=factors), factors[:, None] * gemv.matvec(a, x), 1e-5
    )
    assert gemv.matvec(a, x, alpha=0).tolist() == [[0] * 5] * 3
    for shape, of_x in (((3, 0, 7), (3, 7)), ((3, 5, 0), (3, 0)), ((0, 5, 7), (0, 7))):
        for _ in range(3):
            found = gemv.matvec(numbers(shape), numbers(of_x))
            assert found.shape == (shape[0], shape[1]) and not np.asarray(found).any()
    assert not any(0 in key[2].shape for key in short_jax._known), "XLA gets none of them"
    with gemv.trace() as calls:
        gemv.matvec(a, x)
    assert calls


def test_a_longer_x_or_y_of_a_batch_is_looked_at(ways):
    a, x, y = numbers((3, 5, 7)), numbers((3, 8)), numbers((3, 5))
    for operands in ((x, y), (x[:, :7], y[0]), (x[:, :7], numbers((3, 6)))):
        ways("gemv", 2.0, a, operands[0], 1.0, operands[1]).expect(None, y)
        again = ways("gemv", 2.0, a, operands[0], 1.0, operands[1])
        assert again.expect is not None, "nothing was kept"


def test_new_numbers_put_nothing_on_the_gpu(ways, monkeypatch):
    a, x, y = numbers((40, 30)), numbers(30), numbers(40)
    for given in (None, y):
        ways("gemv", 1, a, x, 0, given).expect(None, y)
        ways("gemv", 2.0, a, x, 0.5 if given is not None else 0, given)
    monkeypatch.setattr(jax, "device_put", None)
    for value in range(3, 400):
        found = ways("gemv", value / 7, a, x), ways("gemv", value, a, x, value / 3, y)
    np.testing.assert_allclose(found[0], 399 / 7 * (a @ x), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found[1], 399 * (a @ x) + 133 * y, rtol=1e-3, atol=1e-2)


@pytest.fixture
def pool():
    """Tickets of their own, and those of their lines that the test may use."""
    sharding = numbers(1).sharding
    made = jax_tickets.Tickets(sharding)
    write = tickets.writer(np.dtype("f"))
    return made, write, jax_tickets.compiled("gemv", 0, "plain")


def test_a_ticket_is_used_by_one_call_at_a_time(pool):
    """A function that XLA has not begun keeps its ticket taken; the next call takes another."""
    made, write, function = pool
    a, x = numbers((4, 3)), numbers(3)
    waiting = []

    def late(*arguments):
        waiting.append(arguments)
        return x

    for alpha in (2.0, 3.0, 4.0):
        made.call(write, late, alpha, 0.0, a, x)
    assert len({id(ticket) for _, _, ticket in waiting}) == 3
    for alpha, arguments in zip((2.0, 3.0, 4.0), waiting, strict=True):
        np.testing.assert_allclose(function(*arguments), alpha * (a @ x), rtol=1e-5, atol=1e-6)
    for _ in range(6):
        made.call(write, late, 5.0, 0.0, a, x)
        function(*waiting[-1])
    assert len({id(ticket) for _, _, ticket in waiting}) == 3, "free ones are used again"


def test_without_a_free_ticket_a_call_is_looked_at(ways, monkeypatch):
    a, x, y = numbers((4, 3)), numbers(3), numbers(4)
    ways("gemv", 1, a, x).expect(None, y)
    for known in short_jax._known.values():
        monkeypatch.setattr(known.with_ticket.func.__self__, "_free", deque())
    monkeypatch.setattr(jax_tickets, "line_of", lambda address: None)
    assert ways("gemv", 2.0, a, x) is remembered.UNUSUAL


def test_a_call_that_fails_leaves_its_ticket(pool):
    made, write, function = pool
    a, x = numbers((4, 3)), numbers(3)
    deleted = numbers(3)
    deleted.delete()
    for wrong, alpha in ((deleted, 2.0), (x, 10**400), (deleted, 3.0)):
        with pytest.raises((RuntimeError, ValueError)):
            made.call(write, function, alpha, 0.0, a, wrong)
    assert len(made._free) == 1 and not tickets.is_taken(made._free[0][1])
    np.testing.assert_allclose(made.call(write, function, 3.0, 0.0, a, x), 3 * (a @ x), 1e-5)


def test_what_is_recorded_leaves_its_ticket(pool):
    made, write, function = pool
    a, x = numbers((4, 3)), numbers(3)
    jax.jit(lambda z: (made.call(write, function, 2.0, 0.0, a, x), z)[1])(x)
    assert len(made._free) == 1 and not tickets.is_taken(made._free[0][1])


def test_lines_are_few(monkeypatch):
    monkeypatch.setattr(tickets, "MOST", len(tickets._lines) + 1)
    first = tickets.line_of(0x1230)
    try:
        assert first is not None and tickets.line_of(0x1230) == first
        assert tickets.line_of(0x4560) is None
    finally:
        del tickets._lines[0x1230]
        tickets.TABLE[first] = 0
        tickets.TABLE[0] -= 1


def test_threads_have_the_numbers_of_their_own(ways):
    a, x, y = numbers((40, 30)), numbers(30), numbers(40)
    ways("gemv", 1, a, x, 0, y).expect(None, y)
    product, wrong = np.asarray(a @ x), []

    def work(number):
        for step in range(60):
            alpha, beta = number + step / 8, step
            found = ways("gemv", alpha, a, x, beta, y)
            if not np.allclose(found, alpha * product + beta * np.asarray(y), 1e-3, 1e-3):
                wrong.append((alpha, beta))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_xla_has_the_result_where_the_old_y_was():
    a, x, y = numbers((4, 3)), numbers(3), numbers(4)
    text = jax_tickets.compiled("gemv", 0, "plain").lower(a, x, jnp.int32(0), y).as_text()
    assert "output_operand_alias" in text and "operand_index = 3" in text
