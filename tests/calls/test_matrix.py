"""A matrix that stays on the device: a linear operator with the bits of gemv."""

from __future__ import annotations

import copy
import pickle
import weakref
from fractions import Fraction

import numpy as np
import pytest
import scipy
from helpers.problems import random_array
from scipy.linalg import blas
from scipy.sparse import linalg

import gemv
from gemv.engines import backend

#: Few launches of one thread each: solvers call the simulator often.
SMALL = {"kernel": "serial"} if gemv.backend() == "simulator" else {}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def matrix(rng, shape, dtype=np.float64, order="C"):
    return np.asarray(random_array(rng, shape, dtype), order=order)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_products_have_the_bits_of_the_call(rng, dtype, order):
    a = matrix(rng, (5, 6), dtype, order)
    x, z = random_array(rng, 6, dtype), random_array(rng, 5, dtype)
    with gemv.Matrix(a) as kept:
        assert kept.shape == (5, 6) and kept.dtype == dtype and kept.ndim == 2
        assert kept.matvec(x).tobytes() == gemv.gemv(1, a, x).tobytes()
        assert kept.rmatvec(z).tobytes() == gemv.gemv(1, a, z, trans=2).tobytes()
        assert kept.T.matvec(z).dtype == dtype
        with np.errstate(invalid="ignore"):  # which NumPy says at times of finite numbers
            expected = a.T @ z
        assert np.allclose(kept.T @ z, expected, rtol=1e-4)
        assert (kept.H @ z).tobytes() == kept.rmatvec(z).tobytes()
        got = kept.gemv(2, x, 0.5, z)
        assert got.tobytes() == gemv.gemv(2, a, x, beta=0.5, y=z).tobytes()
        assert kept.gemv(1, z, trans="T").tobytes() == gemv.gemv(1, a, z, trans=1).tobytes()


def test_columns_are_products_of_their_own(rng):
    a, columns = matrix(rng, (6, 8)), matrix(rng, (8, 3))
    kept = gemv.Matrix(a, **SMALL)
    got = kept @ columns
    assert got.shape == (6, 3)
    for place in range(3):
        assert got[:, place].tobytes() == kept.matvec(columns[:, place]).tobytes()
    assert np.allclose(kept.rmatmat(got), a.T @ got)
    assert (kept @ columns[:, :0]).shape == (6, 0)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("devices", [None, [0, 0]])
def test_what_comes_from_the_gpu_is_not_copied(devices, columns, rng, monkeypatch):
    """The result is the array that the copy from the GPU has made."""
    if gemv.backend() == "host":
        pytest.skip("nothing comes from a GPU")
    kept = gemv.Matrix(matrix(rng, (6, 8)), devices=devices)
    kind, came = type(backend.engine().vectors(1, 1, kept.dtype)), []
    get = kind.get
    monkeypatch.setattr(
        kind, "get", lambda self, stream: came.append(get(self, stream)) or came[-1]
    )
    x = matrix(rng, (8, columns))
    first = kept @ x if columns > 1 else kept.matvec(x[:, 0])
    assert len(came) == 1 and np.shares_memory(first, came[0])
    again = kept @ x if columns > 1 else kept.matvec(x[:, 0])
    assert not np.shares_memory(first, again) and np.array_equal(first, again)


def test_vectors_are_converted_to_the_precision_of_the_matrix(rng):
    a = matrix(rng, (5, 4), np.float32)
    kept = gemv.Matrix(a, **SMALL)
    for x in ([1, 2, 3, 4], np.arange(4.0), np.arange(4, dtype=np.int8)):
        assert (kept @ np.asarray(x)).dtype == np.float32
    x = np.arange(4) + 1j * np.arange(4)[::-1]
    got = kept.matvec(x)
    assert got.dtype == np.complex64
    assert got.real.tobytes() == kept.matvec(x.real).tobytes()
    assert got.imag.tobytes() == kept.matvec(x.imag).tobytes()
    with pytest.raises(TypeError, match="x must hold numbers"):
        kept.matvec(np.array(["a"] * 4))


def test_what_happens_to_the_array_later_has_no_effect(rng):
    a = matrix(rng, (5, 4))
    kept = gemv.Matrix(a, **SMALL)
    before = kept @ np.ones(4)
    a[:] = 0
    assert (kept @ np.ones(4)).tobytes() == before.tobytes()


@pytest.mark.parametrize("given", [np.int32, np.bool_, np.float16, ">f8"])
def test_dtypes_of_the_matrix(given):
    a = np.array([[1, 0], [1, 1]]).astype(given)
    kept = gemv.Matrix(a, **SMALL)
    assert kept.dtype == (np.float32 if given is np.float16 else np.float64)
    assert kept.dtype.isnative
    assert (kept @ np.ones(2)).tolist() == [1.0, 2.0]
    assert gemv.Matrix(a, dtype="complex64").dtype == np.complex64


def test_views_and_other_strides(rng):
    base = matrix(rng, (20, 20))
    for a in (base[::2, 1::3], base[::-1, :7], base.T[3:, ::2], np.broadcast_to(base[0], (4, 20))):
        x = rng.standard_normal(a.shape[1])
        assert np.allclose(gemv.Matrix(a, **SMALL) @ x, a @ x)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 5), (5, 1)])
def test_thin_and_empty_matrices(shape):
    kept = gemv.Matrix(np.ones(shape), **SMALL)
    assert kept.matvec(np.ones(shape[1])).tolist() == [float(shape[1])] * shape[0]
    assert kept.rmatvec(np.ones(shape[0])).tolist() == [float(shape[0])] * shape[1]


def test_free_is_explicit_and_final(rng):
    kept = gemv.Matrix(matrix(rng, (4, 4)), **SMALL)
    assert "freed" not in repr(kept)
    with kept as same:
        assert same is kept
        kept @ np.ones(4)
    assert "freed" in repr(kept)
    kept.free()
    for use in (
        lambda: kept @ np.ones(4),
        lambda: kept.rmatvec(np.ones(4)),
        lambda: kept.gemv(1, np.ones(4)),
        lambda: kept.__enter__(),
    ):
        with pytest.raises(ValueError, match="the matrix was freed"):
            use()


def test_bad_input(rng):
    kept = gemv.Matrix(matrix(rng, (4, 3)), **SMALL)
    with pytest.raises(ValueError, match="Matrix.gemv: x must have 3 elements, got 4"):
        kept.gemv(1, np.ones(4))
    with pytest.raises(ValueError, match="Matrix.gemv: y must have 4 elements, got 3"):
        kept.gemv(1, np.ones(3), 1, np.ones(3))
    with pytest.raises(ValueError, match="trans must be"):
        kept.gemv(1, np.ones(3), trans=3)
    with pytest.raises(TypeError, match="would lose its imaginary part"):
        kept.gemv(1, np.ones(3) * 1j)
    with pytest.raises(ValueError):
        kept.matvec(np.ones(4))
    with pytest.raises(ValueError, match="two dimensions"):
        gemv.Matrix(np.ones(3))
    with pytest.raises(TypeError, match="dtype must be one of float32, "):
        gemv.Matrix(np.ones((3, 3)), dtype="int8")
    with pytest.raises(TypeError, match="lose its imaginary part in float64"):
        gemv.Matrix(np.ones((3, 3)) * 1j, dtype=float)
    with pytest.raises(TypeError, match="longdouble|float128|computed in"):
        gemv.Matrix(np.ones((3, 3), np.longdouble))
    with pytest.raises(ValueError, match="no kernel 'nope'"):
        gemv.Matrix(np.ones((3, 3)), kernel="nope")


class Becomes:
    """An object that has an array to offer, as those of data frames have."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


#: Every way of a vector, or of columns, into a square matrix.
WAYS = {
    "matvec": lambda a, x: a.matvec(x),
    "rmatvec": lambda a, x: a.rmatvec(x),
    "dot": lambda a, x: a.dot(x),
    "@": lambda a, x: a @ x,
    "*": lambda a, x: a * x,
    "call": lambda a, x: a(x),
    "from the left": lambda a, x: x @ a,
    "from the left, *": lambda a, x: x * a,
    "T @": lambda a, x: a.T @ x,
    "H @": lambda a, x: a.H @ x,
    "T.dot": lambda a, x: a.T.dot(x),
    "T.matvec": lambda a, x: a.T.matvec(x),
    "T.rmatvec": lambda a, x: a.T.rmatvec(x),
    "H.rmatvec": lambda a, x: a.H.rmatvec(x),
    "T.H @": lambda a, x: a.T.H @ x,
    "H.T @": lambda a, x: a.H.T @ x,
    "from the left of T": lambda a, x: x @ a.T,
}
OF_COLUMNS = {
    "matmat": lambda a, x: a.matmat(x),
    "rmatmat": lambda a, x: a.rmatmat(x),
    "T.matmat": lambda a, x: a.T.matmat(x),
    "H.rmatmat": lambda a, x: a.H.rmatmat(x),
    **{name: WAYS[name] for name in ("dot", "@", "*", "call", "from the left", "T @", "H @")},
}
ALL_WAYS = [(name, False) for name in WAYS] + [(name, True) for name in OF_COLUMNS]


@pytest.mark.parametrize("name, columns", ALL_WAYS)
def test_masked_vectors_are_refused_as_the_call_refuses_them(name, columns, rng):
    a = matrix(rng, (3, 3))
    values = np.arange(6.0).reshape(3, 2) if columns else np.arange(3.0)
    if columns and name == "from the left":
        values = values.T
    masked = np.ma.masked_equal(values, 1)
    with pytest.raises(TypeError) as caught:
        gemv.gemv(1, a, np.ma.masked_equal(np.arange(3.0), 1))
    said = str(caught.value).replace("gemv: x", "Matrix: x").replace("3rd", "1st")
    kept, way = gemv.Matrix(a, **SMALL), (OF_COLUMNS if columns else WAYS)[name]
    given = [masked]
    if not name.startswith("from the left"):  # where lists and others have operators of their own
        given += [Becomes(masked), list(masked)]
    for x in given:
        with pytest.raises(TypeError) as caught:
            way(kept, x)
        assert str(caught.value) == said
    unmasked = np.ma.array(values)
    assert np.array_equal(way(kept, unmasked), way(kept, values))


def test_masked_arrays_are_refused_by_the_constructor_and_by_gemv(rng):
    masked = np.ma.masked_less(np.arange(9.0).reshape(3, 3), 2)
    with pytest.raises(TypeError, match="Matrix: a is a masked array with 2 masked elements"):
        gemv.Matrix(masked)
    with pytest.raises(TypeError, match="Matrix: a is a masked array with 2 masked elements"):
        gemv.Matrix(Becomes(masked))
    kept = gemv.Matrix(np.eye(3), **SMALL)
    with pytest.raises(TypeError, match="Matrix.gemv: x is a masked array with 2 masked elements"):
        kept.gemv(1, masked[0])
    with pytest.raises(TypeError, match="Matrix.gemv: y is a masked array with 2 masked elements"):
        kept.gemv(1, np.ones(3), 1, masked[0])


class Own(np.ndarray):
    """An array of a class of somebody's own."""


#: From 1.18 on, SciPy's operator of an array fails with a numpy.matrix of one column.
SCIPY_TAKES_MATRICES = tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 18)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
# From 1.18 on, SciPy warns of columns of one vector, for our operator and its own alike.
@pytest.mark.filterwarnings("ignore:Calling `r?matvec` on 'column vectors':FutureWarning")
@pytest.mark.parametrize("name, columns", ALL_WAYS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_operators_are_those_of_scipy(name, columns, dtype, rng):
    """Also for matrices, subclasses, objects with arrays to offer, and numbers of other kinds."""
    a = np.round(4 * matrix(rng, (3, 3), dtype))
    values = np.arange(6).reshape(3, 2) if columns else np.arange(3)
    if columns and name == "from the left":
        values = values.T
    kept, way = gemv.Matrix(a, **SMALL), (OF_COLUMNS if columns else WAYS)[name]
    theirs = linalg.aslinearoperator(a)
    given = [values, values * 1j, values.astype(np.float16), values.view(Own)]
    if not columns:
        given += [values[:, None]] if not name.startswith("from the left") else [values[None, :]]
    if not name.startswith("from the left"):
        if columns or SCIPY_TAKES_MATRICES:
            given += [np.matrix(values if columns else values[:, None])]
        given += [Becomes(values), values.tolist()]
    for x in given:
        got, expected = way(kept, x), way(theirs, x)
        # Newer versions of SciPy keep subclasses, which is no rule that users could count on.
        same = isinstance(got, np.ndarray) if type(x) is Own else type(got) is type(expected)
        assert same and got.shape == expected.shape
        assert np.array_equal(got, expected)
    exact = np.array([Fraction(int(value), 2) for value in values.flat]).reshape(values.shape)
    assert np.array_equal(way(kept, exact), way(theirs, values / 2))


def test_views_of_the_matrix(rng):
    a = matrix(rng, (4, 3), np.complex64)
    kept = gemv.Matrix(a, **SMALL)
    assert kept.T.shape == kept.H.shape == (3, 4) and kept.T.H.shape == (4, 3)
    assert repr(kept.H).startswith("<3x4 conjugate transpose of <4x3 gemv.Matrix of complex64 on")
    assert kept.T.T is kept and kept.H.H is kept and kept.T.dtype == np.complex64
    x = random_array(rng, 4, np.complex64)
    assert (kept.T @ x).tobytes() == gemv.gemv(1, a, x, trans=1, **SMALL).tobytes()
    with pytest.raises(ValueError, match=r"Matrix: x must have 4 elements, got shape \(3,\)"):
        kept.T @ np.ones(3)
    with pytest.raises(ValueError, match="[Ss]calar"):
        kept @ 2
    with pytest.raises(TypeError, match="Matrix: x must be an array, got None"):
        kept @ None
    with pytest.raises(TypeError, match="Matrix: x must hold numbers, got .* that holds None"):
        kept @ [1, 2, None]


def test_device_vectors_and_the_views(rng):
    cuda = pytest.importorskip("numba.cuda")
    for dtype in (np.float64, np.complex128):
        a, x = matrix(rng, (3, 3), dtype), random_array(rng, 3, dtype)
        kept, there = gemv.Matrix(cuda.to_device(a), **SMALL), cuda.to_device(x)
        for turned in (kept.T, kept.H):
            assert (turned @ there).copy_to_host().tobytes() == (turned @ x).tobytes()
        assert kept.H.rmatvec(there).copy_to_host().tobytes() == kept.matvec(x).tobytes()
        if dtype == np.float64:
            assert kept.T.rmatvec(there).copy_to_host().tobytes() == kept.matvec(x).tobytes()
        else:
            with pytest.raises(TypeError, match="conjugate of a complex matrix takes vectors in"):
                kept.T.rmatvec(there)


def test_device_matrix_and_vectors(rng):
    cuda = pytest.importorskip("numba.cuda")
    a, x = matrix(rng, (7, 5)), rng.standard_normal(5)
    on_device = cuda.to_device(a)
    kept = gemv.Matrix(on_device, **SMALL)
    assert kept.array is on_device, "used as it lies there"
    y = kept @ cuda.to_device(x)
    assert y.copy_to_host().tobytes() == kept.matvec(x).tobytes()
    back = kept.rmatvec(y)
    assert np.allclose(back.copy_to_host(), a.T @ (a @ x))
    with pytest.raises(ValueError, match="x must have 5 elements, got 7"):
        kept @ y
    with pytest.raises(TypeError, match="device arrays are never converted"):
        gemv.Matrix(on_device, dtype=np.float32)
    with pytest.raises(TypeError, match="takes vectors in host memory"):
        kept.gemv(1, y)


def test_host_backend(rng):
    a, x = matrix(rng, (7, 5)), rng.standard_normal(5)
    gemv.use_backend("host")
    try:
        with gemv.Matrix(a) as kept:
            assert np.allclose(kept @ x, a @ x)
            assert np.allclose(kept.rmatvec(a @ x), a.T @ (a @ x))
            assert "host" in repr(kept)
        with pytest.raises(ValueError, match="Matrix: kernel='serial' needs a GPU or the simul"):
            gemv.Matrix(a, kernel="serial")
        with pytest.raises(ValueError, match="Matrix: no kernel 'nope'"):
            gemv.Matrix(a, kernel="nope")
    finally:
        gemv.use_backend(None)


@pytest.mark.skipif(gemv.backend() == "host", reason="the host keeps no matrix on a device")
def test_a_matrix_on_a_device_waits_for_its_backend(rng):
    a, x = random_array(rng, (4, 3), np.float64), random_array(rng, (3,), np.float64)
    words = "^Matrix: the matrix lies on a device, but the backend is host by now"
    with gemv.Matrix(a) as kept:
        try:
            with gemv.Matrix(a) as other:
                before = kept @ x
                gemv.use_backend("host")
                for use in (lambda: kept @ x, lambda: kept @ a.T, lambda: kept.gemv(1, x)):
                    with pytest.raises(TypeError, match=words):
                        use()
            assert other.array is None  # the end of the block frees it, whatever the backend is
        finally:
            gemv.use_backend(None)
        assert (kept @ x).tobytes() == before.tobytes()


def test_freed_while_a_product_waits(rng, monkeypatch):
    """Its turn comes after the memory was given back: it must not bring any of that back."""
    if gemv.backend() == "host":
        pytest.skip("nothing waits on the host")
    kept = gemv.Matrix(matrix(rng, (3, 3)), **SMALL)
    engine, on = backend.engine(), type(backend.engine()).on

    def freed_first(self, index):
        kept.array = None
        return on(self, index)

    monkeypatch.setattr(type(engine), "on", freed_first)
    with pytest.raises(ValueError, match="the matrix was freed"):
        kept.matvec(np.ones(3))
    assert not kept._bound


def test_products_run_where_the_matrix_is(rng, monkeypatch):
    """Whatever GPU is current by then: one in host memory went to the one of that time."""
    if gemv.backend() == "host":
        pytest.skip("nothing is on a GPU")
    engine, on, asked = backend.engine(), type(backend.engine()).on, []
    kept = gemv.Matrix(matrix(rng, (3, 3)), **SMALL)
    here = backend.engine().device().index if gemv.backend() == "cuda" else None
    assert kept._device == here
    kept._device = here = 0 if here is None else here

    def note(self, index):
        asked.append(index)
        return on(self, index)

    monkeypatch.setattr(type(engine), "on", note)
    kept.matvec(np.ones(3))
    assert asked[0] == here


def test_no_memory_is_one_clear_error(monkeypatch):
    if gemv.backend() != "cuda":
        pytest.skip("the simulator counts no memory")
    engine = backend.engine()
    monkeypatch.setattr("gemv.driver.memory.is_exhausted", lambda error: True)
    monkeypatch.setattr(engine.transfers, "link", lambda device: 1 / 0)
    with pytest.raises(MemoryError, match=r"Matrix: 4 x 4 float64 take 128 bytes"):
        gemv.Matrix(np.eye(4))


# --------------------------------------------------------------------------------------------------
# solvers


@pytest.fixture
def spd(rng):
    a = rng.standard_normal((12, 12))
    return a @ a.T + 12 * np.eye(12)


@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab", "minres"])
def test_solvers(spd, rng, solver):
    b = rng.standard_normal(12)
    with gemv.Matrix(spd, **SMALL) as a:
        x, info = getattr(linalg, solver)(a, b, rtol=1e-10)
    assert info == 0
    assert np.allclose(spd @ x, b)


def test_eigenvalues_singular_values_least_squares(spd, rng):
    with gemv.Matrix(spd, **SMALL) as a:
        values = linalg.eigsh(a, k=2, return_eigenvectors=False)
    assert np.allclose(np.sort(values), np.linalg.eigvalsh(spd)[-2:])
    tall = rng.standard_normal((20, 8))
    b = rng.standard_normal(20)
    with gemv.Matrix(tall, **SMALL) as a:
        values = linalg.svds(a, k=2, return_singular_vectors=False)
        x = linalg.lsqr(a, b, atol=1e-12, btol=1e-12)[0]
    assert np.allclose(np.sort(values), np.linalg.svd(tall)[1][1::-1])
    assert np.allclose(x, np.linalg.lstsq(tall, b)[0])


def test_operators_are_combined(spd, rng):
    x = rng.standard_normal(12)
    a = gemv.Matrix(spd, **SMALL)
    assert np.allclose((2 * a + a.T) @ x, 3 * spd @ x)
    assert np.allclose((a @ a) @ x, spd @ (spd @ x))
    assert linalg.aslinearoperator(a) is a


@pytest.mark.gpu
@pytest.mark.parametrize("of_cupy", [False, True])
def test_cupy_solvers(of_cupy):
    cupy = pytest.importorskip("cupy")
    from cupyx.scipy.sparse import linalg as gpu_linalg

    rng = np.random.default_rng(0)
    n = 300
    a = rng.standard_normal((n, n))
    a = a @ a.T + n * np.eye(n)
    b = rng.standard_normal(n)
    with gemv.Matrix(cupy.asarray(a) if of_cupy else a) as kept:
        operator = kept.cupy_operator()
        assert isinstance(operator, gpu_linalg.LinearOperator)
        with gemv.trace() as calls:
            x, info = gpu_linalg.cg(operator, cupy.asarray(b), rtol=1e-10)
        assert info == 0 and calls and all(call.backend == "cuda" for call in calls)
        assert isinstance(x, cupy.ndarray)
        assert np.allclose(a @ x.get(), b)
        y = kept @ cupy.asarray(b)
        assert isinstance(y, cupy.ndarray)
        assert y.get().tobytes() == kept.matvec(b).tobytes()
        z = operator.H.matvec(cupy.asarray(b))
        assert z.get().tobytes() == kept.rmatvec(b).tobytes()


@pytest.mark.gpu
def test_torch_vectors():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((50, 70)), rng.standard_normal(70)
    with gemv.Matrix(a) as kept:
        y = kept @ torch.from_numpy(x).cuda()
        assert isinstance(y, torch.Tensor) and y.is_cuda
        assert y.cpu().numpy().tobytes() == kept.matvec(x).tobytes()


def test_free_lets_go_of_the_matrix(rng):
    kept = gemv.Matrix(matrix(rng, (4, 4)), **SMALL)
    kept @ np.ones(4)
    alive = weakref.ref(kept.array)
    kept.free()
    assert alive() is None


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_matrix_stays_in_its_process(copied):
    kept = gemv.Matrix(np.eye(2))
    for operator in (kept, kept.T):
        if operator is kept or copied is not copy.copy:
            with pytest.raises(TypeError, match=r"gemv.Matrix can be neither pickled nor copied"):
                copied(operator)


@pytest.mark.gpu
def test_free_gives_memory_back():
    from numba import cuda

    kept = gemv.Matrix(np.ones((4096, 4096)))
    kept @ np.ones(4096)
    alive = weakref.ref(kept.array.gpu_data)
    kept.free()
    assert alive() is None
    assert len(cuda.current_context().deallocations) == 0, "nothing waits to be freed"


@pytest.mark.gpu
def test_a_matrix_that_does_not_fit():
    with pytest.raises(MemoryError, match=r"Matrix: 1000000 x 1000000 float64 take 8000000000000"):
        gemv.Matrix(np.broadcast_to(1.0, (10**6, 10**6)))


# --------------------------------------------------------------------------------------------------
# get_blas_funcs


@pytest.mark.parametrize("letter", "sdcz")
def test_get_blas_funcs_is_scipys_with_our_gemv(letter):
    dtype = {"s": "f4", "d": "f8", "c": "c8", "z": "c16"}[letter]
    a = np.eye(3, dtype=dtype)
    product, scale = gemv.get_blas_funcs(("gemv", "scal"), (a,))
    assert product is getattr(gemv, letter + "gemv")
    assert scale is getattr(blas, letter + "scal")
    theirs = blas.get_blas_funcs("gemv", (a,))
    for attribute in ("typecode", "prefix", "dtype", "int_dtype"):
        assert getattr(product, attribute) == getattr(theirs, attribute)
    assert gemv.get_blas_funcs("gemv", dtype=dtype) is product
    assert product(1, a, np.ones(3, dtype)).tolist() == [1, 1, 1]


def test_get_blas_funcs_of_several_and_device_arrays():
    assert gemv.get_blas_funcs("gemv") is gemv.dgemv
    mixed = np.ones(2, np.complex64), np.ones(2)
    assert gemv.get_blas_funcs("gemv", mixed) is gemv.zgemv
    cuda = pytest.importorskip("numba.cuda")
    device = cuda.to_device(np.ones((2, 2), np.float32))
    assert gemv.get_blas_funcs(["gemv"], [device]) == [gemv.sgemv]
    with pytest.raises(ValueError, match="could not be found"):
        gemv.get_blas_funcs("nope")


def test_get_blas_funcs_refuses_what_is_no_array_in_words():
    class Wrong:
        __cuda_array_interface__ = {"typestr": None, "data": (0, False), "shape": (), "version": 3}

    with pytest.raises(TypeError, match="get_blas_funcs: an array has a CUDA .* whose typestr is"):
        gemv.get_blas_funcs("gemv", (Wrong(),))


@pytest.mark.parametrize("x", [np.ones(3), np.eye(3)], ids=["one vector", "several"])
def test_a_matrix_that_is_freed_while_a_product_waits_for_it_is_not_used(x):
    matrix = gemv.Matrix(np.eye(3))
    lock = matrix._lock

    class FreedMeanwhile:
        def __enter__(self):
            matrix.array = None
            return lock.__enter__()

        def __exit__(self, *error):
            return lock.__exit__(*error)

    matrix._lock = FreedMeanwhile()
    with pytest.raises(ValueError, match="was freed"):
        matrix @ x


def test_fewer_columns_after_many_have_memory_of_their_own():
    """Vectors on the GPU are kept for each number of them; their pitch follows their number."""
    rng = np.random.default_rng(5)
    matrix = gemv.Matrix(rng.integers(-4, 5, (6, 9)).astype(float))
    many = rng.integers(-4, 5, (9, 16)).astype(float)
    dense = matrix @ np.eye(9)
    for count in (16, 3, 16, 5, 2):
        product = matrix @ many[:, :count]
        np.testing.assert_array_equal(product, dense @ many[:, :count])


def test_a_square_matrix_its_transpose_and_a_beta_without_y():
    a, x = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([1.0, 10.0])
    matrix = gemv.Matrix(a)
    for _ in range(2):
        assert (matrix @ x).tolist() == [21, 53]
        assert (matrix.T @ x).tolist() == [31, 52]
        assert matrix.gemv(1, x, 7.0).tolist() == [21, 53], "a y that is not passed is zero"
