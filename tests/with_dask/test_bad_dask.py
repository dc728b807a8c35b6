"""``gemv.dask``: what is refused before a task is made, and in which words."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from helpers.refusals import check

dask = pytest.importorskip("dask", reason="Dask is not installed")

import dask.array as da  # noqa: E402

from gemv.dask import Matrix, matvec, vecmat  # noqa: E402

T, V = TypeError, ValueError
HUGE = 10**5000  # Python itself refuses to write it


def never(*arguments, **options):
    raise AssertionError("a chunk was computed")


def lazy(*shape, dtype="f8", chunks=4):
    """A Dask array whose chunks cannot be computed."""
    return da.ones(shape, chunks=chunks).map_blocks(
        never, dtype=dtype, meta=np.empty((0,) * len(shape), dtype)
    )


def masked(*shape):
    return np.ma.masked_equal(np.ones(shape), 1)


def unknown():
    a = da.ones((6, 8), chunks=4)
    return a[a[:, 0] > 0]


class NoClient:
    """What stands in the place of a client: a solve that is refused asks it for nothing."""

    def __getattr__(self, name):
        raise AssertionError(f"the client was asked for {name}")


def kept(rows=4, columns=4, dtype="f8"):
    matrix = object.__new__(Matrix)
    matrix.shape, matrix.dtype = (rows, columns), np.dtype(dtype)
    matrix.chunks, matrix._client, matrix._shards = ((rows,), (columns,)), NoClient(), {}
    return matrix


A, B, X = lazy(6, 8), lazy(3, 6, 8), np.ones(8)
PRODUCTS = {
    # a and x
    "a is None": (
        lambda: matvec(None, X),
        T,
        "matvec: a must be an array, got None .*1st argument a",
    ),
    "a is a number": (lambda: matvec(2.0, X), V, "matvec: a must have at least two dimensions"),
    "a is text": (lambda: matvec("abc", X), T, "matvec: a must be an array, got str 'abc'"),
    "a is a dict": (lambda: matvec({1: 2}, X), T, "matvec: a must be an array, got dict"),
    "a is a vector": (lambda: matvec(A[0], X), V, r"a must have at least 2 dimensions, .*\(8,\)"),
    "a is ragged": (lambda: matvec([[1.0, 2], [3]], X), T, "matvec: a cannot be read as an array"),
    "a is delayed": (
        lambda: matvec(dask.delayed(np.ones)((6, 8)), X),
        T,
        "a must be an array, got Delayed; dask",
    ),
    "a is sparse": (lambda: matvec(scipy.sparse.eye_array(6, 8), X), T, "matvec: a is a sparse"),
    "a is masked": (lambda: matvec(masked(6, 8), X), T, "matvec: a is a masked array with 48"),
    "chunks of objects": (
        lambda: matvec(lazy(6, 8, dtype=object), X),
        T,
        "got chunks of dtype obj",
    ),
    "chunks of text": (lambda: matvec(lazy(6, 8, dtype="U3"), X), T, "matvec: a must hold numbers"),
    "chunks of dates": (
        lambda: matvec(lazy(6, 8, dtype="M8[s]"), X),
        T,
        "a must hold .*datetime64",
    ),
    "chunks of records": (lambda: matvec(lazy(6, 8, dtype="f4,f4"), X), T, "a must hold numbers"),
    "chunks of long doubles": (
        lambda: matvec(lazy(6, 8, dtype="g"), X),
        T,
        "nothing here is that pr",
    ),
    "an array of objects": (lambda: matvec(np.full((6, 8), print), X), T, "a must hold .*print"),
    "x is None": (
        lambda: matvec(A, None),
        T,
        "matvec: x must be an array, got None .*2nd argument x",
    ),
    "x is None for vecmat": (
        lambda: vecmat(None, A),
        T,
        "vecmat: x must be .*None .*1st argument x",
    ),
    "x is a number": (lambda: matvec(A, 1.0), V, r"x must have at least one dimension, got .*\(\)"),
    "x is text": (lambda: matvec(A, "abc"), T, "matvec: x must be an array, got str 'abc'"),
    "x holds text": (lambda: matvec(A, ["1"] * 8), T, "matvec: x must hold numbers.*<U1"),
    "x holds None": (lambda: matvec(A, [None] * 8), T, "x must hold numbers.*holds None"),
    "x holds dates": (lambda: matvec(A, np.ones(8, "M8[s]")), T, "x must hold numbers.*datetime64"),
    "x is ragged": (lambda: matvec(A, [[1], [1, 2]]), T, "matvec: x cannot be read as an array"),
    "x is masked": (lambda: matvec(A, masked(8)), T, "matvec: x is a masked array with 8 masked"),
    "x is a long double": (lambda: matvec(A, np.ones(8, "g")), T, "x has dtype .*that precise"),
    "x is beyond every float": (
        lambda: matvec(A, [HUGE] * 8),
        V,
        "x does not fit float64: too large",
    ),
    "x is short": (lambda: matvec(A, X[:6]), V, r"x has 6 elements .*\(6, 8\) has 8 columns"),
    "x is long": (lambda: vecmat(X, A), V, r"vecmat: x has 8 elements .*\(6, 8\) has 6 rows"),
    "a of vecmat is a vector": (lambda: vecmat(X, X), V, "vecmat: a must have at least two dimens"),
    "chunks of x are unknown": (
        lambda: matvec(A, lazy(8)[lazy(8) > 0]),
        V,
        r"the chunks of x .*\(nan, nan\), .*compute_chunk_s",
    ),
    "chunks of a are unknown": (
        lambda: vecmat(np.ones(6), unknown()),
        V,
        "the chunks of x .*nan, nan",
    ),
    # the batch and its factors
    "the batches differ": (
        lambda: matvec(B, np.ones((2, 8))),
        V,
        r"broadcast: x has shape \(2, 8\)",
    ),
    "the outer batches differ": (
        lambda: matvec(B[None].repeat(2, 0), np.ones((4, 3, 8))),
        V,
        r"broadcast: x has .*\(4, 3, 8\)",
    ),
    "alpha of another batch": (
        lambda: matvec(B, X, alpha=[1, 2]),
        V,
        r"alpha has shape \(2,\), the",
    ),
    "alpha is None": (lambda: matvec(A, X, alpha=None), T, "alpha must be a number, got None"),
    "alpha is text": (lambda: matvec(A, X, alpha="2"), T, "alpha must be a number, got str '2'"),
    "alpha is an object": (
        lambda: vecmat(X[:6], A, alpha=object()),
        T,
        "vecmat: alpha must be a num",
    ),
    "alpha is a set": (lambda: matvec(A, X, alpha={1}), T, "alpha must be a number, got set"),
    "alpha is beyond every float": (
        lambda: matvec(A, X, alpha=HUGE),
        V,
        "alpha does not fit float64",
    ),
    "alpha is ragged": (
        lambda: matvec(A, X, alpha=[[1], [1, 2]]),
        T,
        "alpha cannot be read as an arr",
    ),
    "alpha holds text": (lambda: matvec(B, X, alpha=["1"] * 3), T, "alpha must hold numbers.*<U1"),
    "alpha holds None": (lambda: matvec(B, X, alpha=[None] * 3), T, "alpha must hold .*holds None"),
    "alpha is masked": (lambda: matvec(B, X, alpha=masked(3)), T, "alpha is a masked array with 3"),
    "chunks of alpha of text": (
        lambda: matvec(B, X, alpha=lazy(3, dtype="U1")),
        T,
        "alpha must hold numbers, got an array of",
    ),
    "accumulate is unknown": (
        lambda: matvec(A, X, accumulate="x"),
        V,
        "accumulate must be one .*'x'",
    ),
    "accumulate is no word": (
        lambda: vecmat(X[:6], A, accumulate=1),
        T,
        "accumulate must be one of",
    ),
    "out_dtype is another one": (
        lambda: matvec(A, X, out_dtype="f4"),
        T,
        "out_dtype must be float64",
    ),
    "out_dtype is no dtype": (lambda: matvec(A, X, out_dtype=3), T, "out_dtype must be .*got 3"),
    "out_dtype of float16 too wide": (
        lambda: matvec(lazy(6, 8, dtype="e"), np.ones(8, "e"), out_dtype="f8"),
        T,
        "out_dtype must be f",
    ),
}

B4 = np.ones(4)
KEPT = {
    # the matrix
    "a is of NumPy": (
        lambda: Matrix(np.ones((2, 2))),
        T,
        "a must be a Dask array, got numpy.ndarray",
    ),
    "a is None": (lambda: Matrix(None), T, "a must be a Dask array, got None"),
    "a is a vector": (lambda: Matrix(A[0]), V, r"a must have 2 dimensions, got shape \(8,\)"),
    "a is a batch": (lambda: Matrix(B), V, r"a must have 2 dimensions, got shape \(3, 6, 8\)"),
    "chunks are unknown": (
        lambda: Matrix(unknown()),
        V,
        r"unknown sizes .*compute_chunk_sizes\(\)",
    ),
    "dtype of integers": (
        lambda: Matrix(A, int),
        T,
        "products are computed in float32, .*got int64",
    ),
    "dtype is unknown": (lambda: Matrix(A, "nope"), T, "products are computed in .*got str 'nope'"),
    "dtype loses the imaginary part": (
        lambda: Matrix(lazy(6, 8, dtype="D"), "d"),
        T,
        "would lose its imaginary part in float64",
    ),
    "chunks of objects": (lambda: Matrix(lazy(2, 2, dtype=object)), T, "computed in .*got object"),
    "chunks of long doubles": (
        lambda: Matrix(lazy(2, 2, dtype="g")),
        T,
        "products are computed in",
    ),
    "client is text": (
        lambda: Matrix(A, client="here"),
        T,
        "client must be a distributed.Client, got",
    ),
    "a pickle": (
        lambda: pickle.dumps(kept()),
        T,
        "a gemv.dask.Matrix can be neither pickled nor cop",
    ),
    # the solve
    "method is unknown": (lambda: kept().solve("qr", B4), V, "method must be one of .*got 'qr'"),
    "method is a list": (lambda: kept().solve(["cg"], B4), V, r"method must be .*got \['cg'\]"),
    "cg of a tall matrix": (
        lambda: kept(6).solve("cg", np.ones(6)),
        V,
        r"cg needs a square.*\(6, 4\)",
    ),
    "b is short": (lambda: kept().solve("cg", B4[:3]), V, r"b must have shape \(4,\) .*got \(3,\)"),
    "b is a column": (lambda: kept().solve("cg", B4[:, None]), V, r"b must have shape .*\(4, 1\)"),
    "b is None": (
        lambda: kept().solve("cg", None),
        T,
        "b must be an array, got None .*2nd argument b",
    ),
    "b is text": (lambda: kept().solve("cg", "abcd"), T, "b must be an array, got str 'abcd'"),
    "b is a number": (lambda: kept().solve("cg", 1.0), V, r"b must have shape \(4,\) .*got \(\)"),
    "b holds text": (lambda: kept().solve("cg", ["1"] * 4), T, "b must hold numbers.*<U1"),
    "b holds dates": (lambda: kept().solve("cg", np.ones(4, "M8[s]")), T, "b must hold numbers"),
    "b holds objects": (lambda: kept().solve("cg", [print] * 4), T, "b must hold numbers.*print"),
    "b is ragged": (lambda: kept().solve("cg", [[1], [1, 2]]), T, "b cannot be read as an array"),
    "b is masked": (lambda: kept().solve("cg", masked(4)), T, "b is a masked array with 4 masked"),
    "b is beyond every float": (
        lambda: kept().solve("cg", [HUGE] * 4),
        V,
        "b does not fit float64",
    ),
    "x0 is short": (
        lambda: kept().solve("cg", B4, x0=B4[:3]),
        V,
        r"x0 must have shape \(4,\) .*\(3,\)",
    ),
    "x0 is text": (lambda: kept().solve("cg", B4, x0="abcd"), T, "x0 must be an array, got str"),
    "x0 loses its imaginary part": (
        lambda: kept().solve("cg", B4, x0=1j * B4),
        T,
        "x0 of dtype complex128 would lose its imagi",
    ),
    "an unknown option": (
        lambda: kept().solve("cg", B4, nope=1),
        T,
        "cg takes no option 'nope'; it",
    ),
    "a callback": (
        lambda: kept().solve("cg", B4, callback=print),
        T,
        "cg takes no option 'callback'",
    ),
    "an option of another solver": (
        lambda: kept().solve("lsmr", B4, restart=3),
        T,
        "lsmr takes no option 'restart'; it takes atol",
    ),
    "rtol is text": (
        lambda: kept().solve("cg", B4, rtol="x"),
        V,
        "rtol must be a number .*str 'x'",
    ),
    "rtol is NaN": (lambda: kept().solve("cg", B4, rtol=np.nan), V, "rtol must be a number .*nan"),
    "atol is negative": (lambda: kept().solve("lsmr", B4, atol=-1), V, "atol must be .*got int -1"),
    "maxiter is text": (lambda: kept().solve("cg", B4, maxiter="x"), V, "maxiter must be .*'x'"),
    "maxiter is a half": (lambda: kept().solve("cg", B4, maxiter=0.5), V, "maxiter must be .*0.5"),
    "maxiter is a fraction": (
        lambda: kept().solve("cg", B4, maxiter=Fraction(9, 2)),
        V,
        "maxiter must be a number of iter",
    ),
    "restart is negative": (
        lambda: kept().solve("gmres", B4, restart=-1),
        V,
        "restart must be .*-1",
    ),
    "patience is 0": (
        lambda: kept().solve("cg", B4, patience=0),
        V,
        "patience must be .*got int 0",
    ),
    "patience is text": (lambda: kept().solve("cg", B4, patience="x"), V, "patience must be .*'x'"),
    "patience is None": (
        lambda: kept().solve("cg", B4, patience=None),
        V,
        "patience must be .*None",
    ),
    "patience is NaN": (
        lambda: kept().solve("cg", B4, patience=np.nan),
        V,
        "patience must be .*nan",
    ),
    "patience is infinite": (
        lambda: kept().solve("cg", B4, patience=np.inf),
        V,
        "patience must be .*inf",
    ),
    "checkpoint is 0": (
        lambda: kept().solve("cg", B4, checkpoint=0),
        V,
        "checkpoint must be .*int 0",
    ),
    "checkpoint is a half": (
        lambda: kept().solve("cg", B4, checkpoint=0.5),
        V,
        "checkpoint must be a number of iterations",
    ),
    "checkpoint is a flag": (
        lambda: kept().solve("cg", B4, checkpoint=True),
        V,
        "checkpoint must be .*got bool True",
    ),
    "checkpoint beside damp": (
        lambda: kept(6).solve("lsmr", np.ones(6), checkpoint=2, damp=1.0),
        V,
        "checkpoint does not go wi",
    ),
}


def test_there_are_as_many_kinds_as_are_promised():
    assert len(PRODUCTS) + len(KEPT) >= 60


@pytest.mark.parametrize("kind", PRODUCTS, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_products(kind):
    call, error, words = PRODUCTS[kind]
    check(call, {"x": X}, error, rf"^gemv\.dask\.(.*{words})")


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_matrices_and_solves(kind):
    call, error, words = KEPT[kind]
    check(call, {"b": B4}, error, rf"^(gemv\.dask\.Matrix.*)?{words}")
