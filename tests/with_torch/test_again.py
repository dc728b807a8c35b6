"""Calls of ``gemv.torch`` that were made before: how few steps they take, and what still watches.

Tensors in host memory say here that they are on a GPU, and the driver is a stand-in, so all this is
seen without one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv  # noqa: E402
import gemv.torch as products  # noqa: E402
from gemv.calls import torch_operators  # noqa: E402
from gemv.core import trace  # noqa: E402

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a stand-in for the driver")


ROOMS = tuple(str(Path(module.__file__).parent) for module in (gemv, torch))


def entered(call):
    """The names of the functions of gemv and of PyTorch that a call enters, in order."""
    names = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(ROOMS):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


FORMS = {
    "mv": lambda a, x, y: products.mv(a, x),
    "mv_into": lambda a, x, y: products.mv(a, x, y),
    "mv_transposed": lambda a, x, y: products.mv(a, y, trans="T"),
    "addmv": lambda a, x, y: products.addmv(y, a, x, beta=0.5, alpha=2.0),
    "addmv_in_place": lambda a, x, y: products.addmv(y, a, x, beta=0.5, out=y),
    "addmv_of_nothing": lambda a, x, y: products.addmv(y, a, x, beta=0),
}
EXPECTED = {
    "mv": lambda a, x, y: a @ x,
    "mv_into": lambda a, x, y: a @ x,
    "mv_transposed": lambda a, x, y: a.T @ y,
    "addmv": lambda a, x, y: 0.5 * y + 2 * (a @ x),
    "addmv_in_place": lambda a, x, y: 0.5 * y + a @ x,
    "addmv_of_nothing": lambda a, x, y: a @ x,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_repeated_call_enters_few_functions(engine, tensors, form):
    call = FORMS[form]
    for _ in range(2):
        call(*tensors)
    ways = engine.long_ways
    expected = EXPECTED[form](*tensors)
    results, y = [], tensors[2].clone()
    names = entered(lambda: results.append(call(*tensors)))
    assert form in ("mv_into", "addmv_in_place") or torch.equal(y, tensors[2])
    assert engine.long_ways == ways == 1
    torch.testing.assert_close(results[0], expected)
    assert names == [form.split("_")[0], "is_dynamo_compiling", "made"]


@pytest.mark.parametrize("needed", ["x", "a", "y", "axy"])
@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
@pytest.mark.parametrize("factors", [(1, 1), (2.0, -0.5)], ids=["plain", "scaled"])
@pytest.mark.parametrize("shape", [(5, 3), (4, 4)], ids=str)
def test_gradients_of_repeated_calls(engine, needed, trans, factors, shape):
    a, x, y = (torch.randn(size) for size in (shape, shape[1], shape[0]))
    if trans not in (0, "N"):
        x, y = y, x
    leaves = dict(zip("axy", (a, x, y), strict=True))
    for name in needed:
        leaves[name].requires_grad_()
    alpha, beta = factors
    for time in range(3):
        found = products.addmv(y, a, x, alpha=alpha, beta=beta, trans=trans)
        weights = torch.randn(found.shape)
        wanted = [leaves[name] for name in needed]
        got = torch.autograd.grad(found, wanted, weights)
        launched, ways = engine.launched, engine.long_ways
        matrix = a if trans in (0, "N") else a.T
        expected = torch.autograd.grad(alpha * (matrix @ x) + beta * y, wanted, weights)
        torch.testing.assert_close(got, expected)
        assert launched == engine.launched
        if time == 1:
            settled = ways
    assert engine.long_ways == settled <= 2


def test_a_gradient_enters_few_functions(engine, tensors):
    a, x, y = tensors
    for needing in ([x], [a], [a, x]):
        for each in (a, x):
            each.requires_grad_(any(each is one for one in needing))
        for _ in range(2):
            torch.autograd.grad(products.mv(a, x), needing, y)
        ways = engine.long_ways
        forward = entered(lambda: products.mv(a, x))
        assert forward == ["mv", "is_dynamo_compiling", "made", "forward", "save_for_backward"]
        result = products.mv(a, x)
        backward = entered(lambda of=result, n=needing: torch.autograd.grad(of, n, y))
        mine = backward[backward.index("backward") :]
        for_x = ["on_memory", "is_compiling", "is_scripting", "made"]
        assert mine == ["backward", *(for_x if x.requires_grad else [])]
        assert engine.long_ways == ways


def test_what_no_gradient_is_made_of_may_be_overwritten(engine, tensors):
    a, x, y = tensors
    for needing, expected in ((x, a.mT @ y), (a, torch.outer(y, x))):
        needing.requires_grad_()
        for _ in range(3):
            result = products.mv(a, x)
            with torch.no_grad():
                needing.mul_(1)
            (found,) = torch.autograd.grad(result, needing, y)
            torch.testing.assert_close(found, expected)
        needing.requires_grad_(False)


@pytest.mark.parametrize("shape", [(5, 3), (4, 4)], ids=str)
def test_second_derivatives_of_repeated_calls(engine, shape):
    a, x = torch.randn(shape, requires_grad=True), torch.randn(shape[1], requires_grad=True)
    for _ in range(3):
        results = []
        for product in (products.mv, torch.mv):
            (of_x,) = torch.autograd.grad(product(a, x).pow(3).sum(), x, create_graph=True)
            results.append(torch.autograd.grad(of_x.square().sum(), (a, x)))
        torch.testing.assert_close(*results)


def test_what_is_saved_and_overwritten_is_noticed(engine, tensors):
    a, x, y = tensors
    x.requires_grad_()
    for _ in range(2):
        result = products.mv(a, x)
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    weight = torch.ones(5, requires_grad=True)
    saved = (weight * y).sum()
    with torch.no_grad():
        for _ in range(3):
            products.mv(a, x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    with torch.inference_mode():
        inside = torch.zeros(5)
    for out in (inside, y):
        before = None if out is inside else out._version
        assert products.mv(a, x.detach(), out) is out
        torch.testing.assert_close(out, a @ x.detach())
        assert before is None or out._version > before


# What watches -----------------------------------------------------------------------------------


@pytest.fixture
def watched(engine, tensors, monkeypatch):
    """Operands of calls that were made before, and the calls of the operator from now on."""
    a, x, y = tensors
    for _ in range(3):
        products.mv(a, x), products.mv(a, x, y)
        products.addmv(y, a, x), products.mv(a, y, trans=2)
    launched = engine.launched
    assert launched
    return a, x, y


def is_seen(call):
    """Whether a mode of PyTorch's sees a product."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        call()
    return any("gemv.product" in name for name in seen)


def test_modes_see_repeated_calls(watched):
    a, x, y = watched
    for call in (
        lambda: products.mv(a, x), lambda: products.mv(a, x, y), lambda: products.addmv(y, a, x),
    ):  # fmt: skip
        assert is_seen(call)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_recorded_trace_sees_repeated_calls(watched):
    a, x, _ = watched
    traced = torch.jit.trace(lambda a, x: products.mv(a, x), (a, x))
    assert "gemv::product" in str(traced.graph)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_forward_derivatives_of_repeated_calls(watched):
    import torch.autograd.forward_ad as forward

    a, x, _ = watched
    with forward.dual_level():
        dual = products.mv(a, forward.make_dual(x, x.sin()))
        torch.testing.assert_close(forward.unpack_dual(dual).tangent, a @ x.sin())


def test_transformations_see_repeated_calls(watched):
    a, x, y = watched
    func = torch.func
    torch.testing.assert_close(
        func.vmap(products.mv, (None, 0))(a, torch.stack([x, 2 * x])),
        torch.stack([a @ x, 2 * a @ x]),
    )
    torch.testing.assert_close(func.grad(lambda x: products.mv(a, x).sum())(x), a.sum(0))

    def constant(x):  # its product is of no traced operand, and still may be added to
        return products.mv(a, torch.ones(3)).add_(x.sum()).sum()

    assert func.grad(constant)(x).tolist() == [5.0] * 3
    leaf = x.clone().requires_grad_()
    inside = func.vmap(lambda factor: products.mv(a, leaf) * factor)(torch.ones(2))
    (of_leaf,) = torch.autograd.grad(inside.sum(), leaf)
    torch.testing.assert_close(of_leaf, 2 * a.sum(0))


def test_graphs_keep_repeated_calls(watched):
    a, x, _ = watched
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda a, x: products.mv(a, x), fullgraph=True, backend=backend)
    compiled(a, x)
    torch._dynamo.reset()
    assert len(graphs) == 1 and "gemv" in graphs[0]


@pytest.mark.parametrize("how", ["another", "data"])
def test_lazy_negatives_are_not_taken_for_what_is_expected(how, engine):
    """The imaginary part of a lazy conjugate lies in memory with the other sign."""
    a, z = torch.ones(4, 3), torch.ones(3, dtype=torch.complex64) * 1j
    plain, negative = z.imag, z.conj().imag
    assert negative.is_neg() and plain.stride() == negative.stride()
    for _ in range(3):
        assert products.mv(a, plain).tolist() == [3.0] * 4
    if how == "data":  # the same tensor, with the memory of the other one
        plain.data, negative = negative, plain
        assert negative.is_neg()
    ways = engine.launched
    # The stand-in has no negatives either: it is enough that the machine code is not asked.
    with pytest.raises(AssertionError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_operators, "public_routines", {})
        patch.setattr(products, "_compute", _asked)
        products.mv(a, negative)
    assert engine.launched == ways


def _asked(*arguments):
    raise AssertionError("the long way")


def test_unusual_arguments_are_looked_at(watched):
    a, x, y = watched
    for call, error, words in (
        (lambda: products.mv(a, [1.0] * 3), TypeError, "x must be a tensor, got list"),
        (lambda: products.mv(a, x[:2]), ValueError, "x must have as many elements"),
        (lambda: products.mv(a, x, x), ValueError, "out must have the shape"),
        (lambda: products.mv(a, x, alpha="2"), TypeError, "alpha must be a number"),
        (lambda: products.mv(a, x, alpha=1j), TypeError, "alpha must be real"),
        (lambda: products.mv(a, x, trans=[0]), TypeError, "trans must be"),
        (lambda: products.mv(a, x, trans=3), ValueError, "trans must be"),
        (lambda: products.mv(a, x, trans="H"), ValueError, "trans must be"),
        (lambda: products.mv(a, x, y.requires_grad_()), TypeError, "out requires a gradient"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_traces_see_repeated_calls(watched):
    a, x, y = watched
    with trace.trace() as calls:
        products.mv(a, x), products.mv(a, x, y)
    assert [call.backend for call in calls] == ["cuda"] * 2
