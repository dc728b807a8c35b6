"""Which grids let the kernel behind them start before they have ended."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ptx

from gemv.kernels import REGISTRY


@pytest.mark.parametrize("grid, early", [
    ((1, 1, 1), True), ((64, 1, 1), True), ((8, 8, 1), True), ((65, 1, 1), False),
    ((1, 65, 1), False), ((33, 2, 1), False),
])  # fmt: skip
def test_small_grids_let_the_next_kernel_start(grid, early, compiler):
    """A large one would give it places that its own blocks still need."""
    (function,) = compiler(REGISTRY["thread_per_row"], "float32")
    numbers = dict.fromkeys(function["arguments"], 0)  # no rows: nothing is read or written
    pointers = {name: ("buffer", 0, 0) for name in ("a", "x", "y")}
    values = [(numbers | pointers)[name] for name in function["arguments"]]
    program, threads = ptx.Program(function["ptx"]), 2
    after = ptx.memory_after(program, grid, (threads, 1), values, [np.zeros(4, "f")])
    assert after.early == (threads * grid[0] * grid[1] if early else 0)
