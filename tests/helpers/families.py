"""Calls of each family: batches, several vectors, shards and their plans, with what they give.

Each function makes its arrays and gives a call without arguments, what it returns, and, where the
call overwrites an array of the host, that array with what was in there, else None.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import gemv


def whole(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(float)


def host(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else array


def batch():
    """Host arrays, with an out that is read; three launches, as a launch takes three items."""
    a, x, y = whole(7, 4, 3), whole(7, 3), whole(7, 4)
    out = y.copy()

    def call():
        out[...] = y
        return gemv.matvec(a, x, out, beta=2)

    return call, np.matmul(a, x[..., None])[..., 0] + 2 * y, (out, y)


def batch_on_the_device():
    a, x = whole(7, 4, 3), whole(7, 3)
    on_device = [cuda.to_device(each) for each in (a, x)]
    return lambda: gemv.matvec(*on_device), np.matmul(a, x[..., None])[..., 0], None


def plan_of_a_batch():
    a, x = whole(7, 4, 3), whole(7, 3)
    vectors = [cuda.to_device(each) for each in (a, x, np.zeros((7, 4)))]
    planned = []

    def call():
        planned[:] = planned or [gemv.plan(*vectors)]
        return planned[0](2.0)

    return call, 2 * np.matmul(a, x[..., None])[..., 0], None


def columns():
    a, x = whole(6, 5), whole(5, 3)
    matrix = gemv.Matrix(a)
    return lambda: matrix @ x, a @ x, None


def shards_within():
    a, x = whole(20, 8), whole(8)
    several = gemv.Matrix(a, devices=[0] * 3, split="rows")
    return lambda: several @ x, a @ x, None


def shards_across():
    """Sums go from shard to shard through counters that have to be as they were."""
    a, x = whole(5, 411), whole(411)
    several = gemv.Matrix(a, devices=[0, 0], split="columns", kernel="last_block")
    return lambda: several @ x, a @ x, None


def shards_on_the_device():
    a = whole(20, 8)
    several = gemv.Matrix(a, devices=[0] * 2, reproducible=False)
    return lambda: several.T @ cuda.to_device(whole(20)), a.T @ whole(20), None


def plan_of_shards():
    a, x = whole(20, 8), whole(8)
    several = gemv.Matrix(a, devices=[0] * 2)
    vectors = cuda.to_device(x), cuda.to_device(np.zeros(20))
    planned = []

    def call():
        planned[:] = planned or [several.plan(*vectors)]
        return planned[0]()

    return call, a @ x, None


def making_shards():
    a, x = whole(20, 8), whole(8)

    def call():
        with gemv.Matrix(a, devices=[0] * 3) as several:
            return several @ x

    return call, a @ x, None


#: By name. All of them need a device or the simulator.
CALLS = {
    each.__name__: each
    for each in (
        batch, batch_on_the_device, plan_of_a_batch, columns, shards_within, shards_across,
        shards_on_the_device, plan_of_shards, making_shards,
    )
}  # fmt: skip
