"""SciPy's own tests of gemv, unmodified, against ours, and the signature against SciPy's."""

from __future__ import annotations

import importlib.util
import inspect
import re
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
