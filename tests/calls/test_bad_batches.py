"""Batches that are refused: nothing is launched, and out or y is as it was."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import scipy.sparse
from helpers.exporters import Exporter
from helpers.refusals import Fails, Here, Of, arguments, check, ones

import gemv
from gemv.engines import backend

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)

as_strided = np.lib.stride_tricks.as_strided
T, V = TypeError, ValueError
HUGE = 10**5000  # Python itself refuses to write it


def to_device(array):
    from numba import cuda

    return cuda.to_device(np.asarray(array))


def matvec(a, x, out, **rest):
    return gemv.matvec(a, x, out, **rest)


def vecmat(a, x, out, **rest):
    return gemv.vecmat(x, a, out, **rest)


def product(a, x, y, *, alpha=1.0, beta=1.0, overwrite_y=1, **rest):
    return gemv.gemv(alpha, a, x, beta, y, overwrite_y=overwrite_y, **rest)


def plan(a, x, y, **rest):
    return gemv.plan(a, x, y, **rest)


def planned(a, x, y, *, alpha=1.0, beta=0.0, stream=None, **vectors):
    """A call of a plan that is bound to good operands."""
    return gemv.plan(a, x, y)(alpha, beta, *vectors.values(), stream=stream)


def explain(a, x, y, *, alpha=1.0, beta=1.0, **rest):
    return gemv.explain(alpha, a, x, beta, y, overwrite_y=1, **rest)


#: What is called, and the shapes of its operands.
CALLS = {
    "matvec": (matvec, {"a": (2, 3, 4), "x": (2, 4), "out": (2, 3)}),
    "vecmat": (vecmat, {"a": (2, 3, 4), "x": (2, 3), "out": (2, 4)}),
    **{
        name: (call, {"a": (2, 3, 4), "x": (2, 4), "y": (2, 3)})
        for name, call in (
            ("gemv", product),
            ("plan", plan),
            ("planned", planned),
            ("explain", explain),
        )
    },
}
BOTH, HOST, DEVICE = ("host", "device"), ("host",), ("device",)
#: The simulator has no streams.
GPU = (pytest.param("device", marks=pytest.mark.gpu),)


def part(name, *index):
    """An argument that is a view of another operand's memory."""
    return Of(lambda operands: operands[name][index])


#: What is wrong: the function, where its arrays are, what it gets instead, the error, its words.
BAD = {
    # a
    "a is None": ("matvec", BOTH, {"a": None}, T, "a must be an array, got None"),
    "a is a number": (
        "matvec",
        HOST,
        {"a": 2.0},
        V,
        r"a must have at least two dim.*got shape \(\)",
    ),
    "a is a vector": ("matvec", BOTH, {"a": ones(3)}, V, r"a must have at least two.*\(3,\)"),
    "a is a vector for vecmat": ("vecmat", BOTH, {"a": ones(3)}, V, "a must have at least two dim"),
    "a is a string": ("matvec", BOTH, {"a": "abc"}, T, "a must be an array, got str 'abc'"),
    "a is bytes": ("vecmat", BOTH, {"a": b"abc"}, T, "a must be an array, got bytes"),
    "a is a dict": ("matvec", BOTH, {"a": {1: 2}}, T, "a must be an array, got dict"),
    "a is ragged": (
        "matvec",
        HOST,
        {"a": [[[1, 2], [3]], [[1, 2], [3, 4]]]},
        T,
        "a cannot be read as an array",
    ),
    "items of a have different shapes": (
        "matvec",
        HOST,
        {"a": [np.ones((3, 4)), np.ones((2, 4))]},
        T,
        "a cannot be read as an array",
    ),
    "a holds objects": ("matvec", HOST, {"a": np.full((2, 3, 4), print)}, T, "a must hold numbers"),
    "a holds strings": ("vecmat", HOST, {"a": [[["1"] * 4] * 3]}, T, "a must hold numbers.*<U1"),
    "a holds records": ("matvec", HOST, {"a": np.zeros((2, 3, 4), "f4,f4")}, T, "a must hold num"),
    "a is masked": (
        "matvec",
        HOST,
        {"a": np.ma.masked_equal(np.ones((2, 3, 4)), 1)},
        T,
        "a is a masked array",
    ),
    "a is sparse": ("matvec", HOST, {"a": scipy.sparse.eye_array(3, 4)}, T, "a is a sparse"),
    "a is a long double": (
        "matvec",
        HOST,
        {"a": np.ones((2, 3, 4), "g")},
        T,
        "a has dtype .* prec",
    ),
    "a raises as an array": (
        "matvec",
        HOST,
        {"a": Fails("__array__")},
        T,
        "a cannot be read as an",
    ),
    "a leaves its memory": (
        "matvec",
        HOST,
        {"a": as_strided(np.ones(24), (2, 3, 4), (200, 32, 8))},
        V,
        r"a of shape \(2, 3, 4\) .* reaches",
    ),
    "a of integers on the device": (
        "matvec",
        DEVICE,
        {"a": ones(2, 3, 4, dtype="i4")},
        T,
        "a has d",
    ),
    # x
    "x is None": ("matvec", BOTH, {"x": None}, T, "x must be an array, got None"),
    "x is a number": ("matvec", HOST, {"x": 5.0}, V, r"x must have at least one dim.* \(\)"),
    "x is short": (
        "matvec",
        BOTH,
        {"x": ones(2, 3)},
        V,
        r"x has 3 elements in its last dimension, but a of shape \(2, 3, 4\) has 4 columns",
    ),
    "x is long": ("vecmat", BOTH, {"x": ones(2, 4)}, V, r"x has 4 elements .* has 3 rows"),
    "x is empty": ("matvec", BOTH, {"x": ones(2, 0)}, V, "x has 0 elements .* 4 columns"),
    "x is no number": ("matvec", HOST, {"x": [object()] * 4}, T, "x must hold numbers"),
    "x holds None": ("vecmat", HOST, {"x": [1.0, None, 2.0]}, T, "x must hold numbers.*None"),
    "x holds dates": (
        "matvec",
        HOST,
        {"x": np.ones(4, "M8[s]")},
        T,
        "x must hold numbers.*datetime",
    ),
    "x holds date objects": (
        "matvec",
        HOST,
        {"x": [datetime.date(2020, 1, 1)] * 4},
        T,
        "x must hold numbers",
    ),
    "x is beyond every float": (
        "matvec",
        HOST,
        {"x": [HUGE, 1, 2, 3]},
        V,
        "x does not fit float64",
    ),
    "x is masked": ("vecmat", HOST, {"x": np.ma.masked_less([0.0, 1, 2], 1)}, T, "x is a masked"),
    "x of another dtype": (
        "matvec",
        DEVICE,
        {"x": ones(2, 4, dtype="f")},
        T,
        "x has dtype float32",
    ),
    "x on the host": ("matvec", DEVICE, {"x": np.ones((2, 4))}, T, "but x is in host memory"),
    "a on the host": ("vecmat", DEVICE, {"a": np.ones((2, 3, 4))}, T, "a is in host memory but x"),
    "x was freed": (
        "matvec",
        DEVICE,
        {"x": Exporter(shape=(2, 4), typestr="<f8", data=(0, False))},
        V,
        r"x of shape \(2, 4\) has no memory",
    ),
    "x is not aligned": (
        "matvec",
        DEVICE,
        {"x": Exporter(shape=(2, 4), typestr="<f8", data=(4100, False))},
        T,
        "0x1004, which is not aligned",
    ),
    # the batch
    "the batches of a and x differ": (
        "matvec",
        BOTH,
        {"x": ones(3, 4)},
        V,
        "dimension 0 of the batch is 2 for a but 3 for x: these lengths do not broadcast",
    ),
    "the outer batches differ": (
        "matvec",
        BOTH,
        {"a": ones(5, 1, 3, 4), "x": ones(4, 2, 4), "out": None},
        V,
        "dimension 0 of the batch is 5 for a but 4 for x",
    ),
    "a batch without items beside two": (
        "vecmat",
        BOTH,
        {"x": ones(0, 3)},
        V,
        "dimension 0 of the batch is 2 for a but 0 for x",
    ),
    "alpha of another batch": (
        "matvec",
        BOTH,
        {"alpha": ones(3)},
        V,
        "dimension 0 of the batch is 2 for a but 3 for alpha",
    ),
    "beta of another batch": (
        "vecmat",
        BOTH,
        {"beta": ones(4)},
        V,
        "dimension 0 of the batch is 2 for a but 4 for beta",
    ),
    "alpha has the dimension of the result": (
        "matvec",
        BOTH,
        {"alpha": ones(2, 3)},
        V,
        "dimension 1 of the batch is 2 for a but 3 for",
    ),
    "y of another batch": (
        "gemv",
        BOTH,
        {"y": ones(3, 3)},
        V,
        "dimension 0 of the batch is 2 for a but 3 for y",
    ),
    # out and y
    "out is short": ("matvec", BOTH, {"out": ones(2, 2)}, V, "out has 2 elements .* has 3 rows"),
    "out is long": ("vecmat", BOTH, {"out": ones(2, 5)}, V, "out has 5 elements .* has 4 columns"),
    "out is a number": ("matvec", HOST, {"out": 1.0}, V, "out must have at least one dimension"),
    "out is a list": (
        "matvec",
        HOST,
        {"out": [[1.0] * 3] * 2},
        T,
        "out must be an array, which is w",
    ),
    "out has no batch": (
        "matvec",
        BOTH,
        {"out": ones(3)},
        V,
        r"\(3,\) cannot hold a batch of .*2,",
    ),
    "out has a batch of one": (
        "vecmat",
        BOTH,
        {"out": ones(1, 4)},
        V,
        r"out of shape \(1, 4\) cannot hold a batch",
    ),
    "out has no dimension": (
        "vecmat",
        DEVICE,
        {"out": Here(np.array(1.0))},
        V,
        "out must have at l",
    ),
    "out is read-only": (
        "matvec",
        HOST,
        {"out": np.broadcast_to(np.zeros(3), (2, 3))},
        V,
        "out is read-only",
    ),
    "items of out share elements": (
        "matvec",
        HOST,
        {"out": as_strided(np.zeros(5), (2, 3), (8, 8))},
        V,
        "out has items that share elements",
    ),
    "elements of out are one": (
        "matvec",
        HOST,
        {"out": as_strided(np.zeros(2), (2, 3), (8, 0))},
        V,
        "elements of stride 0",
    ),
    "out is of another dtype": (
        "matvec",
        BOTH,
        {"out": ones(2, 3, dtype="f")},
        T,
        "out has dtype float32",
    ),
    "out cannot hold what is complex": (
        "vecmat",
        HOST,
        {"x": np.ones((2, 3), "D")},
        T,
        "out has dtype float64, but .* complex128",
    ),
    "out holds objects": (
        "matvec",
        HOST,
        {"out": np.zeros((2, 3), object)},
        T,
        "out has dtype obj",
    ),
    "out is on the host": ("matvec", DEVICE, {"out": np.ones((2, 3))}, T, "is in host memory"),
    "out overlaps a": (
        "matvec",
        BOTH,
        {"out": part("a", slice(None), slice(None), 0)},
        V,
        "overlaps",
    ),
    "out overlaps x": ("vecmat", BOTH, {"a": ones(2, 3, 3), "out": part("x")}, V, "out overlaps x"),
    "y overlaps x": ("gemv", BOTH, {"a": ones(2, 4, 4), "y": part("x")}, V, "y overlaps x"),
    "y is short": ("gemv", BOTH, {"y": ones(2, 2)}, V, "y is too short: .* = 3 elements"),
    "y has no batch": ("gemv", BOTH, {"y": ones(3)}, V, r"y of shape \(3,\) cannot hold a batch"),
    "beta without out": (
        "matvec",
        BOTH,
        {"out": None, "beta": 1.0},
        V,
        "beta needs out, which is No",
    ),
    # factors
    "alpha is None": ("matvec", BOTH, {"alpha": None}, T, "alpha must be a number, got None"),
    "alpha is a string": ("vecmat", BOTH, {"alpha": "2"}, T, "alpha must be a number, got str '2'"),
    "alpha holds strings": ("matvec", HOST, {"alpha": ["1", "2"]}, T, "alpha must hold numbers"),
    "alpha is ragged": ("matvec", HOST, {"alpha": [[1], [1, 2]]}, T, "alpha cannot be read as an"),
    "alpha is beyond every float": (
        "matvec",
        BOTH,
        {"alpha": HUGE},
        V,
        "alpha does not fit float64",
    ),
    "alpha would lose its imaginary part": (
        "matvec",
        DEVICE,
        {"alpha": 1j},
        T,
        "alpha = 1j is complex and would lose its imaginary",
    ),
    "factors of another dtype": (
        "matvec",
        DEVICE,
        {"alpha": ones(2, dtype="f")},
        T,
        "needs alpha as float64, but alpha has d",
    ),
    "factors on the device": (
        "matvec",
        HOST,
        {"alpha": Of(lambda operands: to_device(np.ones(2)))},
        T,
        "a is in host memory but alpha is",
    ),
    "beta is an object": (
        "vecmat",
        BOTH,
        {"beta": object()},
        T,
        "beta must be a number, got object",
    ),
    "beta raises": ("gemv", BOTH, {"beta": Fails("__float__")}, T, "beta must be a number"),
    # what is of BLAS
    "incx is zero": ("gemv", BOTH, {"incx": 0}, V, "incx must not be zero, got incx = 0"),
    "incx leaves x": ("gemv", BOTH, {"incx": 2}, V, "x is too short: .* = 7 elements are needed"),
    "incy leaves y": ("gemv", BOTH, {"incy": -3}, V, "y is too short: .* = 7 elements are needed"),
    "offx is negative": ("gemv", BOTH, {"offx": -1}, V, "offx must not be negative, got offx = -1"),
    "offy is a float": ("gemv", BOTH, {"offy": 0.5}, T, "offy must be an integer, got float 0.5"),
    "offx overflows 64 bits": ("gemv", BOTH, {"offx": 2**63}, V, "x is too short"),
    "incx is beyond what Python writes": ("gemv", BOTH, {"incx": HUGE}, V, "too short.*16612 bits"),
    "trans is 3": ("gemv", BOTH, {"trans": 3}, V, "trans must be .*got 3 "),
    "trans is None": ("gemv", BOTH, {"trans": None}, T, "trans must be an integer, got None"),
    "trans takes x of columns": ("gemv", BOTH, {"trans": 1, "x": ones(2, 2)}, V, "x is too short"),
    "overwrite_y is a string": (
        "gemv",
        BOTH,
        {"overwrite_y": "no"},
        T,
        "overwrite_y must be an int",
    ),
    # what is not of BLAS
    "accumulate is unknown": (
        "matvec",
        BOTH,
        {"accumulate": "most"},
        V,
        "accumulate must be one of 'plain', .*got 'most'",
    ),
    "accumulate is no word": (
        "vecmat",
        BOTH,
        {"accumulate": 1},
        T,
        "accumulate must be one of .*1",
    ),
    "out_dtype is another one": (
        "matvec",
        BOTH,
        {"out_dtype": "float32"},
        T,
        "out_dtype must be float64, .*got 'float32'",
    ),
    "out_dtype is no dtype": ("gemv", BOTH, {"out_dtype": "no"}, T, "out_dtype must be float64"),
    "kernel is unknown": ("gemv", BOTH, {"kernel": "magic"}, V, "no kernel 'magic'; known kernels"),
    "stream for host arrays": ("matvec", HOST, {"stream": 0}, V, "stream only applies to device"),
    "stream is a string": ("matvec", GPU, {"stream": "s"}, T, "stream must be"),
    "coefficients of one product": (
        "gemv",
        BOTH,
        {"coefficients": "constant"},
        V,
        "coefficients is for a matrix of two dimens",
    ),
    "device_memory_limit of one product": (
        "gemv",
        HOST,
        {"device_memory_limit": 10**6},
        V,
        "device_memory_limit is for a matrix of two",
    ),
    "peer of one product": (
        "gemv",
        BOTH,
        {"peer": True},
        V,
        "peer is for a matrix of two dimensions",
    ),
    # plans, and those that only look
    "a plan of the host's memory": (
        "plan",
        HOST,
        {},
        T,
        "a is in host memory, from where it would",
    ),
    "a plan without x": ("plan", DEVICE, {"x": None}, T, "bound to its x, which is None"),
    "a plan of an unknown function": (
        "plan",
        DEVICE,
        {"routine": "matmul"},
        V,
        "routine must be one of 'gemv', 'matvec'.*'matmul'",
    ),
    "a plan of an unknown kernel": ("plan", DEVICE, {"kernel": "magic"}, V, "no kernel 'magic'"),
    "a plan with peer": (
        "plan",
        DEVICE,
        {"peer": True},
        V,
        "peer is for a matrix of two dimensions",
    ),
    "a plan of short vectors": ("plan", DEVICE, {"x": ones(2, 3)}, V, "x is too short"),
    "a plan whose y overlaps x": (
        "plan",
        DEVICE,
        {"a": ones(2, 4, 4), "y": part("x")},
        V,
        "y overlaps x in memory",
    ),
    "a plan of matvec with increments": (
        "plan",
        DEVICE,
        {"routine": "matvec", "incx": 2},
        V,
        "incx is an argument of gemv, and matvec",
    ),
    "a plan is called with a string": ("planned", DEVICE, {"alpha": "2"}, T, "alpha must be a num"),
    "a plan is called with what is complex": (
        "planned",
        DEVICE,
        {"beta": 1j},
        T,
        "beta = 1j is complex and would lose",
    ),
    "a plan is called with a short x": (
        "planned",
        DEVICE,
        {"other_x": ones(2, 3)},
        V,
        "x is too short",
    ),
    "a plan is called with a y of the host": (
        "planned",
        DEVICE,
        {"other_x": None, "other_y": np.ones((2, 3))},
        T,
        "but y is in host memory",
    ),
    "a plan is called with a bad stream": ("planned", GPU, {"stream": "s"}, T, "stream must be"),
    "explain with a short x": ("explain", BOTH, {"x": ones(2, 3)}, V, "x is too short"),
    "explain with an unknown kernel": (
        "explain",
        BOTH,
        {"kernel": "magic"},
        V,
        "no kernel 'magic'",
    ),
    "explain of an unknown function": (
        "explain",
        BOTH,
        {"routine": "dot"},
        V,
        "routine must be one",
    ),
}

CASES = [
    pytest.param(kind, *getattr(where, "values", [where]), marks=getattr(where, "marks", ()))
    for kind, (_, places, *_) in BAD.items()
    for where in places
]


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize(("kind", "where"), CASES, ids=lambda value: value.replace(" ", "_"))
def test_bad_batches(kind, where, monkeypatch):
    name, _, changes, error, words = BAD[kind]
    call, shapes = CALLS[name]
    make = np.array if where == "host" else to_device
    good = {each: make(np.ones(shape)) for each, shape in shapes.items()}
    result = "out" if "out" in good else "y"
    good[result] = make(np.full(shapes[result], np.nan))
    given = arguments(good, changes, make)

    def launch(*arguments, **keywords):
        raise AssertionError("something was launched")

    monkeypatch.setattr(type(backend.engine()), "run", launch)
    said = changes.get("routine", name)
    said = said if said in ("matvec", "vecmat") else "gemv"
    watched = {**{f"good {each}": array for each, array in good.items()}, **given}
    check(lambda: call(**given), watched, error, f"^{said}: (.*{words})")
