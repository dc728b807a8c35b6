"""What all lanes of a warp decide alike: the code that a GPU gets, and lanes that do not agree."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from helpers.codegen import disassemble
from helpers.problems import ALL_ROWS, Case

from gemv.core.geometry import one_launch
from gemv.engines import backend
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import Kernel

# Machine code -----------------------------------------------------------------------------------


#: Without a GPU or ``GEMV_ALL_ROWS=1``, each kernel has float32 and another dtype.
LISTS = list(
    itertools.product(
        ("list_rows", "list_columns", "list_in_order"),
        ("float32", "float64", "complex64", "bfloat16"),
    )
)
FEW_LISTS = [LISTS[place] for place in (0, 3, 4, 5, 8, 10)]


@pytest.mark.parametrize("name, dtype", LISTS if ALL_ROWS else FEW_LISTS)
def test_kernels_of_lists_know_that_lanes_agree(name, dtype, compiler):
    """No branch collects lanes, and few words move to the registers that all lanes share.

    Without votes, float32 took 262 of these moves, one or two for each load of A.
    """
    (function,) = compiler(
        get(name), dtype, homes=("pointer", "pointer"), widths=(1, 0), table="warp"
    )
    code = disassemble(function)
    count = {op: len(re.findall(rf"\b{op}\b", code)) for op in ("VOTE", "VOTEU", "R2UR", "BRA.DIV")}
    assert count["VOTE"] + count["VOTEU"] >= 8
    assert count["BRA.DIV"] == 0
    assert count["R2UR"] <= 32


# What it gives ----------------------------------------------------------------------------------


def of_votes():
    """A kernel whose warps decide by their own numbers whether they double a number of x."""

    def build(spec):
        from numba import cuda

        from gemv.language import natural, of_warp

        def of_votes(rows, a, row_stride, col_stride, x, y, incy):
            tid = natural(cuda.threadIdx.x)
            value = a[tid * row_stride]
            if of_warp(tid // 32 == 1):
                value = value + value
            y[tid * incy] = value

        return (of_votes,)

    def geometry(problem, device, knobs):
        return one_launch((1, 1, 1), (96, 1, 1))

    return Kernel("of_votes", 99, build, geometry, lambda knobs: (1, 1), "A vote of each warp.")


def test_each_warp_decides_for_itself(monkeypatch):
    monkeypatch.setitem(REGISTRY, "of_votes", of_votes())
    case = Case(96, 4, "s")
    found = case.y_of(case.run("of_votes"))
    expected = case.a[:, 0] * np.repeat(np.float32([1, 2, 1]), 32)
    assert found.tobytes() == expected.tobytes()


# The simulator ----------------------------------------------------------------------------------

if backend.backend() == "simulator":
    from gemv.language import cuda, of_warp
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import launch
    from gemv.language.simulator.thread import SimulatorError

    @pytest.mark.parametrize("lanes, told", [((3,), "3"), ((0, 31), "0, 31")])
    def test_lanes_that_do_not_agree_are_refused(lanes, told):
        def kernel(y):
            if of_warp(cuda.threadIdx.x in lanes):
                y[cuda.threadIdx.x] = 1.0

        y = pointer_to(np.zeros(32), name="y")
        with pytest.raises(SimulatorError, match=f"of_warp: true in lanes {told} only: the warp"):
            launch(kernel, 1, 32, [y])

    def test_lanes_that_do_not_come_are_missed():
        def kernel(y):
            if cuda.threadIdx.x < 16 and of_warp(True):
                y[cuda.threadIdx.x] = 1.0

        with pytest.raises(SimulatorError, match="of_warp"):
            launch(kernel, 1, 32, [pointer_to(np.zeros(32), name="y")])
