"""Calls of each family: batches, several vectors, lists, shards and plans, with what they give.

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


def _items():
    """Matrices of several sizes and their vectors: some share a launch, and some have their own."""
    sizes = (5, 3), (4, 50), (2, 2), (70, 40)
    a, x = [whole(*size) for size in sizes], [whole(size[1]) for size in sizes]
    return a, x, np.concatenate([own @ vector for own, vector in zip(a, x, strict=True)])


def listed():
    """Host arrays, with parts of one array as an old y each."""
    a, x, products = _items()
    y = whole(len(products))
    out = y.copy()
    parts = np.split(out, np.cumsum([len(own) for own in a])[:-1])

    def call():
        out[...] = y
        gemv.gemv_batched(1, a, x, 2, parts, overwrite_y=1)
        return out

    return call, products + 2 * y, (out, y)


def list_on_the_device():
    a, x, products = _items()
    a, x = ([cuda.to_device(each) for each in arrays] for arrays in (a, x))
    return lambda: np.concatenate(list(map(host, gemv.gemv_batched(1, a, x)))), products, None


def list_that_stays():
    """Tables of its launches stay on the device from the first call on."""
    a, x, products = _items()
    kept = gemv.Batch(list(map(cuda.to_device, a)))
    x = list(map(cuda.to_device, x))
    return lambda: np.concatenate(list(map(host, kept @ x))), products, None


def list_in_host_memory_that_stays():
    a, x, products = _items()
    kept = gemv.Batch(a)
    return lambda: np.concatenate(kept @ x), products, None


def plan_of_a_list():
    a, x, products = _items()
    y = [cuda.to_device(np.zeros(len(own))) for own in a]
    x = list(map(cuda.to_device, x))
    planned = []

    def call():
        planned[:] = planned or [gemv.Batch(list(map(cuda.to_device, a))).plan(x, y)]
        return np.concatenate(list(map(host, planned[0]())))

    return call, products, None


#: By name. All of them need a device or the simulator.
CALLS = {
    each.__name__: each
    for each in (
        batch, batch_on_the_device, plan_of_a_batch, columns, shards_within, shards_across,
        shards_on_the_device, plan_of_shards, making_shards, listed, list_on_the_device,
        list_that_stays, list_in_host_memory_that_stays, plan_of_a_list,
    )
}  # fmt: skip
