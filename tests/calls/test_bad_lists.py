"""Lists of products that are refused: nothing is launched, and every y is as it was."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import scipy.sparse
from helpers.exporters import Exporter, Interface
from helpers.refusals import Fails, check

import gemv
from gemv.engines import backend

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)

T, V = TypeError, ValueError
BOTH, HOST, DEVICE = ("host", "device"), ("host",), ("device",)
HUGE = 10**5000  # Python itself refuses to write it


def to_device(array):
    from numba import cuda

    return cuda.to_device(np.asarray(array))


def product(a, x, y, *, alpha=1.0, beta=1.0, trans=0, **rest):
    return gemv.gemv_batched(alpha, a, x, beta, y, trans, **{"overwrite_y": 1, **rest})


def batch(a, x, y, *, alpha=1.0, beta=1.0, trans=0, accumulate="plain", out_dtype=None, **rest):
    made = gemv.Batch(a, trans, accumulate=accumulate, out_dtype=out_dtype)
    return made.gemv(alpha, x, beta, y, **{"overwrite_y": 1, **rest})


def matmul(a, x, y):
    return gemv.Batch(a) @ x


def plan(a, x, y, **rest):
    return gemv.Batch(a).plan(x, y, **rest)


CALLS = {"gemv_batched": product, "Batch.gemv": batch, "Batch": batch, "@": matmul, "plan": plan}


def at(place, value):
    """A list with `value` at one place; a callable gets the array that is there, and where."""

    def changed(listed, make):
        found = list(listed)
        found[place] = value(found[place], make) if callable(value) else value
        return found

    return changed


def array(*shape, dtype="d"):
    return lambda old, make: make(np.ones(shape, dtype))


def frozen(old, make):
    old.flags.writeable = False
    return old


#: What is wrong: the function, where its arrays are, what changes, the error, its words.
BAD = {
    # a
    "a is None": ("gemv_batched", BOTH, {"a": None}, T, "As must be a sequence of arrays, got N"),
    "a is a number": ("gemv_batched", BOTH, {"a": 3}, T, "must be a sequence of arrays, got int"),
    "a is a string": ("Batch", BOTH, {"a": "abc"}, T, "arrays must be a sequence of arrays"),
    "a is a dict": ("Batch", BOTH, {"a": {}}, T, "must be a sequence of arrays"),
    "a cannot be listed": ("Batch", BOTH, {"a": Fails("__iter__")}, T, "must be a sequence of arr"),
    "an item is None": ("gemv_batched", BOTH, {"a": at(1, None)}, T, "item 1: a must be an array"),
    "an item is a vector": (
        "gemv_batched", BOTH, {"a": at(2, array(4))}, V, "item 2: a must have two dimensions",
    ),
    "an item is a batch": (
        "Batch", BOTH, {"a": at(0, array(2, 3, 4))}, V, "item 0: a must have two dimensions",
    ),
    "an item is a string": ("Batch", BOTH, {"a": at(0, "x")}, T, "item 0: a must be an array"),
    "an item is ragged": (
        "gemv_batched", HOST, {"a": at(1, [[1, 2], [3]])}, T, "item 1: a cannot be read as an arr",
    ),
    "an item is sparse": (
        "gemv_batched", HOST, {"a": at(0, scipy.sparse.eye_array(3, 4))}, T, "item 0: a is a spar",
    ),
    "an item is masked": (
        "Batch", HOST, {"a": at(0, np.ma.masked_equal(np.ones((3, 4)), 1))}, T, "a is a masked ar",
    ),
    "an item holds objects": (
        "gemv_batched", HOST, {"a": at(0, np.full((3, 4), print))}, T, "item 0: a must hold",
    ),
    "an item is a long double": (
        "gemv_batched", HOST, {"a": at(0, np.ones((3, 4), "g"))}, T, "item 0: a has dtype .* prec",
    ),
    "an item raises": (
        "gemv_batched", HOST, {"a": at(2, Fails("__array__"))}, T, "item 2: a cannot be read as an",
    ),
    "an item of another dtype": (
        "Batch", DEVICE, {"a": at(1, array(5, 2, dtype="f"))}, T,
        "item 1: a has dtype float32 but that of item 0 has float64",
    ),
    "an item of another dtype than its x": (
        "gemv_batched", DEVICE, {"a": at(1, array(5, 2, dtype="f"))}, T,
        "item 1: a has dtype float32 but x has dtype float64",
    ),
    "an item of integers": (
        "Batch", DEVICE, {"a": at(0, array(3, 4, dtype="i4"))}, T, "item 0: a has dtype int32",
    ),
    "an item on the host": (
        "Batch", DEVICE, {"a": at(1, np.ones((5, 2)))}, T, "item 1: a is in host memory, but the",
    ),
    "an item on the device": (
        "gemv_batched", HOST, {"a": at(1, lambda old, make: to_device(old))}, T,
        r"item 1: a is on (the device|cuda:\d+) .* the first matrix is in host memory",
    ),
    "an item was freed": (
        "gemv_batched", DEVICE,
        {"a": at(0, Exporter(shape=(3, 4), typestr="<f8", data=(0, False)))}, V,
        r"item 0: a of shape \(3, 4\) has no memory",
    ),
    # x
    "x is None": ("gemv_batched", BOTH, {"x": None}, T, "must be a sequence of arrays, got None"),
    "x is a number": ("gemv_batched", BOTH, {"x": 1.0}, T, "must be a sequence of arrays, got f"),
    "there are too few x": (
        "gemv_batched", BOTH, {"x": lambda x, make: x[:2]}, V, "are 2 vectors x, but 3 matrices",
    ),
    "there are too many x": (
        "Batch.gemv", BOTH, {"x": lambda x, make: x * 2}, V, "are 6 vectors x, but 3 matrices",
    ),
    "an x is None": ("Batch.gemv", BOTH, {"x": at(1, None)}, T, "item 1: x must be an array"),
    "an x is short": (
        "gemv_batched", BOTH, {"x": at(1, array(1))}, V,
        r"item 1: x has 1 elements, but the product with a of shape \(5, 2\) needs 2",
    ),
    "an x is long": ("Batch.gemv", BOTH, {"x": at(0, array(5))}, V, "item 0: x has 5 .* needs 4"),
    "an x is empty": ("gemv_batched", BOTH, {"x": at(2, array(0))}, V, "item 2: x has 0 elements"),
    "an x is a matrix": ("Batch.gemv", BOTH, {"x": at(2, array(2, 2))}, V, "item 2: x must have"),
    "an x holds dates": (
        "gemv_batched", HOST, {"x": at(1, [datetime.date(2020, 1, 1)] * 2)}, T, "item 1: x must ho",
    ),
    "an x is beyond every float": (
        "gemv_batched", HOST, {"x": at(1, [HUGE, 1])}, V, "item 1: x does not fit float64",
    ),
    "an x of another dtype": (
        "gemv_batched", DEVICE, {"x": at(1, array(2, dtype="f"))}, T,
        "item 1: a has dtype float64 but x has dtype float32",
    ),
    "an x of another dtype for a batch": (
        "Batch.gemv", DEVICE, {"x": at(1, array(2, dtype="f"))}, T,
        "item 1: x has dtype float32, but the products are in float64, and device",
    ),
    "a complex x for real matrices": (
        "Batch.gemv", HOST, {"x": at(1, array(2, dtype="D"))}, T,
        "item 1: x has dtype complex128, but the products are in float64",
    ),
    "an x on the host": (
        "Batch.gemv", DEVICE, {"x": at(0, np.ones(4))}, T, "item 0: x is in host memory, but the",
    ),
    "one x of another length": (
        "@", BOTH, {"x": array(9)}, V, "x has 9 elements, but the 3 products take 8",
    ),
    "one x of another dtype": (
        "@", DEVICE, {"x": array(8, dtype="f")}, T, "item 0: x has dtype float32",
    ),
    "one x that lies elsewhere": ("@", DEVICE, {"x": np.ones(8)}, T, "item 0: x is in host memory"),
    # y
    "y is a number": ("gemv_batched", BOTH, {"y": 2}, T, "must be a sequence of arrays, got int"),
    "there are too few y": (
        "Batch.gemv", BOTH, {"y": lambda y, make: y[1:]}, V, "are 2 vectors y, but 3 matrices",
    ),
    "a y is short": ("gemv_batched", BOTH, {"y": at(0, array(2))}, V, "item 0: y has 2 .* needs 3"),
    "a y is a matrix": ("Batch.gemv", DEVICE, {"y": at(0, array(3, 1))}, V, "item 0: y must have"),
    "a y of another dtype": (
        "gemv_batched", DEVICE, {"y": at(2, array(2, dtype="f"))}, T, "item 2: .* y has dtype f",
    ),
    "a complex y for real matrices": (
        "Batch.gemv", HOST, {"y": at(2, array(2, dtype="D"))}, T, "item 2: y has dtype complex128",
    ),
    "a y is read-only": ("gemv_batched", HOST, {"y": at(0, frozen)}, V, "item 0: y is read-only"),
    "a y of stride 0": (
        "gemv_batched", DEVICE,
        {"y": at(0, lambda old, make: Interface(np.ones(3), strides=(0,)))}, V,
        "item 0: y has elements of stride 0",
    ),
    "a y twice": (
        "gemv_batched", BOTH, {"a": at(1, array(3, 2)), "y": lambda y, make: [y[0], y[0], y[2]]},
        V, "item 1: y overlaps y of item 0",
    ),
    "a y that is an x": (
        "Batch.gemv", BOTH, {"x": lambda x, make: [*x[:2], make(np.ones(2))], "y": "an x"}, V,
        "item 2: y overlaps x of item 1",
    ),
    "a y on the host": ("gemv_batched", DEVICE, {"y": at(0, np.ones(3))}, T, "item 0: y is in ho"),
    # factors
    "alpha is None": ("gemv_batched", BOTH, {"alpha": None}, T, "item 0: alpha must be a number"),
    "alpha is text": ("gemv_batched", BOTH, {"alpha": "2"}, T, "alpha must be a number, got str"),
    "an alpha is text": ("Batch.gemv", BOTH, {"alpha": [1, "2", 3]}, T, "item 1: alpha must be"),
    "there are too few alphas": (
        "gemv_batched", BOTH, {"alpha": [1, 2]}, V, "alpha has 2 values, but there are 3 matrices",
    ),
    "alpha is on the device": (
        "gemv_batched", BOTH, {"alpha": lambda _, make: to_device(np.ones(3))}, T,
        "alpha is an array on a device",
    ),
    "alpha is a matrix": ("gemv_batched", BOTH, {"alpha": np.ones((3, 1))}, T, "alpha must be one"),
    "alpha is complex": ("Batch.gemv", BOTH, {"alpha": 1j}, T, "item 0: alpha = 1j is complex"),
    "a complex alpha for real matrices": (
        "gemv_batched", DEVICE, {"alpha": [1, 1j, 1]}, T, "item 1: alpha = 1j is complex and would",
    ),
    "alpha is too large": ("gemv_batched", BOTH, {"alpha": HUGE}, V, "item 0: alpha does not fit"),
    "beta is a list that is short": (
        "Batch.gemv", BOTH, {"beta": [1]}, V, "beta has 1 values, but there are 3 matrices",
    ),
    "beta is no number": ("gemv_batched", BOTH, {"beta": print}, T, "item 0: beta must be a"),
    # the rest
    "trans is a word": ("gemv_batched", BOTH, {"trans": "no"}, V, "item 0: trans must be 0 or 'N'"),
    "a trans is 3": ("Batch", BOTH, {"trans": [0, 3, 0]}, V, "item 1: trans must be 0 or 'N'"),
    "a trans is a float": ("Batch", BOTH, {"trans": [0, 0, 1.0]}, T, "item 2: trans must be an"),
    "there are too many trans": (
        "gemv_batched", BOTH, {"trans": [0] * 4}, V, "trans has 4 values, but there are 3 matrices",
    ),
    "a transposition without its lengths": (
        "gemv_batched", BOTH, {"trans": [0, "T", 0]}, V, "item 1: x has 2 elements, .* needs 5",
    ),
    "overwrite_y is None": ("gemv_batched", BOTH, {"overwrite_y": None}, T, "overwrite_y must be"),
    "accumulate is a word": (
        "gemv_batched", BOTH, {"accumulate": "double"}, V, "accumulate must be one of 'plain'",
    ),
    "accumulate is a number": ("Batch", BOTH, {"accumulate": 64}, T, "accumulate must be one of"),
    "out_dtype is another one": (
        "gemv_batched", BOTH, {"out_dtype": "float32"}, T, "out_dtype must be float64",
    ),
    "stream for host arrays": (
        "gemv_batched", HOST, {"stream": 0}, V, "stream only applies to device arrays",
    ),
    "a plan of host arrays": ("plan", HOST, {}, T, "the matrices were in host memory, and a plan"),
    "a plan without a y": ("plan", DEVICE, {"y": at(1, None)}, T, "item 1: a plan writes to y"),
    "a plan with a factor too few": (
        "plan", DEVICE, {"alpha": [1, 2]}, V, "alpha has 2 values, but there are 3 matrices",
    ),
    "a plan of vectors on the host": (
        "plan", DEVICE, {"x": at(0, np.ones(4))}, T, "item 0: x is in host memory",
    ),
}  # fmt: skip

CASES = [(kind, where) for kind, (_, places, *_) in BAD.items() for where in places]


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize(("kind", "where"), CASES, ids=lambda value: value.replace(" ", "_"))
def test_bad_lists(kind, where, monkeypatch):
    name, _, changes, error, words = BAD[kind]
    make = np.array if where == "host" else to_device
    given = {
        "a": [make(np.ones(shape)) for shape in ((3, 4), (5, 2), (2, 2))],
        "x": [make(np.ones(length)) for length in (4, 2, 2)],
        "y": [make(np.full(length, np.nan)) for length in (3, 5, 2)],
    }
    for argument, change in changes.items():
        if argument == "y" and change == "an x":  # the x of another item
            given["y"] = [*given["y"][:2], given["x"][1]]
        else:
            given[argument] = (
                change(given.get(argument), make) if callable(change) and change is not print
                else change
            )  # fmt: skip

    def launch(*arguments, **keywords):
        raise AssertionError("something was launched")

    monkeypatch.setattr(type(backend.engine()), "run", launch)
    said = {"@": "Batch.gemv", "plan": "Batch.plan"}.get(name, name)
    watched = {
        f"{argument} {k}": each
        for argument in ("a", "x", "y")
        if isinstance(given[argument], list)
        for k, each in enumerate(given[argument])
    }
    check(lambda: CALLS[name](**given), watched, error, f"^{said}: (.*{words})")
