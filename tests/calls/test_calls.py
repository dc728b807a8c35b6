"""The calls against SciPy's, corner by corner, and what is ours alone."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import itertools
import pickle
import warnings

import numpy as np
import pytest
import scipy
from helpers.problems import transposed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import blas

import gemv
import gemv.blas
import gemv.engines.backend
import gemv.engines.host
from gemv.core import memo

NAMES = ("sgemv", "dgemv", "cgemv", "zgemv")
DTYPES = dict(zip(NAMES, "fdFD", strict=True))
#: Before 1.18 SciPy's new array for y was a plain one, whatever the class of y.
SCIPY_KEEPS_CLASS = tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 18)
OURS = {name: getattr(gemv, name) for name in NAMES}
SCIPY = {name: getattr(blas, name) for name in NAMES}

needs_device_arrays = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)
every_routine = pytest.mark.parametrize("name", NAMES)


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def random(rng, shape, dtype):
    """Numbers in [-1, 1], whole ones in both parts when complex."""
    values = rng.uniform(-1, 1, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return np.asarray(values).astype(dtype)


def ran(calls):
    """Assert that exactly one kernel of ours computed."""
    assert [call.backend for call in calls] == [gemv.backend()]
    assert calls[0].backend != "host" and calls[0].geometry.launches


def outcome(function, *args, **kwargs):
    """``("value", result)`` or ``("error", exception)``."""
    try:
        return "value", function(*args, **kwargs)
    except Exception as error:  # SciPy 1.x raises a class of its own that is no ValueError
        return "error", error


def place_of(error):
    """The argument that an error names, in SciPy's words."""
    text = str(error)
    at = text.find("failed for ")
    return " ".join(text[at:].split()[2:5]).rstrip(":)") if at >= 0 else None


def bound(dtype, alpha, a, x, beta, y, trans):
    """How far two right answers may be apart, for vectors as BLAS sees them."""
    wide = np.longdouble
    matrix = np.abs(a).astype(wide)
    matrix = matrix.T if trans else matrix
    terms = abs(alpha) * (matrix @ np.abs(x).astype(wide)) + abs(beta) * np.abs(y).astype(wide)
    eps = np.finfo(dtype).eps
    return 4 * (matrix.shape[1] + 3) * eps * terms + np.finfo(dtype).tiny


def walk(vector, count, off, inc):
    """Elements that BLAS uses, in its order."""
    used = vector[off : off + (count - 1) * abs(inc) + 1 : abs(inc)]
    return used if inc > 0 else used[::-1]


def compare(name, alpha, a, x, beta=0, y=None, offx=0, incx=1, offy=0, incy=1, trans=0):
    """Ours and SciPy's both raise, for one reason, or agree within the bound; gaps bit for bit."""
    dtype = DTYPES[name]
    arguments = (alpha, a, x, beta, y, offx, incx, offy, incy, trans)
    before = [np.array(v, copy=True) for v in (a, x) + (() if y is None else (y,))]
    kind, theirs = outcome(SCIPY[name], *arguments)
    with gemv.trace() as calls:
        our_kind, ours = outcome(OURS[name], *arguments)
    assert our_kind == kind, (arguments, ours, theirs)
    for old, new in zip(before, (a, x) + (() if y is None else (y,)), strict=True):
        assert np.array_equal(old, new, equal_nan=True)
    if kind == "error":
        assert isinstance(ours, ValueError) and str(ours).startswith(name)
        if place_of(theirs):
            assert place_of(ours) == place_of(theirs), (arguments, ours, theirs)
        return
    assert ours.dtype == theirs.dtype == dtype and ours.shape == theirs.shape
    m, n = a.shape
    rows, cols = (n, m) if trans else (m, n)
    if rows == 0 or cols == 0 or (alpha == 0 and beta == 1):
        assert not calls
        assert ours.tobytes() == theirs.tobytes()
        return
    ran(calls)
    start = np.zeros(ours.shape, dtype) if y is None else np.asarray(y).astype(dtype)
    used = np.zeros(len(start), bool)
    walk(used, rows, offy, incy)[:] = True
    assert ours[~used].tobytes() == theirs[~used].tobytes() == start[~used].tobytes()
    limit = bound(
        dtype, alpha, a, walk(x, cols, offx, incx), beta, walk(start, rows, offy, incy), trans
    )
    difference = np.abs(walk(ours, rows, offy, incy) - walk(theirs, rows, offy, incy))
    assert (difference <= limit).all(), (arguments, difference, limit)


# Against SciPy -------------------------------------------------------------------------------


@every_routine
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_increments_and_offsets(name, trans):
    rng = np.random.default_rng(1)
    dtype = DTYPES[name]
    for order, incx, incy in itertools.product("CF", (1, -1, 2, -3), (1, -1, 3, -2)):
        a = np.asarray(random(rng, (3, 2), dtype), order=order)
        offx, offy = rng.integers(0, 3, 2).tolist()
        x, y = random(rng, 12, dtype), random(rng, 12, dtype)
        compare(name, 1.5, a, x, 0.5, y, offx, incx, offy, incy, trans)
        compare(name, 1.5, a, x, 0.5, None, offx, incx, offy, incy, trans)


@every_routine
def test_coefficients(name):
    rng = np.random.default_rng(2)
    dtype = DTYPES[name]
    values = [0, 1, -1, 2.5, np.float64(0.1), np.array(3), True]
    if dtype in "FD":
        values += [1j, 0.5 - 2j]
    a, x, y = random(rng, (2, 3), dtype), random(rng, 3, dtype), random(rng, 2, dtype)
    for alpha, beta in itertools.product(values, values):
        compare(name, alpha, a, x, beta, y)


@pytest.mark.parametrize("shape", [(0, 0), (0, 1), (1, 0), (0, 3), (3, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("trans", [0, 1])
def test_lengths(shape, trans, capfd):
    """Every combination near the edge: which raise, which return y, and what y is by default."""
    for lx, ly, inc, off in itertools.product((0, 1, 3, 5), (None, 0, 1, 3, 5), (1, -2), (0, 1)):
        y = None if ly is None else np.arange(ly, dtype="f")
        x = np.ones(lx, "f")
        compare("sgemv", 2, np.ones(shape, "f"), x, 3, y, off, inc, off, inc, trans)
    capfd.readouterr()  # reference BLAS prints what it thinks of m = 0


@pytest.mark.parametrize(
    "changes",
    [
        dict(offx=-1), dict(offy=-1), dict(offx=3), dict(offy=2), dict(incx=0), dict(incy=0),
        dict(incx=2), dict(incx=-2), dict(incy=2), dict(incy=-2), dict(trans=3), dict(trans=-1),
        dict(trans=1, x=np.ones(1)), dict(alpha=0, incx=3), dict(alpha=0, beta=1, incy=3),
        dict(incx=0, incy=0), dict(trans=9, incx=0), dict(incy=0, offx=-1),
        dict(offx=-1, offy=-1), dict(x=np.ones(1), y=np.ones(1)), dict(y=None, offy=-1),
    ],
    ids=str,
)  # fmt: skip
def test_both_raise_for_the_same_argument(changes):
    arguments = dict(alpha=1, a=np.ones((2, 3)), x=np.ones(3), beta=1, y=np.ones(2), **{})
    arguments.update(changes)
    kind, theirs = outcome(blas.dgemv, **arguments)
    our_kind, ours = outcome(gemv.dgemv, **arguments)
    assert (kind, our_kind) == ("error", "error")
    assert isinstance(ours, ValueError)
    assert str(ours).startswith("dgemv: ")
    assert place_of(ours) == place_of(theirs)
    assert np.array_equal(arguments["y"], np.ones(2)) or arguments["y"] is None or "y" in changes


@every_routine
def test_nonfinite(name):
    """What reaches y and what does not; data of one sign, so that no order of summing matters."""
    dtype = DTYPES[name]
    nan, inf = np.nan, np.inf
    plain = (np.full((2, 3), 0.5, dtype), np.ones(3, dtype), np.ones(2, dtype))
    cases = []
    for value in (nan, inf):
        for position in range(3):
            a, x, y = (v.copy() for v in plain)
            (a, x, y)[position].flat[0] = value
            cases += [(1, a, x, 0, y), (1, a, x, 2, y), (0, a, x, 0, y), (0, a, x, 2, y)]
            cases += [(1, a, np.zeros(3, dtype), 1, y), (0, a, x, 1, y)]
        a, x, y = (np.full_like(v, value) for v in plain)
        cases += [(value, *plain[:2], 1, plain[2]), (1, *plain[:2], value, plain[2])]
        cases += [(1, *plain[:2], value, None), (-0.0, a, x, 2, plain[2])]
        cases += [(1, *plain[:2], -0.0, y)]
    for alpha, a, x, beta, y in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            theirs = SCIPY[name](alpha, a, x, beta, y)
        ours = OURS[name](alpha, a, x, beta, y)
        if dtype in "fd":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        else:
            # What inf times a complex number is, in its two parts, differs between compilers.
            np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))


def test_beta_zero_overwrites_nan_and_alpha_zero_reads_nothing():
    nan = np.full((2, 2), np.nan)
    assert gemv.dgemv(1, np.eye(2), [1, 2], 0, nan[0]).tolist() == [1, 2]
    assert gemv.dgemv(0, nan, nan[0], 0, nan[1]).tolist() == [0, 0]
    assert gemv.dgemv(0, nan, nan[0], 2, [1, 2]).tolist() == [2, 4]


def test_nothing_to_do_keeps_every_bit():
    payload = np.array([0x7FA00001, 0x80000000, 0x7F800000], "u4").view("f")
    for arguments in (
        (0, np.ones((3, 2), "f"), [1, 1], 1, payload),
        (2, np.ones((3, 0), "f"), [1], 5, payload),
        (np.nan, np.ones((0, 3), "f"), [1, 1, 1], np.nan, payload),
    ):
        with gemv.trace() as calls:
            result = gemv.sgemv(*arguments)
        assert result.tobytes() == payload.tobytes() and not calls
        assert not np.shares_memory(result, payload)
        assert gemv.sgemv(*arguments, overwrite_y=1) is payload


def test_y_is_made_of_zeros_with_gaps():
    assert gemv.dgemv(1, [[1, 2]] * 2, [1, 1], np.nan, offy=1, incy=-2).tolist()[::2] == [0, 0]
    result = gemv.dgemv(1, [[1, 2], [3, 4]], [1, 1], offy=1, incy=-2)
    assert result.tolist() == [0, 7, 0, 3]


def test_huge_increments():
    """SciPy must not be asked: its 32-bit arithmetic overflows and the process dies."""
    a, x, y = np.ones((3, 3)), np.ones(5), np.ones(5)
    for huge in (2**30, -(2**30), 2**31 - 1, 2**62, -(2**63), 2**80):
        with pytest.raises(ValueError, match=r"x is too short: .*3rd argument x"):
            gemv.dgemv(1, a, x, incx=huge)
        with pytest.raises(ValueError, match=r"y is too short: .*2nd keyword y"):
            gemv.dgemv(1, a, x, 1, y, incy=huge)
        assert gemv.dgemv(1, [[2.0]], x, 1, y, incx=huge, incy=huge).tolist() == [3, 1, 1, 1, 1]
    assert y.tolist() == [1] * 5
    for huge in (2**62, -(2**80)):
        with pytest.raises(ValueError, match="too large.*2nd keyword y"):
            gemv.dgemv(1, a, x, incy=huge)


ORDINARY = (
    lambda v: v,
    lambda v: v.tolist(),
    lambda v: v.astype("i2"),
    lambda v: v.astype(v.dtype.newbyteorder()),
    lambda v: np.repeat(v, 2, axis=-1)[..., ::2],
    lambda v: v[..., ::-1].copy()[..., ::-1],
    lambda v: np.frombuffer(b"x" + v.tobytes(), v.dtype, offset=1).reshape(v.shape),
    lambda v: np.array(v, order="F"),
    lambda v: v.astype("e"),
    lambda v: v.astype("g"),
    lambda v: np.rec.fromarrays([v.astype("u1"), v])["f1"],
)


@every_routine
@pytest.mark.parametrize("form", range(len(ORDINARY)))
def test_host_forms(name, form):
    make = ORDINARY[form]
    a = make(np.arange(6, dtype="d").reshape(2, 3))
    x, y = make(np.arange(3, dtype="d")), make(np.arange(2, dtype="d"))
    with gemv.trace() as calls:
        ours = OURS[name](2, a, x, 3, y)
    ran(calls)
    theirs = SCIPY[name](2, a, x, 3, y)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(
        OURS[name](2, a, y, 3, x, trans=1), SCIPY[name](2, a, y, 3, x, trans=1)
    )


@pytest.mark.parametrize("shape", [(3, 1), (1, 3)], ids=str)
def test_single_column_or_row(shape):
    a, v = np.arange(9.0).reshape(3, 3), np.arange(3.0).reshape(shape)
    for y in (v, v.tolist(), v.astype("f"), v.view(np.ma.MaskedArray)):
        ours, theirs = gemv.dgemv(1, a, v, 1, y), blas.dgemv(1, a, v, 1, y)
        assert ours.shape == theirs.shape == shape and type(ours) is type(np.asanyarray(y))
        assert type(theirs) is type(ours) or not SCIPY_KEEPS_CLASS
        np.testing.assert_array_equal(ours, theirs)
    y = v.copy()
    assert gemv.dgemv(1, a, v, 1, y, overwrite_y=1) is y
    np.testing.assert_array_equal(y, theirs)


def test_float32_overflow_in_a_cast_warns_as_numpy_does():
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        assert gemv.sgemv(1, [[1.0]], np.array([1e300])).tolist() == [np.inf]
    assert gemv.sgemv(1e300, [[1.0]], [1.0]).tolist() == [np.inf]


# overwrite_y on the host ---------------------------------------------------------------------


@every_routine
def test_overwrite_in_place(name):
    y = np.ones(5, DTYPES[name])
    result = OURS[name](2, [[1, 2]], [1, 1], 1, y, offy=3, overwrite_y=1)
    assert result is y and y.tolist() == [1, 1, 1, 7, 1]


class Subclass(np.ndarray):
    pass


NOT_IN_PLACE = {
    "other_dtype": np.ones(2, "d"),
    "integers": np.ones(2, "i"),
    "strided": np.ones(4, "f")[::2],
    "reversed": np.ones(2, "f")[::-1],
    "swapped": np.ones(2, np.dtype("f").newbyteorder()),
    "unaligned": np.frombuffer(bytearray(9), "u1")[1:].view("f") * 1,
    "list": [1.0, 1.0],
    "broadcast": np.broadcast_to(np.float32(1), 2),
}


@pytest.mark.parametrize("kind", NOT_IN_PLACE)
def test_overwrite_not_in_place(kind):
    y = NOT_IN_PLACE[kind]
    if kind == "unaligned":
        y = np.frombuffer(bytearray(b"x" + np.ones(2, "f").tobytes()), "f", offset=1)
        assert not y.flags.aligned
    result = gemv.sgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=1)
    assert result is not y and type(result) is np.ndarray
    assert result.tolist() == [2, 3] and list(y) == [1, 1]
    assert blas.sgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=1).tolist() == [2, 3]


@pytest.mark.parametrize("value", [0, False, np.int8(0)])
def test_no_overwrite(value):
    y = np.ones(2, "f")
    result = gemv.sgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=value)
    assert result.tolist() == [2, 3] and y.tolist() == [1, 1]
    assert not np.shares_memory(result, y)


def test_subclass_of_y_is_kept_as_in_scipy():
    y = np.ones(2, "f").view(Subclass)
    for overwrite in (0, 1):
        ours = gemv.sgemv(1, np.eye(2), [1, 2], 0, y.copy(), overwrite_y=overwrite)
        theirs = blas.sgemv(1, np.eye(2), [1, 2], 0, y.copy(), overwrite_y=overwrite)
        assert type(ours) is Subclass
        assert type(theirs) is Subclass or not (overwrite or SCIPY_KEEPS_CLASS)
    assert gemv.sgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=1) is y
    assert y.tolist() == [2, 3]


def test_overwrite_readonly():
    y = np.ones(2)
    y.setflags(write=False)
    with pytest.raises(ValueError, match="dgemv: y is read-only.*2nd keyword y"):
        gemv.dgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=1)
    with pytest.raises(ValueError, match="read-only"):
        gemv.dgemv(0, np.eye(2), [1, 2], 1, y, overwrite_y=1)
    assert gemv.dgemv(1, np.eye(2), [1, 2], 1, y).tolist() == [2, 3]
    assert y.tolist() == [1, 1]


def test_overwrite_overlap():
    memory = np.arange(12.0)
    a, x, y = memory[:4].reshape(2, 2), memory[3:5], memory[4:6]
    before = memory.copy()
    with pytest.raises(ValueError, match="dgemv: y overlaps x in memory.*2nd keyword y"):
        gemv.dgemv(1, a, x, 1, y, overwrite_y=1)
    with pytest.raises(ValueError, match="dgemv: y overlaps a in memory.*2nd keyword y"):
        gemv.dgemv(1, a, [1, 1], 1, memory[2:4], overwrite_y=1)
    assert memory.tolist() == before.tolist()
    expected = a @ x + y
    np.testing.assert_array_equal(gemv.dgemv(1, a, x, 1, y), expected)


def test_overwrite_in_one_workspace():
    """Windows of one array that do not meet, next to each other or interleaved, are no overlap."""
    a = np.array([[1.0, 2], [3, 4]])
    work = np.array([1.0, 1, 10, 20])
    assert gemv.dgemv(1, a, work, 1, work, offy=2, overwrite_y=1) is work
    assert work.tolist() == [1, 1, 13, 27]
    work = np.array([1.0, 10, 1, 20])
    gemv.dgemv(1, a, work, 1, work, incx=2, offy=1, incy=2, overwrite_y=1)
    assert work.tolist() == [1, 13, 1, 27]
    with pytest.raises(ValueError, match="overlaps x"):
        gemv.dgemv(1, a, work, 1, work, incx=2, offy=2, overwrite_y=1)


def test_error_leaves_y(monkeypatch):
    y = np.ones(2)

    def fail(*args, **kwargs):
        raise RuntimeError("the launch failed")

    monkeypatch.setattr(gemv.engines.backend.engine(), "run", fail)
    with pytest.raises(RuntimeError, match="the launch failed"):
        gemv.dgemv(1, np.eye(2), [1, 2], 1, y, overwrite_y=1)
    assert y.tolist() == [1, 1]


# Arguments -----------------------------------------------------------------------------------


def test_missing_and_unknown_arguments():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        gemv.dgemv(1, np.ones((2, 2)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'incz'"):
        gemv.dgemv(1, np.ones((2, 2)), [1, 1], incz=1)
    with pytest.raises(TypeError, match="takes from 3 to 11 positional"):
        gemv.dgemv(1, np.ones((2, 2)), [1, 1], 0, None, 0, 1, 0, 1, 0, 0, "serial")


@pytest.mark.parametrize(
    ("letter", "code"), [("N", 0), ("n", 0), ("T", 1), ("t", 1), ("C", 2), ("c", 2)]
)
def test_trans_letters(letter, code):
    a = np.arange(4).reshape(2, 2) * (1 + 2j)
    np.testing.assert_array_equal(
        gemv.zgemv(1, a, [1j, 2], trans=letter), blas.zgemv(1, a, [1j, 2], trans=code)
    )


# The generic routine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "x", "y", "expected"),
    [
        ("f", "f", None, "f"),
        ("f", "d", None, "d"),
        ("f", "f", "d", "d"),
        ("f", "F", None, "F"),
        ("d", "F", None, "D"),
        ("i4", "i4", None, "d"),
        ("?", "?", None, "d"),
        ("e", "e", None, "e"),
        ("e", "e", "f", "f"),
        ("e", "f", None, "f"),
        ("e", "i1", None, "f"),
        ("i4", "f", None, "d"),
        (">f4", ">f4", None, "f"),
        (">c16", "f", None, "D"),
        (">f2", ">f2", None, "e"),
    ],
)
def test_generic_dtype(a, x, y, expected):
    arguments = (1, np.ones((2, 3), a), np.ones(3, x), 1, None if y is None else np.ones(2, y))
    assert gemv.gemv(*arguments).dtype == expected
    prefix = "h" if a[-1] + x[-1] in ("ee", "22") else "sdcz"["fdFD".index(expected)]
    assert gemv.explain(*arguments).routine == prefix + "gemv"


@pytest.mark.parametrize(("dtype", "expected"), [("f", "F"), ("d", "D"), ("i", "D"), ("F", "F")])
def test_generic_complex_coefficient_promotes(dtype, expected):
    a, x, y = np.ones((2, 3), dtype), np.ones(3, dtype), np.ones(2, dtype)
    for alpha, beta in ((1j, 0), (1, 1j), (np.complex64(1), 0), (1, np.array(0j))):
        result = gemv.gemv(alpha, a, x, beta, y)
        assert result.dtype == expected
        np.testing.assert_allclose(result, complex(alpha) * 3 + complex(beta))
    result = gemv.gemv(1j, a, x, 1, y, overwrite_y=1)
    assert (result is y) == (dtype == expected)


@pytest.mark.parametrize("dtype", ["g", "G"])
def test_generic_refuses_long_double(dtype):
    with pytest.raises(TypeError, match="gemv: x has dtype .*longdouble|gemv: x has dtype .*128"):
        gemv.gemv(1, np.ones((2, 2)), np.ones(2, dtype))


def test_generic_computes_in_place():
    y = np.ones(2, "f")
    assert gemv.gemv(1, np.eye(2, dtype="f"), y * 2, 1, y, overwrite_y=1) is y
    assert y.tolist() == [3, 3]


# Device arrays -------------------------------------------------------------------------------


@needs_device_arrays
@every_routine
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_device_strides(name, trans):
    """Every stride of every operand, none of them copied, none of them changed."""
    dtype, rng = DTYPES[name], np.random.default_rng(3)
    memory = [random(rng, (9, 10), dtype), random(rng, 40, dtype), random(rng, 40, dtype)]
    views = (
        lambda a: a[:3, :4], lambda a: a[::2, 1:9:3],
        lambda a: (a.T if isinstance(a, np.ndarray) else transposed(a))[2:5, ::2],
    )  # fmt: skip
    for view, step, incx, incy in itertools.product(views, (1, 2), (1, -2), (2, -1)):
        host = [memory[0], memory[1][::step], memory[2][::step]]
        device = [to_device(v) for v in memory]
        a, x, y = view(device[0]), device[1][::step], device[2][::step]
        arguments = dict(offx=1, incx=incx, offy=2, incy=incy, trans=trans)
        with gemv.trace() as calls:
            result = OURS[name](1.5, a, x, 0.5, y, **arguments)
        ran(calls)
        expected = SCIPY[name](1.5, view(host[0]), host[1], 0.5, host[2], **arguments)
        assert type(result) is type(y) and result.shape == y.shape
        got = result.copy_to_host()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        rows = view(host[0]).shape[trans != 0]
        unused = np.ones(len(got), bool)
        walk(unused, rows, 2, incy)[:] = False
        assert got[unused].tobytes() == host[2][unused].tobytes()
        for before, after in zip(memory, device, strict=True):
            assert after.copy_to_host().tobytes() == before.tobytes()
        assert OURS[name](1.5, a, x, 0.5, y, **arguments, overwrite_y=1) is y
        written = device[2].copy_to_host()
        assert written[::step].tobytes() == got.tobytes()
        untouched = np.ones(len(written), bool)
        untouched[::step] = unused
        assert written[untouched].tobytes() == memory[2][untouched].tobytes()


@needs_device_arrays
def test_device_y_made():
    a, x = to_device(np.ones((2, 3), "f")), to_device(np.ones(3, "f"))
    result = gemv.sgemv(2, a, x, offy=1, incy=-2)
    assert type(result) is type(x)
    assert result.copy_to_host().tolist() == [0, 6, 0, 6]
    assert gemv.gemv(2, a, x).copy_to_host().tolist() == [6, 6]


@needs_device_arrays
def test_device_nothing_to_do():
    a, x, y = (to_device(np.ones(s, "f")) for s in ((2, 3), (3,), (4,)))
    with gemv.trace() as calls:
        assert gemv.sgemv(0, a, x, 1, y, overwrite_y=1) is y
        result = gemv.sgemv(0, a, x, 1, y[::2])
        assert gemv.sgemv(0, a, x, 1).copy_to_host().tolist() == [0, 0]
    assert not calls and result.copy_to_host().tolist() == [1, 1]
    result.copy_to_device(np.array([5, 1], "f"))
    assert y.copy_to_host().tolist() == [1] * 4


@needs_device_arrays
def test_device_stream():
    from numba import cuda

    stream = cuda.stream()
    a, x = to_device(np.ones((2, 3), "f")), to_device(np.ones(3, "f"))
    result = gemv.sgemv(1, a, x, stream=stream)
    stream.synchronize()
    assert result.copy_to_host().tolist() == [3, 3]


@needs_device_arrays
def test_device_and_host_do_not_mix():
    a, x, y = np.ones((2, 3)), np.ones(3), np.ones(2)
    there = r"on (the device|cuda:0) \(numba\)"
    for arguments, text in (
        ((to_device(a), x), rf"a is {there} but x is in host memory.*3rd arg"),
        ((a, to_device(x)), rf"a is in host memory but x is {there}.*3rd arg"),
        ((a, x, 1, to_device(y)), rf"a is in host .* but y is {there}.*2nd keyword y"),
    ):
        for function in (gemv.dgemv, gemv.gemv, gemv.explain):
            with pytest.raises(TypeError, match=text):
                function(1, *arguments)


@needs_device_arrays
def test_device_dtypes_are_not_converted():
    a, x = to_device(np.ones((2, 3))), to_device(np.ones(3, "f"))
    with pytest.raises(TypeError, match="sgemv: a has dtype float64 but sgemv computes in float"):
        gemv.sgemv(1, a, x)
    with pytest.raises(TypeError, match="gemv: a has dtype float64 but x has dtype float32"):
        gemv.gemv(1, a, x)
    with pytest.raises(TypeError, match="gemv: x has dtype int64; device arrays are computed in"):
        gemv.gemv(1, a, to_device(np.ones(3, "i8")))
    with pytest.raises(TypeError, match="gemv: alpha = 1j is complex.*1st argument alpha"):
        gemv.gemv(1j, a, to_device(np.ones(3)))


@needs_device_arrays
def test_device_coefficients_that_are_no_scalars_are_refused():
    a, x = to_device(np.ones((2, 3))), to_device(np.ones(3))
    with pytest.raises(ValueError, match=r"alpha must have no dimension, got shape \(1,\)"):
        gemv.dgemv(to_device(np.ones(1)), a, x)


@needs_device_arrays
def test_device_overlap():
    memory = to_device(np.arange(12.0))
    a = memory[:4].reshape(2, 2)
    before = memory.copy_to_host()
    with pytest.raises(ValueError, match="dgemv: y overlaps x in memory.*2nd keyword y"):
        gemv.dgemv(1, a, memory[3:5], 1, memory[4:6], overwrite_y=1)
    with pytest.raises(ValueError, match="dgemv: y overlaps a in memory.*2nd keyword y"):
        gemv.dgemv(1, a, memory[4:6], 1, memory[2:4], overwrite_y=1)
    assert memory.copy_to_host().tolist() == before.tolist()
    work = memory[4:]
    assert gemv.dgemv(1, a, work, 1, work, offy=2, overwrite_y=1) is work
    assert memory.copy_to_host().tolist()[6:8] == [5 + 6, 2 * 4 + 3 * 5 + 7]


@needs_device_arrays
def test_device_y_of_stride_zero():
    from numba import cuda

    y = np.broadcast_to(np.ones(1), 2)
    if gemv.backend() == "simulator":
        # Its to_device copies the elements apart.
        y = cuda.cudadrv.devicearray.FakeCUDAArray(
            np.lib.stride_tricks.as_strided(np.ones(1), (2,), (0,))
        )
    else:
        y = to_device(y)
    assert y.strides == (0,)
    a, x = to_device(np.ones((2, 3))), to_device(np.ones(3))
    with pytest.raises(ValueError, match="of stride 0.*2nd keyword y"):
        gemv.dgemv(1, a, x, 1, y, overwrite_y=1)
    assert gemv.dgemv(1, a, x, 1, y).copy_to_host().tolist() == [4, 4]


def test_stream_with_host_arrays():
    with pytest.raises(ValueError, match="dgemv: stream only applies to device arrays"):
        gemv.dgemv(1, np.eye(2), [1, 1], stream=0)


# Kernels, explain, documentation -------------------------------------------------------------


def test_kernel_by_name():
    with gemv.trace() as calls:
        assert gemv.dgemv(1, [[1, 2]], [1, 1], kernel="serial").tolist() == [3]
    ran(calls)
    assert calls[0].kernel == "serial"
    assert gemv.explain(1, [[1, 2]], [1, 1], kernel="serial").kernel == "serial"


@pytest.mark.parametrize("function", [gemv.dgemv, gemv.gemv, gemv.explain])
def test_kernel_unknown(function):
    y = np.ones(1)
    with pytest.raises(ValueError, match="'gpu_magic'.*known kernels: serial"):
        function(1, [[1, 2]], [1, 1], 1, y, overwrite_y=1, kernel="gpu_magic")
    assert y.tolist() == [1]


@pytest.mark.parametrize("trans", [0, 1])
def test_explain_tells_what_runs(trans):
    arguments = (1, np.ones((4, 3), "f"), np.ones(4, "f"))
    with gemv.trace() as calls:
        told = gemv.explain(*arguments, trans=trans)
        assert not calls
        gemv.gemv(*arguments, trans=trans)
    ran(calls)
    assert (told.backend, told.kernel) == (calls[0].backend, calls[0].kernel)
    assert told.knobs == calls[0].knobs
    assert told.launches == calls[0].geometry.launches
    assert told.sizes == calls[0].geometry.sizes
    assert told.coefficients == calls[0].coefficients
    assert told.routine == "sgemv"
    assert told.access == ("axpy" if trans else "dot")
    rows, cols = (3, 4) if trans else (4, 3)
    assert told.bytes_moved == (rows * cols + cols + rows) * 4
    for part in ("sgemv", told.kernel, told.reason, told.coefficients, told.access):
        assert part in str(told)
    assert str(told).endswith(".") and "\n" not in str(told)
    assert pickle.loads(pickle.dumps(told)) == told
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.kernel = "other"


def test_explain_nothing_to_do_and_errors():
    told = gemv.explain(1, np.ones((2, 0)), [1.0], 2, np.ones(2))
    assert (told.backend, told.kernel, told.launches, told.bytes_moved) == (None, None, (), 0)
    assert str(told) == (
        "dgemv computes nothing and returns y as it was: A of shape (2, 0) is empty."
    )
    with pytest.raises(ValueError, match="gemv: x is too short"):
        gemv.explain(1, np.ones((2, 2)), [1.0])


def test_examples():
    result = doctest.testmod(gemv.blas)
    assert result.attempted >= 12 and result.failed == 0


@pytest.mark.parametrize("name", [*NAMES, "gemv", "explain"])
def test_docstrings(name):
    doc = inspect.getdoc(getattr(gemv, name))
    for heading in ("Returns\n-------", "Raises\n------", "Examples\n--------"):
        assert heading in doc
    assert "<" not in doc.replace(">>>", "")


# The host backend ----------------------------------------------------------------------------


@pytest.fixture
def host_backend():
    gemv.use_backend("host")
    yield
    gemv.use_backend(None)


@every_routine
def test_host_backend(name, host_backend):
    dtype, rng = DTYPES[name], np.random.default_rng(4)
    a = random(rng, (3, 2), dtype)
    for trans, incx, incy, given_y in itertools.product((0, 1, 2), (1, -2), (2, -1), (True, False)):
        x, y = random(rng, 9, dtype), random(rng, 9, dtype) if given_y else None
        arguments = (1.5, a, x, 0.5, y, 1, incx, 2, incy, trans)
        with gemv.trace() as calls:
            ours = OURS[name](*arguments)
        assert [(c.backend, c.kernel) for c in calls] == [("host", name)]
        np.testing.assert_allclose(ours, SCIPY[name](*arguments), rtol=1e-5, atol=1e-6)
    y = np.ones(3, dtype)
    assert OURS[name](1, a * 0 + 1, [1, 1], 1, y, overwrite_y=1) is y
    assert y.tolist() == [3, 3, 3]


def test_host_backend_errors_are_the_same(host_backend):
    with pytest.raises(ValueError, match="x is too short.*3rd argument x"):
        gemv.dgemv(1, np.eye(2), [1], incx=2**30)
    assert gemv.dgemv(1, np.eye(1), [3], incx=2**30, incy=-(2**40)).tolist() == [3]
    with pytest.raises(ValueError, match="kernel='serial' needs a GPU or the simulator"):
        gemv.dgemv(1, np.eye(2), [1, 1], kernel="serial")
    with pytest.raises(ValueError, match="known kernels"):
        gemv.dgemv(1, np.eye(2), [1, 1], kernel="gpu_magic")
    told = gemv.explain(1, np.eye(2), [1, 1])
    assert (told.backend, told.kernel, told.launches) == ("host", "dgemv", ())
    assert "SciPy" in str(told) and "asked for" in str(told)


@needs_device_arrays
def test_host_backend_refuses_device_arrays(host_backend):
    a, x = to_device(np.ones((2, 3))), to_device(np.ones(3))
    for function in (gemv.dgemv, gemv.explain):
        with pytest.raises(TypeError, match="the backend is host, which takes host arrays only"):
            function(1, a, x)


def test_host_fallback_is_announced_once(monkeypatch, request):
    request.addfinalizer(memo.forget)  # the short way of the host, which the second call takes
    monkeypatch.setattr(gemv.engines.backend, "backend", lambda: "host")
    monkeypatch.setattr(gemv.engines.backend, "chosen", lambda: None)
    monkeypatch.setattr(
        gemv.engines.backend, "probe", lambda: ("host", "no usable GPU (none here)")
    )
    monkeypatch.setattr(gemv.engines.host, "_announced", False)
    with pytest.warns(gemv.HostFallbackWarning, match=r"\(none here\)") as caught:
        assert gemv.dgemv(1, np.eye(2), [1, 2]).tolist() == [1, 2]
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert 'gemv.use_backend("host")' in text and "GEMV_BACKEND=host" in text
    gemv.dgemv(1, np.eye(2), [1, 2])  # a second warning would be an error here
    assert "none here" in str(gemv.explain(1, np.eye(2), [1, 2]))
    assert issubclass(gemv.HostFallbackWarning, RuntimeWarning)


@pytest.mark.parametrize(
    "call",
    [
        lambda eye, x: gemv.gemv(1, eye, x),
        lambda eye, x: gemv.gemv(1, eye[None], x),
        lambda eye, x: gemv.vecmat(x, eye),
        lambda eye, x: gemv.gemv_batched(1, [eye], [x]),
        lambda eye, x: gemv.Batch([eye]) @ [x],
        lambda eye, x: gemv.Batch([eye]) @ x,
        lambda eye, x: gemv.Matrix(eye) @ x,
        lambda eye, x: gemv.Matrix(eye).T @ x,
        lambda eye, x: gemv.Matrix(eye).gemv(1, x),
        lambda eye, x: gemv.Matrix(eye, devices=[0]) @ x,
        lambda eye, x: gemv.sharded([eye]) @ x,
    ],
    ids=lambda call: "",
)
def test_the_announcement_names_the_line_of_the_program(call, monkeypatch, request):
    request.addfinalizer(memo.forget)
    monkeypatch.setattr(gemv.engines.backend, "backend", lambda: "host")
    monkeypatch.setattr(gemv.engines.backend, "chosen", lambda: None)
    monkeypatch.setattr(gemv.engines.backend, "probe", lambda: ("host", "no usable GPU"))
    monkeypatch.setattr(gemv.engines.host, "_announced", False)
    with pytest.warns(gemv.HostFallbackWarning) as caught:
        call(np.eye(2), np.ones(2))
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, call.__code__.co_firstlineno)


def test_host_fallback_as_an_error_repeats(monkeypatch):
    monkeypatch.setattr(gemv.engines.backend, "backend", lambda: "host")
    monkeypatch.setattr(gemv.engines.backend, "chosen", lambda: None)
    monkeypatch.setattr(gemv.engines.backend, "probe", lambda: ("host", "no usable GPU"))
    monkeypatch.setattr(gemv.engines.host, "_announced", False)
    for _ in range(2):
        with pytest.raises(gemv.HostFallbackWarning):
            gemv.dgemv(1, np.eye(2), [1, 2])
    # Nothing is computed here, so there is nothing to announce.
    assert gemv.dgemv(0, np.eye(2), [1, 2], 1, np.ones(2)).tolist() == [1, 1]


# The whole signature -------------------------------------------------------------------------


@st.composite
def calls(draw):
    name = draw(st.sampled_from(NAMES))
    dtype = DTYPES[name]
    m, n = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    small = st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0, 7.5])
    number = st.builds(complex, small, small) if dtype in "FD" else small
    coefficient = st.one_of(st.sampled_from([0, 1, -1]), number)
    seed = draw(st.integers(0, 2**20))
    rng = np.random.default_rng(seed)
    trans = draw(st.sampled_from([0, 1, 2]))
    increment = st.sampled_from([1, -1, 2, -2, 3])
    incx, incy, offx, offy = (draw(increment), draw(increment), *rng.integers(0, 3, 2).tolist())
    rows, cols = (n, m) if trans else (m, n)
    slack_x, slack_y = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([0, 1, 3]))
    # Half of the calls break a rule, or two.
    for flaw in draw(st.lists(st.sampled_from(range(7)), max_size=2)):
        incx = 0 if flaw == 0 else incx
        incy = 0 if flaw == 1 else incy
        offx = -1 if flaw == 2 else offx
        offy = -1 if flaw == 3 else offy
        slack_x = -1 if flaw == 4 else slack_x
        slack_y = -1 if flaw == 5 else slack_y
        trans = 3 if flaw == 6 else trans
    # At least one element, as BLAS wants it, unless a flaw takes that one away.
    len_x = max(0, 1 + offx + max(cols - 1, 0) * abs(incx) + slack_x)
    len_y = max(0, 1 + offy + max(rows - 1, 0) * abs(incy) + slack_y)
    source = st.sampled_from([dtype, dtype, "f", "i", "d"])

    def values(shape, kind):
        if kind == "i":
            return rng.integers(-3, 4, shape)
        return random(rng, shape, kind)

    a = np.asarray(values((m, n), draw(source)), order=draw(st.sampled_from("CF")))
    if draw(st.booleans()):
        a = np.repeat(a, 2, 0)[::-2]
    x = values(len_x, draw(source))
    y = draw(st.one_of(st.none(), st.just(len_y)))
    y = None if y is None else values(y, draw(source))
    return name, draw(coefficient), a, x, draw(coefficient), y, offx, incx, offy, incy, trans


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(calls())
def test_any_call(call):
    compare(*call)


@needs_device_arrays
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    calls(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([None, "arguments", "constant"]), st.booleans(),
)  # fmt: skip
def test_any_call_on_any_way(call, on_device, overwrite, scalars, coefficients, generic):
    """Host and device, in place or not, alpha and beta in every home: the result is the same.

    What the call gives without any of this is compared with SciPy's by the test above.
    """
    name, alpha, a, x, beta, y, *options = call
    dtype = DTYPES[name]
    a, x = a.astype(dtype), x.astype(dtype)
    y = None if y is None else y.astype(dtype)
    kind, plain = outcome(OURS[name], alpha, a, x, beta, y, *options)
    scalars = scalars and on_device
    if scalars:
        coefficients = None
    move = to_device if on_device else np.array
    arrays = [None if each is None else move(each) for each in (a, x, y)]
    factors = [move(np.array(each, dtype)) if scalars else each for each in (alpha, beta)]
    routine = gemv.gemv if generic else OURS[name]
    our_kind, got = outcome(
        routine, factors[0], *arrays[:2], factors[1], arrays[2], *options, overwrite,
        coefficients=coefficients,
    )  # fmt: skip
    assert our_kind == kind, (got, plain)
    if kind == "error":
        assert type(got) is type(plain)
        assert str(got).partition(": ")[2] == str(plain).partition(": ")[2]
        left = arrays[2]
    else:
        host = got.copy_to_host() if on_device else got
        assert host.dtype == dtype and host.shape == plain.shape
        np.testing.assert_allclose(host, plain, rtol=0, atol=1e3 * np.finfo(dtype).eps)
        assert not (overwrite and y is not None) or got is arrays[2]
        left = None if overwrite else arrays[2]
    if left is not None:
        assert (left.copy_to_host() if on_device else left).tobytes() == y.tobytes()


TOLERANCE = {"e": 1e-2, "f": 1e-5, "d": 1e-12, "F": 1e-5, "D": 1e-12}
HOMES = (None, "arguments", "constant", "pointer", "object")


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(
    st.booleans(), st.sampled_from(sorted(TOLERANCE)),
    st.sampled_from([None, "own", "f", "strided"]), st.booleans(), st.sampled_from(HOMES),
    st.fixed_dictionaries({
        "kernel": st.sampled_from([None, "serial", "vector_columns", "nope"]),
        "accumulate": st.sampled_from(["plain", "wide", "pairs"]),
        "out_dtype": st.sampled_from([None, None, np.float32, "float64"]),
        "peer": st.booleans(),
    }),
    st.sampled_from([{}, {}, {"stream": 0}, {"device_memory_limit": 10**6}, {"stream": 0}]),
)  # fmt: skip
def test_any_options_work_or_are_named(on_device, dtype, kind_of_y, overwrite, home, options, more):
    """Calls, `explain` and `precompile` agree about them, and the result is right."""
    on_device = on_device and gemv.backend() != "host"
    rng = np.random.default_rng(3)
    a, x, y = (random(rng, shape, dtype) for shape in ((5, 7), 7, 5))
    y = y.real.astype("f") if kind_of_y == "f" else y
    move = to_device if on_device else np.array
    passed = None
    if kind_of_y is not None:
        passed = move(np.repeat(y, 2))[::2] if kind_of_y == "strided" else move(y)
    alpha, beta = 2.0, 0.5
    if home == "pointer" and on_device:
        number = "f" if dtype == "e" else dtype
        alpha, beta = (to_device(np.array(each, number)) for each in (alpha, beta))
    coefficients = gemv.Coefficients() if home == "object" else home
    arguments = (alpha, move(a), move(x), beta, passed)
    options = {**options, "coefficients": coefficients, "overwrite_y": overwrite}

    def told(routine, **options):
        try:
            return "", routine(*arguments, **options)
        except (TypeError, ValueError) as error:
            return str(error), type(error)

    expected = told(gemv.explain, **options, **more)
    ahead = told(gemv.precompile, **options)
    error, result = told(gemv.gemv, **options, **more)
    assert expected[0] == error
    assert ahead[0] == told(gemv.explain, **options)[0]
    if error:
        names = ("kernel", "out_dtype", "stream", "device_memory_limit", "coefficients", "y ")
        assert expected[1] is result
        assert error.startswith("gemv: ") and any(name in error for name in (*names, "accumulate"))
        return
    assert expected[1].accumulate == options["accumulate"]
    host = result.copy_to_host() if on_device else result
    right = 2 * a.astype("D") @ x + (0 if kind_of_y is None else 0.5 * y.astype("D"))
    np.testing.assert_allclose(host, right, rtol=0, atol=30 * TOLERANCE[dtype])
    if kind_of_y == "f" and dtype == "e" or options["out_dtype"] is np.float32:
        assert host.dtype == np.float32
    else:
        assert host.dtype == dtype
