"""``benchmarks/measure/compiled.py``: what is compiled and called, and where the results are told.

PyTorch is a stand-in that multiplies with NumPy.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.programs import program
from helpers.results import timed_grid

from gemv.core.dtypes import DTYPES
from gemv.measure.frames import Place
from gemv.measure.inputs import make_problem

script = program("measure.compiled")


class FakeTorch:
    """Functions are compiled to themselves."""

    def __init__(self):
        self.asked, self.resets = [], 0
        self.compiler = SimpleNamespace(reset=self.reset)
        self.mv = lambda a, x: a @ x

    def reset(self):
        self.resets += 1

    def compile(self, function, **options):
        self.asked.append(options)
        return function


class Vector(np.ndarray):
    """An array with the method of a tensor."""

    def copy_(self, other):
        self[:] = other


class FakeTensors:
    """Arrays at addresses that are names."""

    def __init__(self, arrays):
        self.arrays, self.streams = arrays, []

    def at(self, address, shape, strides):
        found = self.arrays[address]
        assert found.shape == shape and tuple(s // found.itemsize for s in found.strides) == strides
        return found

    def on(self, stream):
        self.streams.append(stream)
        return contextlib.nullcontext()


def test_a_product_is_compiled_once_and_copied_only_where_it_is_checked():
    torch, problem = FakeTorch(), make_problem(3, 4, DTYPES["s"], "C", "T")
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = np.full(4, np.nan, np.float32).view(Vector)
    tensors = FakeTensors({1: a.T, 2: np.ones(3, np.float32), 3: y})
    peer = script.peer(torch, tensors, problem)
    peer.at(Place(1, 2, 3))(7)
    assert np.isnan(y).all() and tensors.streams == [7]
    peer.checked(Place(1, 2, 3))(8)
    assert y.tolist() == a.sum(axis=0).tolist() and tensors.streams == [7, 8]
    assert torch.asked == [{"mode": "max-autotune-no-cudagraphs", "dynamic": False}]
    assert torch.resets == 1 and peer.name == "torch.compile"


def test_complex_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(script.grid.Bench, "contenders", lambda self, framed: ([], {"a": "b"}))
    bench = object.__new__(script.CompiledBench)
    framed = SimpleNamespace(problem=SimpleNamespace(dtype=DTYPES["c"]))
    found, refused = bench.contenders(framed)
    assert found == [] and refused == {
        "a": "b", "torch.compile": "it makes no kernels for complex numbers"
    }  # fmt: skip


def test_a_line_says_times_reasons_and_what_is_wrong():
    row = timed_grid().rows[0]
    row.time_s, row.peers, row.refused = 2e-6, {"torch.compile": 3e-6}, {"cuBLAS gemv": "no"}
    shape = f"{row.dtype} {row.m}x{row.n} {row.op}"
    assert script.said(row) == f"{shape}: gemv 2.0, torch.compile 3.0 us; cuBLAS gemv: no"
    row.time_s, row.peers, row.wrong = None, {}, "it differs"
    assert script.said(row).startswith("WRONG: it differs ")


@pytest.fixture
def compiled():
    """A grid of which two cells were timed beside torch.compile, and one is slower than it."""
    found = timed_grid()
    found.device = "NVIDIA H100 80GB HBM3"
    rows = [row for row in found.rows if row.time_s]
    rows[0].peers["torch.compile"] = 2 * rows[0].time_s
    rows[1].peers["torch.compile"] = rows[1].time_s / 2
    return {"h100": found}


def test_the_page_has_what_loses_most_first(compiled):
    pages = program("pages.compiled_part")
    text = pages.part(compiled)
    assert "faster than `gemv` in 1 of 2 cells" in text and "results/compiled/h100.json" in text
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| float")]
    assert [line[1] for line in lines] == ["0.500", "2.00"]
    assert pages.part({"h": timed_grid()}) == pages.part({}) == ""


def test_the_readme_says_whether_it_was_timed(compiled):
    front = program("pages.compiled_part")
    assert front.sentence({}) == " `torch.compile` and Triton were not timed."
    assert front.sentence({"h": timed_grid()}) == front.sentence({})
    text = front.sentence(compiled).replace("\N{NO-BREAK SPACE}", " ")
    assert "timed in 2 cells on an NVIDIA H100 80GB HBM3: 1.00 (0.50) " in text
    assert "docs/roofline_others.md" in text
