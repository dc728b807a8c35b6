"""Batches, several vectors and shards from eight threads at once, with the same objects in all.

test_streams does so with single products on a GPU, and soak.py for as long as wanted.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.families import host, whole
from numba import cuda

import gemv
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.selection import batches
from gemv.selection.select import select
from gemv.shards import cut

pytestmark = pytest.mark.skipif(gemv.backend() == "host", reason="neither a GPU nor the simulator")

THREADS, TIMES = 8, 2
A, X = whole(7, 4, 3), whole(7, 3)
WIDE, LONG = whole(5, 411), whole(411)


def products():
    return np.matmul(A, X[..., None])[..., 0]


def batch():
    return lambda k: gemv.matvec(A, k * X), products()


def batch_on_the_device():
    a, xs = cuda.to_device(A), [cuda.to_device(k * X) for k in range(THREADS)]
    return lambda k: gemv.matvec(a, xs[k]), products()


def plan_of_a_batch():
    """Each thread passes an x and a y of its own."""
    plan = gemv.plan(*(cuda.to_device(each) for each in (A, X, np.zeros((7, 4)))))
    own = [[cuda.to_device(each) for each in (k * X, np.zeros((7, 4)))] for k in range(THREADS)]
    return lambda k: plan(1.0, 0, *own[k]), products()


def vectors():
    """One memory for x and one for y belong to all calls of a matrix."""
    matrix = gemv.Matrix(WIDE[:, :30])
    return lambda k: matrix @ (k * LONG[:30]), WIDE[:, :30] @ LONG[:30]


def columns():
    matrix, x = gemv.Matrix(whole(6, 5)), whole(5, 3)
    return lambda k: matrix @ (k * x), whole(6, 5) @ x


def shards_within():
    a, x = whole(20, 8), whole(8)
    several = gemv.Matrix(a, devices=[0] * 3, split="rows")
    return lambda k: several @ (k * x), a @ x


def shards_across():
    """Sums go from shard to shard through counters."""
    several = gemv.Matrix(WIDE, devices=[0, 0], split="columns", kernel="last_block")
    return lambda k: several @ (k * LONG), WIDE @ LONG


def columns_of_shards():
    several, x = gemv.Matrix(whole(20, 8), devices=[0] * 2), whole(8, 3)
    return lambda k: several @ (k * x), whole(20, 8) @ x


def plan_of_shards():
    """The plan has one x and one y, so all threads compute the same."""
    a, x = whole(20, 8), whole(8)
    several = gemv.Matrix(a, devices=[0] * 2)
    plan = several.plan(cuda.to_device(x), cuda.to_device(np.zeros(20)))
    plan()
    return lambda k: k * host(plan()), a @ x


def _items():
    a = [whole(5, 30), whole(4, 3), whole(2, 2)]
    x = [whole(30), whole(3), whole(2)]
    return a, x, np.concatenate([own @ vector for own, vector in zip(a, x, strict=True)])


def _joined(results):
    return np.concatenate(list(map(host, results)))


def list_on_the_device():
    a, x, expected = _items()
    a = list(map(cuda.to_device, a))
    xs = [[cuda.to_device(k * each) for each in x] for k in range(THREADS)]
    return lambda k: _joined(gemv.gemv_batched(1, a, xs[k])), expected


def list_that_stays():
    """Tables of a first call serve the others."""
    a, x, expected = _items()
    kept = gemv.Batch(a)
    return lambda k: np.concatenate(kept @ [k * each for each in x]), expected


def plan_of_a_list():
    """The plan has its vectors, so all threads compute the same."""
    a, x, expected = _items()
    y = [cuda.to_device(np.zeros(len(own))) for own in a]
    plan = gemv.Batch(list(map(cuda.to_device, a))).plan(list(map(cuda.to_device, x)), y)
    plan()
    return lambda k: k * _joined(plan()), expected


FAMILIES = (
    batch, batch_on_the_device, plan_of_a_batch, vectors, columns, shards_within, shards_across,
    columns_of_shards, plan_of_shards, list_on_the_device, list_that_stays, plan_of_a_list,
)  # fmt: skip
#: Those that only have arrays of the host, so that the host computes them, too.
ON_THE_HOST = (batch, vectors, columns, shards_within, columns_of_shards, list_that_stays)


@pytest.fixture
def small(monkeypatch):
    """Few items a launch, and few threads a block for a kernel that is asked for."""

    def with_small_knobs(problem, device, kernel=None, **other):
        knobs = dict(REGISTRY[kernel].small_knobs) if kernel else None
        return select(problem, device, kernel=kernel, knobs=knobs, **other)

    monkeypatch.setattr(batches, "MOST_ITEMS", 3)
    monkeypatch.setattr(cut, "select", with_small_knobs)
    chosen = gemv.engines.backend._chosen
    yield
    gemv.use_backend(chosen)


@pytest.mark.parametrize(
    "family, where",
    [(each, "engine") for each in FAMILIES] + [(each, "host") for each in ON_THE_HOST],
)
def test_threads_share_all_objects(family, where, small):
    """Whatever a call remembers, locks or keeps as scratch memory belongs to all threads.

    Thread number k multiplies the vectors by k, so what one takes from another is seen.
    """
    if where == "host":
        gemv.use_backend("host")
    call, product = family()
    at_once, wrong = threading.Barrier(THREADS), []

    def work(number):
        try:
            at_once.wait()
            for _ in range(TIMES):
                found = host(call(number))
                if not np.array_equal(found, number * product):
                    wrong.append((number, found))
        except BaseException as error:
            wrong.append(error)
            at_once.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "some wait for a lock that nobody has"
    assert not wrong


@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_thread_has_the_vectors_of_a_matrix_for_itself(columns, monkeypatch):
    """One that comes as soon as the x of another one is there waits until y is read."""
    a, x = whole(6, 5), whole(5, *columns)
    matrix = gemv.Matrix(a)
    matrix @ x  # what each product needs is there
    kind = type(backend.engine().vectors(5, 6, a.dtype))
    put, first, second = kind.put, threading.Event(), threading.Event()

    def put_and_wait(self, *given):
        put(self, *given)
        if not first.is_set():
            first.set()
            second.wait(0.5)  # for another thread, which has to wait as well
        else:
            second.set()

    monkeypatch.setattr(kind, "put", put_and_wait)
    found = {}

    def work(k):
        found[k] = matrix @ (k * x)

    one, other = (threading.Thread(target=work, args=(k,)) for k in (1, 2))
    one.start()
    assert first.wait(20)
    other.start()
    one.join()
    other.join()
    assert np.array_equal(found[1], a @ x) and np.array_equal(found[2], 2 * (a @ x))
