"""``gemv.dask.matvec`` and ``vecmat``: values, the order of sums, chunks, what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers import processes
from helpers.interrupts import Interrupting

import gemv

dask = pytest.importorskip("dask", reason="Dask is not installed")

import dask.array as da  # noqa: E402

from gemv.dask import Matrix, matvec, vecmat  # noqa: E402


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def numbers(rng, *shape, dtype="f8"):
    values = rng.standard_normal(shape) * 4
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def close(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    computed = found.compute(scheduler="sync")
    assert type(computed) is np.ndarray
    assert computed.dtype == expected.dtype and computed.shape == expected.shape
    rtol = {"e": 4e-3, "f": 1e-4, "F": 1e-4}.get(expected.dtype.char, 1e-11)
    np.testing.assert_allclose(computed, expected, rtol=rtol, atol=10 * rtol)


@pytest.mark.parametrize("x_dtype", ["f4", "f8", "c16", "f2"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i4", "f2"])
def test_values_and_dtypes_are_those_of_one_call(rng, dtype, x_dtype):
    a = numbers(rng, 3, 1, 7, 10, dtype=dtype)
    x, z = numbers(rng, 4, 10, dtype=x_dtype), numbers(rng, 4, 7, dtype=x_dtype)
    chunked = da.from_array(a, chunks=(2, 1, (3, 0, 4), (4, 5, 1)))
    close(matvec(chunked, da.from_array(x, chunks=(3, 3))), gemv.matvec(a, x))
    close(vecmat(z, chunked), gemv.vecmat(z, a))


def test_factors_may_differ_by_item(rng):
    a, x = numbers(rng, 4, 5, 6), numbers(rng, 6)
    chunked, alpha = da.from_array(a, chunks=(3, 2, 4)), np.array([1.0, -2.0, 0.5, 0.0])
    close(matvec(chunked, x, alpha=2), gemv.matvec(a, x, alpha=2))
    close(matvec(chunked, x, alpha=alpha), gemv.matvec(a, x, alpha=alpha))
    close(matvec(chunked, x, alpha=da.from_array(alpha)), gemv.matvec(a, x, alpha=alpha))
    close(matvec(chunked[0], x, alpha=alpha * 1j), gemv.matvec(a[0], x, alpha=alpha * 1j))


def in_order(a, x, step, backwards=False):
    """The products of chunks of columns, added one after the other."""
    starts = range(0, a.shape[1], step)
    parts = [gemv.matvec(a[:, k : k + step], x[k : k + step]) for k in starts]
    total, *others = reversed(parts) if backwards else parts
    for other in others:
        total = total + other
    return total


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_sums_are_in_the_order_of_the_chunks(rng, scheduler):
    a, x = numbers(rng, 40, 90), numbers(rng, 90)
    expected = in_order(a, x, 10)
    assert expected.tobytes() != in_order(a, x, 10, backwards=True).tobytes()
    lazy = matvec(da.from_array(a, chunks=(40, 10)), x)
    for _ in range(3):
        assert lazy.compute(scheduler=scheduler, num_workers=3).tobytes() == expected.tobytes()


def test_a_chunk_is_one_task(rng):
    a = da.from_array(numbers(rng, 20, 30), chunks=(10, 10)).persist(scheduler="sync")
    x = da.ones(30, chunks=10).persist(scheduler="sync")
    (lazy,) = dask.optimize(matvec(a, x))
    names = [key[0] for key in lazy.__dask_graph__()]
    sums = [name for name in names if name.startswith("gemv-matvec-sum")]
    products = [name for name in names if name.startswith("gemv-matvec-") and name not in sums]
    assert (len(products), len(sums)) == (6, 2)
    assert lazy.chunks == ((10, 10),)


def test_narrow_numbers_are_rounded_once():
    a = da.ones((1, 4), chunks=(1, 2), dtype="f2")
    x = np.array([2048, 1, 1, 2], "f2")  # 2049 is no float16: it would be rounded to 2048
    assert matvec(a, x).compute(scheduler="sync").item() == 2052
    wide = matvec(a, np.array([2048, 1, 1, 1], "f2"), out_dtype="float32")
    assert wide.dtype == "f4" and wide.compute(scheduler="sync").item() == 2051


def test_nothing_is_computed_before_it_is_asked_for():
    def never(*arguments, **options):
        raise AssertionError("computed")

    a = da.ones((4, 4), chunks=2).map_blocks(never, dtype="f8", meta=np.empty((0, 0)))
    assert matvec(a, np.ones(4)).shape == vecmat(np.ones(4), a).shape == (4,)


def test_infinities_of_two_chunks_give_no_warning():
    a = da.from_array(np.array([[np.inf, -np.inf], [1.0, 2.0]]), chunks=(2, 1))
    with np.errstate(all="raise"):
        found = matvec(a, np.ones(2)).compute(scheduler="sync")
    np.testing.assert_array_equal(found, [np.nan, 3.0])


def test_empty_arrays(rng):
    assert matvec(da.zeros((0, 5)), np.ones(5)).compute(scheduler="sync").shape == (0,)
    close(matvec(da.zeros((3, 0)), np.ones(0)), np.zeros(3))
    close(vecmat(np.ones(0), da.zeros((0, 3))), np.zeros(3))


def test_empty_chunks_beside_a_dimension_that_is_broadcast(rng):
    a, x = numbers(rng, 1, 4, 3), numbers(rng, 2, 3)
    chunked = da.from_array(a, chunks=((0, 1, 0), 2, 3))
    close(matvec(chunked, da.from_array(x, chunks=(1, 3))), gemv.matvec(a, x))
    close(matvec(chunked, x[0]), gemv.matvec(a, x[0]))
    nothing = da.zeros((11, 0), chunks=(11, (0, 0, 0)))
    close(matvec(nothing, da.zeros(0, chunks=((0, 0),))), np.zeros(11))


def test_unknown_chunks(rng):
    a = numbers(rng, 30, 8)
    chunked = da.from_array(a, chunks=(10, 4))
    some = chunked[chunked[:, 0] > 0]
    found = matvec(some, np.ones(8)).compute(scheduler="sync")
    np.testing.assert_allclose(found, a[a[:, 0] > 0].sum(1), rtol=1e-11)
    found = vecmat(some[:, 0], some).compute(scheduler="sync")
    np.testing.assert_allclose(found, a[a[:, 0] > 0, 0] @ a[a[:, 0] > 0], rtol=1e-11)
    with pytest.raises(ValueError, match=r"vecmat: the chunks of x .* compute_chunk_sizes\(\)"):
        vecmat(np.ones(30), some)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda a: matvec(a, np.ones(3)), ValueError, "matvec: x has 3 elements .* 8 columns"),
        (lambda a: vecmat(np.ones(3), a), ValueError, "vecmat: x has 3 elements .* 6 rows"),
        (lambda a: matvec(a[0], np.ones(8)), ValueError, r"a must have .* got shape \(8,\)"),
        (lambda a: matvec(a, 1.0), ValueError, r"x must have at least one dimension, got"),
        (
            lambda a: matvec(a, np.ones((2, 8)), alpha=[1, 2, 3]),
            ValueError,
            r"alpha has shape \(3,\), the operands before it have \(2,\)",
        ),
        (lambda a: matvec(a, np.ones(8), alpha="2"), TypeError, "alpha must be a number"),
        (lambda a: matvec(a, np.ones(8), accumulate="x"), ValueError, "accumulate must be"),
        (lambda a: matvec(a, np.ones(8), out_dtype="f4"), TypeError, "out_dtype must be float64"),
        (lambda a: matvec(a.astype("g"), np.ones(8)), TypeError, "nothing here is that precise"),
        (lambda a: matvec(a.astype(str), np.ones(8)), TypeError, "a must hold numbers"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(call, error, words):
    with pytest.raises(error, match=words):
        call(da.ones((6, 8), chunks=4))


def test_a_matrix_needs_a_client():
    with pytest.raises(ValueError, match="there is no client; make a distributed.Client first"):
        Matrix(da.ones((2, 2)))


def test_only_the_module_imports_dask():
    code = "import sys, gemv; gemv.matvec, gemv.Matrix; print('dask' in sys.modules)"
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.gpu
def test_chunks_of_cupy_stay_on_the_gpu(rng):
    cupy = pytest.importorskip("cupy")
    gemv.use_backend("cuda")
    a, x = cupy.asarray(numbers(rng, 40, 30)), cupy.asarray(numbers(rng, 30))
    lazy = matvec(da.from_array(a, chunks=(20, 10), asarray=False), da.from_array(x, asarray=False))
    assert isinstance(lazy._meta, cupy.ndarray)
    found = lazy.compute(scheduler="sync")
    assert isinstance(found, cupy.ndarray)
    cupy.testing.assert_allclose(found, a @ x, rtol=1e-11)


def test_an_interrupt_at_any_moment(rng):
    """While tasks are made and while they run; nothing is left that the next product trips over."""
    a, x = rng.integers(-4, 5, (6, 4)).astype(float), rng.integers(-4, 5, 4).astype(float)
    lazy = da.from_array(a, chunks=(3, 2))

    def call():
        return matvec(lazy, x).compute(scheduler="sync")

    interrupting = Interrupting()
    interrupting.run(call)
    for at in np.linspace(1, interrupting.begun, 8, dtype=int):
        with pytest.raises(KeyboardInterrupt):
            interrupting.run(call, at)
        assert call().tolist() == (a @ x).tolist(), at
