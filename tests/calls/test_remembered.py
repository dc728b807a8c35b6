"""Calls that are made again from metadata alone: what is the same call, and its launch."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gemv import driver
from gemv.calls import remembered
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.select import select

GPU = Device("any", (9, 0), 8)
F = np.dtype("f")


class Workspace:
    """Two addresses; notes whether its lock was held."""

    def __init__(self):
        self.lock = threading.Lock()

    def reserve(self, scratch_bytes, counters, stream, posts):
        assert self.lock.locked(), "launches of two threads would share the memory"
        return 77, 88


class Machine:
    """Notes its launches in place of making them."""

    def __init__(self):
        self.calls = []

    def enqueue(self, *words):
        self.calls.append(words)
        return 0

    def enqueue_complex(self, *words):
        self.calls.append(("complex", *words))
        return 0


class Engine:
    name = "cuda"

    def __init__(self):
        self.machine, self._workspace = Machine(), Workspace()

    def device(self):
        return GPU

    def load(self, choice, device):
        return ("function",)

    def block(self, *arguments):
        return SimpleNamespace(address=1000)

    def workspace(self, geometry, device, stream):
        return self._workspace


def call_of(rows, cols, dtype=F, incx=1, incy=1, row_stride=None, col_stride=1):
    row_stride = cols if row_stride is None else row_stride
    problem = Problem(
        dtype, rows, cols, 0, rows, cols, False, row_stride, col_stride, incx, incy
    )  # fmt: skip
    engine = Engine()
    choice = select(problem.at(256, 256), GPU)
    return remembered.RememberedCall(engine, choice, problem, rows), engine


def test_the_bytes_that_operands_span_follow_the_signs_of_their_strides():
    """They decide whether y overlaps an input; one that runs backwards is before its address."""
    call, _ = call_of(5, 3, incx=-2, incy=-1, row_stride=-7)
    assert call.spans == (-16, 4, -16, 4, -112, 12)
    call, _ = call_of(5, 3, incy=3)
    assert call.spans == (0, 52, 0, 12, 0, 60)


def test_a_plain_launch_has_addresses_and_factors_alone():
    call, engine = call_of(4000, 4)
    assert call.plain and call.launch(5, 1, 2, 3, 1.5, 0.0) == 0
    assert engine.machine.calls == [(1000, 5, 1, 2, 3, 1.5, 0.0)]


def test_a_complex_launch_has_four_numbers():
    call, engine = call_of(4000, 4, np.dtype("F"))
    assert call.launch(5, 1, 2, 3, 1.5 + 1j, 2) == 0
    assert engine.machine.calls == [("complex", 1000, 5, 1, 2, 3, 1.5, 1.0, 2, 0)]


@pytest.mark.parametrize("captured", [False, True])
def test_shared_scratch_memory_is_locked_and_never_that_of_a_graph(captured, monkeypatch):
    capture = SimpleNamespace(capture_of=lambda stream: object() if captured else None)
    monkeypatch.setattr(driver, "capture", capture, raising=False)
    library = SimpleNamespace(CudaError=RuntimeError)  # itself needs the driver's library
    monkeypatch.setitem(sys.modules, "gemv.driver.libcuda", library)
    call, engine = call_of(2, 1_000_000)
    assert call.shares_scratch
    assert call.launch(5, 1, 2, 3, 1.5, 0.0) == (-1 if captured else 0)
    made = [] if captured else [(1000, 5, 1, 2, 3, 1.5, 0.0, 77, 88)]
    assert engine.machine.calls == made


def test_only_integers_are_options():
    """1.0 and True are equal to 1 as keys, and 1.0 is an error."""
    assert remembered.options_of(0, 1, 0, -2, "T") == (0, 1, 0, -2, "T")
    for place in range(4):
        for wrong in (1.0, True, np.int64(1)):
            options = [0, 1, 0, 1, 0]
            options[place] = wrong
            assert remembered.options_of(*options) is None
    assert remembered.options_of(0, 1, 0, 1, 1.0) is None


def test_a_lazy_conjugate_is_not_launched_as_it_lies_in_memory():
    def operand(**lazy):
        return SimpleNamespace(**({"conj": False, "neg": False} | lazy))

    problem = Problem(F, 4, 4, 0, 4, 4, False, 4, 1)
    choice = select(problem.at(256, 256), GPU)

    def packable(**operands):
        three = {"a": operand(), "x": operand(), "y": None} | operands
        call = SimpleNamespace(homes=("arguments", "arguments"), **three)
        return remembered.packable(Engine(), choice, call)

    assert packable() and packable(y=operand())
    for name in "axy":
        for lazy in ("conj", "neg"):
            assert not packable(**{name: operand(**{lazy: True})})
