"""Calls from many threads: see tests/load/soak_layers.py, which makes as many as one likes."""

from __future__ import annotations

import pytest
from load import soak_layers

import gemv

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_results_have_their_bits_under_load():
    gemv.use_backend("host" if soak_layers.is_small() else None)
    try:
        found = soak_layers.soak("tensors", 200, 120, shared=True)
    finally:
        gemv.use_backend(None)
    assert found.calls == 200 and not found.faults
