"""A new y of an old one, on a GPU in one launch, with the bits of a copy that is overwritten."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv  # noqa: E402
import gemv.torch as products  # noqa: E402
from gemv.calls import remembered  # noqa: E402
from gemv.core import memo  # noqa: E402
from gemv.driver.block import COUNT  # noqa: E402
from gemv.engines import backend  # noqa: E402

SHAPES = [(8, 8), (64, 64), (37, 1000), (300, 200), (4096, 4096), (1 << 17, 8), (8, 1 << 17)]


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    memo.forget()
    yield
    memo.forget()


def blocks_with_old_y():
    """The blocks of all expectations that have one for an old y."""
    return [each.with_old_y for each in remembered.expectations.values() if each.with_old_y]


def operands(dtype, shape, order, device="cuda"):
    torch.manual_seed(5)
    m, n = shape
    a = torch.randn(n, m).t() if order == "F" else torch.randn(m, n)
    return [each.to(device, dtype) for each in (a, torch.randn(n), torch.randn(m + 8))]


@pytest.mark.gpu
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_the_bits_of_a_copy_that_is_overwritten(dtype, shape, order):
    a, x, longer = operands(dtype, shape, order)
    for alpha, beta in ((1, 1), (2.0, -0.5), (0.0, 0.5), (1.5, 0)):
        for start in (0, 1, 4):
            y = longer[start : start + shape[0]]
            before, expected = longer.clone(), y.clone()
            products.addmv(expected, a, x, beta=beta, alpha=alpha, out=expected)
            for _ in range(3):
                found = products.addmv(y, a, x, beta=beta, alpha=alpha)
                assert torch.equal(found, expected)
            assert torch.equal(gemv.gemv(alpha, a, x, beta, y), expected)
            assert torch.equal(longer, before)
    plain = [each for each in remembered.expectations.values() if each.known.plain]
    blocks = blocks_with_old_y()
    assert bool(blocks) == bool(plain)
    assert all(int(each.words[COUNT]) == 1 for each in blocks)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_old_y_that_is_x_as_well(device):
    a, x, _ = operands(torch.float32, (300, 300), "C", device)
    before = x.clone()
    for _ in range(3):
        torch.testing.assert_close(products.addmv(x, a, x), x + a @ x, rtol=1e-4, atol=1e-3)
    assert torch.equal(x, before)
    assert bool(blocks_with_old_y()) == (device == "cuda")


@pytest.mark.gpu
def test_behind_other_work_and_in_a_graph():
    """The launch may start early, but waits for what writes the old y."""
    a, x, longer = operands(torch.float32, (300, 200), "C")
    y = longer[:300].clone()
    gemv.precompile(1.0, a, x, 0.5, y)
    loaded = backend.engine().functions.loaded
    assert any(getattr(each[1], "old_y", False) for each in loaded)
    for k in range(50):
        y.fill_(k)
        found = products.addmv(y, a, x, beta=0.5)
        y.fill_(-1)
        torch.testing.assert_close(found, k / 2 + a @ x, rtol=1e-4, atol=1e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = products.addmv(y, a, x, beta=0.5)
    for k in range(3):
        y.fill_(k)
        graph.replay()
        torch.testing.assert_close(z, k / 2 + a @ x, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_the_first_call_compiles_what_later_ones_launch(monkeypatch):
    from gemv.engines import binaries

    a, x, longer = operands(torch.float32, (123, 77), "C")
    products.addmv(longer[:123], a, x)

    def refused(*arguments):
        raise AssertionError("compiled by a later call")

    monkeypatch.setattr(binaries, "binaries", refused)
    for _ in range(3):
        products.addmv(longer[:123], a, x)
    assert len(blocks_with_old_y()) == 1
