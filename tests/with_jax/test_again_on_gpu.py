"""The drop-in on JAX's arrays on a GPU: repeated calls have the bits of the first one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gemv.engines import backend

if backend.backend() != "cuda":
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemv  # noqa: E402
from gemv.calls import jax_handlers  # noqa: E402
from gemv.core import memo  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def with_gpu():
    if jax.default_backend() == "cpu":
        pytest.skip("JAX has no GPU")
    memo.forget()
    yield
    memo.forget()


def made(shape, dtype="f", seed=0):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == "F" else 0)
    return jnp.asarray(found.astype(dtype))


SHAPES = {
    "one": ((64, 60), (60,)),
    "one with scratch memory": ((3, 200_000), (200_000,)),
    "a batch": ((50, 33, 64), (50, 64)),
    "one matrix": ((40, 70), (6, 70)),
    "broadcast": ((2, 1, 40, 36), (3, 36)),
}


@pytest.mark.parametrize("dtype", ["f", "d", "F"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_matvec_vecmat_and_gemv(shapes, dtype):
    of_a, of_x = SHAPES[shapes]
    a, x = made(of_a, dtype), made(of_x, dtype, 1)
    left = made((*of_x[:-1], of_a[-2]), dtype, 2)
    y = made(np.broadcast_shapes(of_a[:-2], of_x[:-1]) + of_a[-2:-1], dtype, 3)
    turn = 0.5j if dtype == "F" else 0
    calls = {
        "matvec": lambda alpha: gemv.matvec(a, x, alpha=alpha),
        "vecmat": lambda alpha: gemv.vecmat(left, a, alpha=alpha),
    }
    if len(of_a) == 2 and len(of_x) == 1 or shapes == "a batch":
        calls["gemv"] = lambda alpha: gemv.gemv(alpha, a, x)
        calls["gemv with y"] = lambda alpha: gemv.gemv(alpha, a, x, 0.5 - turn, y)
    product = np.einsum("...ij,...j->...i", np.asarray(a), np.asarray(x))
    for name, function in calls.items():
        with gemv.trace() as first_way:  # a traced call goes the long way
            firsts = [np.asarray(function(alpha)) for alpha in (1.0, 2.5, -0.3 + turn)]
        assert first_way
        for _ in range(4):
            found = [function(alpha) for alpha in (1.0, 2.5, -0.3 + turn)]
            for mine, first in zip(found, firsts, strict=True):
                assert isinstance(mine, jax.Array) and mine.dtype == a.dtype
                assert np.asarray(mine).tobytes() == first.tobytes(), name
        if name == "matvec":
            np.testing.assert_allclose(firsts[1], 2.5 * product, rtol=2e-3, atol=2e-3)


def test_numbers_of_calls_that_are_not_computed_yet():
    """XLA runs behind; each call keeps the numbers of its own."""
    a, x, y = made((4096, 4096)), made(4096, seed=1), made(4096, seed=2)
    for _ in range(3):
        gemv.gemv(2.0, a, x), gemv.gemv(2.0, a, x, 0.5, y)
    product = np.asarray(a, "d") @ np.asarray(x, "d")
    found = [
        (gemv.gemv(alpha, a, x), gemv.gemv(alpha, a, x, alpha / 4, y)) for alpha in range(1, 301)
    ]
    for alpha, (scaled, blended) in enumerate(found, 1):
        np.testing.assert_allclose(scaled, alpha * product, rtol=2e-3, atol=alpha * 1e-2)
        expected = alpha * product + alpha / 4 * np.asarray(y)
        np.testing.assert_allclose(blended, expected, rtol=2e-3, atol=alpha * 1e-2)


def test_a_repeated_call_enters_no_handler_in_python(monkeypatch):
    a, x, several, vectors = made((64, 60)), made(60), made((9, 64, 60)), made((9, 60))
    for alpha in (2.0, 3.0, 4.0, 5.0):
        gemv.gemv(alpha, a, x), gemv.matvec(several, vectors, alpha=alpha).block_until_ready()
    asked, right = [], jax_handlers.engines_backend.backend
    monkeypatch.setattr(jax_handlers.engines_backend, "backend", lambda: asked.append(1) or right())
    for alpha in range(6, 40):
        found = gemv.gemv(alpha, a, x), gemv.matvec(several, vectors, alpha=alpha)
        jax.block_until_ready(found)
    assert not asked
    np.testing.assert_allclose(found[0], 39 * (a @ x), rtol=1e-3, atol=1e-2)


def test_threads_have_the_numbers_of_their_own():
    a, x, y = made((512, 500)), made(500, seed=1), made(512, seed=2)
    for _ in range(3):
        gemv.gemv(2.0, a, x, 0.5, y)
    product, wrong = np.asarray(a, "d") @ np.asarray(x, "d"), []

    def work(number):
        found = [(k, gemv.gemv(number + k / 8, a, x, k, y)) for k in range(1, 100)]
        for k, mine in found:
            expected = (number + k / 8) * product + k * np.asarray(y)
            if not np.allclose(mine, expected, rtol=1e-3, atol=1e-1):
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
