"""A few random calls of each family; ``python tests/load/fuzz.py`` makes as many as one likes."""

from __future__ import annotations

import numpy as np
import pytest
from load import fuzz

import gemv

#: Cases of each family: where kernels run, which takes the simulator most of a second each, and on
#: the host.
CASES = {"batches": (6, 80), "aliases": (6, 80), "columns": (2, 40), "shards": (4, 40)}
CASES |= {"lists": (3, 60), "list_aliases": (3, 60)}


@pytest.fixture(params=["engine", "host"])
def where(request):
    if request.param == "host":
        gemv.use_backend("host")
        yield 1
        gemv.use_backend(None)
    elif gemv.backend() == "host":
        pytest.skip("no GPU and no simulator")
    else:
        yield 0


@pytest.mark.parametrize("family", CASES)
def test_random_calls(family, where):
    count, failed = fuzz.several([family], 0, cases=CASES[family][where])
    assert count == CASES[family][where]
    assert not failed, failed[0]


@pytest.mark.parametrize("family, name", [("batches", "matvec"), ("aliases", "matvec")])
def test_a_wrong_element_is_noticed(family, name, monkeypatch):
    right = getattr(gemv, name)

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        if found.size and np.isfinite(found).all():
            found.flat[0] += 1
        return found

    gemv.use_backend("host")
    try:
        monkeypatch.setattr(gemv, name, wrong)
        _, failed = fuzz.several([family], 0, cases=20)
    finally:
        gemv.use_backend(None)
    assert failed


def test_what_lies_around_a_result_is_looked_at(monkeypatch):
    def wrong(a, x, out=None, **options):
        if out is not None and out.base is not None:
            out.base.flat[:] = 0
        return out

    gemv.use_backend("host")
    try:
        monkeypatch.setattr(fuzz, "check", lambda *arguments: None)
        monkeypatch.setattr(gemv, "matvec", wrong)
        _, failed = fuzz.several(["batches"], 0, cases=60)
    finally:
        gemv.use_backend(None)
    assert any("memory around out was changed" in text for _, _, text in failed)


@pytest.mark.parametrize("family", ["lists", "batches"])
def test_empty_arrays_are_not_cut(family, monkeypatch):
    """Numba cuts none on a GPU: neither these cases nor the package ask for it."""
    if gemv.backend() != "simulator":
        pytest.skip("needs the simulator, whose arrays can be watched")
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    cut = FakeCUDAArray.__getitem__

    def strictly(self, index):
        if not self.size:
            raise RuntimeError("non-empty slice into empty slice")
        return cut(self, index)

    monkeypatch.setattr(FakeCUDAArray, "__getitem__", strictly)
    _, failed = fuzz.several([family], 0, cases=12)
    assert not failed, failed[0]
