"""``gemv.dask.Matrix.solve`` on two workers: results, what is refused, workers that are lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import processes
from scipy.sparse import linalg

import gemv

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

import dask.array as da  # noqa: E402

import gemv.dask  # noqa: E402
from gemv.distributed import client as clients  # noqa: E402
from gemv.distributed import exchange, neighbours, solve  # noqa: E402
from gemv.distributed.methods import METHODS, Kept  # noqa: E402
from gemv.distributed.outcome import Interrupted, Stopped  # noqa: E402
from gemv.distributed.placement import spread, where  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")

#: Seconds that may pass between the end of a worker and the end of the solve on all.
LIMIT = 30


def started(workers):
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=":0",
        env={"GEMV_BACKEND": "host", "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def client():
    with started(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(params=["neighbours", "strangers"])
def both_ways(request, client):
    """Workers tell each other by memory that they share, and then by messages of Dask's."""
    tells = request.param == "neighbours"
    if tells and not neighbours.is_possible():
        pytest.skip("the system has no such sockets")

    def begin(tells):
        possible, packed, messages = neighbours.is_possible, exchange._packed, []
        neighbours.KEPT = possible, packed, messages
        neighbours.is_possible = possible if tells else lambda: False
        exchange._packed = lambda product: messages.append(1) or packed(product)

    def end():
        neighbours.is_possible, exchange._packed, messages = vars(neighbours).pop("KEPT")
        return len(messages)

    client.run(begin, tells)
    yield client
    messages = client.run(end).values()
    assert not any(messages) if tells else all(messages)


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def in_chunks(a, rows, columns):
    """`a` as one process multiplies it: chunk by chunk, added in their order."""

    def product(x, transposed):
        x = x.ravel()
        y = np.empty(a.shape[1] if transposed else a.shape[0])
        across, along = (rows, columns) if transposed else (columns, rows)
        for start in range(0, len(y), along):
            block = slice(start, start + along)
            parts = []
            for k in range(0, len(x), across):
                piece = slice(k, k + across)
                chunk = gemv.Matrix(a[piece, block] if transposed else a[block, piece])
                parts.append((chunk.H if transposed else chunk) @ x[piece])
            total, *others = parts
            for other in others:
                total = total + other
            y[block] = total
        return y

    return linalg.LinearOperator(
        a.shape, lambda x: product(x, False), lambda y: product(y, True), dtype=a.dtype
    )


def same_bits(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_workers_compute_on_the_host(client):
    assert set(client.run(gemv.backend).values()) == {"host"}


@pytest.mark.parametrize("method", ["lsmr", "cg", "gmres"])
def test_results_have_the_bits_of_one_process(both_ways, client, rng, method):
    a = rng.standard_normal((150, 40))
    options = {"atol": 1e-10, "btol": 1e-10, "maxiter": 40}
    if method != "lsmr":
        a = a[:40] @ a[:40].T + 40 * np.eye(40)
        options = {"rtol": 1e-10, "maxiter": 60}
    b = rng.standard_normal(len(a))
    matrix = gemv.dask.Matrix(da.from_array(a, chunks=(20, 30)))
    found = matrix.solve(method, da.from_array(b, chunks=7), **options)
    same_bits(found, getattr(linalg, method)(in_chunks(a, 20, 30), b, **options))
    np.testing.assert_allclose(found[0], np.linalg.lstsq(a, b)[0], rtol=1e-6)
    # the parts that were sent came from two workers
    assert len({worker for held in client.who_has(list(matrix._shards.values())).values()
                for worker in held}) == 2  # fmt: skip
    assert found[0].tobytes() == matrix.solve(method, b, **options)[0].tobytes()


@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")
def test_long_vectors_travel_without_a_copy(both_ways, client, rng):
    """Messages do from 65,536 bytes on, as each worker's part of a product has here."""
    a = rng.integers(-4, 5, (16_600, 2)).astype(float)
    b = a @ [1.0, -2.0] + rng.standard_normal(len(a))
    found = gemv.dask.Matrix(da.from_array(a, chunks=(8300, 2))).solve("lsmr", b, maxiter=3)
    right = linalg.lsmr(a, b, maxiter=3)
    assert found[1:3] == right[1:3] and np.allclose(found[0], right[0], rtol=1e-9)


def test_lazy_products_have_the_bits_of_other_schedulers(client, rng):
    a, x = rng.standard_normal((60, 90)), rng.standard_normal(90)
    lazy = gemv.dask.matvec(da.from_array(a, chunks=(30, 10)), x)
    assert lazy.compute().tobytes() == lazy.compute(scheduler="sync").tobytes()


def test_complex_and_narrow_matrices(both_ways, client, rng):
    a = rng.standard_normal((6, 6)) + 1j * rng.standard_normal((6, 6)) + 6 * np.eye(6)
    b = rng.standard_normal(6)
    matrix = gemv.dask.Matrix(da.from_array(a, chunks=(4, 4)))
    x, *_ = matrix.solve("lsmr", b, atol=1e-12, btol=1e-12, maxiter=50)
    np.testing.assert_allclose(a @ x, b, atol=1e-8)
    single = gemv.dask.Matrix(da.from_array(np.eye(3, dtype="f2")))
    assert single.dtype == "f4" and repr(single).startswith("<3x3 gemv.dask.Matrix of float32")
    x, *_ = single.solve("lsmr", 1j * np.ones(3))
    np.testing.assert_allclose(x, 1j * np.ones(3), rtol=1e-6)


def test_fewer_rows_than_workers_and_empty_chunks(both_ways, client):
    one = gemv.dask.Matrix(da.from_array(np.array([[2.0, 0.0]])))
    np.testing.assert_allclose(one.solve("lsmr", [4.0])[0], [2.0, 0.0])
    a = np.arange(9.0).reshape(3, 3) + 5 * np.eye(3)
    split = gemv.dask.Matrix(da.from_array(a, chunks=((0, 1, 0, 2), (3, 0))))
    np.testing.assert_allclose(a @ split.solve("gmres", np.ones(3), rtol=1e-9)[0], np.ones(3))
    nothing = gemv.dask.Matrix(da.zeros((3, 0)))
    assert nothing.solve("lsmr", np.ones(3))[0].shape == (0,)


def test_a_checkpoint_changes_nothing_where_nobody_is_lost(client, rng):
    a = np.diag(np.linspace(1, 9, 30))
    matrix, b = gemv.dask.Matrix(da.from_array(a, chunks=(10, 30))), np.ones(30)
    same_bits(matrix.solve("cg", b, checkpoint=2), matrix.solve("cg", b))
    cycles = {"restart": 4, "maxiter": 20}
    same_bits(matrix.solve("gmres", b, checkpoint=2, **cycles), matrix.solve("gmres", b, **cycles))
    x, *_ = matrix.solve("lsmr", b, checkpoint=4, maxiter=200)  # begins anew, and arrives as well
    np.testing.assert_allclose(a @ x, b, atol=1e-4)
    assert matrix.solve("lsmr", b, checkpoint=2, maxiter=3, atol=0, btol=0)[1:3] == (7, 3)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda a: a.solve("bicg", np.ones(6)), ValueError, "'cg', 'gmres', 'lsmr', got 'bicg'"),
        (lambda a: a.solve("lsmr", np.ones(6), rtol=1), TypeError, "no option 'rtol'; it .* damp"),
        (lambda a: a.solve("lsmr", np.ones(6), show=True), TypeError, "no option 'show'"),
        (lambda a: a.solve("cg", np.ones(6)), ValueError, r"a square matrix, this one is \(6, 4\)"),
        (lambda a: a.solve("lsmr", np.ones(5)), ValueError, r"b must have shape \(6,\) .* \(5,\)"),
        (lambda a: a.solve("lsmr", ["x"] * 6), TypeError, "b must hold numbers"),
        (lambda a: a.solve("lsmr", np.ones(6), x0=[1]), ValueError, r"x0 must have shape \(4,\)"),
        (lambda a: a.solve("lsmr", np.ones(6), patience=0), ValueError, "patience .* got int 0"),
        (
            lambda a: a.solve("lsmr", np.ones(6), checkpoint=0),
            ValueError,
            "checkpoint .* got int 0",
        ),
        (
            lambda a: a.solve("lsmr", np.ones(6), checkpoint=5, damp=0.1),
            ValueError,
            "checkpoint does not go with damp = 0.1",
        ),
        (lambda a: gemv.dask.Matrix(np.ones((2, 2))), TypeError, "a Dask array, got numpy.ndarray"),
        (lambda a: gemv.dask.Matrix(da.ones(3)), ValueError, r"2 dimensions, got shape \(3,\)"),
        (
            lambda a: gemv.dask.Matrix(da.ones((2, 2), dtype="g")),
            TypeError,
            "computed in float32, .* got float128|longdouble",
        ),
        (
            lambda a: gemv.dask.Matrix(da.ones((2, 2), dtype="c16"), "f8"),
            TypeError,
            "would lose its imaginary part",
        ),
        (
            lambda a: gemv.dask.Matrix(da.ones((4, 2))[da.ones(4) > 0]),
            ValueError,
            r"unknown sizes \(nan\): call its compute_chunk_sizes\(\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(client, call, error, words):
    with pytest.raises(error, match=words):
        call(gemv.dask.Matrix(da.ones((6, 4), chunks=(3, 4))))


def diagonal(n=60):
    """A matrix on which conjugate gradients take more iterations than a test waits for."""
    return da.from_array(np.diag(np.logspace(0, 9, n)), chunks=(n // 3, n))


def preconditioner(n, what, address):
    """The identity; on one worker, `what` happens in its tenth product."""
    count = 0

    def identity(x):
        nonlocal count
        count += 1
        if count == 10 and distributed.get_worker().address == address:
            return what(x)
        return x

    return linalg.LinearOperator((n, n), identity, dtype="f8")


def test_an_error_on_one_worker_ends_the_solve_on_all(client):
    matrix, (victim, _) = gemv.dask.Matrix(diagonal()), sorted(client.nthreads())

    def fail(x):
        raise ArithmeticError("out of luck")

    begin = time.monotonic()
    with pytest.raises(ArithmeticError, match="out of luck"):
        matrix.solve("cg", np.ones(60), rtol=0, maxiter=10**6, M=preconditioner(60, fail, victim))
    assert time.monotonic() - begin < LIMIT
    left_behind(client)


def solves(dask_worker):
    """How many a worker takes part in."""
    return len(dask_worker.plugins["gemv_exchange"]._mailboxes)


def left_behind(client):
    """Both workers are free again, and have forgotten the solve."""
    deadline = time.monotonic() + LIMIT
    while any(client.processing().values()) or any(client.run(solves).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_events_tell_how_far_a_solve_is(client):
    matrix, told = gemv.dask.Matrix(diagonal()), len(client.get_events("gemv"))

    def wait(x):
        time.sleep(1.1)
        return x

    slow = preconditioner(60, wait, min(client.nthreads()))
    matrix.solve("cg", np.ones(60), rtol=0, maxiter=15, M=slow)
    deadline = time.monotonic() + LIMIT
    while len(client.get_events("gemv")) == told:
        assert time.monotonic() < deadline
    _, event = client.get_events("gemv")[-1]
    assert event["solve"].startswith("gemv-cg-")
    assert 10 <= event["products"] <= 15 and event["seconds"] > 1


def test_results_that_differ_are_an_error(both_ways, client):
    matrix, (victim, _) = gemv.dask.Matrix(diagonal()), sorted(client.nthreads())
    other = preconditioner(60, lambda x: np.nextafter(x, 1), victim)
    with pytest.raises(gemv.dask.WorkerLost, match="multiply different vectors in product"):
        matrix.solve("cg", np.ones(60), rtol=0, maxiter=200, M=other)
    left_behind(client)


@pytest.mark.parametrize("length", [3, 8191, 8192, 20_000])
def test_the_digest_is_that_of_the_whole_vector(rng, length):
    told = []

    def all_gather(parts, digest):
        told.append(digest)
        return parts

    x = rng.standard_normal(length)
    job = SimpleNamespace(rows=(2,), columns=(length,), dtype=np.dtype("d"))
    with gemv.Matrix(np.ones((2, length))) as matrix:
        one = solve.Shared(job, {(0, 0): matrix}, SimpleNamespace(all_gather=all_gather))
        for place in (0, length // 2, length - 1):
            one @ x
            x[place] = np.nextafter(x[place], 9)
            np.testing.assert_allclose(one @ x, [x.sum()] * 2)
    assert len(set(told)) == 4
    assert told[1::2] == told[2::2] + told[-1:]


def test_the_digest_is_computed_once_and_while_a_gpu_computes(rng, monkeypatch):
    """A matrix calls for it in its product, where the GPU is busy; without one it comes after."""
    done, told = [], []

    def all_gather(parts, digest):
        told.append(digest)
        return parts

    digest_of = solve.digest_of
    monkeypatch.setattr(solve, "digest_of", lambda x: done.append("digest") or digest_of(x))
    a, x = rng.standard_normal((4, 6)), rng.standard_normal(6)
    job = SimpleNamespace(rows=(2, 2), columns=(6,), dtype=a.dtype)
    with gemv.Matrix(a[:2]) as first, gemv.Matrix(a[2:]) as second:
        both = solve.Shared(
            job, {(0, 0): first, (1, 0): second}, SimpleNamespace(all_gather=all_gather)
        )
        np.testing.assert_allclose(both @ x, a @ x)
        assert done == ["digest"] and told == [digest_of(x)]
        for matrix in (first, second):
            product = matrix._product

            def busy(*arguments, matrix=matrix, product=product):
                y = product(*arguments)
                matrix.meanwhile()
                done.append("product")
                return y

            matrix._product = busy
        np.testing.assert_allclose(both @ (x + 1), a @ (x + 1))
        assert done[1:] == ["digest", "product", "product"] and told[1] == digest_of(x + 1)


@pytest.mark.parametrize("of_a, of_x", [("f", "d"), ("F", "D"), ("f", "D"), ("d", "F"), ("D", "D")])
def test_bits_do_not_depend_on_who_holds_a_chunk(rng, of_a, of_x):
    """Nor where the vectors have a higher precision than the matrix, and so than the parts."""
    a, x = rng.standard_normal((4, 20)).astype(of_a), rng.standard_normal(20).astype(of_x)
    job = SimpleNamespace(rows=(4,), columns=(5,) * 4, dtype=a.dtype)
    matrices = {(0, k): gemv.Matrix(a[:, 5 * k : 5 * k + 5]) for k in range(4)}

    def product(holders):
        told = []

        def all_gather(parts, digest):
            told.extend(parts)
            return told

        for worker in sorted(set(holders)):  # the last one has heard all
            mine = {(0, k): matrices[0, k] for k in range(4) if holders[k] == worker}
            with contextlib.suppress(ValueError):  # those before it lack parts
                y = solve.Shared(job, mine, SimpleNamespace(all_gather=all_gather)) @ x
        return y

    one = product("aaaa")
    assert one.dtype == np.result_type(a, x)
    for holders in ("abcd", "aaab", "aabb", "abab", "baaa"):
        assert product(holders).tobytes() == one.tobytes(), holders


def test_ctrl_c_ends_a_solve_on_all_workers(client, monkeypatch):
    matrix = gemv.dask.Matrix(diagonal())
    wait, times = distributed.wait, itertools.count()

    def interrupted(*arguments, **options):
        if next(times) == 3:  # the tasks have been under way for two looks at them
            raise KeyboardInterrupt
        return wait(*arguments, **options)

    def slowly(x):  # more iterations than any test waits for
        time.sleep(0.02)
        return x

    slow = linalg.LinearOperator((60, 60), slowly, dtype="f8")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(distributed, "wait", interrupted)
        # Its patience ends no solve before left_behind() does.
        matrix.solve("cg", np.ones(60), rtol=0, maxiter=10**6, M=slow, patience=3 * LIMIT)
    left_behind(client)
    assert matrix.solve("cg", np.ones(60), rtol=0, maxiter=3)[1] == 3


CLIENT = """
import sys, time
import dask.array as da, distributed, numpy as np
from scipy.sparse import linalg
import gemv.dask
def slowly(x):
    time.sleep(0.02)
    return x
client = distributed.Client(sys.argv[1])
a = gemv.dask.Matrix(da.from_array(np.diag(np.logspace(0, 9, 60)), chunks=(20, 60)))
slow = linalg.LinearOperator((60, 60), slowly, dtype="f8")
a.solve("cg", np.ones(60), rtol=0, maxiter=10**6, M=slow, patience=600)
"""


def test_a_client_that_is_killed_leaves_its_workers_free(client):
    known = client.run(os.getpid)
    command = [sys.executable, "-c", CLIENT, client.scheduler.address]
    with processes.started(command) as program:
        deadline = time.monotonic() + LIMIT
        while not all(client.run(solves).values()):
            assert time.monotonic() < deadline and program.poll() is None
            time.sleep(0.05)
        program.kill()
    left_behind(client)
    assert client.run(os.getpid) == known


def test_a_worker_that_is_busy_is_named(client):
    matrix, (victim, other) = gemv.dask.Matrix(diagonal()), sorted(client.nthreads())
    busy = client.submit(time.sleep, 3, workers=[victim], pure=False)
    time.sleep(0.2)
    with pytest.raises(TimeoutError) as told:
        matrix.solve("cg", np.ones(60), patience=0.5)
    assert f"did not start within 0.5 s on {victim}" in str(told.value)
    assert other not in str(told.value)
    busy.result()
    left_behind(client)


def test_a_worker_that_is_silent_is_named(client):
    matrix, (victim, _) = gemv.dask.Matrix(diagonal()), sorted(client.nthreads())
    process = client.run(os.getpid)[victim]

    def freeze(x):
        os.kill(os.getpid(), signal.SIGSTOP)
        return x

    try:
        with pytest.raises(gemv.dask.WorkerLost) as told:
            matrix.solve(
                "cg", np.ones(60), rtol=0, maxiter=10**6, patience=2,
                M=preconditioner(60, freeze, victim),
            )  # fmt: skip
    finally:
        os.kill(process, signal.SIGCONT)
    assert f"nothing was heard of worker {victim} for 2 s" in str(told.value)
    assert told.value.workers == (victim,)
    left_behind(client)


def die(client):
    """A worker, and what ends it. Dask starts another one in its place."""
    client.wait_for_workers(2)

    def die(x):
        os.kill(os.getpid(), signal.SIGKILL)

    return min(client.nthreads()), die


def test_a_worker_that_dies_is_named(client):
    victim, die_there = die(client)
    matrix = gemv.dask.Matrix(diagonal())
    begin = time.monotonic()
    with pytest.raises(gemv.dask.WorkerLost) as told:
        matrix.solve(
            "cg", np.ones(60), rtol=0, maxiter=10**6, M=preconditioner(60, die_there, victim)
        )
    assert time.monotonic() - begin < LIMIT
    assert str(told.value) == f"gemv.dask.Matrix.solve: worker {victim} is gone"
    assert told.value.workers == (victim,)
    left_behind(client)


def test_a_solve_begins_again_from_its_checkpoint(client):
    victim, die_there = die(client)
    a = np.diag(np.linspace(1, 50, 60))
    matrix = gemv.dask.Matrix(da.from_array(a, chunks=(20, 60)))
    x, failed = matrix.solve(
        "cg", np.ones(60), rtol=1e-9, checkpoint=3, M=preconditioner(60, die_there, victim)
    )
    assert not failed and victim not in client.nthreads()
    np.testing.assert_allclose(a @ x, np.ones(60), atol=1e-6)
    left_behind(client)


@pytest.mark.parametrize("method, products", [("cg", 11), ("gmres", 11), ("lsmr", 20)])
def test_the_vector_that_is_kept_is_that_of_its_iteration(method, products):
    """Three iterations of CG are three products, of LSMR in rounds seven and then eight."""
    a, b = np.diag(np.linspace(1, 50, 60)), np.ones(60)
    count = 0

    def product(x):
        nonlocal count
        count += 1
        if count > products:
            raise Stopped("enough", ())
        return a @ x

    kept, options = Kept(None), {"restart": 1} if method == "gmres" else {}
    operator = linalg.LinearOperator(a.shape, product, product, dtype="f8")
    with pytest.raises(Stopped):
        METHODS[method].run(operator, b, dict(options), 3, kept)
    solver = getattr(linalg, method)
    expected, k = None, 0
    while k < kept.iterations:
        step = 3 if method == "lsmr" else kept.iterations
        expected, *_ = solver(a, b, x0=expected, maxiter=step, **options)
        k += step
    assert kept.iterations in (3, 6, 9)
    np.testing.assert_allclose(kept.vector, expected, rtol=1e-12)


def test_what_was_kept_is_where_the_next_attempt_begins(client, monkeypatch):
    matrix, begun = gemv.dask.Matrix(diagonal()), []

    def lost(client, chunks, job, right):
        begun.append((right["options"].get("x0"), right["options"]["maxiter"]))
        gone = len(begun) < tries
        return Interrupted("gone", ("a",), True, np.full(60, len(begun)), 4) if gone else "x"

    monkeypatch.setattr(clients, "solve", lost)
    tries = 3
    assert matrix.solve("cg", np.ones(60), maxiter=9, checkpoint=2) == "x"
    assert begun[0] == (None, 9)
    assert [(vector[0], left) for vector, left in begun[1:]] == [(1, 5), (2, 1)]
    begun.clear()
    with pytest.raises(gemv.dask.WorkerLost, match="gone"):
        matrix.solve("cg", np.ones(60), maxiter=9)
    assert len(begun) == 1
    begun.clear()
    tries = 99  # a matrix that kills its workers is not tried for ever
    with pytest.raises(gemv.dask.WorkerLost, match="gone"):
        matrix.solve("cg", np.ones(60), maxiter=9, checkpoint=2)
    assert len(begun) == 4


def test_a_worker_that_dies_as_the_solve_begins(client, monkeypatch):
    """Dask has chosen it to take the vectors."""
    client.wait_for_workers(2)
    matrix, b = gemv.dask.Matrix(diagonal()), np.ones(60)
    scatter, gone = client.scatter, distributed.comm.CommClosedError("in scatter: closed")

    def scatter_once(*arguments, **options):
        monkeypatch.setattr(client, "scatter", scatter)
        raise gone

    monkeypatch.setattr(client, "scatter", scatter_once)
    with pytest.raises(gemv.dask.WorkerLost, match="gone that was to take the vectors: in scatter"):
        matrix.solve("cg", b, rtol=0, maxiter=3)
    monkeypatch.setattr(client, "scatter", scatter_once)
    found = matrix.solve("cg", b, rtol=0, maxiter=3, checkpoint=9)
    same_bits(found, matrix.solve("cg", b, rtol=0, maxiter=3))


def test_chunks_that_nobody_can_compute_again_are_named(client):
    matrix = gemv.dask.Matrix(da.ones((4, 4), chunks=(2, 4)))
    client.cancel(list(matrix._shards.values()))
    with pytest.raises(gemv.dask.WorkerLost, match=r"chunk \(0, 0\) .* cannot compute it again"):
        matrix.solve("lsmr", np.ones(4))


def test_chunks_stay_where_they_are_unless_a_worker_has_too_many():
    held = {k: ("a",) for k in range(4)} | {4: ("b", "c")}
    assert spread(held, ["a", "b", "c"]) == {0: "a", 1: "a", 2: "c", 3: "b", 4: "b"}
    assert spread({0: ("gone",)}, ["a", "b"]) == {0: "a"}
    assert spread({0: ("a",), 1: ("b",)}, ["a", "b"]) == {0: "a", 1: "b"}
    assert where({0: ("a", "b"), 1: ("a", "b"), 2: ("a",)}) == {"a": [0, 2], "b": [1]}


@pytest.mark.filterwarnings("ignore:Port 8787 is already in use")  # of another cluster's page
def test_examples_of_the_page_run():
    page = Path(gemv.__file__).parents[1] / "docs" / "guide" / "machines.md"
    if not page.exists():  # beside an installed package
        page = Path(__file__).parents[2] / "docs" / "guide" / "machines.md"
    blocks = re.findall(
        r"^```python dask\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
    )
    assert blocks
    names = {"__name__": "page"}
    for text in blocks:
        exec(compile(text, str(page), "exec"), names)
