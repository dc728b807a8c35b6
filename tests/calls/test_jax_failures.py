"""A program of JAX's whose GPU is lost or full: XLA gets the error, and later calls are right.

The simulator stands in for the driver, and frames made by hand for XLA's.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.xla_frames import HandMade, attributes, call

from gemv.calls import jax_ticketed
from gemv.core import memo
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("the simulator stands in for the driver", allow_module_level=True)

from gemv.engines import simulator


class OutOfMemory(MemoryError, RuntimeError):
    """As :class:`gemv.driver.libcuda.OutOfMemory`, which needs the driver's bindings."""


class Lost(RuntimeError):
    """What the driver says of each call once a context has ended."""


ENGINE = type(backend.engine())
#: Where it fails, how, and whether there is a batch.
FAILURES = {
    "a GPU that is lost": (ENGINE, "run", Lost("CUDA_ERROR_DEVICE_UNAVAILABLE"), False),
    "one that is lost in a batch": (ENGINE, "run", Lost("CUDA_ERROR_LAUNCH_FAILED"), True),
    "no memory": (simulator, "_scratch", OutOfMemory("no memory for 1024 bytes"), False),
    "no memory for a batch": (simulator, "_scratch", OutOfMemory("no memory"), True),
}


@pytest.fixture(autouse=True)
def nothing_remembered():
    memo.forget()
    yield
    memo.forget()


@pytest.mark.parametrize("failure", FAILURES)
def test_a_gpu_that_fails_is_told_and_harms_no_later_call(failure, monkeypatch):
    owner, name, error, is_batch = FAILURES[failure]
    front = (3,) if is_batch else ()
    rng = np.random.default_rng(7)
    a = rng.integers(-3, 4, (*front, 2, 500)).astype("f")
    x = rng.integers(-3, 4, (*front, 500)).astype("f")
    y = np.full((*front, 2), np.nan, "f")
    shapes = (a.shape, x.shape) if is_batch else ()
    made = HandMade([a, x], [y], attributes(shapes=shapes, alpha_imag=0.0))
    right, failed = getattr(owner, name), []

    def fails(*arguments, **options):
        failed.append(1)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        for _ in range(2):
            assert call(jax_ticketed.on_gpu, made.frame) == 1
    assert len(failed) == 2
    words = f"{type(error).__name__}: {error}"
    assert made.errors == [(13, words)] * 2
    assert np.isnan(y).all(), "what failed has written a part of the result"
    assert getattr(owner, name) is right
    assert call(jax_ticketed.on_gpu, made.frame) is None
    assert np.array_equal(y, 2 * (a @ x[..., None])[..., 0])
