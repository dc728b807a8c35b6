"""Batches: matvec, vecmat and gemv with leading dimensions against NumPy and single calls."""

import math

import numpy as np
import pytest
from helpers.exporters import Export, Interface
from helpers.values import plain, whole

import gemv
from gemv.core.batch import Batch, items_overlap
from gemv.kernels import items
from gemv.selection import batches

needs_device_arrays = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)


def matvec(a, x):
    """NumPy's matvec, which came with 2.2."""
    return np.matmul(plain(a), plain(x)[..., None])[..., 0]


def vecmat(x, a):
    return np.matmul(np.conj(plain(x))[..., None, :], plain(a))[..., 0, :]


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def random_case(rng):
    """Shapes that broadcast, and arrays with them in a random layout."""
    leading = tuple(rng.integers(1, 4, rng.integers(0, 4)))
    m, n = rng.integers(1, 9, 2)

    def some():
        shape = tuple(1 if rng.random() < 0.3 else length for length in leading)
        return shape[rng.integers(0, len(shape) + 1) :]

    def laid_out(shape, dtype):
        array = whole(rng, shape, dtype)
        for axis in range(array.ndim):
            if rng.random() < 0.2:
                array = np.repeat(array, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
            if rng.random() < 0.2:
                array = np.flip(array, axis)
        if array.ndim > 1 and rng.random() < 0.5:
            array = array.swapaxes(-1, -2).copy().swapaxes(-1, -2)
        return array

    dtype = rng.choice(list("fdFDe"))
    a = laid_out((*some(), m, n), dtype)
    return a, laid_out((*some(), n), dtype), laid_out((*some(), m), dtype)


def test_numpy_has_these_functions_with_this_meaning():
    if not hasattr(np, "vecmat"):
        pytest.skip("NumPy has no matvec and vecmat before 2.2")
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, x, z = random_case(rng)
        assert np.array_equal(np.matvec(plain(a), plain(x)), matvec(a, x))
        assert np.array_equal(np.vecmat(plain(z), plain(a)), vecmat(z, a))


@pytest.mark.parametrize("seed", range(12))
def test_random_broadcasts_and_layouts(everywhere, seed):
    rng = np.random.default_rng(seed)
    for _ in range(8 if everywhere == "host" else 2):
        a, x, z = random_case(rng)
        for ours, wanted in (
            (gemv.matvec(a, x), matvec(a, x)),
            (gemv.vecmat(z, a), vecmat(z, a)),
        ):
            assert ours.shape == wanted.shape and ours.dtype == a.dtype
            assert np.array_equal(plain(ours), wanted), (a.shape, x.shape, z.shape, a.dtype)


def test_one_number_may_stand_for_all_elements_of_x(everywhere):
    """A vector of stride 0, as `broadcast_to` makes one."""
    rng = np.random.default_rng(3)
    a = whole(rng, (3, 4, 5), "d")
    for shape, x in (((3, 5), np.float64(2)), ((5,), np.float64(3)), ((3, 5), np.ones((3, 1)))):
        wide = np.broadcast_to(x, shape)
        assert np.array_equal(gemv.matvec(a, wide), matvec(a, wide))
    assert np.array_equal(gemv.vecmat(np.broadcast_to(2.0, 4), a), vecmat(np.full(4, 2.0), a))


def test_elements_that_overlap_in_part_are_not_one(everywhere):
    """A stride of fewer bytes than an element has is none of 0."""
    values = np.arange(10.0)
    x = np.lib.stride_tricks.as_strided(values, (2, 4), (8, 4))
    a = np.arange(24.0).reshape(2, 3, 4)
    assert np.array_equal(gemv.matvec(a, x), matvec(a, x.copy()))
    backwards = x[:, ::-1]
    assert np.array_equal(gemv.matvec(a, backwards), matvec(a, backwards.copy()))


def test_factors_of_items_and_a_y_that_is_read(everywhere):
    rng = np.random.default_rng(2)
    a, x, y = (whole(rng, shape, "d") for shape in ((3, 1, 4, 5), (2, 5), (3, 2, 4)))
    alpha, beta = whole(rng, (3, 1), "d"), whole(rng, (2,), "d")
    wanted = alpha[..., None] * matvec(a, x) + beta[..., None] * y
    out = y.copy()
    assert gemv.matvec(a, x, out, alpha=alpha, beta=beta) is out
    assert np.array_equal(out, wanted)
    z = gemv.gemv(alpha, a, x, beta, y)
    assert np.array_equal(z, wanted) and not np.array_equal(z, y)
    z = gemv.gemv(2.0, a, np.repeat(x, 2, -1), beta, y, incx=-2, incy=-1, trans=0)
    assert np.array_equal(z, 2 * matvec(a, x[:, ::-1])[..., ::-1] + beta[..., None] * y)
    z = gemv.gemv(1.0, a, y, offy=1, incy=2, trans="T")
    assert z.shape == (3, 2, 10) and not z[..., ::2].any()
    assert np.array_equal(z[..., 1::2], vecmat(y, a))


def test_a_beta_of_zero_reads_no_y_and_an_alpha_of_zero_no_product(everywhere):
    a, x = np.ones((3, 2, 2)), np.ones((3, 2))
    a[1], out = np.nan, np.full((3, 2), 7.0)
    out[0] = np.nan
    gemv.matvec(a, x, out, alpha=[1.0, 0.0, 1.0], beta=[0.0, 2.0, 1.0])
    assert np.array_equal(out, [[2, 2], [14, 14], [9, 9]])
    for stored in (a, np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)):
        made = gemv.matvec(stored, x, alpha=[1.0, 0.0, 1.0])
        assert np.array_equal(made, [[2, 2], [0, 0], [2, 2]])


def test_an_alpha_of_zero_still_scales_y(everywhere):
    a, x = np.full((2, 3, 4), np.nan), np.ones((2, 4))
    out = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(gemv.matvec(a, x, out, alpha=0, beta=2), 2 * np.arange(6).reshape(2, 3))
    assert np.array_equal(gemv.matvec(a, x, out, alpha=0, beta=1), 2 * np.arange(6).reshape(2, 3))
    assert np.array_equal(gemv.matvec(a, x, out, alpha=0), np.zeros((2, 3)))


def test_nan_stays_in_its_item(everywhere):
    rng = np.random.default_rng(3)
    a, x = whole(rng, (5, 6, 7), "f"), whole(rng, (5, 7), "f")
    wanted = matvec(a, x)
    a[2, 3, 1] = np.nan
    x[4, 0] = np.inf
    got = gemv.matvec(a, x)
    clean = [0, 1, 3]
    assert np.array_equal(got[clean], wanted[clean])
    assert np.isnan(got[2]).tolist() == [False] * 3 + [True] + [False] * 2


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 3, 4), (2, 0, 0)])
def test_empty_batches_and_items(everywhere, shape):
    a = np.ones(shape)
    x, z = np.ones((*shape[:-2], shape[-1])), np.ones((*shape[:-2], shape[-2]))
    for ours, wanted in ((gemv.matvec(a, x), matvec(a, x)), (gemv.vecmat(z, a), vecmat(z, a))):
        assert ours.shape == wanted.shape and np.array_equal(ours, wanted)
    out = np.full(z.shape, 3.0)
    assert np.array_equal(gemv.matvec(a, x, out, beta=2), matvec(a, x) + 6)


def test_many_items_on_the_host():
    gemv.use_backend("host")
    try:
        a = np.arange(70_000.0 * 2).reshape(-1, 2, 1)
        assert np.array_equal(gemv.matvec(a, [2.0]), 2 * a[..., 0])
    finally:
        gemv.use_backend(None)


def test_more_items_than_a_launch_takes(monkeypatch):
    if gemv.backend() == "host":
        pytest.skip("no launches")
    monkeypatch.setattr(batches, "MOST_ITEMS", 3)
    rng = np.random.default_rng(4)
    a, x = whole(rng, (7, 70, 3), "f"), whole(rng, (7, 3), "f")
    with gemv.trace() as calls:
        assert np.array_equal(gemv.matvec(a, x), matvec(a, x))
    depths = [call.geometry.launches[0].grid[2] for call in calls]
    assert depths == [3, 3, 1] or len(calls) == 1 < depths[0]
    # Neither dimension can be joined with the next one: a part of the outer one at a time.
    a, x = whole(rng, (4, 2, 3, 70, 3), "f"), whole(rng, (4, 1, 3, 3), "f")
    assert np.array_equal(gemv.matvec(a, x), matvec(a, x))


@needs_device_arrays
@pytest.mark.parametrize("dtype", "fFe")
def test_device_arrays(dtype):
    rng = np.random.default_rng(5)
    a, x, z = (whole(rng, shape, dtype) for shape in ((3, 4, 5), (2, 1, 5), (3, 4)))
    on_device = to_device(a)
    y = gemv.matvec(on_device, to_device(x))
    assert type(y) is type(on_device) and y.shape == (2, 3, 4)
    assert np.array_equal(plain(y.copy_to_host()), matvec(a, x))
    assert np.array_equal(plain(gemv.vecmat(to_device(z), on_device).copy_to_host()), vecmat(z, a))
    out = to_device(np.ones((2, 3, 4), dtype))
    numbers = "f" if dtype == "e" else dtype
    beta = to_device(np.array([[2.0], [0.0]], numbers))
    assert gemv.matvec(on_device, to_device(x), out, beta=beta) is out
    wanted = matvec(a, x) + np.array([2, 0]).reshape(2, 1, 1)
    assert np.array_equal(plain(out.copy_to_host()), wanted)
    old = to_device(np.ones((2, 3, 4), dtype))
    y = gemv.gemv(1, on_device, to_device(x), 2, old)
    assert np.array_equal(plain(y.copy_to_host()), matvec(a, x) + 2)
    assert (plain(old.copy_to_host()) == 1).all()


class Silent:
    """An array in host memory that says nothing of itself but what is given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


#: Arrays of which no attribute `ndim` tells how many dimensions they have.
WITHOUT_NDIM = {
    "cuda_array_interface": Interface,
    "dlpack": Export,
    "array_interface": lambda a: Silent(__array_interface__=a.__array_interface__, keep=a),
    "shape": lambda a: type("Shaped", (Silent,), {"__array__": lambda self, *_, **__: self.keep})(
        shape=a.shape, keep=a
    ),
    "list": lambda a: [tuple(item) for item in a],
}


@pytest.mark.parametrize("name", WITHOUT_NDIM)
def test_an_array_without_ndim_is_a_batch(name):
    on_device = name in ("cuda_array_interface", "dlpack")
    if on_device and gemv.backend() != "simulator":
        pytest.skip("a stand-in for a device array has its memory on the host")
    rng = np.random.default_rng(8)
    a, x = whole(rng, (3, 4, 5), "f"), whole(rng, (3, 5), "f")
    given = WITHOUT_NDIM[name](a)
    assert not hasattr(given, "ndim")
    y = gemv.gemv(1, given, Interface(x) if on_device else x)
    assert np.array_equal(y.copy_to_host() if on_device else y, matvec(a, x))


@needs_device_arrays
def test_empty_device_arrays():
    a = to_device(np.ones((0, 3, 4), "f"))
    assert gemv.matvec(a, to_device(np.ones(4, "f"))).shape == (0, 3)
    a, out = to_device(np.ones((2, 3, 0), "f")), to_device(np.ones((2, 3), "f"))
    gemv.matvec(a, to_device(np.ones((2, 0), "f")), out, beta=3)
    assert (out.copy_to_host() == 3).all()


def bits(values):
    return np.ascontiguousarray(values).view(np.uint8).tobytes()


SHAPES = [(4, 4), (5, 3), (17, 5), (33, 7), (3, 40), (40, 33)]


@needs_device_arrays
@pytest.mark.parametrize("m, n", SHAPES)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("trans", [0, 1])
def test_an_item_has_the_bits_of_the_single_call(m, n, order, trans):
    rng = np.random.default_rng([m, n])
    a = rng.standard_normal((3, m, n)).astype("f")
    if order == "F":
        a = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    x = rng.standard_normal((3, n if trans == 0 else m)).astype("f")
    alpha = np.array([1.5, -0.5, 1.0], "f")
    with gemv.trace() as calls:
        got = gemv.gemv(alpha, a, x, trans=trans)
    is_small = max(m, n) <= 32
    assert (calls[0].kernel == "small_items") == is_small
    for item in range(3):
        single = gemv.gemv(alpha[item], a[item], x[item], trans=trans)
        own = slice(item, item + 1)
        alone = gemv.gemv(alpha[own], a[own], x[own], trans=trans)
        # Larger items may not share the alignment that a single call's copy has.
        if is_small or a[0].nbytes % 16 == 0 and x[0].nbytes % 16 == 0:
            assert bits(got[item]) == bits(alone[0]), item
            assert bits(got[item]) == bits(single), item
        assert np.allclose(got[item], single, rtol=1e-4, atol=1e-5)


@needs_device_arrays
@pytest.mark.parametrize("m, n", [(8, 8), (17, 5), (32, 32)])
@pytest.mark.parametrize("dtype", ["f", "D"])
def test_a_vector_of_a_small_matrix_has_the_bits_of_the_single_call_however_many_there_are(
    m, n, dtype
):
    rng = np.random.default_rng([m, n])
    a, x = rng.standard_normal((m, n)).astype(dtype), rng.standard_normal((3, n)).astype(dtype)
    single = [bits(gemv.gemv(1, a, vector)) for vector in x]
    for count in (1, 2, 3):
        assert [bits(y) for y in gemv.matvec(a, x[:count])] == single[:count], count
    assert bits(gemv.matvec(a, x[0])) == single[0]


@needs_device_arrays
def test_items_with_one_small_matrix_have_the_bits_of_the_single_call():
    """The matrix has a leading dimension of stride 0, as broadcasting makes it."""
    rng = np.random.default_rng(10)
    a, x = rng.standard_normal((9, 7)).astype("f"), rng.standard_normal((3, 7)).astype("f")
    with gemv.trace() as calls:
        y = gemv.matvec(np.broadcast_to(a, (3, 9, 7)), x)
    assert [call.kernel for call in calls] == ["several_small"]
    assert [bits(each) for each in y] == [bits(gemv.gemv(1, a, vector)) for vector in x]


REFUSED = {
    "lengths of x": (lambda: gemv.matvec(np.ones((2, 3, 4)), np.ones((2, 3))), "4 columns"),
    "lengths of out": (
        lambda: gemv.vecmat(np.ones((2, 3)), np.ones((2, 3, 4)), np.ones((2, 3))), "4 columns",
    ),
    "batches": (
        lambda: gemv.matvec(np.ones((2, 3, 4)), np.ones((3, 4))),
        "dimension 0 of the batch is 2 for a but 3 for x",
    ),
    "an out of another batch": (
        lambda: gemv.matvec(np.ones((2, 3, 4)), np.ones(4), np.ones((1, 3))), "cannot hold",
    ),
    "an out with shared items": (
        lambda: gemv.matvec(
            np.ones((2, 3, 4)), np.ones(4), np.lib.stride_tricks.as_strided(
                np.zeros(5), (2, 3), (8, 8))),
        "share elements",
    ),
    "an out whose items share bytes": (
        lambda: gemv.matvec(np.ones((2, 3, 4)), np.ones(4), np.lib.stride_tricks.as_strided(
            np.zeros(16), (2, 3), (4, 16))),
        "share elements",
    ),
    "a read-only out": (
        lambda: gemv.matvec(np.ones((2, 3, 4)), np.ones(4), np.broadcast_to(np.zeros(3), (2, 3))),
        "read-only",
    ),
    "beta without out": (lambda: gemv.matvec(np.eye(2), np.ones(2), beta=1), "beta needs out"),
    "a vector for a": (lambda: gemv.matvec(np.ones(3), np.ones(3)), "at least two dimensions"),
    "a number for x": (lambda: gemv.matvec(np.eye(2), 1.0), "at least one dimension"),
    "one matrix's options": (
        lambda: gemv.gemv(1, np.ones((2, 2, 2)), np.ones(2), coefficients="constant"),
        "a matrix of two dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        call()


def test_an_out_that_overlaps_is_refused():
    a = np.ones((2, 3, 3))
    for out, x, name in ((a[:, 0], np.ones(3), "a"), (np.ones((2, 3)), None, "x")):
        with pytest.raises(ValueError, match=f"overlaps {name}"):
            gemv.matvec(a, out if x is None else x, out)


def test_an_out_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match="out has dtype float32"):
        gemv.matvec(np.ones((2, 3, 4)), np.ones(4), np.ones((2, 3), "f"))
    out = np.array([3.0, 4.0], object)
    with pytest.raises(TypeError, match="out has dtype object, but the result has float64"):
        gemv.matvec(np.eye(2), np.ones(2), out)
    assert out.tolist() == [3.0, 4.0]


@needs_device_arrays
def test_host_beside_device_arrays_is_refused():
    with pytest.raises(TypeError, match="in host memory"):
        gemv.matvec(to_device(np.ones((2, 3, 4))), np.ones(4))
    with pytest.raises(ValueError, match="stream only applies"):
        gemv.matvec(np.ones((2, 3, 4)), np.ones(4), stream=0)


def test_the_count_of_items_is_not_limited_by_32_bits():
    """Broadcast dimensions are strides of 0, so this batch has no memory but that of its shape."""
    batch = Batch((1 << 20, 1 << 16), ((1 << 40, 0), (0, 1), (1 << 36, 1 << 4), (0, 0), (0, 0)))
    part, offsets = list(batch._replace(shape=(3, 1 << 16)).parts(2, 1 << 16))[-1]
    assert part.shape == (1, 1 << 16) and offsets == (1 << 41, 0, 1 << 37, 0, 0)
    assert batch.items == 1 << 36 == math.prod(batch.shape)


def test_items_that_share_memory():
    assert not items_overlap((3,), (4,), 4, 1) and items_overlap((3,), (3,), 4, 1)
    assert not items_overlap((3,), (1,), 4, 3) and items_overlap((4,), (1,), 4, 3)
    assert not items_overlap((2,), (8,), 3, 16, 8)
    for step in (1, 4, 7):  # bytes
        assert items_overlap((2,), (step,), 3, 16, 8)


def test_dimensions_are_joined_where_that_leads_to_the_same_places():
    still = (0, 0, 0)
    batch = Batch((2, 3, 4), ((12, 4, 1), still, (24, 8, 2), still, still))
    assert batch.collapsed() == Batch((24,), ((1,), (0,), (2,), (0,), (0,)))
    batch = Batch((2, 3, 4), ((12, 4, 1), (1, 0, 0), (24, 8, 2), still, still))
    assert batch.collapsed().shape == (2, 12)
    assert Batch((1, 1), ((0, 0),) * 5).collapsed().shape == (1,)


@needs_device_arrays
@pytest.mark.parametrize("name", ["a", "x", "y"])
def test_a_mistake_in_a_stride_is_seen(name, monkeypatch):
    """What the tests above compare would differ if an operand's items lay elsewhere."""
    rng = np.random.default_rng(6)
    a, x = whole(rng, (3, 70, 3), "d"), whole(rng, (3, 3), "d")
    right = items.sizes_of_items

    def wrong(geometry, batch):
        sizes = dict(right(geometry, batch))
        sizes[f"{name}_step_0"] = 0
        return sizes

    assert np.array_equal(gemv.matvec(a, x), matvec(a, x))
    monkeypatch.setattr(items, "sizes_of_items", wrong)
    assert not np.array_equal(gemv.matvec(a, x), matvec(a, x))


@needs_device_arrays
def test_one_factor_for_all_is_seen(monkeypatch):
    rng = np.random.default_rng(7)
    a, x, alpha = whole(rng, (3, 70, 3), "d"), whole(rng, (3, 3), "d"), np.array([1.0, 2.0, 3.0])
    wanted = alpha[:, None] * matvec(a, x)
    assert np.array_equal(gemv.matvec(a, x, alpha=alpha), wanted)
    assert not np.array_equal(gemv.matvec(a, x, alpha=alpha[::-1].copy()), wanted)


@needs_device_arrays
@pytest.mark.parametrize("dtype", "fF")
def test_columns_of_a_matrix_have_the_bits_of_single_products(dtype):
    rng = np.random.default_rng(8)
    values = rng.standard_normal((2, 35, 40)).view("D")[0] if dtype == "F" else (
        rng.standard_normal((35, 20))
    )  # fmt: skip
    x = rng.standard_normal((20, 18))
    with gemv.Matrix(values.astype(dtype)) as a, gemv.trace() as calls:
        y = a @ x
        z = a.rmatmat(y)
        assert len(calls) == 2 * 2  # 16 columns, and 2
        for column in range(18):
            assert bits(y[:, column]) == bits(a @ x[:, column])
            assert bits(z[:, column]) == bits(a.rmatvec(y[:, column]))


@needs_device_arrays
def test_columns_of_a_small_matrix_have_the_bits_of_single_products():
    """The matrix is read once; if each item had its own, they would have another kernel."""
    rng = np.random.default_rng(9)
    values, x = rng.standard_normal((9, 7)).astype("f"), rng.standard_normal((7, 3)).astype("f")
    with gemv.Matrix(values) as a, gemv.trace() as calls:
        y = a @ x
        assert [call.kernel for call in calls] == ["several_small"]
        for column in range(3):
            assert bits(y[:, column]) == bits(a @ x[:, column])
    with gemv.trace() as calls:
        gemv.matvec(np.stack([values] * 3), x.T)
    assert [call.kernel for call in calls] == ["small_items"]
