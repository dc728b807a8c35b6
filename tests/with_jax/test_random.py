"""Random calls against NumPy: see tests/load/fuzz.py, which makes as many as one likes."""

from __future__ import annotations

import pytest
from load import fuzz

import gemv

jax = pytest.importorskip("jax", reason="JAX is not installed")


def test_random_calls():
    gemv.use_backend("host" if jax.default_backend() == "cpu" else None)
    try:
        count, failed = fuzz.several(["arrays"], 0, cases=25)
    finally:
        gemv.use_backend(None)
    assert count == 25 and not failed, failed[0]
