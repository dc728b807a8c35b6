"""What files about calls of PyTorch's that were made before share: a stand-in, and tensors."""

import pytest
from helpers import tensors_as_on_gpu

from gemv.core import memo


@pytest.fixture
def engine(monkeypatch):
    """A stand-in for the driver; all tensors say that they are on its GPU."""
    import torch

    yield tensors_as_on_gpu.installed(monkeypatch, torch)
    memo.forget()


@pytest.fixture
def tensors():
    """A, x and y that go together."""
    import torch

    torch.manual_seed(5)
    return [torch.randn(shape) for shape in ((5, 3), (3,), (5,))]
