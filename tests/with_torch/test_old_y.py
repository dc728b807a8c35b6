"""Repeated calls of PyTorch's with a y that stays: the launch reads it and writes a new one."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import tensors_as_on_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv  # noqa: E402
import gemv.torch as products  # noqa: E402
from gemv.calls import remembered  # noqa: E402
from gemv.core import memo  # noqa: E402
from gemv.core.geometry import Device  # noqa: E402

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a stand-in for the driver")


def test_an_old_y_is_read_by_the_launch(engine, tensors):
    """Wherever it lies, and only where it is read."""
    a, x, y = tensors
    for _ in range(2):
        products.addmv(y, a, x)
    assert engine.with_old_y == 1
    padded = torch.randn(11)
    for start in range(4):
        old = padded[start : start + 5]
        ways = engine.long_ways
        found = products.addmv(old, a, x, beta=0.5, alpha=2.0)
        torch.testing.assert_close(found, 0.5 * old + 2 * (a @ x))
        assert engine.long_ways == ways and engine.with_old_y == 2 + start
        assert found.data_ptr() != old.data_ptr()
    before = engine.with_old_y
    assert products.addmv(y * torch.nan, a, x, beta=0).isfinite().all()
    products.addmv(y, a, x, out=y)
    assert engine.with_old_y == before
    ours = gemv.gemv(2.0, a, x, 0.5, y)
    torch.testing.assert_close(ours, 2 * (a @ x) + 0.5 * y)
    again = gemv.gemv(2.0, a, x, 0.5, y)
    assert torch.equal(ours, again) and engine.with_old_y == before + 1


@pytest.mark.parametrize("beta", [0, 0.5])
def test_an_old_y_is_compared_as_the_others_are(engine, tensors, beta):
    a, x, y = tensors
    for _ in range(3):
        products.addmv(y, a, x, beta=beta)
    strided, launched = torch.randn(10)[::2], engine.launched
    expected = beta * strided + a @ x
    torch.testing.assert_close(products.addmv(strided, a, x, beta=beta), expected)
    assert products.addmv(strided, a, x, beta=beta).is_contiguous()
    for wrong, error, words in (
        (y.double(), TypeError, "y must have the dtype"), (torch.ones(3), ValueError, "y must"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            products.addmv(wrong, a, x, beta=beta)
    before = engine.with_old_y
    torch.testing.assert_close(products.addmv(y, a, x, beta=beta), beta * y + a @ x)
    assert engine.launched > launched and engine.with_old_y == before + (beta != 0)


class OnGpu:
    """A beta whose comparison would wait for the GPU, and would end the capture of a stream."""

    def __eq__(self, other):
        raise AssertionError("beta is compared before it is known to be a number")

    __hash__ = None


@pytest.mark.parametrize("beta", [OnGpu(), np.ones(2), np.zeros(2)], ids=["waits", "ones", "zeros"])
def test_a_beta_that_is_no_number_is_not_compared(engine, tensors, beta):
    a, x, y = tensors
    products.mv(a, x)
    for multiply in (
        lambda: gemv.gemv(1.0, a, x, beta, y), lambda: products.addmv(y, a, x, beta=beta)
    ):  # fmt: skip
        with pytest.raises(TypeError, match="beta must be"):
            multiply()


def test_an_old_y_that_is_a_part_of_a_longer_one(engine, tensors):
    a, x, _ = tensors
    longer = torch.randn(9)
    gemv.gemv(2.0, a, x, 0.5, longer, offy=2)  # the stand-in's long way knows no offsets
    for _ in range(3):
        found = gemv.gemv(2.0, a, x, 0.5, longer)
        expected = longer.clone()
        expected[:5] = 0.5 * longer[:5] + 2 * (a @ x)
        torch.testing.assert_close(found, expected)
        behind = gemv.gemv(2.0, a, x, 0.5, longer, offy=2)
        torch.testing.assert_close(behind[2:7], 0.5 * longer[2:7] + 2 * (a @ x))
        assert torch.equal(behind[:2], longer[:2]) and torch.equal(behind[7:], longer[7:])
    assert not engine.with_old_y
    assert not any(each.misses for each in remembered.expectations.values())


def test_the_code_for_an_old_y_is_loaded_by_the_first_call(engine, tensors):
    """So that no later one waits for a compiler, and only where an old y was read."""
    a, x, y = tensors
    load, asked = engine.block_with_old_y, []
    engine.block_with_old_y = lambda *rest: asked.append(rest) or load(*rest)
    products.mv(a, x)
    products.addmv(y, a, x, beta=0)
    products.addmv(y, a, x, out=y.clone())
    assert not asked
    products.addmv(y, a, x)  # of a kind that was remembered, so by the first call that reads y
    assert len(asked) == 1
    products.addmv(y, a.T.contiguous().T, x)
    assert len(asked) == 2
    for _ in range(2):
        products.addmv(y, a, x)
    assert len(asked) == 2


@pytest.mark.parametrize("beta", [0, 0.0, 0.5])
@pytest.mark.parametrize("multiply", ["gemv", "addmv"])
def test_the_very_first_call_loads_it_only_if_it_reads_y(engine, tensors, multiply, beta):
    """That call makes the short way itself, and asks it afterwards to be remembered."""
    a, x, y = tensors
    load, asked = engine.block_with_old_y, []
    engine.block_with_old_y = lambda *rest: asked.append(rest) or load(*rest)
    for calls in range(2):
        if multiply == "gemv":
            gemv.gemv(1.0, a, x, beta, y)
        else:
            products.addmv(y, a, x, beta=beta)
        assert engine.launched == calls, "the first one is remembered"
        assert len(asked) == (beta != 0)


def test_the_code_for_an_old_y_is_compiled_ahead(engine, tensors):
    """Where a call would ask for it, and nowhere else: it takes as long as that of the product."""
    a, x, y = tensors
    load, loaded = engine.load, []
    engine.load = lambda choice, *rest: loaded.append(choice.spec.old_y) or load(choice, *rest)
    engine.prepare_copy = lambda y: None
    many = Device("a stand-in", (0, 0), multiprocessors=132)
    engine.device = lambda: many
    gemv.precompile(1.0, a, x, 0.5, y)
    assert loaded == [False, True]
    z = torch.randn(9, dtype=torch.complex64)
    for arguments, options in (
        ((1.0, a, x, 0.5, y), {"overwrite_y": 1}), ((1.0, a, x, 0, y), {}), ((1.0, a, x), {}),
        ((1.0, a, x, 0.5, torch.randn(9)), {"incy": 2}),
        ((1.0, a, x, 0.5, y), {"kernel": "tile2d"}),
        ((1.0, a.to(z.dtype), z[: len(x)], 0.5, z[: len(y)]), {}),
        ((1.0, torch.randn(1 << 16, 2).T, torch.randn(1 << 16), 0.5, y[:2]), {}),  # in splits
    ):  # fmt: skip
        loaded.clear()
        gemv.precompile(*arguments, **options)
        assert loaded == [False], options


def test_a_capture_before_the_code_is_loaded(engine, tensors, monkeypatch):
    """It cannot be loaded then, so PyTorch makes a copy, and later calls ask again."""
    a, x, y = tensors
    load = engine.block_with_old_y

    def refuse(*arguments):
        raise RuntimeError("a stream is being captured")

    engine.block_with_old_y, engine.capture_of = refuse, lambda stream: "a graph"
    for _ in range(4):
        torch.testing.assert_close(products.addmv(y, a, x), y + a @ x)
    assert not engine.with_old_y
    engine.block_with_old_y, engine.capture_of = load, lambda stream: None
    torch.testing.assert_close(products.addmv(y, a, x), y + a @ x)
    assert engine.with_old_y == 1 and engine.long_ways == 1
    asked, b = [], a + 0
    engine.block_with_old_y = lambda *rest: asked.append(rest) or refuse()
    for _ in range(4):
        torch.testing.assert_close(products.addmv(y, b, x), y + b @ x)
    assert len(asked) == 1 and engine.with_old_y == 1, "what cannot be loaded is not tried again"


@pytest.mark.parametrize("found", ["none", "another", "broken"])
def test_a_pytorch_without_the_short_allocation(monkeypatch, tensors, found):
    engine = tensors_as_on_gpu.installed(monkeypatch, torch)
    guards = torch._C._dynamo.guards
    if found == "none":
        monkeypatch.delattr(guards, "_empty_strided_cuda")
    else:
        other = {"another": lambda *rest: torch.empty(7), "broken": lambda: None}[found]
        monkeypatch.setattr(guards, "_empty_strided_cuda", other)
    a, x, y = tensors
    for _ in range(3):
        torch.testing.assert_close(products.mv(a, x), a @ x)
        torch.testing.assert_close(products.addmv(y, a, x, beta=0.5), 0.5 * y + a @ x)
        torch.testing.assert_close(gemv.gemv(1.0, a, x, 0.5, y), 0.5 * y + a @ x)
    assert engine.long_ways == 3 and not engine.with_old_y
    memo.forget()
