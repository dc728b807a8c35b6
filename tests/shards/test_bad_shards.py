"""One matrix on several devices: what is refused of the cut, of shards, of vectors and of plans."""

from __future__ import annotations

import copy
import datetime
import pickle

import numpy as np
import pytest
import scipy.sparse
from helpers.exporters import Exporter, Interface
from helpers.refusals import Broken, Fails, check
from numba import cuda

import gemv

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)

as_strided = np.lib.stride_tricks.as_strided
T, V = TypeError, ValueError


def ones(*shape, dtype="d"):
    return np.ones(shape, dtype)


def on(*shape, dtype="d", order="C"):
    return cuda.to_device(np.ones(shape, dtype, order))


def spread(a=None, devices=(0, 0), **options):
    """A matrix that is made on several devices."""
    a = np.ones((6, 4)) if a is None else a
    return lambda several: gemv.Matrix(a, devices=devices, **options)


def joined(*parts, **options):
    return lambda several: gemv.sharded([part() for part in parts], **options)


def masked(*shape):
    return np.ma.masked_equal(np.ones(shape), 1)


def plan(x=4, y=6, trans=0, **dtypes):
    """A plan with vectors of these lengths, or with what they return."""

    def call(several):
        vectors = (each() if callable(each) else on(each, **dtypes) for each in (x, y))
        return several.plan(*vectors, trans)

    return call


def plan_in_one_memory(several):
    memory = on(12)
    return several.plan(memory[:4], memory[2:8])


#: What is wrong: a function of a matrix of 6 x 4 on two devices, the error, and the words.
BAD = {
    # where it goes
    "devices is empty": (spread(devices=[]), V, "Matrix: devices is empty; name at least one"),
    "devices is another word": (
        spread(devices="some"),
        V,
        "devices must be \"all\" or .*got 'some'",
    ),
    "devices is a number": (spread(devices=1), T, 'Matrix: devices must be "all" or .*got int 1'),
    "devices is a number of NumPy": (
        spread(devices=np.int64(1)),
        T,
        'Matrix: devices must be "all"',
    ),
    "devices is a float": (spread(devices=0.5), T, "Matrix: devices must be .*got float 0.5"),
    "devices holds halves": (spread(devices=[0.5]), T, "devices must hold integers, got float 0.5"),
    "devices holds text": (
        spread(devices=["0"]),
        T,
        "Matrix: devices must hold integers, got str '0'",
    ),
    "devices holds None": (
        spread(devices=[None]),
        T,
        "Matrix: devices must hold integers, got None",
    ),
    "a device that is not there": (
        spread(devices=[0, 99]),
        V,
        "Matrix: devices names cuda:99, but",
    ),
    "a negative device": (spread(devices=[-1]), V, "Matrix: devices names cuda:-1, but there"),
    "devices raises": (
        spread(devices=[Fails("__index__")]),
        T,
        "Matrix: devices must hold integers, got .*Fails",
    ),
    "split is another word": (spread(split="tiles"), V, "split must be \"rows\", .*got 'tiles'"),
    "split is a number": (
        spread(split=0),
        V,
        'Matrix: split must be "rows", "columns" or None, got 0',
    ),
    "gather is another word": (spread(gather="some"), V, "Matrix: gather must be \"x\", .*'some'"),
    "gather is not there": (spread(gather=99), V, "Matrix: gather names cuda:99, but"),
    "gather is a flag": (spread(gather=True), V, "Matrix: gather must be .*got True"),
    "gather is a half": (spread(gather=0.5), V, "Matrix: gather must be .*got 0.5"),
    "gather is several": (spread(gather=[0]), V, r"Matrix: gather must be .*got \[0\]"),
    "reproducible is text": (
        spread(reproducible="no"),
        T,
        "Matrix: reproducible must be an integer",
    ),
    "reproducible is None": (
        spread(reproducible=None),
        T,
        "Matrix: reproducible must be .*got None",
    ),
    # the matrix
    "a is None": (
        lambda s: gemv.Matrix(None, devices=[0]),
        T,
        "Matrix: a must be an array, got None",
    ),
    "a is a vector": (spread(ones(3)), V, r"Matrix: a must have two dimensions, got shape \(3,\)"),
    "a has three dimensions": (spread(ones(2, 3, 1)), V, r"Matrix: a must have two .*\(2, 3, 1\)"),
    "a is ragged": (spread([[1, 2], [3]]), T, "Matrix: a cannot be read as an array of numbers"),
    "a is masked": (spread(masked(2, 2)), T, "Matrix: a is a masked array"),
    "a is sparse": (spread(scipy.sparse.eye_array(3)), T, r"Matrix: a is a sparse .*a\.toarray"),
    "a holds dates": (spread(ones(2, 2, dtype="M8[s]")), T, "Matrix: a must hold numbers"),
    "a is a long double": (spread(ones(2, 2, dtype="g")), T, "Matrix: a has dtype .*computed in"),
    "a leaves its memory": (
        spread(as_strided(ones(4), (2, 2), (64, 8))),
        V,
        "Matrix: a of shape .* reaches beyond",
    ),
    "a is on a device": (
        lambda s: gemv.Matrix(on(2, 2), devices=[0]),
        T,
        "Matrix: a is on .*spreads arrays of host memory; gemv.sharded takes device arrays",
    ),
    "dtype is unknown": (spread(dtype="nope"), T, "Matrix: dtype must be one of .*got str 'nope'"),
    "dtype is int": (spread(dtype=int), T, "Matrix: dtype must be one of .*got int64"),
    "dtype loses the imaginary part": (
        spread(ones(2, 2, dtype="D"), dtype="f"),
        T,
        "would lose its imaginary part in float32",
    ),
    "kernel is unknown": (spread(kernel="none"), V, "Matrix: no kernel 'none'; known kernels"),
    # shards that are there already
    "parts is empty": (joined(), V, "sharded: parts is empty; name at least one array"),
    "parts is an array": (
        lambda s: gemv.sharded(on(4, 4)),
        T,
        "sharded: parts must be a list of arr",
    ),
    "parts is None": (lambda s: gemv.sharded(None), T, "sharded: parts must be a list .*got None"),
    "parts is a generator": (
        lambda s: gemv.sharded(on(4, 4) for _ in range(2)),
        T,
        "sharded: parts must be a list of arr",
    ),
    "axis is 2": (joined(lambda: on(4, 4), axis=2), V, "sharded: axis must be 0 or 1, got 2"),
    "axis is a flag": (
        joined(lambda: on(4, 4), axis=True),
        V,
        "sharded: axis must be 0 or 1, got Tr",
    ),
    "axis is text": (joined(lambda: on(4, 4), axis="rows"), V, "axis must be 0 or 1, got 'rows'"),
    "a shard is None": (
        joined(lambda: on(4, 4), lambda: None),
        T,
        "sharded: shard 1: a must be an array, got None",
    ),
    "a shard is on the host": (
        joined(lambda: on(4, 4), lambda: ones(4, 4)),
        T,
        "sharded: shard 1 is in host memory; gemv.Mat",
    ),
    "a shard is a vector": (
        joined(lambda: on(4, 4), lambda: on(4)),
        V,
        r"sharded: shard 1: a must have two dim.*\(4,\)",
    ),
    "a shard has other columns": (
        joined(lambda: on(4, 4), lambda: on(4, 5)),
        V,
        "shard 1 has 5 columns, and shard 0 has 4",
    ),
    "a shard has other rows": (
        joined(lambda: on(4, 4), lambda: on(3, 4), axis=1),
        V,
        "shard 1 has 3 rows, and shard 0 has 4",
    ),
    "a shard has another dtype": (
        joined(lambda: on(4, 4), lambda: on(4, 4, dtype="f")),
        T,
        "sharded: shard 1 has dtype float32, and shard 0 has float64",
    ),
    "a shard of integers": (
        joined(lambda: on(4, 4, dtype="i8")),
        T,
        "sharded: shard 0 has dtype int64; products are comp",
    ),
    "a shard of float16": (
        joined(lambda: on(4, 4, dtype="e")),
        T,
        "shard 0 has dtype float16; prod",
    ),
    "a shard in another order": (
        joined(lambda: on(4, 4), lambda: on(4, 4, order="F")),
        V,
        "sharded: memory runs down the columns in shard 1, and along the rows in the shards before",
    ),
    "a shard in no order": (
        joined(lambda: on(4, 4)[::2, ::2]),
        V,
        "shard 0 .* neither along its rows nor down its columns",
    ),
    "a shard was freed": (
        joined(lambda: Exporter(shape=(2, 2), typestr="<f8", data=(0, False))),
        V,
        r"sharded: shard 0: a of shape \(2, 2\) has no memory",
    ),
    "a shard is not aligned": (
        joined(lambda: Exporter(shape=(2, 2), typestr="<f8", data=(4100, False))),
        T,
        "sharded: shard 0: a starts at address 0x1004, which is not aligned",
    ),
    "gather of shards is not there": (
        joined(lambda: on(4, 4), gather=99),
        V,
        "gather names cuda:99",
    ),
    "reproducible of shards is text": (
        joined(lambda: on(4, 4), reproducible="no"),
        T,
        "sharded: reproducible must be an integer",
    ),
    "shards that have other bits": (
        joined(lambda: on(5, 33, dtype="f"), lambda: on(24, 33, dtype="f")),
        V,
        "sharded: products would not have the bits of one device: shard 1 begins",
    ),
    # vectors
    "x is None": (lambda s: s @ None, T, "Matrix: x must be an array, got None"),
    "x is short": (lambda s: s @ ones(5), V, r"Matrix: x must have 4 elements, got shape \(5,\)"),
    "x is short for rmatvec": (lambda s: s.rmatvec(ones(4)), V, "Matrix: x must have 6 elements"),
    "X is short": (
        lambda s: s @ ones(5, 2),
        V,
        r"Matrix: x must have .* 4 rows, got shape \(5, 2\)",
    ),
    "X is a vector": (
        lambda s: s.matmat(ones(4)),
        V,
        "Matrix: x must have two dimensions and 4 rows",
    ),
    "x is masked": (lambda s: s @ masked(4), T, "Matrix: x is a masked array with 4 masked"),
    "x holds None": (lambda s: s @ [1, 2, None, 3], T, "Matrix: x must hold numbers.*holds None"),
    "x holds date objects": (
        lambda s: s @ ([datetime.date(2020, 1, 1)] * 4),
        T,
        "Matrix: x must hold numbers",
    ),
    "x on the device is short": (lambda s: s @ on(5), V, "Matrix: x must have 4 elements, got 5"),
    "x on the device of another dtype": (
        lambda s: s @ on(4, dtype="f"),
        T,
        "Matrix: x has dtype float32 but Matrix computes in float64",
    ),
    "X on the device, too long": (lambda s: s @ on(5, 2), V, "Matrix: x must have 4 rows, got 5"),
    "X on the device for matmat": (
        lambda s: s.matmat(on(2, 4)),
        V,
        "Matrix: x must have 4 rows, got 2",
    ),
    "X on the device in three dimensions": (
        lambda s: s @ on(4, 2, 1),
        V,
        r"Matrix: x must have one or two dimensions, got shape \(4, 2, 1\)",
    ),
    "x on the device was freed": (
        lambda s: s @ Exporter(shape=(4,), typestr="<f8", data=(0, False)),
        V,
        r"Matrix: x of shape \(4,\) has no memory",
    ),
    "x only has an interface, and is short": (
        lambda s: s @ Interface(ones(5)),
        V,
        "Matrix: x must have 4 elements, got 5",
    ),
    "x raises as it is asked for its kind": (
        lambda s: s @ Broken(),
        T,
        "Matrix: x cannot be read as an array: the connection is gone",
    ),
    "the transpose has other bits": (
        lambda s: s.rmatvec(ones(6)),
        V,
        "Matrix: .*its transpose would not have the bits of one dev",
    ),
    # plans
    "a plan of the host's x": (
        plan(lambda: ones(4)),
        T,
        "Matrix.plan: x is in host memory; a plan",
    ),
    "a plan without y": (plan(4, lambda: None), T, "Matrix.plan: y must be an array, got None"),
    "a plan of a short x": (plan(5), V, "Matrix.plan: x must have 4 elements, got 5"),
    "a plan of a short y": (plan(4, 5), V, "Matrix.plan: y must have 6 elements, got 5"),
    "a plan of the transpose with x and y": (
        plan(trans="T"),
        V,
        "Matrix.plan: x must have 6 elements",
    ),
    "a plan of another dtype": (
        plan(dtype="f"),
        T,
        "Matrix.plan: x has dtype float32 but Matrix.plan",
    ),
    "a plan of rows as X": (
        plan(lambda: on(4, 2)),
        V,
        r"Matrix.plan: x must be contiguous, each column if .* got strides \(2, 1\)",
    ),
    "a plan of a strided x": (
        plan(lambda: on(8)[::2]),
        V,
        r"Matrix.plan: x must be contiguous, each column if .* got strides \(2,\)",
    ),
    "a plan of an x that is not aligned": (
        plan(lambda: on(5)[1:]),
        V,
        "Matrix.plan: x must begin at a multiple of 16 bytes",
    ),
    "a plan whose y overlaps x": (plan_in_one_memory, V, "Matrix.plan: y overlaps x in memory"),
    "a plan of another trans": (plan(trans="H"), V, "Matrix.plan: trans must be .*got 'H'"),
    "a plan of half a trans": (
        plan(trans=0.5),
        T,
        "Matrix.plan: trans must be an integer, got float",
    ),
    "a copy": (copy.copy, T, "a sharded gemv.Matrix can be neither pickled nor copied"),
    "a pickle": (pickle.dumps, T, "a sharded gemv.Matrix can be neither pickled nor copied"),
    "a copy of a plan": (
        lambda s: copy.copy(s.plan(on(4), on(6))),
        T,
        "a plan of a sharded .* neither pickled nor",
    ),
}


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_shards(kind):
    call, error, words = BAD[kind]
    a = np.arange(24.0).reshape(6, 4)
    with gemv.Matrix(a, devices=[0, 0], split="rows") as several:
        check(lambda: call(several), {"a": a}, error, words)
        assert np.array_equal(several @ np.ones(4), a.sum(1)), "the matrix is as it was"


def test_a_plan_that_is_refused_leaves_y_as_it_was():
    a, y = np.ones((6, 4)), cuda.to_device(np.full(6, np.nan))
    with gemv.Matrix(a, devices=[0, 0]) as several:
        for x in (on(5), on(8)[::2], on(5)[1:], ones(4), None, on(4, dtype="f")):
            with pytest.raises((TypeError, ValueError), match=r"Matrix\.plan: x "):
                several.plan(x, y)
        assert np.isnan(y.copy_to_host()).all()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s @ ones(4), lambda s: s @ on(4), lambda s: s.H @ ones(6),
        lambda s: s.matmat(ones(4, 2)), lambda s: s.plan(on(4), on(6)), lambda s: s.__enter__(),
    ],
)  # fmt: skip
def test_a_matrix_that_was_freed(use):
    several = gemv.Matrix(np.ones((6, 4)), devices=[0, 0])
    several.free()
    check(lambda: use(several), {}, V, "Matrix: the matrix was freed and cannot be used any more")


def test_a_matrix_on_devices_waits_for_its_backend():
    several, x = gemv.Matrix(np.ones((6, 4)), devices=[0, 0]), on(4)
    plan, freed = several.plan(x, on(6)), gemv.Matrix(np.ones((6, 4)), devices=[0, 0])
    freed @ ones(4)
    words = "the matrix lies on a device, but the backend is host by now"
    gemv.use_backend("host")
    try:
        for use in (lambda: several @ ones(4), lambda: several @ ones(4, 3), lambda: several @ x):
            check(use, {}, T, f"^Matrix: {words}")
        check(plan, {}, T, f"^Matrix.plan: {words}")
        freed.free()
    finally:
        gemv.use_backend(None)
    assert (several @ ones(4)).tolist() == plan().copy_to_host().tolist() == [4] * 6


def test_the_host_refuses_in_the_same_words():
    gemv.use_backend("host")
    try:
        several = gemv.Matrix(np.ones((6, 4)), devices=[0, 0])
        for call, error, words in (
            (lambda: several @ ones(5), V, r"Matrix: x must have 4 elements, got shape \(5,\)"),
            (lambda: several @ on(4), T, "Matrix: x is on a device, but the backend is host"),
            (lambda: several.plan(ones(4), ones(6)), T, "Matrix.plan: the backend is host, which"),
            (
                lambda: several.matmat(ones(5, 2)),
                V,
                "Matrix: x must have two dimensions and 4 rows",
            ),
            (lambda: gemv.sharded([]), V, "sharded: parts is empty"),
            (lambda: gemv.sharded([on(2, 2)]), T, "sharded: shard 0 is on .*backend is host"),
            (
                lambda: gemv.Matrix(ones(2, 2), devices=[0], kernel="serial"),
                V,
                "Matrix: kernel='serial' needs a GPU or the simulator",
            ),
            (lambda: gemv.Matrix(ones(2, 2), devices=[0], gather=99), V, "gather names cuda:99"),
        ):
            check(call, {}, error, words)
    finally:
        gemv.use_backend(None)
