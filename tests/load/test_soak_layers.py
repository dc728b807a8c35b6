"""The soak of the layers is alive: it compares, counts, and notices a wrong bit and a leak."""

from __future__ import annotations

import numpy as np
import pytest
from load import soak_layers
from load.soak import RESIDENT

import gemv

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)


def test_shards_under_load():
    found = soak_layers.soak("shards", 60, 120, threads=3, shared=True)
    assert found.calls == 60 and not found.faults


def layer(monkeypatch, call):
    monkeypatch.setitem(soak_layers.LAYERS, "made", soak_layers.Layer(lambda: {"it": call}, "gemv"))


def test_one_wrong_bit_is_a_fault(monkeypatch):
    calls = iter(range(10**6))
    layer(monkeypatch, lambda: np.arange(3) + (next(calls) == 50))
    found = soak_layers.soak("made", 200, 60, shared=True)
    assert found.faults == ["made: it: other bits"] and found.calls == 200


def test_an_error_is_a_fault_and_ends_nothing_else(monkeypatch):
    calls = iter(range(10**6))

    def call():
        if next(calls) in (20, 30):
            raise ValueError("no")
        return np.zeros(1)

    layer(monkeypatch, call)
    found = soak_layers.soak("made", 100, 60, shared=True)
    assert found.faults == ["made: it: ValueError: no"] * 2 and found.calls == 100


def test_many_faults_end_a_run(monkeypatch):
    calls = iter(range(10**6))
    layer(monkeypatch, lambda: np.array([next(calls)]))
    found = soak_layers.soak("made", 10_000, 60, threads=1, shared=True)
    assert len(found.faults) == soak_layers.MOST_FAULTS
    assert found.calls < 10_000


@pytest.mark.skipif(not RESIDENT.exists(), reason="host memory is read on Linux")
def test_a_leak_is_a_fault(monkeypatch):
    kept = []

    def call():
        kept.append(bytearray(b"x" * (1 << 19)))
        return np.zeros(1)

    layer(monkeypatch, call)
    found = soak_layers.soak("made", 120, 60, shared=True)
    (fault,) = found.faults
    assert "more host memory" in fault and found.host_growth > 30 << 20


def test_the_command_says_what_it_did(monkeypatch, capsys):
    monkeypatch.setitem(soak_layers.LAYERS, "gone", soak_layers.Layer(dict, "no_such_package"))
    layer(monkeypatch, lambda: np.zeros(1))
    assert soak_layers.main(["--layer", "made", "--calls", "12", "--shared"]) == 0
    where = "cuda" if gemv.backend() == "cuda" else "host"
    assert f"made: 12 calls on {where}" in capsys.readouterr().out
    assert soak_layers.main(["--layer", "gone"]) == 1
    assert "gone: no_such_package is not installed" in capsys.readouterr().out
    calls = iter(range(10**6))
    layer(monkeypatch, lambda: np.array([next(calls)]))
    assert soak_layers.main(["--layer", "made", "--calls", "12", "--shared"]) == 1
    assert "made: it: other bits" in capsys.readouterr().out
