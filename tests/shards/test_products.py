"""One matrix in shards: every product has the bits of the single call, or says why it has not."""

from __future__ import annotations

import copy
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers.problems import random_array
from numba import cuda
from scipy.sparse import linalg

import gemv
from gemv.core.geometry import Device
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.shards.cut import Whole

KERNELS = [
    name
    for name, kernel in REGISTRY.items()
    if kernel.same_bits and kernel.x_home(kernel.knobs) == "pointer"
]
#: Devices that every machine with a backend for kernels has: one that plays several parts.
PLACES = [[0] * count for count in range(1, 9)]
H200 = Device("NVIDIA H200", (9, 0), 132)


def matrix(shape, dtype=np.float32, order="C", seed=0):
    rng = np.random.default_rng(seed)
    return np.asarray(random_array(rng, shape, np.dtype(dtype)), order=order)


def vector(n, dtype=np.float32, seed=1):
    return random_array(np.random.default_rng(seed), n, np.dtype(dtype))


@pytest.mark.parametrize(
    "devices, split, order",
    [(places, "rows", "C") for places in PLACES]
    + [([0] * count, *form) for count in (2, 7) for form in (("rows", "F"), ("columns", "C"))]
    + [([0] * 3, "columns", "F")],
    ids=str,
)
def test_sums_within_shards_have_the_bits_of_one_device(devices, split, order):
    a = matrix((19, 23), order=order)
    x = vector(23 if split == "rows" else 19)
    with gemv.Matrix(a) as one, gemv.Matrix(a, devices=devices, split=split) as several:
        assert len(several.places) == len(devices)
        if split == "rows":
            assert several.matvec(x).tobytes() == one.matvec(x).tobytes()
        else:
            assert several.rmatvec(x).tobytes() == one.rmatvec(x).tobytes()


def order_of(name):
    return "F" if "columns" in name or name == "t03_threads_are_columns" else "C"


def test_a_kernel_that_moves_x_is_refused():
    with gemv.Matrix(matrix((9, 9)), kernel="where_x_lives", devices=[0, 0]) as several:
        with pytest.raises(ValueError, match="Matrix: kernel 'where_x_lives' moves x"):
            several @ vector(9)


@pytest.mark.usefixtures("small_knobs")
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_gives_the_bits_of_the_whole(name):
    a, x = matrix((99, 19), np.float32, order_of(name)), vector(19)
    expected = gemv.Matrix(a, devices=[0], kernel=name) @ x
    assert np.allclose(expected, a @ x, atol=1e-4)
    several = gemv.Matrix(a, devices=[0, 0, 0], kernel=name, split="rows")
    assert several.matvec(x).tobytes() == expected.tobytes()


@pytest.mark.usefixtures("small_knobs")
@pytest.mark.parametrize("name", [n for n in KERNELS if REGISTRY[n].splits_apart])
@pytest.mark.parametrize("dtype, count", [(np.float32, 2), (np.complex128, 8)])
def test_sums_across_shards_have_the_bits_of_one_device(name, dtype, count):
    a, x = matrix((5, 411), dtype, order_of(name)), vector(411, dtype)
    expected = gemv.Matrix(a, devices=[0], kernel=name) @ x
    with gemv.Matrix(a, devices=[0] * count, split="columns", kernel=name) as several:
        with gemv.trace() as calls:
            got = several @ x
        (call,) = calls
        assert call.kernel == name and call.geometry.sizes["splits"] > 1
        assert len(set(several.bounds)) > 2
        assert got.tobytes() == expected.tobytes()
        assert (several @ x).tobytes() == expected.tobytes(), "counters and sums are as before"
    kept = gemv.Matrix(a, devices=[0] * count, split="columns", kernel=name, gather=None)
    (part,) = kept @ cuda.to_device(x)
    assert part.copy_to_host().tobytes() == expected.tobytes()


@pytest.mark.usefixtures("small_knobs")
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_transposed_product_of_tall_shards_goes_across_them(order):
    name = "vector_columns" if order == "C" else "vector_rows"
    a, z = matrix((512, 5), np.float64, order), vector(512, np.float64)
    expected = gemv.Matrix(a, devices=[0], kernel=name).rmatvec(z)
    assert np.allclose(expected, a.T @ z)
    with gemv.Matrix(a, devices=[0, 0], kernel=name, split="rows") as several:
        assert several.rmatvec(z).tobytes() == expected.tobytes()
        on_device = several.H @ cuda.to_device(z)
        assert on_device.copy_to_host().tobytes() == expected.tobytes()


def test_sums_that_the_single_call_does_not_split_are_refused():
    a = matrix((40, 30), np.float64)
    several = gemv.Matrix(a, devices=[0, 0], split="rows")
    with pytest.raises(ValueError, match="its transpose would not have the bits of one device"):
        several.rmatvec(np.ones(40))
    assert several.matvec(np.ones(30)).shape == (40,)


@pytest.mark.parametrize("dtype, order", [(np.float32, "F"), (np.complex128, "C")])
def test_other_sums_go_in_the_order_of_the_shards(dtype, order):
    a, z = matrix((40, 30), dtype, order), vector(40, dtype)
    several = gemv.Matrix(a, devices=[0, 0, 0], split="rows", reproducible=False)
    got = several.rmatvec(z)
    parts = [
        gemv.gemv(1, a[start:end].copy(order), z[start:end], trans=2)
        for start, end in zip(several.bounds[:-1], several.bounds[1:], strict=True)
        if end > start
    ]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    assert got.tobytes() == total.tobytes()
    assert several.rmatvec(z).tobytes() == got.tobytes()


def test_more_shards_than_rows_and_empty_matrices():
    a = matrix((3, 20), np.float64)
    x = vector(20, np.float64)
    with gemv.Matrix(a, devices=[0] * 8) as several:
        assert several.bounds[0] == 0 and several.bounds[-1] == 3
        assert several.matvec(x).tobytes() == gemv.Matrix(a).matvec(x).tobytes()
    for shape in ((0, 4), (4, 0), (0, 0)):
        with gemv.Matrix(np.zeros(shape), devices=[0, 0]) as empty:
            assert empty.matvec(np.ones(shape[1])).tolist() == [0.0] * shape[0]
            assert empty.rmatvec(np.ones(shape[0])).tolist() == [0.0] * shape[1]
    with gemv.Matrix(matrix((1, 1)), devices=[0, 0]) as single:
        assert single.matvec(np.ones(1)) == matrix((1, 1))[0]


@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(19, 1), (1, 19)], ids=str)
def test_a_single_row_or_column(shape, split):
    """Both strides of such a matrix without gaps are 1, and its elements are one line."""
    a = matrix(shape)
    x, z = vector(shape[1]), vector(shape[0])
    with gemv.Matrix(a, devices=[0, 0], split=split, reproducible=False) as several:
        assert np.allclose(several @ x, a @ x, rtol=1e-5)
        assert np.allclose(several.T @ z, a.T @ z, rtol=1e-5)


@pytest.mark.usefixtures("small_knobs")
def test_columns_are_cut_where_rows_cannot_be():
    name = "vector_columns"
    a, x = matrix((2, 411), np.float64, "F"), vector(411, np.float64)
    several = gemv.Matrix(a, devices=[0, 0], kernel=name)
    assert several.split == "columns"
    assert (several @ x).tobytes() == (gemv.Matrix(a, devices=[0], kernel=name) @ x).tobytes()


def test_results_are_gathered_where_they_are_asked_for():
    a, x = matrix((37, 20), np.float64), vector(20, np.float64)
    expected, on_device = gemv.Matrix(a).matvec(x), cuda.to_device(x)
    beside = gemv.Matrix(a, devices=[0, 0, 0]) @ on_device
    assert beside.copy_to_host().tobytes() == expected.tobytes()
    named = gemv.Matrix(a, devices=[0, 0, 0], gather=0) @ on_device
    assert named.copy_to_host().tobytes() == expected.tobytes()
    several = gemv.Matrix(a, devices=[0, 0, 0], gather="all") @ on_device
    assert {y.copy_to_host().tobytes() for y in several} == {expected.tobytes()}
    kept = gemv.Matrix(a, devices=[0, 0, 0], gather=None)
    parts = kept @ on_device
    assert [len(part) for part in parts] == list(np.diff(kept.bounds))
    assert b"".join(part.copy_to_host().tobytes() for part in parts) == expected.tobytes()
    assert (kept @ x).tobytes() == expected.tobytes(), "host memory gives host memory"


def test_vectors_of_any_stride_and_alignment():
    a, long = matrix((37, 20), np.float64), vector(61, np.float64)
    several = gemv.Matrix(a, devices=[0, 0], split="rows")
    expected = gemv.Matrix(a).matvec(long[1::3])
    for x in (long[1::3], cuda.to_device(long)[1::3], cuda.to_device(long[1::3].copy())):
        got = several @ x
        got = got if isinstance(got, np.ndarray) else got.copy_to_host()
        assert got.tobytes() == expected.tobytes()


def test_several_columns_complex_vectors_and_views_of_the_matrix():
    a = matrix((12, 9), np.float64)
    several = gemv.Matrix(a, devices=[0, 0], reproducible=False)
    columns = matrix((9, 3), np.float64, seed=5)
    got = several @ columns
    for place in range(3):
        assert got[:, place].tobytes() == several.matvec(columns[:, place]).tobytes()
    x = vector(9, np.complex128)
    assert np.allclose(several.matvec(x), a @ x)
    assert np.allclose(several.T.matvec(np.ones(12)), a.T @ np.ones(12))
    assert np.allclose((several.H @ several) @ np.ones(9), a.T @ (a @ np.ones(9)))
    conjugated = gemv.Matrix(matrix((5, 4), np.complex64), devices=[0, 0]).H.T
    assert np.allclose(conjugated @ np.ones(4), matrix((5, 4), np.complex64).conj() @ np.ones(4))


def test_plans_compute_what_their_vectors_hold():
    a, x = matrix((37, 20), np.float64), vector(20, np.float64)
    several = gemv.Matrix(a, devices=[0, 0, 0], reproducible=False)
    on_device, y = cuda.to_device(x), cuda.to_device(np.full(37, np.nan))
    plan = several.plan(on_device, y)
    assert np.isnan(y.copy_to_host()).all() and plan.x is on_device and plan.y is y
    assert plan() is y
    assert y.copy_to_host().tobytes() == (several @ x).tobytes()
    on_device.copy_to_device(2 * x)
    assert plan().copy_to_host().tobytes() == (several @ (2 * x)).tobytes()
    z, w = cuda.to_device(np.ones(37)), cuda.to_device(np.zeros(20))
    assert several.plan(z, w, "T")().copy_to_host().tobytes() == (several.T @ np.ones(37)).tobytes()
    for wrong, words in (
        ((x, y), "x is in host memory"),
        ((on_device, w), "y must have 37 elements, got 20"),
        ((cuda.to_device(np.ones(40))[::2], y), "x must be contiguous"),
        ((cuda.to_device(np.ones(21))[1:], y), "x must begin at a multiple of 16 bytes"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            several.plan(*wrong)
    square = gemv.Matrix(np.eye(4), devices=[0])
    with pytest.raises(ValueError, match="y overlaps x"):
        square.plan(w[:4], w[:4])
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.copy(plan)
    shapes = f"x of shape {plan.x.shape} and y of shape {plan.y.shape}"
    assert repr(plan) == f"<plan of a sharded gemv.Matrix, bound to {shapes}>"


def test_cupys_solvers_get_its_products(monkeypatch):
    linalg_of_cupy = SimpleNamespace(LinearOperator=lambda shape, **given: (shape, given))
    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["cupyx.scipy.sparse"].linalg = linalg_of_cupy
    a = matrix((12, 9), np.float64)
    several = gemv.Matrix(a, devices=[0, 0], reproducible=False)
    shape, given = several.cupy_operator()
    x, z = cuda.to_device(vector(9, np.float64)), cuda.to_device(vector(12, np.float64))
    assert shape == (12, 9) and given["dtype"] == np.float64
    assert np.allclose(given["matvec"](x).copy_to_host(), a @ x.copy_to_host())
    assert np.allclose(given["rmatvec"](z).copy_to_host(), a.T @ z.copy_to_host())
    several.free()
    with pytest.raises(ValueError, match="freed"):
        several.cupy_operator()


def test_solvers_take_it():
    a = matrix((30, 4), np.float64)
    b = vector(30, np.float64)
    several = gemv.Matrix(a, devices=[0, 0, 0], split="rows", reproducible=False)
    x = linalg.lsmr(several, b, atol=1e-12, btol=1e-12)[0]
    assert np.allclose(x, np.linalg.lstsq(a, b)[0])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_shards_where_they_lie(order, axis):
    a = matrix((96, 128), order=order)
    cuts = [48, 48] if axis == 0 else [64, 64]
    parts = [cuda.to_device(np.asarray(each, order=order)) for each in np.split(a, cuts, axis)]
    several = gemv.sharded(parts, axis)
    x, z = vector(128), vector(96)
    assert several.shape == (96, 128) and several.bounds == (0, *cuts, a.shape[axis])
    if axis == 0:
        assert several.matvec(x).tobytes() == gemv.Matrix(a).matvec(x).tobytes()
    else:
        assert several.rmatvec(z).tobytes() == gemv.Matrix(a).rmatvec(z).tobytes()
    parts[0].copy_to_device(np.zeros(parts[0].shape, np.float32, order=order))
    changed = a.copy(order)
    changed[(slice(cuts[0]),) if axis == 0 else (slice(None), slice(cuts[0]))] = 0
    got = several.matvec(x) if axis == 0 else several.rmatvec(z)
    expected = changed @ x if axis == 0 else changed.T @ z
    assert np.allclose(got, expected, atol=1e-4), "the arrays themselves are read"


def test_shards_of_any_rows_have_the_bits_where_memory_runs_along_rows():
    a, x = matrix((29, 64)), vector(64)
    expected = gemv.Matrix(a).matvec(x)
    for cuts in ([1], [5, 6, 20], [0, 29], [7, 7, 7]):
        several = gemv.sharded([cuda.to_device(each.copy()) for each in np.split(a, cuts)])
        assert several.matvec(x).tobytes() == expected.tobytes(), cuts


def test_shards_that_begin_elsewhere_need_permission():
    a, x = matrix((29, 33)), vector(33)  # rows of 132 bytes
    parts = [cuda.to_device(each.copy()) for each in np.split(a, [5])]
    with pytest.raises(ValueError, match=r"shard 1 begins \d+ bytes behind a multiple of 16"):
        gemv.sharded(parts)
    several = gemv.sharded(parts, reproducible=False)
    assert np.allclose(several @ x, a @ x, rtol=1e-4)
    columns = [cuda.to_device(each.copy()) for each in np.split(a, [10], 1)]
    several = gemv.sharded(columns, 1, reproducible=False)
    assert np.allclose(several @ x, a @ x, rtol=1e-4)
    assert np.allclose(several.H @ np.ones(29), a.T @ np.ones(29), rtol=1e-4)


def test_cuts_inside_of_a_split_are_refused():
    whole = Whole((100_000, 1000), (1000, 1), np.dtype("f4"), 0, H200, "rows")
    step = whole.choice(1).geometry.sizes["cols_per_split"]
    assert 100 < step < 100_000
    for bounds, words in (
        ((0, 100, 100_000), f"rows are cut at 100, and the single call could be .* of {step}"),
        ((0, 0, step, 100_000, 100_000), None),
    ):
        objection = whole._replace(bounds=bounds).objection(1, whole.choice(1))
        assert (objection is None) if words is None else re.search(words, objection)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        ({"devices": []}, ValueError, "devices is empty"),
        ({"devices": "some"}, ValueError, 'must be "all" or a list of ordinals'),
        ({"devices": 1}, TypeError, 'must be "all" or a list of ordinals, got int 1'),
        ({"devices": [0, 99]}, ValueError, "devices names cuda:99"),
        ({"devices": [-1]}, ValueError, "devices names cuda:-1"),
        ({"devices": [0.5]}, TypeError, "devices must hold integers, got float 0.5"),
        ({"devices": [0], "split": "tiles"}, ValueError, 'split must be "rows", "columns" or None'),
        ({"devices": [0], "gather": "some"}, ValueError, 'gather must be "x", "all", None or'),
        ({"devices": [0], "gather": 99}, ValueError, "gather names cuda:99"),
        ({"devices": [0], "kernel": "none"}, ValueError, "no kernel 'none'"),
        ({"split": "rows"}, ValueError, "split only applies with devices"),
        ({"gather": 0}, ValueError, "gather only applies with devices"),
    ],
    ids=str,
)
def test_bad_arguments(wrong, error, words):
    with pytest.raises(error, match=words):
        gemv.Matrix(np.ones((4, 4)), **wrong)


def test_bad_shards():
    def on(array):
        return cuda.to_device(array)

    full = np.ones((4, 4))
    for parts, error, words in (
        ([], ValueError, "parts is empty"),
        (on(full), TypeError, "parts must be a list of arrays"),
        ([on(full), full], TypeError, "shard 1 is in host memory"),
        ([on(full), on(np.ones(4))], ValueError, "shard 1: a must have two dimensions"),
        ([on(full), on(np.ones((4, 5)))], ValueError, "shard 1 has 5 columns, and shard 0 has 4"),
        ([on(full), on(np.ones((4, 4), "f4"))], TypeError, "shard 1 has dtype float32"),
        ([on(np.ones((4, 4), int))], TypeError, "shard 0 has dtype int64"),
        ([on(full), on(np.asarray(full, order="F"))], ValueError, "memory runs down the columns"),
        ([on(full)[::2, ::2]], ValueError, "neither along its rows nor down its columns"),
    ):
        with pytest.raises(error, match=words):
            gemv.sharded(parts)
    with pytest.raises(ValueError, match="axis must be 0 or 1"):
        gemv.sharded([on(full)], 2)
    with pytest.raises(TypeError, match="gemv.sharded takes device arrays"):
        gemv.Matrix(on(full), devices=[0])


def test_bad_vectors_leave_everything_as_it_is():
    several = gemv.Matrix(matrix((6, 4)), devices=[0, 0])
    for x, error, words in (
        (cuda.to_device(np.ones(5, np.float32)), ValueError, "x must have 4 elements, got 5"),
        (cuda.to_device(np.ones(4)), TypeError, "x has dtype float64"),
        (cuda.to_device(np.ones((5, 2), np.float32)), ValueError, "x must have 4 rows, got 5"),
        (cuda.to_device(np.ones((4, 2, 1), np.float32)), ValueError, "x must have one or two dim"),
    ):
        with pytest.raises(error, match=words):
            several @ x
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.copy(several)
    assert "2 shards of rows" in repr(several)
    several.free()
    several.free()
    with pytest.raises(ValueError, match="freed"):
        several @ np.ones(4)


def test_a_setting_that_changes_is_noticed():
    a, x = matrix((9, 64)), vector(64)
    several = gemv.Matrix(a, devices=[0, 0])
    before = several @ x
    gemv.use_alignment(False)
    try:
        expected = gemv.Matrix(a).matvec(x)
        assert expected.tobytes() != before.tobytes(), "the setting changes no sum"
        assert (several @ x).tobytes() == expected.tobytes()
    finally:
        gemv.use_alignment(True)


@pytest.fixture
def on_the_host():
    gemv.use_backend("host")
    yield
    gemv.use_backend(None)


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_the_host_computes_in_one_call(dtype):
    a, x, z = matrix((37, 20), dtype), vector(20, dtype), vector(37, dtype)
    for count in range(1, 9):
        with gemv.Matrix(a, devices=[0] * count) as several:
            assert several.matvec(x).tobytes() == gemv.Matrix(a).matvec(x).tobytes()
            assert several.rmatvec(z).tobytes() == gemv.Matrix(a).rmatvec(z).tobytes()
            assert np.allclose(several @ np.stack([x, x], 1), np.stack([a @ x] * 2, 1), rtol=1e-4)
    joined = gemv.sharded(np.split(a, [5, 5, 30]))
    assert joined.matvec(x).tobytes() == gemv.Matrix(a).matvec(x).tobytes()
    assert len(joined.places) == 4 and "4 shards" in repr(joined)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(16384, 16384), (10**6, 100), (7, 10**7), (6001, 5999)], ids=str)
def test_cuts_for_a_gpu_are_even_and_keep_the_bits_within_shards(shape, split, order, dtype):
    m, n = shape
    strides = (n, 1) if order == "C" else (1, m)
    whole = Whole(shape, strides, np.dtype(dtype), 0, H200, split).cut_evenly(4, 1)
    extent = shape[split == "columns"]
    assert whole.bounds[0] == 0 and whole.bounds[-1] == extent
    trans = int(split == "columns")
    assert whole.objection(trans, whole.choice(trans)) is None
    if extent > 1000:
        assert max(np.diff(whole.bounds)) <= (1.1 if split == "rows" else 1.7) * extent / 4
        loose = whole.cut_evenly(4, 1, reproducible=False)
        assert max(np.diff(loose.bounds)) <= 1.1 * extent / 4
    for number in range(4):
        lines, length, pitch, offset = whole.stored(number)
        assert lines * length == np.diff(whole.bounds)[number] * shape[split != "columns"]
        assert pitch >= length and 0 <= offset < 16 and offset % whole.dtype.itemsize == 0


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(4099, 3001), (200_003, 64), (300, 20_001)], ids=str)
def test_one_gpu_that_plays_several_parts(shape, dtype, order):
    check_on([0, 0, 0], shape, dtype, order)


@pytest.mark.gpu
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_plan_is_captured_into_a_graph(split):
    """One GPU plays several parts. The graph is launched with numbers that came after it."""
    from cuda.bindings import driver
    from numba import cuda

    from gemv.driver.libcuda import check
    from gemv.driver.streams import stream_handle

    a = matrix((4099, 3001), np.float32, "C")
    several = gemv.Matrix(a, devices=[0, 0, 0], split=split, reproducible=False)
    stream = cuda.stream()
    x, y = (cuda.to_device(np.zeros(n, np.float32), stream) for n in a.shape[::-1])
    plan = several.plan(x, y)
    handle = stream_handle(stream)
    assert plan.is_graph
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(handle, mode))
    for _ in range(3):
        plan()
    graph = check(driver.cuStreamEndCapture(handle))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    values = np.random.default_rng(4).standard_normal(a.shape[1]).astype(np.float32)
    x.copy_to_device(values, stream)
    y.copy_to_device(np.full(a.shape[0], np.nan, np.float32), stream)
    check(driver.cuGraphLaunch(executable, handle))
    assert y.copy_to_host(stream=stream).tobytes() == several.matvec(values).tobytes()
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))


def two_gpus():
    if backend.backend() != "cuda":
        return False
    from gemv.driver import devices

    backend.engine()
    return devices.count() > 1


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(4099, 3001), (200_003, 64), (300, 20_001)], ids=str)
def test_two_gpus(shape, dtype, order):
    if not two_gpus():
        pytest.skip("needs two GPUs")
    check_on([0, 1], shape, dtype, order)
    check_on([1, 0, 1], shape, dtype, order)


def check_on(devices, shape, dtype, order):
    """Products of host vectors and of vectors on the first GPU, to each place of a result."""
    a = matrix(shape, dtype, order)
    m, n = shape
    one = gemv.Matrix(a)
    for split in ("rows", "columns"):
        for trans, length in ((0, n), (1, m)):
            x = vector(length, dtype)
            form = one if trans == 0 else one.T
            expected = (form @ x).tobytes()
            for gather in ("x", "all", None, devices[-1]):
                several = gemv.Matrix(a, devices=devices, split=split, gather=gather)
                sharded = several if trans == 0 else several.T
                try:
                    assert (sharded @ x).tobytes() == expected
                except ValueError as refusal:
                    assert "bits of one device" in str(refusal)
                    loose = gemv.Matrix(a, devices=devices, split=split, reproducible=False)
                    got = (loose if trans == 0 else loose.T) @ x
                    assert np.allclose(got, form @ x, rtol=1e-3, atol=1e-3 * length**0.5)
                    continue
                for _ in range(7 if gather == "x" else 2):  # one by one, and then as one graph
                    y = sharded @ cuda.to_device(x)
                    if gather is None:
                        got = b"".join(each.copy_to_host().tobytes() for each in y)
                        assert got == expected
                    else:
                        results = y if gather == "all" else [y]
                        assert {each.copy_to_host().tobytes() for each in results} == {expected}
                on_device, y = cuda.to_device(x), cuda.device_array(sharded.shape[0], dtype)
                plan = several.plan(on_device, y, trans)
                for _ in range(3):
                    y.copy_to_device(np.zeros(len(y), dtype))
                    assert plan().copy_to_host().tobytes() == expected
