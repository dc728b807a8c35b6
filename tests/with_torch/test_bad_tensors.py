"""``gemv.torch``: what each function refuses, in which words, with `out` and `y` as they were."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers.refusals import check

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv  # noqa: E402
import gemv.torch as products  # noqa: E402

T, V = TypeError, ValueError
HUGE = 10**5000  # Python itself refuses to write it


class Operands:
    """Tensors that go together, new ones for each case."""

    def __init__(self):
        self.a, self.x = torch.arange(12.0).reshape(4, 3), torch.arange(3.0)
        self.y, self.out = torch.arange(4.0), torch.full((4,), torch.nan)

    def mv(self, a=None, x=None, out=None, **rest):
        """The product with good operands but for those that are passed; `out` is always passed."""
        a, x = (own if given is None else given for own, given in ((self.a, a), (self.x, x)))
        return products.mv(a, x, self.out if out is None else out, **rest)

    def addmv(self, y=None, a=None, x=None, **rest):
        y, a, x = (
            own if given is None else given
            for own, given in ((self.y, y), (self.a, a), (self.x, x))
        )
        return products.addmv(y, a, x, **{"out": self.out, **rest})


def half(o, **rest):
    return products.mv(o.a.half(), o.x.half(), **rest)


#: What is wrong: a function of the operands, the error, and its words.
BAD = {
    # a and x
    "a is None": (lambda o: products.mv(None, o.x), T, "mv: a must be a tensor, got None"),
    "a is a list": (lambda o: o.mv([[1.0, 2, 3]]), T, r"mv: a must be a tensor, got list \[\["),
    "a is of NumPy": (lambda o: o.mv(np.ones((4, 3))), T, "mv: a must be a tensor, got numpy.nd"),
    "a is a vector": (lambda o: o.mv(o.x), V, r"mv: a must have two dimensions, got shape \(3,\)"),
    "a is a batch": (lambda o: o.mv(o.a[None]), V, r"a must have two dimensions.*\(1, 4, 3\)"),
    "a of booleans": (lambda o: o.mv(o.a.bool(), o.x.bool()), T, r"mv: a has dtype torch\.bool"),
    "a of integers": (lambda o: o.mv(o.a.int(), o.x.int()), T, r"mv: a has dtype torch\.int32"),
    "a of a byte": (
        lambda o: o.mv(o.a.to(torch.float8_e4m3fn), o.x.to(torch.float8_e4m3fn)),
        T,
        r"mv: a has dtype torch\.float8_e4m3fn, in which nothing is computed",
    ),
    "a is sparse": (lambda o: o.mv(o.a.to_sparse()), T, r"mv: a is .*sparse_coo;.*to_dense\(\)"),
    "a is without memory": (lambda o: o.mv(o.a.to("meta")), T, "x must be on .* meta, got cpu"),
    "x is None": (lambda o: products.mv(o.a, None), T, "mv: x must be a tensor, got None"),
    "x is a number": (lambda o: o.mv(x=2.0), T, "mv: x must be a tensor, got float 2.0"),
    "x is a list": (lambda o: o.mv(x=[1.0, 1, 1]), T, "mv: x must be a tensor, got list"),
    "x has no dimension": (
        lambda o: o.mv(x=torch.tensor(1.0)),
        V,
        r"mv: x must have one dimension, got shape \(\)",
    ),
    "x is a column": (lambda o: o.mv(x=o.x[:, None]), V, r"x must have one dimension.*\(3, 1\)"),
    "x is short": (lambda o: o.mv(x=o.x[:2]), V, "mv: x must have .* columns, 3, got 2"),
    "x is empty": (lambda o: o.mv(x=o.x[:0]), V, "mv: x must have .* columns, 3, got 0"),
    "x is short for the transpose": (
        lambda o: o.mv(trans="T"),
        V,
        "mv: x must have as many elements as a has rows, 4, got 3",
    ),
    "x of another dtype": (
        lambda o: o.mv(x=o.x.double()),
        T,
        "x must have the dtype of a, .*float64",
    ),
    "x is without memory": (
        lambda o: o.mv(x=o.x.to("meta")),
        T,
        "x must be on the device of a, cpu",
    ),
    "x is sparse": (
        lambda o: o.mv(x=o.x.to_sparse()),
        T,
        r"mv: x is a tensor of layout .*to_dense",
    ),
    "x of addmv is short": (lambda o: o.addmv(x=o.x[:2]), V, "addmv: x must have .* 3, got 2"),
    # trans
    "trans is 3": (
        lambda o: o.mv(trans=3),
        V,
        "mv: trans must be .*got 3 .failed for keyword trans",
    ),
    "trans is another letter": (lambda o: o.mv(trans="H"), V, "mv: trans must be .*got 'H'"),
    "trans is None": (lambda o: o.mv(trans=None), T, "mv: trans must be an integer, got None"),
    "trans is a half": (lambda o: o.addmv(trans=0.5), T, "addmv: trans must be an integer.*0.5"),
    "trans is several": (lambda o: o.mv(trans=torch.ones(2)), T, "mv: trans must be an integer"),
    # factors
    "alpha is None": (lambda o: o.mv(alpha=None), T, "mv: alpha must be a number .*got None"),
    "alpha is text": (lambda o: o.mv(alpha="2"), T, "mv: alpha must be a number .*got str '2'"),
    "alpha is a list": (lambda o: o.mv(alpha=[1]), T, r"mv: alpha must be a number .*list \[1\]"),
    "alpha is a fraction": (lambda o: o.mv(alpha=Fraction(1, 2)), T, "alpha must be .*Fraction"),
    "alpha is complex": (
        lambda o: o.mv(alpha=1j),
        T,
        "alpha must be real for a .*float32, got .*1j",
    ),
    "alpha is a complex tensor": (
        lambda o: o.mv(alpha=torch.tensor(1j)),
        T,
        "mv: alpha must be real for a of dtype",
    ),
    "alpha is a vector": (lambda o: o.mv(alpha=o.x), V, r"alpha must be a number .*shape \(3,\)"),
    "alpha is one of NumPy's vectors": (
        lambda o: o.mv(alpha=np.ones(2)),
        T,
        "mv: alpha must be a number .*numpy.ndarray",
    ),
    "alpha is beyond every float": (
        lambda o: o.mv(alpha=HUGE),
        V,
        "mv: alpha does not fit torch.float32: too large",
    ),
    "alpha is without memory": (
        lambda o: o.mv(alpha=torch.tensor(1.0, device="meta")),
        T,
        "mv: alpha must be on the device of a, cpu, or on the CPU, got meta",
    ),
    "alpha of addmv is text": (lambda o: o.addmv(alpha="2"), T, "addmv: alpha must be a number"),
    "beta is None": (lambda o: o.addmv(beta=None), T, "addmv: beta must be a number .*got None"),
    "beta is text": (lambda o: o.addmv(beta="1"), T, "addmv: beta must be a number .*got str '1'"),
    "beta is a vector": (lambda o: o.addmv(beta=o.y), V, r"addmv: beta must be .*shape \(4,\)"),
    "beta is complex": (lambda o: o.addmv(beta=1j), T, "addmv: beta must be real for a of dtype"),
    "beta is beyond every float": (lambda o: o.addmv(beta=HUGE), V, "addmv: beta does not fit"),
    # y
    "y is None": (
        lambda o: products.addmv(None, o.a, o.x),
        T,
        "addmv: y must be a tensor, got None",
    ),
    "y is a number": (lambda o: o.addmv(2.0), T, "addmv: y must be a tensor, got float 2.0"),
    "y is short": (lambda o: o.addmv(o.x), V, r"addmv: y must have the shape .*\(4,\), .*\(3,\)"),
    "y is a matrix": (lambda o: o.addmv(o.a), V, r"addmv: y must have the shape .*got \(4, 3\)"),
    "y of another dtype": (lambda o: o.addmv(o.y.double()), T, "y must have the dtype of a, .*64"),
    "y of integers": (lambda o: o.addmv(o.y.int()), T, "addmv: y must have the dtype of a"),
    "y of float16 beside float32": (lambda o: o.addmv(o.y.half()), T, "y must have the dtype of a"),
    "y is without memory": (lambda o: o.addmv(o.y.to("meta")), T, "y must be on the device of a"),
    "y is sparse": (lambda o: o.addmv(o.y.to_sparse()), T, "addmv: y is a tensor of layout"),
    "y that is not read is text": (
        lambda o: products.addmv("y", o.a, o.x, beta=0),
        T,
        "addmv: y must be a tensor, got str 'y'",
    ),
    "y that is not read is long": (
        lambda o: products.addmv(torch.ones(7), o.a, o.x, beta=0),
        V,
        r"addmv: y must have the shape .*\(4,\), .*\(7,\)",
    ),
    "y that is not read of another dtype": (
        lambda o: products.addmv(o.y.double(), o.a, o.x, beta=0),
        T,
        "addmv: y must have the dtype of a, .*64",
    ),
    "y that is not read is without memory": (
        lambda o: products.addmv(o.y.to("meta"), o.a, o.x, beta=0),
        T,
        "addmv: y must be on the device of a",
    ),
    # out
    "out is text": (lambda o: o.mv(out="out"), T, "mv: out must be a tensor, got str 'out'"),
    "out is a list": (lambda o: o.mv(out=[0.0] * 4), T, "mv: out must be a tensor, got list"),
    "out is of NumPy": (lambda o: o.mv(out=np.ones(4)), T, "mv: out must be a tensor, got numpy"),
    "out is short": (
        lambda o: o.mv(out=o.out[:3]),
        V,
        r"out must have the shape .*\(4,\), got \(3",
    ),
    "out is a column": (lambda o: o.mv(out=o.out[:, None]), V, r"out must have the shape .*\(4, 1"),
    "out of another dtype": (
        lambda o: o.mv(out=o.out.double()),
        T,
        "mv: out must have the dtype of a, .*float64",
    ),
    "out is without memory": (lambda o: o.mv(out=o.out.to("meta")), T, "out must be on the device"),
    "out is sparse": (lambda o: o.mv(out=o.y.to_sparse()), T, "mv: out is a tensor of layout"),
    "out is one element": (
        lambda o: o.mv(out=o.out[:1].expand(4)),
        V,
        "mv: out must have elements that are apart in",
    ),
    "out of addmv is one element": (
        lambda o: o.addmv(out=o.out[:1].expand(4)),
        V,
        "addmv: out must have elements that are apart",
    ),
    "out of addmv is short": (
        lambda o: o.addmv(out=o.out[:3]),
        V,
        r"addmv: out must have .*\(3,\)",
    ),
    "out is not what out_dtype says": (
        lambda o: half(o, out=o.out.half(), out_dtype=torch.float32),
        T,
        r"mv: out must have the dtype of the result, torch\.float32, got torch\.float16",
    ),
    "out needs a gradient": (
        lambda o: o.mv(out=torch.ones(4, requires_grad=True)),
        T,
        "mv: out requires a gradient, and",
    ),
    "x needs a gradient beside out": (
        lambda o: o.mv(x=o.x.requires_grad_()),
        T,
        r"mv: x requires a gradient, .*detach\(\)",
    ),
    "a needs a gradient beside out": (
        lambda o: o.addmv(a=o.a.requires_grad_()),
        T,
        "addmv: a requires a gradient, and",
    ),
    "out in a batch": (
        lambda o: torch.func.vmap(lambda x, out: products.mv(o.a, x, out))(o.x[None], o.out[None]),
        T,
        "mv: a vector cannot be overwritten inside torch.func.vmap",
    ),
    # what is not of PyTorch's functions
    "out_dtype is another one": (
        lambda o: products.mv(o.a, o.x, out_dtype=torch.float64),
        T,
        "out_dtype must be .*got torch.f",
    ),
    "out_dtype is no dtype": (lambda o: o.mv(out_dtype=3), T, "mv: out_dtype must be .*got 3"),
    "out_dtype of integers": (
        lambda o: o.mv(out_dtype="int8"),
        T,
        "mv: out_dtype must be .*'int8'",
    ),
    "out_dtype of float16 too wide": (
        lambda o: half(o, out_dtype=torch.float64),
        T,
        "mv: out_dtype must be .* or float32, got",
    ),
    "accumulate is unknown": (
        lambda o: o.mv(accumulate="no"),
        V,
        "accumulate must be one of .*'no'",
    ),
    "accumulate is no word": (lambda o: o.mv(accumulate=1), T, "accumulate must be one of .*got 1"),
    "accumulate needs a GPU": (
        lambda o: o.mv(o.a.double(), o.x.double(), o.out.double(), accumulate="wide"),
        V,
        "mv: accumulate='wide' in float64 needs a GPU",
    ),
    "accumulate of addmv needs a GPU": (
        lambda o: o.addmv(accumulate="pairs"),
        V,
        "addmv: accumulate='pairs' in float32 needs a GPU",
    ),
    "stream on the CPU": (
        lambda o: o.mv(stream=0),
        V,
        "mv: stream only applies to tensors on a GPU",
    ),
    "stream of addmv on the CPU": (
        lambda o: o.addmv(stream=0),
        V,
        "addmv: stream only applies to tensors on a GPU",
    ),
}


def contents(tensor):
    return tensor.detach().clone().numpy().tobytes()


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_tensors(kind):
    call, error, words = BAD[kind]
    operands = Operands()
    check(lambda: call(operands), vars(operands), error, rf"^gemv\.torch\.(.*{words})", contents)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda o: gemv.gemv(1, o.a.to_sparse(), o.x), T, "gemv: a cannot be read .*to_dense"),
        (
            lambda o: gemv.gemv(1, o.a.to("meta"), o.x.to("meta")),
            T,
            "gemv: a is a tensor on device",
        ),
        (lambda o: gemv.gemv(1, o.a, o.x[:2]), V, "gemv: x is too short: .*len.x. = 2"),
        (
            lambda o: gemv.gemv(1, o.a[:3], o.x, 1.0, o.x, overwrite_y=1),
            V,
            "gemv: y overlaps x in memory",
        ),
        (
            lambda o: gemv.gemv(1, o.a, o.x, 1.0, o.out.requires_grad_(), overwrite_y=1),
            T,
            "gemv: y cannot be read .*requires grad",
        ),
        (lambda o: gemv.matvec(o.a[None], o.y[None]), V, "matvec: x has 4 elements .* 3 columns"),
        (
            lambda o: gemv.matvec(o.a[None], o.x, o.out[:1].expand(1, 4)),
            V,
            "matvec: out has items that share elements, or elements of stride 0",
        ),
    ],
)
def test_tensors_in_calls_of_gemv_itself(call, error, words):
    gemv.use_backend("host")
    try:
        operands = Operands()
        check(lambda: call(operands), vars(operands), error, f"^{words}", contents)
    finally:
        gemv.use_backend(None)
