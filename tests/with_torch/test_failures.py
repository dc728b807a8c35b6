"""``gemv.torch`` where memory has run out, and where the GPU is lost; then it is right again."""

from __future__ import annotations

import pytest
from helpers import tensors_as_on_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import gemv  # noqa: E402
import gemv.torch as products  # noqa: E402
from gemv.core import memo  # noqa: E402

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a stand-in for the driver")

FORMS = {
    "mv": (lambda a, x, y: products.mv(a, x), lambda a, x, y: a @ x),
    "addmv": (lambda a, x, y: products.addmv(y, a, x, beta=0.5), lambda a, x, y: 0.5 * y + a @ x),
    "gemv": (lambda a, x, y: gemv.gemv(2.0, a, x), lambda a, x, y: 2 * (a @ x)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("times", [0, 3])
def test_no_memory_for_a_result(tensors, monkeypatch, form, times):
    """PyTorch's own error comes through, whether the call was made before or not."""
    failing, guards = [], torch._C._dynamo.guards
    for owner, name in (
        (guards, "_empty_strided_cpu"), (torch, "empty"), (torch, "empty_like"),
        (torch.Tensor, "clone"), (torch.Tensor, "new_empty"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, _failing(getattr(owner, name), failing))
    tensors_as_on_gpu.installed(monkeypatch, torch)
    call, expected = FORMS[form]
    before = [each.clone() for each in tensors]
    for _ in range(times):
        call(*tensors)
    for _ in range(2):
        failing.append(True)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            call(*tensors)
        failing.clear()
        torch.testing.assert_close(call(*tensors), expected(*tensors))
    assert all(map(torch.equal, tensors, before))
    memo.forget()


def _failing(right, failing):
    def allocated(*arguments, **options):
        if failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(*arguments, **options)

    return allocated


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("times", [0, 3])
def test_a_gpu_that_is_lost(engine, tensors, form, times):
    """Every call tells, and no call leaves anything behind that the next one trips over."""
    call, expected = FORMS[form]
    for _ in range(times):
        call(*tensors)
    engine.lost = True
    for _ in range(3):
        with pytest.raises(tensors_as_on_gpu.Lost, match="the driver says so"):
            call(*tensors)
    engine.lost = False
    for _ in range(2):
        torch.testing.assert_close(call(*tensors), expected(*tensors))
