"""``gemv.torch`` against PyTorch's own products: values, derivatives, graphs, transformations.

Nothing here needs a GPU; with one, the same runs there too.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

import numpy as np
import pytest
from helpers import processes
from helpers.interrupts import Interrupting

import gemv
from gemv.arrays import libraries

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv.torch as products  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of its compiler
    pytest.mark.filterwarnings("ignore:.*does not have many dimensions"),
]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPS = [lambda a: a, lambda a: a.mT, lambda a: a.mH]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(3)
    return request.param


@pytest.fixture
def compiler():
    """A clean compiler, with nothing of the test left in it."""
    torch._dynamo.reset()
    yield "aot_eager"
    torch._dynamo.reset()


def operands(device, dtype=torch.float64, trans=0, m=5, n=3):
    rows, cols = (n, m) if trans else (m, n)
    make = {"dtype": torch.complex128 if dtype.is_complex else torch.float64}
    return [torch.randn(shape, **make).to(device, dtype) for shape in ((m, n), (cols,), (rows,))]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str
)
@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_values_are_those_of_torch(device, dtype, trans):
    number = "NTC".index(trans)
    a, x, y = operands(device, dtype, number, 40, 33)
    factors = (0.5 - 2j, 1.5j) if dtype.is_complex else (0.5, -1.5)
    expected = torch.mv(OPS[number](a), x)
    single = dtype in (torch.float32, torch.complex64)
    close = {"rtol": 1e-4, "atol": 1e-5} if single else {}
    for matrix in (a, a.mT.contiguous().mT, torch.stack([a, a], -1)[..., 0]):
        torch.testing.assert_close(products.mv(matrix, x, trans=trans), expected, **close)
        both = products.addmv(y, matrix, x, alpha=factors[0], beta=factors[1], trans=trans)
        torch.testing.assert_close(both, factors[0] * expected + factors[1] * y, **close)
    out = torch.empty_like(y)
    assert products.mv(a, x, out, alpha=2, trans=trans) is out
    torch.testing.assert_close(out, 2 * expected, **close)
    assert products.addmv(y, a, x, trans=trans, out=y) is y
    torch.testing.assert_close(
        products.addmv(y, a, x, alpha=-1, trans=trans), y - expected, **close
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_numbers_are_added_up_in_float32(device, dtype):
    a, x, y = operands(device, dtype, 0, 20, 30)
    wide = a.float() @ x.float()
    torch.testing.assert_close(products.mv(a, x, out_dtype=torch.float32), wide)
    torch.testing.assert_close(products.mv(a, x, out_dtype="float32", alpha=2), 2 * wide)
    assert torch.equal(products.mv(a, x), products.mv(a, x, out_dtype=torch.float32).to(dtype))
    torch.testing.assert_close(products.addmv(y.float(), a, x), wide + y.float())
    a.requires_grad_(), x.requires_grad_()
    products.mv(a, x, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype is x.grad.dtype is dtype
    torch.testing.assert_close(x.grad, a.detach().float().sum(0).to(dtype))


def test_wide_sums(device):
    a, x, y = operands(device, torch.float32, 0, 30, 40)
    expected = (a.double() @ x.double()).float()
    assert torch.equal(products.mv(a, x, accumulate="wide"), expected)
    out = torch.empty_like(y)
    assert torch.equal(products.mv(a, x, out, accumulate="wide"), expected)


def test_lazy_conjugates_are_read_as_they_lie(device):
    a, x, y = operands(device, torch.complex128)
    torch.testing.assert_close(products.mv(a.conj(), x.conj()), a.conj() @ x.conj())
    torch.testing.assert_close(products.addmv(y.conj(), a.mH.mH, x), y.conj() + a @ x)
    torch.testing.assert_close(products.mv(a.mH.conj(), y), a.mT @ y)


def test_empty_operands_are_as_torch_has_them(device):
    a, x, y = (torch.ones(shape, device=device) for shape in ((4, 0), 0, 4))
    assert products.mv(a, x).tolist() == [0] * 4
    assert products.addmv(y, a, x, beta=2).tolist() == [2] * 4
    assert products.addmv(y, a, x, beta=3, out=y).tolist() == [3] * 4
    assert products.mv(a, y, trans="T").shape == (0,)
    out = torch.full((4,), torch.nan, device=device)
    assert products.mv(a, x, out) is out and out.tolist() == [0] * 4


def test_y_is_broadcast_and_not_read_where_beta_is_0(device):
    a, x, _ = operands(device)
    for y in (torch.tensor(2.0, dtype=a.dtype, device=device), a.new_full((1,), 2.0)):
        torch.testing.assert_close(products.addmv(y, a, x), a @ x + 2)
    nan, out = a.new_full((5,), torch.nan), a.new_full((5,), torch.nan)
    torch.testing.assert_close(products.addmv(nan, a, x, beta=0), a @ x)
    assert products.addmv(nan, a, x, beta=0, out=out) is out
    torch.testing.assert_close(out, a @ x)


def test_out_is_written_wherever_it_lies(device):
    a, x, _ = operands(device)
    gaps = a.new_zeros(10)
    assert products.mv(a, x, gaps[::2]).data_ptr() == gaps.data_ptr()
    torch.testing.assert_close(gaps[::2], a @ x)
    weight = torch.ones(5, device=device, dtype=a.dtype, requires_grad=True)
    out = a.new_ones(5)
    saved = (weight * out).sum()
    products.mv(a, x, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


# Derivatives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_first_and_second_derivatives(device, dtype, trans):
    a, x, y = (tensor.requires_grad_() for tensor in operands(device, dtype, trans, 3, 2))
    factor = 2 - 1j if dtype.is_complex else 2.0
    alpha, beta = (
        torch.tensor(value, dtype=dtype, device=device, requires_grad=True) for value in (1.5, -0.5)
    )

    def scaled(a, x):
        return products.mv(a, x, alpha=factor, trans=trans)

    def update(y, a, x):
        return products.addmv(y, a, x, alpha=factor, beta=factor, trans=trans)

    def traced(y, a, x, alpha, beta):
        return products.addmv(y, a, x, alpha=alpha, beta=beta, trans=trans)

    for function, inputs in (
        (scaled, (a, x)), (update, (y, a, x)), (traced, (y, a, x, alpha, beta)),
    ):  # fmt: skip
        assert torch.autograd.gradcheck(
            function, inputs, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True)


def test_only_what_is_needed_is_differentiated():
    a, x, _ = operands("cpu")  # whose gradients are computed in this thread, which is traced
    x.requires_grad_()
    with gemv.trace() as calls:
        products.mv(a, x).sum().backward()
    assert len(calls) == 2 and a.grad is None
    torch.testing.assert_close(x.grad, a.sum(0))


def append_to(kept, tensor):
    kept.append(tensor)
    return tensor


@pytest.mark.parametrize("of_a", [False, True])
def test_only_what_gradients_are_made_of_is_kept(device, of_a):
    """The other operand may be overwritten before the gradient is computed, as with torch.mv."""
    a, x, y = operands(device)
    for call in (products.mv, lambda a, x: products.addmv(y, a, x), torch.mv):
        matrix, vector = a.clone(), x.clone()
        needed, other = (matrix, vector) if of_a else (vector, matrix)
        needed.requires_grad_()
        kept = []
        keep = partial(append_to, kept)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = call(needed if of_a else other, other if of_a else needed)
        assert [tensor.shape for tensor in kept] == [other.shape]
        with torch.no_grad():
            needed.zero_()
        result.sum().backward()
        torch.testing.assert_close(needed.grad, x.expand(5, -1) if of_a else a.sum(0))


def test_a_y_that_is_not_read_has_a_gradient_of_0(device):
    a, x, y = operands(device)
    y.requires_grad_()
    for beta in (0, 0.0):
        result = products.addmv(y, a, x, beta=beta)
        assert result.requires_grad
        [of_y] = torch.autograd.grad(result.sum(), y)
        assert of_y.tolist() == [0] * 5


def test_a_layer_learns(device):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 3, device=device))
            self.bias = torch.nn.Parameter(torch.randn(4, device=device))

        def forward(self, x):
            return products.addmv(self.bias, self.weight, x).relu()

    layer, x = Layer(), torch.randn(3, device=device)
    wanted = (layer.weight @ x + layer.bias).relu().square().sum()
    wanted.backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_nobody_but_autograd_sees_no_operator(device, monkeypatch):
    """The dispatcher takes longer than the products of this test."""
    a, x, y = (tensor.requires_grad_() for tensor in operands(device))

    def operator(*arguments):
        raise AssertionError("the operator was called")

    monkeypatch.setattr(torch.ops.gemv, "product", operator)
    products.addmv(y, a, x, beta=2.0).backward(y.detach())
    torch.testing.assert_close(a.grad, torch.outer(y, x))
    torch.testing.assert_close(x.grad, a.mT @ y)
    torch.testing.assert_close(y.grad, 2 * y)


def test_the_operator_differentiates_y_alone(device):
    """Its matrix and its x need no gradient."""
    a, x, y = operands(device)
    y.requires_grad_()
    result = torch.ops.gemv.product("gemv.torch.addmv", 2.0, a, x, 0.5, y, 0, 1, 0, 1, 0, None)
    (of_y,) = torch.autograd.grad(result.sum(), y)
    assert of_y.tolist() == [0.5] * len(y)


def test_the_operator_that_overwrites_writes_to_any_y(device):
    """BLAS writes to host memory that is contiguous, and to no lazy conjugate."""
    routine = gemv.gemv.__name__  # known by that name once it has been imported
    a, x, _ = operands(device, torch.complex128)
    memory = torch.zeros(10, dtype=a.dtype, device=device)
    for y in (memory[::2], memory[:5].conj()):
        y.fill_(1j)
        torch.ops.gemv.product_(routine, 1.0, a, x, 2.0, y, 0, 1, 0, 1, 0, None)
        torch.testing.assert_close(y.clone(), a @ x + 2j)


def test_gradients_without_memory(device):
    a, x, _ = (tensor.requires_grad_() for tensor in operands(device))
    result, expected = products.mv(a, x), torch.mv(a, x)
    zeros = torch._efficientzerotensor(result.shape, dtype=a.dtype, device=device)
    both = torch.eye(len(result), dtype=a.dtype, device=device)
    for gradients, options in ((zeros, {}), (both, {"is_grads_batched": True})):
        found, right = (
            torch.autograd.grad(of, (a, x), gradients, retain_graph=True, **options)
            for of in (result, expected)
        )
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_recorded_trace_keeps_the_product(device, grad):
    a, x, _ = operands(device)
    a.requires_grad_(grad)
    traced = torch.jit.trace(lambda a, x: products.mv(a, x), (a, x))
    torch.testing.assert_close(traced(2 * a, x), 2 * a @ x)


def test_no_gradient_goes_through_out(device):
    a, x, y = operands(device)
    for tensor in (a, x, y):
        tensor.requires_grad_()
        with pytest.raises(TypeError, match=r"gemv\.torch\.mv: (a|x|out) requires a gradient"):
            products.mv(a, x, out=y)
        with torch.no_grad():
            products.mv(a, x, out=y)
        tensor.requires_grad_(False)
    out, factor = torch.full_like(y, 7), torch.tensor(2.0, dtype=y.dtype, device=device)
    for name, tensor in (("y", y), ("alpha", factor), ("beta", factor)):
        tensor.requires_grad_()
        scalars = {name: factor} if tensor is factor else {}
        with pytest.raises(TypeError, match=rf"gemv\.torch\.addmv: {name} requires a gradient"):
            products.addmv(y, a, x, out=out, **scalars)
        tensor.requires_grad_(False)
    assert torch.all(out == 7) and not out.requires_grad


def test_out_may_overlap_what_is_read(device):
    """PyTorch refuses that; here the result is that of memory apart, and never half of it."""
    a = torch.arange(12.0, device=device, dtype=torch.float64).reshape(4, 3)
    for first in range(4):
        memory = torch.arange(8.0, device=device, dtype=torch.float64)
        x, y, out = memory[first : first + 3], torch.ones_like(memory[:4]), memory[2:6]
        expected = y + a @ x
        products.addmv(y, a, x, out=out)
        assert torch.equal(out, expected)
        memory = torch.arange(8.0, device=device, dtype=torch.float64)
        x, y, out = x.clone(), memory[first : first + 4], memory[2:6]
        expected = y + a @ x
        products.addmv(y, a, x, out=out)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_an_interrupt_at_any_moment(gradients):
    """In autograd's functions, too: the next call is right, and out has all of a result or none."""
    a, x, y = operands("cpu")
    expected = y + a @ x
    if gradients:
        a, x, y = (tensor.requires_grad_() for tensor in (a, x, y))

    def call(out):
        result = products.addmv(y, a, x, out=None if gradients else out)
        of_x = torch.autograd.grad(result.sum(), x)[0] if gradients else None
        return result, of_x

    interrupting = Interrupting()
    for _ in range(2):  # the first call imports, and finds out what is remembered
        interrupting.run(lambda: call(torch.zeros_like(expected)))
    for at in range(1, interrupting.begun + 1):
        out = torch.full_like(expected, 7)
        with pytest.raises(KeyboardInterrupt):
            interrupting.run(lambda out=out: call(out), at)
        assert torch.all(out == 7) or torch.equal(out, expected)
        result, of_x = call(out)
        torch.testing.assert_close(result, expected)
        if gradients:
            torch.testing.assert_close(of_x, a.sum(0))


#: As in test_threads of tests/load.
THREADS = 8


def test_threads_share_tensors():
    """Eight threads multiply one matrix by vectors of their own, and differentiate."""
    a, x, _ = operands("cpu", m=40, n=30)
    a.requires_grad_()
    at_once, wrong = threading.Barrier(THREADS), []

    def work(number):
        own = number * x
        at_once.wait()
        for _ in range(5):
            with torch.no_grad():
                plain = products.mv(a, own)
            result = products.mv(a, own)
            (of_a,) = torch.autograd.grad(result.sum(), a)
            if not (torch.equal(plain, result) and torch.equal(of_a, own.expand(40, 30))):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


# Transformations --------------------------------------------------------------------------------


def transformed():
    """Functions of a matrix and a vector made by torch.func, for a product that is passed."""
    func = torch.func
    return {
        "grad": lambda mv: func.grad(lambda x, a: mv(a, x).pow(2).sum()),
        "jvp": lambda mv: lambda x, a: func.jvp(mv, (a, x), (a.sin(), x.cos()))[1],
        "vjp": lambda mv: lambda x, a: func.vjp(mv, a, x)[1](mv(a, x)),
        "jacrev": lambda mv: lambda x, a: func.jacrev(mv, (0, 1))(a, x),
        "jacfwd": lambda mv: lambda x, a: func.jacfwd(mv, (0, 1))(a, x),
        "hessian": lambda mv: func.hessian(lambda x, a: mv(a, x).pow(3).sum()),
        "jacrev_of_jacfwd": lambda mv: func.jacrev(func.jacfwd(lambda x, a: mv(a, x).pow(3).sum())),
        "vmap_x": lambda mv: lambda x, a: func.vmap(mv, (None, 1))(a, torch.stack([x, 2 * x], 1)),
        "vmap_a": lambda mv: lambda x, a: func.vmap(mv, (2, None))(torch.stack([a, -a], 2), x),
        "vmap_of_grad": lambda mv: (
            lambda x, a: func.vmap(func.grad(lambda x: mv(a, x).sum()))(torch.stack([x, 2 * x]))
        ),
        "vmap_of_vmap": lambda mv: (
            lambda x, a: func.vmap(func.vmap(mv, (None, 0)), (0, None))(
                torch.stack([a, -a]), torch.stack([x, 2 * x, 3 * x])
            )
        ),
        "grad_of_vmap": lambda mv: func.grad(
            lambda x, a: func.vmap(mv)(torch.stack([a, a * a]), torch.stack([x, x * x])).sum()
        ),
    }


@pytest.mark.parametrize("name", transformed())
def test_transformations_see_through(device, name):
    a, x, _ = operands(device)
    make = transformed()[name]
    expected = make(torch.mv)(x, a)
    torch.testing.assert_close(make(products.mv)(x, a), expected)


@pytest.mark.parametrize("name", ["grad", "jvp", "jacrev", "vmap_x", "vmap_of_grad"])
def test_graphs_keep_transformations(device, name, compiler):
    a, x, _ = operands(device)
    make = transformed()[name]
    compiled = torch.compile(make(products.mv), fullgraph=True, backend=compiler)
    torch.testing.assert_close(compiled(x, a), make(torch.mv)(x, a))


def test_a_function_that_outlives_its_transformation(device):
    a, x, y = operands(device)
    _, pull_back = torch.func.vjp(products.mv, a, x)
    for cotangent in (y, 2 * y):
        torch.testing.assert_close(
            pull_back(cotangent), (torch.outer(cotangent, x), a.T @ cotangent)
        )
    y.requires_grad_()
    (of_y,) = torch.autograd.grad(pull_back(y)[1].sum(), y)
    torch.testing.assert_close(of_y, a.sum(1))


def test_a_tensor_that_outlives_its_transformation(device):
    a, x, _ = operands(device)
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(x)
    torch.testing.assert_close(products.mv(a, kept[0]), a @ x)


def test_forward_derivatives_without_a_transformation(device):
    import torch.autograd.forward_ad as forward

    a, x, _ = operands(device)
    with forward.dual_level():
        dual = products.mv(a, forward.make_dual(x, x.sin()))
        torch.testing.assert_close(forward.unpack_dual(dual).tangent, a @ x.sin())


def test_batches_have_the_bits_of_single_products(device):
    a, x, _ = operands(device, m=50, n=70)
    xs = torch.stack([x, x.sin(), x.cos()])
    single = torch.stack([products.mv(a, item) for item in xs])
    assert torch.equal(torch.func.vmap(products.mv, (None, 0))(a, xs), single)
    for matrix, vector, axes in ((a, xs[:0], (None, 0)), (a[:, :, None][..., :0], x, (2, None))):
        nobody = torch.func.vmap(products.mv, axes)(matrix, vector)
        assert nobody.shape == (0, 50) and nobody.dtype == a.dtype
    with pytest.raises(TypeError, match=r"gemv\.torch\.mv: a vector cannot be overwritten"):
        torch.func.vmap(lambda x, out: products.mv(a, x, out))(xs, torch.zeros_like(single))


# Graphs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_compiled_function_with_gradients(device, dynamic, compiler):
    def step(a, x, y):
        z = products.addmv(y, a, x * 2, alpha=0.5, beta=2.0)
        return products.mv(a, z.relu(), trans="T").square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=compiler)
    for m, n in ((5, 3), (6, 4), (7, 2)):
        tensors = operands(device, m=m, n=n)
        gradients = []
        for function in (step, compiled):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            function(*leaves).backward()
            gradients.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(*gradients)


def test_graphs_keep_all_options(device, compiler):
    a, x, y = operands(device, torch.float32)
    stream = {"stream": torch.cuda.Stream()} if device == "cuda" else {}

    def step(a, x, y):
        out = torch.empty_like(y)
        assert products.mv(a, x, out, alpha=3.0, accumulate="wide") is out
        narrow = products.mv(a.half(), x.half(), out_dtype=torch.float32, **stream)
        drop_in = gemv.gemv(2.0, a.half(), x.half(), out_dtype="float32")
        wide = gemv.gemv(2.0, a, x, accumulate="wide", **stream)
        return out, narrow, drop_in, wide

    expected = 3 * (a @ x), a @ x, 2 * (a @ x), 2 * (a @ x)
    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    for _ in range(2):
        results = compiled(a, x, y)
        torch.testing.assert_close(results, expected, rtol=3e-3, atol=3e-3)


def test_graphs_keep_wide_sums_and_which_y_is_overwritten(device, compiler):
    # Ones are lost beside the large number, in whichever order plain sums are added up.
    row = [3e8, *[1.0] * 62, -3e8]
    a, x = torch.tensor([row], device=device), torch.ones(64, device=device)

    def step(a, x, y, old):
        wide = products.mv(a, x, accumulate="wide"), gemv.gemv(1.0, a, x, accumulate="wide")
        new = gemv.gemv(1.0, a, x, 1.0, old, accumulate="wide")
        kept = gemv.gemv(1.0, a, x, 1.0, y, overwrite_y=1, accumulate="wide")
        return *wide, new, kept

    y, old = (torch.full((1,), value, device=device) for value in (4.0, 5.0))
    results = torch.compile(step, fullgraph=True, backend=compiler)(a, x, y, old)
    assert [each.item() for each in results] == [62, 62, 67, 66]
    assert (y.item(), old.item()) == (66, 5)
    assert gemv.gemv(1.0, a, x).item() != 62


def test_graphs_refuse_gradients_that_are_not_recorded(device, compiler):
    a, x, y = operands(device)
    compiled = torch.compile(
        lambda a, x, y: gemv.gemv(1.0, a, x, 1.0, y), fullgraph=True, backend=compiler
    )
    for tensor in (a, x, y):
        tensor.requires_grad_()
        with pytest.raises(Exception, match="requires a gradient, which this product does not"):
            compiled(a, x, y)
        tensor.requires_grad_(False)


def test_graphs_take_streams_whose_class_the_compiler_does_not_know(compiler):
    """As all of them are in PyTorch 2.11; on the CPU the operator then refuses the handle."""
    a, x, _ = operands("cpu")
    stream = torch.Stream.__new__(type("Stream", (torch.Stream,), {"cuda_stream": 7}), device="cpu")
    compiled = torch.compile(
        lambda a, x: products.mv(a, x, stream=stream), fullgraph=True, backend=compiler
    )
    with pytest.raises(ValueError, match="stream only applies to .* GPU"):
        compiled(a, x)


def test_a_graph_takes_tensors_and_changing_numbers_for_alpha(device, compiler):
    a, x, _ = operands(device)
    compiled = torch.compile(
        lambda a, x, alpha: products.mv(a, x, alpha=alpha), fullgraph=True, backend=compiler
    )
    for alpha in (1.0, 2.0, 3.5, 2, torch.tensor(3.0, dtype=a.dtype, device=device)):
        torch.testing.assert_close(compiled(a, x, alpha), alpha * (a @ x))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cuda_graphs_of_the_compiler():
    a, x, y = operands("cuda", torch.float32, 0, 300, 200)
    compiled = torch.compile(
        lambda a, x, y: products.addmv(y, a, x).relu(), fullgraph=True, mode="reduce-overhead"
    )
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(
            compiled(a, x, y).clone(), (y + a @ x).relu(), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_opcheck(device, dtype):
    a, x, y = operands(device, dtype)
    needing = [t.clone().requires_grad_() for t in (a, x, y)]
    rest = 0, 1, 0, 1, 0, None
    product, in_place = torch.ops.gemv.product.default, torch.ops.gemv.product_.default
    name = "gemv.torch.addmv"
    from torch import library

    import gemv.blas  # noqa: F401  makes the name "gemv" below known

    library.opcheck(product, (name, 2.0, a, x, 0, None, *rest))
    library.opcheck(product, (name, 2.0, *needing[:2], 0.5, needing[2], *rest))
    library.opcheck(product, (name, 1, a, needing[2], 0, None, 0, 1, 0, 1, 2, None))
    library.opcheck(product, ("gemv", 2.0, a, x, 0.5, y, *rest))
    library.opcheck(in_place, (name, 2.0, a, x, 0.5, y, *rest))


def test_tensors_without_memory():
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    meta = products.mv(torch.empty(4, 3, device="meta"), torch.empty(3, device="meta"))
    assert meta.shape == (4,) and meta.is_meta
    with FakeTensorMode():
        fake = products.addmv(torch.empty(3), torch.empty(4, 3), torch.empty(4), trans="T")
        assert fake.shape == (3,) and type(fake).__name__ == "FakeTensor"
        narrow = products.mv(
            torch.empty(4, 3).half(), torch.empty(3).half(), out_dtype=torch.float32
        )
        assert narrow.dtype is torch.float32
    graph = make_fx(lambda a, x: products.mv(a, x))(torch.ones(4, 3), torch.ones(3))
    assert "gemv.product" in graph.code


def test_exported_programs_keep_the_product():
    class Module(torch.nn.Module):
        def forward(self, a, x):
            return products.mv(a, x) + 1

    a, x = torch.ones(4, 3), torch.ones(3)
    program = torch.export.export(Module(), (a, x))
    assert "gemv.product" in program.graph_module.code
    assert program.module()(a, x).tolist() == [4] * 4


# What is refused --------------------------------------------------------------------------------


def refused():
    a, x, y = torch.ones(4, 3), torch.ones(3), torch.ones(4)
    mv, addmv = products.mv, products.addmv
    return {
        "rank_of_a": (lambda: mv(x, x), ValueError, r"mv: a must have two dimensions.*\(3,\)"),
        "rank_of_x": (lambda: mv(a, a), ValueError, r"mv: x must have one dimension.*\(4, 3\)"),
        "length": (lambda: mv(a, y), ValueError, "mv: x must have as many.*columns, 3, got 4"),
        "transposed": (lambda: mv(a, x, trans=1), ValueError, "as a has rows, 4, got 3"),
        "trans": (lambda: mv(a, x, trans=3), ValueError, "trans must be .*got 3"),
        "integers": (lambda: mv(a.int(), x.int()), TypeError, r"a has dtype torch\.int32"),
        "dtypes": (lambda: mv(a, x.double()), TypeError, r"dtype of a, torch\.float32, got"),
        "devices": (lambda: mv(a, x.to("meta")), TypeError, "x must be on the device of a, cpu"),
        "numpy": (lambda: mv(a, np.ones(3)), TypeError, r"x must be a tensor, got numpy\.ndarray"),
        "sparse": (lambda: mv(a.to_sparse(), x), TypeError, r"sparse_coo.*to_dense\(\)"),
        "complex": (lambda: mv(a, x, alpha=1j), TypeError, "alpha must be real"),
        "vector": (lambda: mv(a, x, alpha=x), ValueError, "alpha must be a number or a tensor"),
        "text": (lambda: mv(a, x, alpha="2"), TypeError, "alpha must be a number.*str '2'"),
        "out": (lambda: mv(a, x, x), ValueError, r"out must have the shape.*\(4,\), got \(3,\)"),
        "out_in_one_place": (
            lambda: mv(a[:2], x, torch.ones(1).expand(2)), ValueError, "apart in memory.*stride 0",
        ),
        "out_dtype": (lambda: mv(a, x, out_dtype="float64"), TypeError, "out_dtype must be"),
        "no_dtype": (lambda: mv(a, x, out_dtype="int8"), TypeError, "out_dtype must be.*int8"),
        "accumulate": (lambda: mv(a, x, accumulate="no"), ValueError, "accumulate must be one"),
        "wide": (
            lambda: mv(a.double(), x.double(), accumulate="wide"), ValueError, "needs a GPU",
        ),
        "stream": (lambda: mv(a, x, stream=0), ValueError, "stream only applies to .* GPU"),
        "y": (lambda: addmv(x, a, x), ValueError, r"addmv: y must have the shape.*\(4,\)"),
        "y_dtype": (lambda: addmv(y.double(), a, x), TypeError, "addmv: y must have the dtype"),
        "no_y": (lambda: addmv(2.0, a, x), TypeError, r"addmv: y must be a tensor, got float"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refused())
def test_errors_name_argument_rule_and_value(name):
    call, kind, words = refused()[name]
    with pytest.raises(kind, match=rf"gemv\.torch\..*{words}"):
        call()


def test_the_host_computes_for_host_memory_whatever_the_backend():
    a, x, _ = operands("cpu")
    with gemv.trace() as calls:
        products.mv(a, x)
    assert [(call.backend, call.kernel) for call in calls] == [("host", "dgemv")]


def test_importing_gemv_does_not_load_torch():
    code = "import sys, gemv; gemv.gemv; assert 'torch' not in sys.modules; import gemv.torch"
    assert processes.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_lists_of_tensors(device):
    """``gemv_batched`` and ``Batch`` take tensors of several sizes, lazy conjugates among them."""
    shapes = [(5, 3), (40, 33), (2, 50)]
    a = [torch.randn(shape, dtype=torch.complex128, device=device) for shape in shapes]
    x = [torch.randn(shape[1], dtype=torch.complex128, device=device) for shape in shapes]
    y = [torch.randn(shape[0], dtype=torch.complex128, device=device) for shape in shapes]
    a[1], x[2] = a[1].conj(), x[2].conj()
    expected = [2 * (m @ v) + w for m, v, w in zip(a, x, y, strict=True)]
    found = gemv.gemv_batched(2, a, x, 1, y)
    for got, exact in zip(found, expected, strict=True):
        assert got.device == exact.device
        torch.testing.assert_close(got, exact)
    # The imaginary part of a lazy conjugate is a lazy negative.
    a, x = [m.resolve_conj().real.contiguous() for m in a], [v.imag for v in x]
    assert x[2].is_neg()
    batch = gemv.Batch([a[0], a[1].conj(), a[2]])
    products_of = [m @ v for m, v in zip(a, x, strict=True)]
    for got, exact in zip(batch @ x, products_of, strict=True):
        torch.testing.assert_close(got, exact)
    torch.testing.assert_close(batch @ torch.cat(x), torch.cat(products_of))


def test_lists_do_not_hide_a_gradient(device):
    a = torch.ones(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    x = torch.ones(4, dtype=torch.float64, device=device)
    with pytest.raises(TypeError, match="item 0: a .*grad"):
        gemv.gemv_batched(1, [a], [x])


def test_results_of_a_list_have_memory_of_their_own_for_autograd():
    """A result that is written to in a graph leaves the others out of it."""
    torch_library = libraries.BY_NAME["torch"]
    whole = torch.zeros(20)
    first, empty, last = torch_library.parts(whole, [0, 4, 4], [3, 0, 5])
    assert [each.shape[0] for each in (first, empty, last)] == [3, 0, 5]
    assert last.data_ptr() == whole.data_ptr() + 4 * whole.element_size()
    weights = torch.ones(5, requires_grad=True)
    before = first._version
    last.add_(weights)
    assert last.requires_grad and not first.requires_grad and first._version == before
    assert whole[4:9].tolist() == [1] * 5 and not whole[:4].any() and not whole[9:].any()


def test_tensors_of_a_list_are_read_together(device):
    library = libraries.BY_NAME["torch"]
    arrays = [torch.ones(3, 4, device=device)[:, 1:], torch.ones(2, 5, device=device).T]
    if device == "cpu":  # host memory has another way
        assert library.read_all(arrays) is None
        return
    views, each = library.read_all(arrays), [library.read(array) for array in arrays]
    assert views.shapes == [view.shape for view in each]
    assert views.pointers == [view.pointer for view in each]
    assert [tuple(4 * step for step in own) for own in views.strides] == [v.strides for v in each]
    assert {views.dtype} == {view.dtype for view in each}
    with_gradient = torch.ones(3, 4, device=device, requires_grad=True)
    double = torch.ones(3, 4, device=device, dtype=torch.float64)
    for odd in (with_gradient, double, torch.ones(3, 4), arrays[0].to_sparse()):
        assert library.read_all([*arrays, odd]) is None
    with torch.no_grad():
        assert library.read_all([*arrays, torch.nn.Parameter(arrays[0])]) is not None
