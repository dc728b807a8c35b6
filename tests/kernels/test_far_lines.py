"""Lines and elements more than 2**31 apart, in memory that is never touched between them.

On a GPU ``test_large.py`` has as much memory; here it is the address space alone that is as large.
"""

from __future__ import annotations

import math
import mmap
import sys

import numpy as np
import pytest

import gemv
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem

if backend.backend() != "simulator":
    pytest.skip("only the simulator computes in the host's address space", allow_module_level=True)

from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

#: Linux's flag for memory that nobody has to have; the module names it from Python 3.13 on.
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else None)
pytestmark = pytest.mark.skipif(NORESERVE is None, reason="a system that reserves all memory")

FLOAT = np.dtype(np.float32)
#: Elements from line to line. The last of three lines begins past 2**32 elements.
EVEN, ODD = 2**31 + 64, 2**31 + 37
LINES, LENGTH = 3, 41


def far(*shape):
    """An array of zeros, which takes memory only where something is written to it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return np.frombuffer(mmap.mmap(-1, 4 * math.prod(shape), flags=flags), FLOAT).reshape(shape)


def on_device(array):
    """Host memory as the simulator's device memory, as it is: Numba's own way copies it."""
    return FakeCUDAArray(array)


def accepted():
    """Kernel, storage order and distance of lines, wherever the kernel accepts these."""
    for name, kernel in REGISTRY.items():
        for order in "CF":
            for step in (EVEN, ODD):
                shape, strides = (LINES, LENGTH), (step, 1)
                if order == "F":
                    shape, strides = shape[::-1], strides[::-1]
                problem = make_problem(*shape, FLOAT, order, "N", strides)
                if kernel.accepts(problem.at(256, 256)) is None:
                    yield name, order, step


@pytest.mark.parametrize("name, order, step", list(accepted()))
def test_lines_that_are_far_apart(name, order, step):
    rng = np.random.default_rng(3)
    whole = far(LINES, step)
    whole[:, :LENGTH] = rng.integers(-4, 5, (LINES, LENGTH))
    a, there = whole[:, :LENGTH], on_device(whole)[:, :LENGTH]
    if order == "F":
        a, there = a.T, there.T
    x = rng.integers(-4, 5, a.shape[1]).astype(FLOAT)
    with gemv.trace() as calls:
        y = gemv.gemv(1, there, on_device(x), kernel=name)
    assert [call.kernel for call in calls] == [name]
    assert y.copy_to_host().tolist() == (a @ x).tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_elements_of_vectors_that_are_far_apart(sign):
    x, y = far(2 * EVEN + 1), far(EVEN + 1)
    x[::EVEN], y[::EVEN] = (1, 2, 3), (10, 20)
    a = np.array([[1, 2, 3], [4, 5, 6]], FLOAT)
    expected = 2 * (a @ x[::EVEN][::sign]) + y[::EVEN][::sign]
    there = [on_device(each) for each in (a, x, y)]
    inc = sign * EVEN
    gemv.gemv(2, *there[:2], 1, there[2], incx=inc, incy=inc, overwrite_y=1)
    assert y[::EVEN][::sign].tolist() == expected.tolist()
