"""``gemv.Matrix`` and its products of one and of several vectors: what each of them refuses."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import scipy.sparse
from helpers.exporters import Exporter, Interface
from helpers.refusals import Broken, Fails, check
from scipy.sparse.linalg import LinearOperator

import gemv
from gemv.engines import backend

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)

as_strided = np.lib.stride_tricks.as_strided
T, V = TypeError, ValueError
HUGE = 10**5000  # Python itself refuses to write it


def ones(*shape, dtype="d"):
    return np.ones(shape, dtype)


def on_device(*shape, dtype="d"):
    from numba import cuda

    return cuda.to_device(np.ones(shape, dtype))


def make(value, **options):
    return lambda a: gemv.Matrix(value, **options)


def make_there(*shape, dtype="d", **options):
    return lambda a: gemv.Matrix(on_device(*shape, dtype=dtype), **options)


def masked(*shape):
    return np.ma.masked_equal(np.ones(shape), 1)


#: What is wrong: a function of a matrix of 4 x 3, the error, and the words.
BAD = {
    # the matrix
    "a is None": (make(None), T, "Matrix: a must be an array, got None"),
    "a is a number": (make(1.0), V, r"Matrix: a must have two dimensions, got shape \(\)"),
    "a is a vector": (
        make(ones(3)),
        V,
        r"Matrix: a must have two dim.* \(3,\); write a\[:, None\]",
    ),
    "a has three dimensions": (make(ones(3, 2, 1)), V, r"Matrix: a must have two .*\(3, 2, 1\)"),
    "a is a string": (make("abc"), T, "Matrix: a must be an array, got str 'abc'"),
    "a is ragged": (make([[1, 2], [3]]), T, "Matrix: a cannot be read as an array of numbers"),
    "a is masked": (make(masked(2, 2)), T, "Matrix: a is a masked array with 4 masked elements"),
    "a is sparse": (make(scipy.sparse.eye_array(3)), T, r"Matrix: a is a sparse .*a\.toarray\(\)"),
    "a is a long double": (make(ones(2, 2, dtype="g")), T, "Matrix: a has dtype .*computed in"),
    "a holds dates": (
        make(ones(2, 2, dtype="M8[s]")),
        T,
        "Matrix: a must hold numbers.*datetime64",
    ),
    "a holds objects": (
        make(np.full((2, 2), print)),
        T,
        "Matrix: a must hold numbers, got .*print",
    ),
    "a raises": (make(Fails("__array__")), T, "Matrix: a cannot be read as an array"),
    "a leaves its memory": (
        make(as_strided(ones(4), (2, 2), (64, 8))),
        V,
        r"Matrix: a of shape \(2, 2\) .* reaches beyond",
    ),
    "a was freed on the device": (
        make(Exporter(shape=(2, 2), typestr="<f8", data=(0, False))),
        V,
        r"Matrix: a of shape \(2, 2\) has no memory",
    ),
    "a on the device is a vector": (make_there(2), V, r"Matrix: a must have two dim.*\(2,\)"),
    "a on the device of integers": (
        make_there(2, 2, dtype="i"),
        T,
        "Matrix: a has dtype int32; pr",
    ),
    "a on the device of float16": (
        make_there(2, 2, dtype="e"),
        T,
        "Matrix: a has dtype float16; pr",
    ),
    "a on the device in another dtype": (
        lambda a: gemv.Matrix(on_device(2, 2), "f"),
        T,
        "Matrix: a has dtype float64, and device arrays are never converted",
    ),
    "dtype is unknown": (
        make(ones(2, 2), dtype="nope"),
        T,
        "Matrix: dtype must be .*got str 'nope'",
    ),
    "dtype is a number": (make(ones(2, 2), dtype=3.5), T, "Matrix: dtype must be .*got float 3.5"),
    "dtype is int": (make(ones(2, 2), dtype=int), T, "Matrix: dtype must be one of .*got int64"),
    "dtype is float16": (make(ones(2, 2), dtype="e"), T, "Matrix: dtype must be .*got float16"),
    "dtype loses the imaginary part": (
        make(ones(2, 2, dtype="D"), dtype="d"),
        T,
        "Matrix: a of dtype complex128 would lose its imaginary part in float64",
    ),
    "kernel is unknown": (
        make(ones(2, 2), kernel="no"),
        V,
        "Matrix: no kernel 'no'; known kernels",
    ),
    "kernel is no name": (
        make(ones(2, 2), kernel=["serial"]),
        V,
        r"Matrix: no kernel \['serial'\]",
    ),
    "split without devices": (make(ones(2, 2), split="rows"), V, "Matrix: split only applies with"),
    "gather without devices": (make(ones(2, 2), gather=0), V, "Matrix: gather only applies with"),
    "a copy": (lambda a: a.__reduce__(), T, "a gemv.Matrix can be neither pickled nor copied"),
    # several vectors
    "X is None": (lambda a: a.matmat(None), T, "Matrix: x must be an array, got None"),
    "X is a string": (lambda a: a.matmat("abc"), T, "Matrix: x must be an array, got str 'abc'"),
    "X is a dict": (lambda a: a @ {1: 2}, T, "Matrix: x must be an array, got dict"),
    "X is short": (
        lambda a: a.matmat(ones(4, 2)),
        V,
        r"Matrix: x must have two dimensions and 3 rows, got shape \(4, 2\)",
    ),
    "X is short for @": (
        lambda a: a @ ones(2, 5),
        V,
        r"Matrix: x must have two .* 3 rows.*\(2, 5\)",
    ),
    "X is short for dot": (
        lambda a: a.dot(ones(2, 2)),
        V,
        r"Matrix: x must have .* 3 rows.*\(2, 2\)",
    ),
    "X has no row": (lambda a: a @ ones(0, 2), V, r"Matrix: x must have .* 3 rows, .*\(0, 2\)"),
    "X is a vector": (
        lambda a: a.matmat(ones(3)),
        V,
        r"Matrix: x must have two dimensions.*\(3,\)",
    ),
    "X is a number": (lambda a: a.matmat(2.0), V, r"Matrix: x must have two dimensions.*\(\)"),
    "X has three dimensions": (
        lambda a: a @ ones(1, 3, 2),
        V,
        r"x must have one or two dimensions",
    ),
    "X is on the device": (
        lambda a: a.matmat(on_device(3, 2)),
        T,
        "Matrix: x is a device array, .*; several columns are taken from host memory",
    ),
    "X is on the device for @": (lambda a: a @ on_device(3, 2), V, r"x must have one .*\(3, 2\)"),
    "X is masked": (lambda a: a @ masked(3, 2), T, "Matrix: x is a masked array with 6 masked"),
    "X is sparse": (
        lambda a: a.matmat(scipy.sparse.eye_array(3, 2)),
        T,
        r"Matrix: x is a sparse .*pass x\.toarray\(\)",
    ),
    "X is ragged": (
        lambda a: a.matmat([[1, 2], [1], [2]]),
        T,
        "Matrix: x cannot be read as an array",
    ),
    "X holds objects": (lambda a: a @ np.full((3, 2), print), T, "Matrix: x must hold numbers"),
    "X holds text": (lambda a: a.matmat([["1"] * 2] * 3), T, "Matrix: x must hold numbers.*<U1"),
    "X holds dates": (lambda a: a @ ones(3, 2, dtype="M8[s]"), T, "Matrix: x must hold numbers"),
    "X holds records": (lambda a: a @ np.zeros((3, 2), "f4,f4"), T, "Matrix: x must hold numbers"),
    "X leaves its memory": (
        lambda a: a @ as_strided(ones(6), (3, 2), (32, 8)),
        V,
        r"Matrix: x of shape \(3, 2\) .* reaches beyond the memory",
    ),
    "X of rmatmat is short": (lambda a: a.rmatmat(ones(3, 2)), V, "Matrix: x must have .* 4 rows"),
    "X of rmatmat is a vector": (lambda a: a.rmatmat(ones(4)), V, "Matrix: x must have two dim"),
    "X of rmatmat is None": (lambda a: a.rmatmat(None), T, "Matrix: x must be an array, got None"),
    "X of rmatmat is on the device": (
        lambda a: a.rmatmat(on_device(4, 2)),
        T,
        "Matrix: x is a device array",
    ),
    "X of the adjoint is short": (lambda a: a.H @ ones(3, 2), V, "Matrix: x must have .* 4 rows"),
    "X of the transpose is short": (lambda a: a.T.rmatmat(ones(4, 2)), V, "x must have .* 3 rows"),
    "X from the left is short": (lambda a: ones(2, 3) @ a, V, r"x must have .* 4 rows.*\(3, 2\)"),
    "X from the left is on the device": (
        lambda a: a.__rmatmul__(on_device(2, 4)),
        V,
        r"Matrix: x must have one dimension, got shape \(2, 4\)",
    ),
    "X holds numbers beyond every float": (
        lambda a: a @ [[HUGE], [1], [2]],
        V,
        "Matrix: x does not fit float64: too large",
    ),
    # one vector
    "x is short": (lambda a: a @ ones(4), V, r"Matrix: x must have 3 elements, got shape \(4,\)"),
    "x is short for matvec": (lambda a: a.matvec(ones(2)), V, "Matrix: x must have 3 elements"),
    "x is short for rmatvec": (lambda a: a.rmatvec(ones(3)), V, "Matrix: x must have 4 elements"),
    "x is a number": (
        lambda a: a.matvec(1.0),
        V,
        r"Matrix: x must have 3 elements, got shape \(\)",
    ),
    "x is an array of no dimension": (lambda a: a @ np.array(2.0), V, "x must have one or two dim"),
    "x is two columns": (lambda a: a.matvec(ones(3, 2)), V, "Matrix: x must have 3 elements"),
    "x holds date objects": (
        lambda a: a @ ([datetime.date(2020, 1, 1)] * 3),
        T,
        "Matrix: x must hold numbers",
    ),
    "x from the left is short": (lambda a: ones(3) @ a, V, "Matrix: x must have 4 elements"),
    "x on the device is short": (
        lambda a: a @ on_device(4),
        V,
        "Matrix: x must have 3 elements, got 4",
    ),
    "x on the device of another dtype": (
        lambda a: a @ on_device(3, dtype="f"),
        T,
        "a has dtype float64 but x has dtype float32",
    ),
    "x only has an interface, and is short": (
        lambda a: a @ Interface(ones(5)),
        V,
        "Matrix: x must have 3 elements, got 5",
    ),
    "x was freed": (
        lambda a: a @ Exporter(shape=(3,), typestr="<f8", data=(0, False)),
        V,
        "x of .* no memory",
    ),
    "x raises as it is asked for its kind": (
        lambda a: a @ Broken(),
        T,
        "Matrix: x cannot be read as an array: the connection is gone",
    ),
    "a factor in words": (lambda a: a * "2", T, "Matrix: x must be an array, got str '2'"),
    # gemv
    "gemv with a short x": (lambda a: a.gemv(1, ones(4)), V, "Matrix.gemv: x must have 3 elements"),
    "gemv with a matrix as x": (
        lambda a: a.gemv(1, ones(3, 2)),
        V,
        "Matrix.gemv: x must have one di",
    ),
    "gemv with a short y": (
        lambda a: a.gemv(1, ones(3), 1, ones(3)),
        V,
        "gemv: y must have 4 elem",
    ),
    "gemv with an x on the device": (
        lambda a: a.gemv(1, on_device(3)),
        T,
        "Matrix.gemv: x is on .*takes vectors in host memory",
    ),
    "gemv with a complex x": (
        lambda a: a.gemv(1, 1j * ones(3)),
        T,
        "gemv: x of .* lose its imaginary",
    ),
    "gemv with alpha in words": (
        lambda a: a.gemv("2", ones(3)),
        T,
        "Matrix.gemv: alpha must be a num",
    ),
    "gemv with a complex alpha": (
        lambda a: a.gemv(1j, ones(3)),
        T,
        "Matrix.gemv: alpha = 1j is compl",
    ),
    "gemv with several alphas": (
        lambda a: a.gemv(ones(2), ones(3)),
        T,
        r"Matrix.gemv: alpha must be one number.*\(2,\)",
    ),
    "gemv with a beta of None": (
        lambda a: a.gemv(1, ones(3), None, ones(4)),
        T,
        "Matrix.gemv: beta must be a number, got None",
    ),
    "gemv with another trans": (
        lambda a: a.gemv(1, ones(3), trans="H"),
        V,
        "gemv: trans must be .*'H'",
    ),
    "gemv with half a trans": (
        lambda a: a.gemv(1, ones(3), trans=0.5),
        T,
        "Matrix.gemv: trans must be an integer",
    ),
}


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_matrices_and_vectors(kind, monkeypatch):
    call, error, words = BAD[kind]
    with gemv.Matrix(np.ones((4, 3))) as matrix:

        def launch(*arguments, **keywords):
            raise AssertionError("something was launched")

        monkeypatch.setattr(type(backend.engine()), "run", launch)
        check(lambda: call(matrix), {"a": matrix.array}, error, words)


@pytest.mark.parametrize(
    "use",
    [
        lambda a: a @ ones(3, 2), lambda a: a @ ones(3), lambda a: a.rmatmat(ones(4, 2)),
        lambda a: a.H @ ones(4), lambda a: a.gemv(1, ones(3)), lambda a: a.__enter__(),
        lambda a: a @ on_device(3),
    ],
)  # fmt: skip
def test_a_matrix_that_was_freed(use):
    matrix = gemv.Matrix(np.ones((4, 3)))
    matrix.free()
    check(lambda: use(matrix), {}, V, "Matrix: the matrix was freed and cannot be used any more")


def test_a_device_vector_from_the_left_stays_there():
    a, x = np.arange(12.0).reshape(4, 3), np.arange(4.0)
    with gemv.Matrix(a) as matrix:
        from numba import cuda

        y = matrix.__rmatmul__(cuda.to_device(x))
        assert hasattr(y, "copy_to_host") and np.array_equal(y.copy_to_host(), x @ a)


def test_shapes_are_refused_before_scipy_looks_at_them(monkeypatch):
    """From version 1.18 on, its operators have words of their own for these."""

    def first(self, x):
        raise ValueError(f"SciPy was asked about {np.shape(x)}")

    for name in ("dot", "rdot", "__mul__", "__rmul__", "__matmul__", "__rmatmul__"):
        monkeypatch.setattr(LinearOperator, name, first, raising=False)
    left = [lambda a, x: a @ x, lambda a, x: a.dot(x)]
    right = [lambda a, x: x @ a, lambda a, x: a.rdot(x), lambda a, x: a.__rmul__(x)]
    a = np.arange(9.0).reshape(3, 3) * (1 + 1j)
    with gemv.Matrix(a) as matrix:
        for product in (*left, *right):
            for wrong in (ones(4), ones(2, 5), ones(5, 2), np.array(2.0)):
                with pytest.raises(ValueError, match=r"^Matrix: x must have"):
                    product(matrix, wrong)
        for x in (ones(3), np.eye(3)):
            assert np.array_equal(matrix @ x, a @ x) and np.array_equal(matrix.dot(x), a @ x)
            assert np.array_equal(x @ matrix, x @ a) and np.array_equal(matrix.rdot(x), x @ a)
