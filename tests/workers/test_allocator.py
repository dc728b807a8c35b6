"""The C library keeps memory for the vectors of a solve where Dask has told it not to."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import pytest
from helpers import processes

from gemv.distributed import allocator


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(allocator, "_call", lambda *call: made.append(call))
    return made


def test_it_is_as_before_after_the_last_solve(monkeypatch, calls):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    with allocator.keeps_memory():
        assert calls == [("mallopt", -1, 1 << 30), ("mallopt", -3, 32 << 20)]
        calls.clear()
        with pytest.raises(ArithmeticError), allocator.keeps_memory():
            raise ArithmeticError
        assert not calls
    assert calls == [("mallopt", -1, 65536), ("mallopt", -3, 131072), ("malloc_trim", 0)]
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "many")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "7")
    with allocator.keeps_memory():
        calls.clear()
    assert calls[:2] == [("mallopt", -1, 131072), ("mallopt", -3, 7)]


def test_solves_of_several_threads(monkeypatch, calls):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    inside, over = threading.Barrier(4, timeout=20), threading.Barrier(4, timeout=20)

    def work():
        with allocator.keeps_memory():
            inside.wait()
            over.wait()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert len(calls) == 2
    over.wait()
    for thread in threads:
        thread.join()
    assert len(calls) == 5 and calls[-1] == ("malloc_trim", 0)


def test_nothing_changes_where_nobody_told_it(monkeypatch, calls):
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with allocator.keeps_memory():
        pass
    assert not calls


def test_a_library_without_these_functions(monkeypatch):
    asked = []

    class Library:
        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    with allocator.keeps_memory():
        assert asked == ["mallopt"] * 2
    assert asked == ["mallopt"] * 4 + ["malloc_trim"]


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="another C library",
)
def test_arrays_cost_no_faults_in_a_solve():
    """A process as Dask starts it: the same lines with and without."""
    text = """
import resource
import numpy as np
from gemv.distributed.allocator import keeps_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.zeros(65536) + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
without = faults()
with keeps_memory():
    within = faults()
after = faults()
print(without > 5000, within < 1000, after > 5000)
"""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    assert processes.printed_by(text, env=environment) == "True True True\n"
