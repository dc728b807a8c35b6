"""Several vectors and a matrix in shards: each has the bits of its product with the whole."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import random_array
from numba import cuda

import gemv
from gemv.core.dtypes import BFLOAT16
from gemv.core.narrow import cast

pytestmark = pytest.mark.usefixtures("small_blocks")

#: The kernel for several vectors that has the sums of one for a single vector.
SEVERAL = {
    "vector_rows": "several_rows",
    "vector_columns": "several_columns",
    "long_columns": "several_long_columns",
}


def numbers(shape, dtype="f", order="C", seed=0):
    made = random_array(np.random.default_rng(seed), shape, np.dtype(dtype))
    return np.asarray(made, order=order)


def one_by_one(matrix, x):
    """The bits of the product with each column."""
    return [matrix.matvec(np.ascontiguousarray(each)).tobytes() for each in x.T]


def columns(y):
    """The bits of each column of an array of any library."""
    y = y.copy_to_host() if hasattr(y, "copy_to_host") else y
    return [np.ascontiguousarray(each).tobytes() for each in y.T]


@pytest.mark.parametrize(
    "split, order, dtype",
    [("rows", "C", "f"), ("rows", "F", "D"), ("columns", "C", "F"), ("columns", "F", "d")],
)
def test_columns_have_the_bits_of_the_unsplit_call(split, order, dtype):
    a = numbers((21, 18), dtype, order)
    forms = ("matmat", "matvec", 18) if split == "rows" else ("rmatmat", "rmatvec", 21)
    product, single, length = forms
    x = numbers((length, 3), dtype, seed=1)
    whole = gemv.Matrix(a)
    expected = [getattr(whole, single)(np.ascontiguousarray(each)).tobytes() for each in x.T]
    for count, vectors in ((1, 2), (2, 3), (3, 1)):
        with gemv.Matrix(a, devices=[0] * count, split=split) as several:
            got = columns(getattr(several, product)(x[:, :vectors]))
            assert got == expected[:vectors], (count, vectors)


@pytest.mark.usefixtures("small_knobs")
@pytest.mark.parametrize("kernel", SEVERAL)
@pytest.mark.parametrize("dtype", ["f", "D"])
def test_rows_of_a_shard_are_read_once_for_all_vectors(kernel, dtype):
    order = "C" if kernel == "vector_rows" else "F"
    a, x = numbers((24, 11), dtype, order), numbers((11, 17), dtype, seed=1)
    cases = dict(zip(range(1, 9), (2, 17, 3, 8, 2, 1, 3, 2), strict=True))
    if dtype == "D":
        a, x, cases = a[:, :5], x[:5, :3], {2: 3, 8: 2}
    expected = one_by_one(gemv.Matrix(a, devices=[0], kernel=kernel), x)
    for count, vectors in cases.items():
        several = gemv.Matrix(a, devices=[0] * count, kernel=kernel, split="rows")
        with gemv.trace() as calls:
            got = columns(several @ x[:, :vectors])
        assert got == expected[:vectors], (count, vectors)
        kernels = {1: [kernel], 17: [SEVERAL[kernel], kernel]}.get(vectors, [SEVERAL[kernel]])
        assert [call.kernel for call in calls] == kernels


@pytest.mark.usefixtures("small_knobs")
@pytest.mark.parametrize(
    "kernel, dtype, counts",
    [("vector_rows", "f", (2, 5)), ("vector_columns", "D", (3, 8)), ("vector_rows", "D", (4,))],
)
def test_sums_across_shards_are_those_of_one_vector(kernel, dtype, counts):
    order = "C" if kernel == "vector_rows" else "F"
    a, x = numbers((3, 171), dtype, order), numbers((171, 8), dtype, seed=1)
    expected = one_by_one(gemv.Matrix(a, devices=[0], kernel=kernel), x)
    for count in counts:
        several = gemv.Matrix(a, devices=[0] * count, kernel=kernel, split="columns")
        assert len(set(several.bounds)) > 2
        for vectors in (8, 3, 3, 2):
            with gemv.trace() as calls:
                got = columns(several @ x[:, :vectors])
            assert got == expected[:vectors], "counters and sums are as before"
            assert [call.kernel for call in calls] == [SEVERAL[kernel]]
            assert calls[0].geometry.sizes["splits"] > 1
    kept = gemv.Matrix(a, devices=[0, 0], kernel=kernel, split="columns", gather=None)
    (y,) = kept @ cuda.to_device(x[:, :2].copy())
    assert columns(y) == expected[:2]


@pytest.mark.parametrize("dtype, order", [("f", "F"), ("D", "C")])
def test_other_sums_go_in_the_order_of_the_shards(dtype, order):
    a, z = numbers((20, 11), dtype, order), numbers((20, 3), dtype, seed=1)
    several = gemv.Matrix(a, devices=[0] * 3, split="rows", reproducible=False)
    expected = [several.rmatvec(np.ascontiguousarray(each)).tobytes() for each in z.T]
    assert columns(several.rmatmat(z)) == expected
    out = cuda.to_device(np.zeros((14, 3), dtype, order="F"))
    bound = cuda.to_device(np.asfortranarray(z))
    assert columns(several.plan(bound, out[:11], "C")()) == expected
    assert not out.copy_to_host()[11:].any(), "what lies between columns stays"


def test_a_kernel_without_one_for_several_vectors_takes_them_one_by_one():
    a, x = numbers((8, 13)), numbers((13, 3), seed=1)  # rows of 52 bytes
    several = gemv.Matrix(a, devices=[0, 0], kernel="phased_rows")
    expected = one_by_one(gemv.Matrix(a, devices=[0], kernel="phased_rows"), x)
    with gemv.trace() as calls:
        assert columns(several @ x) == expected
    assert [call.kernel for call in calls] == ["phased_rows"] * 3
    assert columns(several @ cuda.to_device(np.asarray(x, order="F"))) == expected


@pytest.mark.usefixtures("small_knobs")
def test_columns_that_are_not_aligned_are_copied_for_a_kernel_of_one_vector():
    a, x = numbers((4, 16)), numbers((16, 3), seed=1)
    several = gemv.Matrix(a, devices=[0, 0], kernel="cluster_rows")
    expected = one_by_one(gemv.Matrix(a, devices=[0], kernel="cluster_rows"), x)
    given, y = on_device(_padded(x, 3)), cuda.to_device(np.zeros((4, 3), "f", order="F"))
    assert columns(several @ given) == expected
    assert columns(several.plan(given, y)()) == expected
    one = several.plan(given[:, 1:2], y[:, :1])
    assert columns(one()) == expected[1:2]


def test_a_setting_that_narrows_loads_keeps_the_bits():
    a, x = numbers((24, 32)), numbers((32, 3), seed=1)
    several = gemv.Matrix(a, devices=[0, 0])
    several @ x
    gemv.use_alignment(False)
    try:
        assert columns(several @ x) == one_by_one(gemv.Matrix(a), x)
    finally:
        gemv.use_alignment(True)


@pytest.mark.parametrize("narrow", [np.dtype("e"), BFLOAT16], ids=["float16", "bfloat16"])
def test_narrow_numbers_are_float32(narrow):
    a, x = (cast(numbers(shape), narrow) for shape in ((9, 20), (20, 2)))
    several = gemv.Matrix(a, devices=[0, 0, 0])
    wide = cast(x, np.dtype("f"))
    assert several.dtype == np.float32
    assert columns(several @ wide) == one_by_one(gemv.Matrix(cast(a, np.dtype("f"))), wide)
    if narrow != BFLOAT16:
        assert columns(several @ x) == columns(several @ wide)


#: How columns of x and y lie in memory: a view of an array with more rows and columns.
LAYOUTS = {
    "rows of memory": lambda array: np.ascontiguousarray(array),
    "columns": lambda array: np.asfortranarray(array),
    "odd distance": lambda array: _padded(array, 3),
    "even distance": lambda array: _padded(array, 32 - len(array) % 32),
}


def _padded(array, more):
    wide = np.full((len(array) + more, array.shape[1]), np.nan, array.dtype, order="F")
    wide[: len(array)] = array
    return wide[: len(array)]


def on_device(array):
    """The same memory layout on the device."""
    base = array if array.base is None else array.base
    return cuda.to_device(base)[: len(array)] if len(base) > len(array) else cuda.to_device(array)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split, dtype", [("rows", "f"), ("columns", "f"), ("rows", "F")])
def test_columns_on_a_device_may_lie_anyhow(layout, split, dtype):
    a, x = numbers((13, 11), dtype), numbers((11, 2), dtype, seed=1)
    options = {"devices": [0, 0], "split": split, "reproducible": split == "rows"}
    expected = one_by_one(gemv.Matrix(a, **options), x)
    given = on_device(LAYOUTS[layout](x))
    y = gemv.Matrix(a, **options) @ given
    assert y.shape == (13, 2) and columns(y) == expected
    assert columns(gemv.Matrix(a, **options).matmat(given)) == expected
    for each in gemv.Matrix(a, gather="all", **options) @ given:
        assert columns(each) == expected
    parts = gemv.Matrix(a, gather=None, **options) @ given
    joined = np.concatenate([part.copy_to_host() for part in parts])
    assert columns(joined) == expected
    assert (gemv.Matrix(a, **options) @ given[:, :0]).shape == (13, 0)


@pytest.mark.parametrize(
    "layout, split, vectors",
    [
        ("columns", "rows", 3),
        ("odd distance", "rows", 2),
        ("even distance", "columns", 2),
        ("odd distance", "columns", 17),
        ("odd distance", "rows", 1),
    ],
)
def test_a_plan_of_several_vectors_writes_into_its_columns(layout, split, vectors):
    a, x = numbers((13, 11)), numbers((11, vectors), seed=1)
    several = gemv.Matrix(a, devices=[0, 0], split=split, reproducible=split == "rows")
    given = on_device(LAYOUTS[layout](x))
    wide = np.full((16, vectors), 7, "f", order="F")
    out = cuda.to_device(wide)
    plan = several.plan(given, out[:13])
    expected = one_by_one(several, x)
    for _ in range(1 if vectors == 17 else 2):
        plan()
        assert columns(out[:13]) == expected
        assert (out.copy_to_host()[13:] == 7).all(), "what lies between columns stays"


def test_what_a_plan_of_several_vectors_refuses():
    several = gemv.Matrix(numbers((6, 4)), devices=[0, 0])
    x, y = (cuda.to_device(np.zeros(shape, "f", order="F")) for shape in ((4, 2), (6, 2)))
    rows = cuda.to_device(np.zeros((6, 2), "f"))
    for wrong, words in (
        ((x, y[:, 0]), "x has 2 columns and y has one dimension"),
        ((x[:, :1], y), "x has 1 columns and y has 2 columns"),
        ((x, rows), r"y must be contiguous, each column if .* got strides \(2, 1\)"),
        ((y, y), "x must have 4 rows, got 6"),
        ((x[:, :0], y[:, :0]), r"a vector or some columns, got shape \(4, 0\)"),
    ):
        with pytest.raises(ValueError, match=words):
            several.plan(*wrong)


def test_every_form_takes_columns_on_a_device():
    a, x, z = numbers((6, 9)), numbers((9, 2), seed=1), numbers((6, 2), seed=2)
    several = gemv.Matrix(a, devices=[0, 0], reproducible=False)
    of_x, of_z = cuda.to_device(x), cuda.to_device(z)
    forward, backward = columns(several @ x), columns(several.T @ z)
    for got in (several.matmat(of_x), several.T.rmatmat(of_x), several.H.rmatmat(of_x)):
        assert columns(got) == forward
    for got in (several.rmatmat(of_z), several.T.matmat(of_z), several.H.matmat(of_z)):
        assert columns(got) == backward


@pytest.mark.parametrize("form", ["A", "A.T"])
def test_rows_on_a_device_are_no_columns(form):
    several = gemv.Matrix(numbers((6, 6)), devices=[0, 0], reproducible=False)
    rows = numbers((6, 6), seed=1)
    matrix = several if form == "A" else several.T
    assert np.allclose(rows @ matrix, rows @ (matrix @ np.eye(6, dtype="f")), atol=1e-5)
    with pytest.raises(ValueError, match=r"^Matrix: x must have one dimension, got shape \(6, 6\)"):
        cuda.to_device(rows) @ matrix
    got = (cuda.to_device(rows[0]) @ matrix).copy_to_host()
    assert np.allclose(got, rows[0] @ matrix, atol=1e-5)
