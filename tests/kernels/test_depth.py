"""The error bound of each kernel, from the tree that its sums really form.

In the simulator a kernel can compute with any numbers. Here a number is the shape of the sum that
made it, so that what arrives in y is the depth of the tree of additions, seen and not derived.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import Case, knobs_for_tests, tile_of

from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.measure.reference import reference
from gemv.selection.select import select
from gemv.selection.table import table

KERNELS = list(REGISTRY.values())
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
ON_SIMULATOR = pytest.mark.skipif(
    backend.backend() != "simulator", reason="only there can a number be a tree"
)


class Tree:
    """A sum; `depth` additions are on the longest way to one of its products; -1: it is empty."""

    def __init__(self, depth=-1):
        self.depth = depth

    def __add__(self, other):
        if self.depth < 0 or other.depth < 0:
            return Tree(max(self.depth, other.depth))  # adding to zero rounds nothing
        return Tree(max(self.depth, other.depth) + 1)

    def __rmul__(self, factor):
        return self

    def __eq__(self, number):
        return False

    __hash__ = None
    __array_ufunc__ = None

    def rounded(self):
        return float(self.depth)

    def exchanged(self, exchange):
        return Tree(round(exchange(float(self.depth))))


class Leaf:
    """An element of A or x."""

    def __init__(self, value):
        pass

    def conjugate(self):
        return self

    def __mul__(self, other):
        return Tree(0)


def depths(monkeypatch, case, kernel, knobs):
    """The depth of each row's tree, and what the kernel says of it."""
    from gemv.kernels import kernel as kernels_kernel
    from gemv.language import twofold
    from gemv.language.simulator import scheduler

    monkeypatch.setattr(
        scheduler, "number_of", lambda sums, value, exact: Leaf(value) if exact else Tree()
    )
    monkeypatch.setattr(twofold, "zero", lambda sums: Tree())
    kernels_kernel._functions.cache_clear()
    try:
        after = case.run(kernel.name, knobs)
    finally:
        kernels_kernel._functions.cache_clear()
        monkeypatch.undo()
    problem = case.problem.at(*addresses(case))
    choice = select(problem, backend.engine().device(), kernel.name, knobs)
    stated = kernel.depth(problem, choice.geometry, choice.knobs)
    return case.y_of(after), stated


def addresses(case):
    return (each.__array_interface__["data"][0] for each in (case.a, case.x))


def shapes(kernel, knobs):
    rows, cols = kernel.tile({**kernel.knobs, **(knobs or {})})
    return [
        (rows + 3, 1), (rows + 1, cols + 1), (3, min(5 * cols + 3, 1000)),
        (2, min(40 * cols + 7, 3000)), (rows + 5, min(9 * cols + 1, 700)),
    ]  # fmt: skip


@ON_SIMULATOR
@BY_NAME
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype, sums", [("d", "wide"), ("s", "pairs"), ("h", "pairs")])
def test_the_tree_is_as_deep_as_the_kernel_says(kernel, order, shift, dtype, sums, monkeypatch):
    knobs = knobs_for_tests(kernel)
    checked = 0
    sizes = shapes(kernel, knobs)
    if dtype != "d":  # where 4 and 8 elements are a vector, and what is left of a row has more sums
        if not kernel.wide:
            pytest.skip(f"{kernel.name} adds up numbers of all lengths alike")
        sizes = [(3, n) for n in (1, 3, 4, 7, 8, 13)] + sizes[-1:]
    for m, n in sizes:
        case = Case(m, n, dtype, order, pad=3 * shift, shift=shift, accumulate=sums)
        if kernel.accepts(case.problem) is not None:
            continue
        found, stated = depths(monkeypatch, case, kernel, knobs)
        deepest = int(found.max())
        assert deepest <= stated, (m, n)
        # Lanes and splits that got nothing leave the tree lower than the constants say.
        slack = 2 * sum(value.bit_length() for value in (knobs or {}).values()) + 40
        assert stated <= 2 * deepest + slack, (m, n, deepest)
        checked += 1
    if not checked:
        pytest.skip(f"{kernel.name} is for the other storage order, or has sums of one number")


#: Rows of the table whose constants differ in more than the registers that a thread may have.
ROWS = {f"{row.kernel}-{sorted({**row.knobs, 'MIN_BLOCKS': 0}.items())}": row for row in table()}


@ON_SIMULATOR
@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.reason.replace(" ", "-"))
def test_the_constants_of_the_table(row, monkeypatch):
    kernel = REGISTRY[row.kernel]
    order = "F" if row.conditions.get("access") == "axpy" else "C"
    case = Case(3, 700, "d", order, accumulate="wide")
    found, stated = depths(monkeypatch, case, kernel, dict(row.knobs))
    assert 0 < found.max() <= stated


def adversarial(name, rng, shape):
    """Signs and magnitudes that make the most of every rounding."""
    values = rng.random(shape) + 0.5
    if name == "alternating":
        values *= np.where(np.arange(shape[-1]) % 2, 1, -1)
    elif name == "graded":
        values *= 2.0 ** np.linspace(20, -20, shape[-1])
    elif name == "mixed":
        values *= 2.0 ** rng.integers(-30, 30, shape)
    elif name == "denormal":
        values *= 2.0**-126
    return values


@BY_NAME
@pytest.mark.parametrize("dtype", "sc")
@pytest.mark.parametrize("data", ["positive", "alternating", "graded", "mixed", "denormal"])
def test_errors_stay_within_what_the_depth_allows(kernel, dtype, data):
    """|error| <= c * (depth + 3) * u * T, with u = eps / 2, c = 1 for real and 3 for complex."""
    knobs = knobs_for_tests(kernel)
    tile_rows, tile_cols = tile_of(kernel)
    for order in "CF":
        n = min(9 * tile_cols + 5, 900)
        case = Case(min(tile_rows + 3, 60), n, dtype, order, alpha=1.25, beta=-0.75)
        if kernel.accepts(case.problem) is not None:
            continue
        rng = np.random.default_rng(11)
        case.a[...] = adversarial(data, rng, case.a.shape)
        if dtype == "c":
            case.a[...] *= np.exp(1j * rng.random(case.a.shape))
        case.x[...] = 1 + rng.random(case.cols)
        y = case.y_of(case.y_buffer).copy()
        after = case.y_of(case.run(kernel.name, knobs)).copy()
        problem = case.problem.at(*addresses(case))
        choice = select(problem, backend.engine().device(), kernel.name, knobs)
        depth = kernel.depth(problem, choice.geometry, choice.knobs)
        exact, magnitude = reference(case.alpha, case.op_a, case.x, case.beta, y)
        finite = np.finfo(np.float32)
        unit = finite.eps / 2 * magnitude + finite.smallest_subnormal
        bound = (1 if dtype == "s" else 3) * (depth + 3) * unit
        assert (abs(after.astype(exact.dtype) - exact) <= bound).all(), (order, depth)
