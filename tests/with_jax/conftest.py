"""What files about JAX share: its settings, operands, and the short way of the drop-in."""

import importlib.util

import numpy as np
import pytest

from gemv.core import memo

if importlib.util.find_spec("jax"):
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    # A trace sees the calls of its own thread, and XLA might run some in another.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


@pytest.fixture
def without_gpu():
    """Skips where JAX puts arrays on a GPU; asked late, since the answer starts JAX's backends."""
    if jax.default_backend() != "cpu":
        pytest.skip("JAX has a GPU, and this is about arrays in host memory")
    memo.forget()
    yield
    memo.forget()


@pytest.fixture
def operands():
    """A, x and y that go together."""
    rng = np.random.default_rng(3)
    shapes = (40, 30), 30, 40
    return [jax.numpy.asarray(rng.standard_normal(shape).astype("f")) for shape in shapes]


@pytest.fixture
def short_way():
    """The short way of ``gemv.gemv``, as the first array on a GPU makes it."""
    from gemv.calls import short_jax

    (way,) = short_jax.short_ways(None).values()

    def call(routine, alpha, a, x, beta=0, y=None, *options, **changes):
        rest = {"offx": 0, "incx": 1, "offy": 0, "incy": 1, "trans": 0, "overwrite_y": 0}
        rest |= {"kernel": None, "stream": None, "coefficients": None} | changes
        return way(routine, alpha, a, x, beta, y, *rest.values())

    return call
