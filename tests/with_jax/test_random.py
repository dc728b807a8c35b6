"""Random calls against NumPy: see tests/load/fuzz.py, which makes as many as one likes."""

from __future__ import annotations

import pytest
from load import fuzz

import gemv

pytest.importorskip("jax", reason="JAX is not installed")


def test_random_calls():
    gemv.use_backend("host")
    try:
        count, failed = fuzz.several(["arrays"], 0, cases=25)
    finally:
        gemv.use_backend(None)
    assert count == 25 and not failed, failed[0]
