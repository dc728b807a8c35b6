"""SciPy's own tests of gemv, unmodified, against ours, and the signature against SciPy's."""

from __future__ import annotations

import importlib.util
import inspect
import re
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import blas

import gemv

if importlib.util.find_spec("scipy.linalg.tests") is None:
    pytest.skip("this SciPy was installed without scipy.linalg.tests", allow_module_level=True)

from scipy.linalg.tests import test_blas, test_fblas

ROUTINES = {
    "sgemv": (gemv.sgemv, np.float32),
    "dgemv": (gemv.dgemv, np.float64),
    "cgemv": (gemv.cgemv, np.complex64),
    "zgemv": (gemv.zgemv, np.complex128),
}


def traced(function):
    """`function`, but a result that no kernel of ours computed is a failure."""

    def call(*args, **kwargs):
        with gemv.trace() as calls:
            result = function(*args, **kwargs)
        assert [call.backend for call in calls] == [gemv.backend()]
        assert calls[0].backend != "host"
        assert calls[0].geometry.launches
        return result

    return call


class TestSgemv(test_fblas.BaseGemv):
    blas_func = staticmethod(traced(gemv.sgemv))
    dtype = np.float32


class TestDgemv(test_fblas.BaseGemv):
    blas_func = staticmethod(traced(gemv.dgemv))
    dtype = np.float64


class TestCgemv(test_fblas.BaseGemv):
    blas_func = staticmethod(traced(gemv.cgemv))
    dtype = np.complex64


class TestZgemv(test_fblas.BaseGemv):
    blas_func = staticmethod(traced(gemv.zgemv))
    dtype = np.complex128


@pytest.mark.parametrize("name", ROUTINES)
def test_scipy_simple(name, monkeypatch):
    function, dtype = ROUTINES[name]
    theirs = test_blas.TestFBLAS2Simple().test_gemv
    if "f" in inspect.signature(theirs).parameters:
        theirs(traced(function), dtype)
    else:
        # Before SciPy 1.16 the test looked the routines up by itself.
        namespace = SimpleNamespace(**{key: traced(f) for key, (f, _) in ROUTINES.items()})
        monkeypatch.setattr(test_blas, "fblas", namespace)
        theirs()


def scipy_parameters(name):
    """Names and documented defaults of SciPy's routine, which has no signature to inspect."""
    doc = getattr(blas, name).__doc__
    names = re.search(rf"{name}\(([^)]*)\)", doc).group(1)
    defaults = dict(re.findall(r"^(\w+) : .*\n\s+Default: (\S+)$", doc, re.MULTILINE))
    return re.sub(r"[\[\]\s]", "", names).strip(",").split(","), defaults


@pytest.mark.parametrize("name", [*ROUTINES, "gemv", "explain"])
def test_signature(name):
    names, defaults = scipy_parameters(name if name in ROUTINES else "dgemv")
    ours = inspect.signature(getattr(gemv, name)).parameters
    positional = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == [re.sub(r"=.*", "", n) for n in names]
    assert len(positional) == 11
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[11:])
    for parameter in positional:
        if parameter.name in defaults:
            expected = complex(defaults[parameter.name].replace("(0.0,0.0)", "0"))
            assert parameter.default == expected, parameter.name
    assert [p.name for p in positional if p.default is p.empty] == ["alpha", "a", "x"]
    assert ours["y"].default is None


class Own(np.ndarray):
    """An array of a class of somebody's own."""


def of(kind):
    """Makes an array of objects from whole numbers."""

    def make(values):
        return np.array([kind(int(value)) for value in values.flat], object).reshape(values.shape)

    return make


KINDS = {
    "fractions": of(lambda value: Fraction(value, 3)),
    "decimals": of(lambda value: Decimal(value) / 10),
    "long integers": of(lambda value: value * 2**70),
    "booleans": of(bool),
    "integers": lambda values: values.astype(np.int64) + 2**53,
    "unsigned": lambda values: values.astype(np.uint64) + np.uint64(2**63),
    "a class of its own": lambda values: values.view(Own),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["a", "x", "y", "alpha"])
@pytest.mark.parametrize("overwrite", [0, 1])
@pytest.mark.parametrize("name", ROUTINES)
def test_numbers_of_other_kinds_are_converted_as_scipy_converts_them(name, kind, where, overwrite):
    given = {"a": np.diag([1.0, 2.0, 4.0]), "x": np.array([1.0, 2.0, 3.0]), "y": np.ones(3)}
    given["alpha"] = np.array(2.0)
    given[where] = KINDS[kind](given[where])
    results = []
    for module in (gemv, blas):
        y, alpha = given["y"].copy(), given["alpha"]
        if module is blas and name in ("cgemv", "zgemv"):
            alpha = float(alpha)  # SciPy takes no objects for a complex alpha
        arguments = alpha, given["a"], given["x"], 1, y
        results.append(getattr(module, name)(*arguments, overwrite_y=overwrite))
        in_place = overwrite and y.dtype == results[-1].dtype
        assert (results[-1] is y) == in_place
        assert in_place or np.array_equal(y, given["y"])
    ours, theirs = results
    assert ours.dtype == theirs.dtype
    assert np.allclose(ours, theirs, rtol=4 * np.finfo(ours.dtype).eps)


@pytest.mark.parametrize("number", [2, 2.5, np.float32(2.5), np.array(2.5), np.array(2, object)])
@pytest.mark.parametrize("overwrite", [0, 1])
@pytest.mark.parametrize("name", ROUTINES)
def test_a_number_is_a_vector_of_one_as_in_scipy(name, overwrite, number):
    column, row = np.array([[1.0], [3.0]]), np.array([[1.0, 3.0]])
    ours, theirs = getattr(gemv, name), getattr(blas, name)
    got, expected = ours(2, column, number), theirs(2, column, number)
    assert got.dtype == expected.dtype and np.array_equal(got, expected)
    ends = []
    for function in (ours, theirs):
        y = np.array(number)  # a number itself cannot be written to
        end = function(2, row, [1, 2], 3, y, overwrite_y=overwrite)
        ends.append((np.asarray(end).tolist(), end.shape, end.dtype, end is y, y.tolist()))
    assert ends[0] == ends[1]
    assert ours(2, row, [1, 2], 3, number, overwrite_y=overwrite) == ends[0][0]
    with pytest.raises(ValueError, match="x is too short: .* = 2 elements are needed, len.x. = 1"):
        getattr(gemv, name)(1, row, number)
