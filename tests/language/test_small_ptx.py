"""What the code for a GPU computes for small matrices: the same bits by three kernels."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from helpers import ptx
from helpers.codegen import disassemble
from helpers.problems import ALL_ROWS, random_array

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import Device
from gemv.kernels import get
from gemv.measure.inputs import make_problem
from gemv.selection import batches
from gemv.selection.batches import select_batch
from gemv.selection.select import select

DEVICE = Device("any", (9, 0), 1)
SEVERAL = get("several_small")


def launched(chosen, problem, operands, shift, compiler):
    """y after the launch of a choice, run from its PTX; A begins `shift` bytes behind its buffer.

    Loads that are not aligned to their size, or lie outside, are errors.
    """
    spec, geometry = chosen.spec, chosen.geometry
    (function,) = compiler(
        chosen.kernel, dtype_name(spec.dtype), spec.access, knobs=chosen.knobs, homes=spec.homes,
        widths=spec.widths, accumulate=spec.accumulate, levels=spec.levels,
    )  # fmt: skip
    a, x, y, alpha, beta = operands
    raw = np.zeros(shift, np.uint8).tobytes() + np.ascontiguousarray(a).tobytes()
    buffers = [np.frombuffer(raw, np.uint8), np.ascontiguousarray(x), y.copy()]
    places = {"a": ("buffer", 0, shift), "x": ("buffer", 1, 0), "y": ("buffer", 2, 0)}
    places |= {"alpha": alpha, "beta": beta}
    values = [(places | problem.arguments(geometry))[name] for name in function["arguments"]]
    (launch,) = geometry.launches
    program = ptx.Program(function["ptx"])
    return ptx.launch(program, launch.grid, launch.block[:2], values, buffers)[2]


CASES = [("s", 5, 7, "plain"), ("s", 9, 32, "plain"), ("d", 3, 32, "plain"), ("s", 6, 31, "plain"),
         ("c", 5, 32, "plain"), ("z", 4, 17, "plain"), ("h", 7, 24, "plain"), ("s", 5, 12, "wide"),
         ("s", 5, 18, "pairs"), ("d", 4, 9, "wide")]  # fmt: skip


#: By rows and by columns in turn; with ``GEMV_ALL_ROWS=1`` or on a GPU, all cases in both orders.
IN_ORDER = [(*each, "CF"[k % 2]) for k, each in enumerate(CASES)]
IN_BOTH = [(*each, order) for each in CASES for order in "CF"]


@pytest.mark.parametrize("letter, m, n, accumulate, order", IN_BOTH if ALL_ROWS else IN_ORDER)
def test_three_kernels_round_alike(letter, m, n, accumulate, order, compiler, monkeypatch):
    """Alone, as items of a batch, and with several vectors, in few launches and in many."""
    rng = np.random.default_rng([m, n])
    dtype = DTYPES[letter]
    a, x, y = (random_array(rng, (3, *shape), dtype) for shape in ((m, n), (n,), (m,)))
    x[1:] = x[0]
    a[2] = a[0] * dtype.type(1e-20) * dtype.type(1e-20) if letter == "s" else a[0]
    scalars = (1.5 + 0.5j, -0.25j) if letter in "cz" else (1.5, -0.25)
    matrices = a if order == "C" else a.swapaxes(1, 2)
    problem = make_problem(m, n, dtype, order, "N")._replace(accumulate=accumulate).at(256, 256)
    size = dtype.itemsize

    alone = b""
    for k in range(3):
        choice = select(problem.aligned(size, size), DEVICE)
        alone += launched(choice, problem, (matrices[k], x[k], y[k], *scalars), 0, compiler)
    shared = problem.aligned(size, size)
    batch = Batch((3,), ((m * n,), (n,), (m,), (0,), (0,)))
    choice = select_batch(shared, batch, DEVICE)
    items = "small_items" if accumulate == "plain" else "small_matrix"
    assert choice.kernel.name == items
    assert launched(choice, shared, (matrices, x, y, *scalars), 0, compiler) == alone

    y[1:] = y[0]
    for many in (1 << 20, 2):
        monkeypatch.setattr(f"{SEVERAL.build.__module__}.MANY", many)
        vectors = batch._replace(strides=((0,), *batch.strides[1:]))
        choice = select_batch(shared, vectors, DEVICE)
        assert choice.kernel is SEVERAL
        found = launched(choice, shared, (matrices[0], x, y, *scalars), 0, compiler)
        assert found == alone[: m * size] * 3


def test_sums_that_underflow_are_positive_zeros_in_both_kernels(compiler):
    """A fused product of two tiny numbers is -0 here, and so is their sum."""
    n = 5  # of at least 8 columns that the code has loads for
    a, x = np.full((2, 3, n), 1e-30, "f"), np.full((2, n), -1e-30, "f")
    y = np.full((2, 3), -0.0, "f")
    problem = make_problem(3, n, DTYPES["s"], "C", "N").at(4, 4)
    alone = select(problem, DEVICE)
    assert alone.knobs["LOADS"] > n
    batch = Batch((2,), ((3 * n,), (n,), (3,), (0,), (0,)))
    many = select_batch(problem, batch, DEVICE)
    assert (alone.kernel.name, many.kernel.name) == ("small_matrix", "small_items")
    one = launched(alone, problem, (a[0], x[0], y[0], 1.0, 1.0), 0, compiler)
    assert launched(many, problem, (a, x, y, 1.0, 1.0), 0, compiler) == 2 * one
    assert one == np.zeros(3, "f").tobytes(), "-0 plus a product that counts as +0"


@pytest.mark.parametrize("letter, order", [("c", "C"), ("c", "F"), ("z", "C")])
def test_numbers_across_their_size_are_loaded_in_two_parts(letter, order, compiler):
    rng = np.random.default_rng(4)
    m, n, dtype = 6, 19, DTYPES[letter]
    a, x, y = (random_array(rng, shape, dtype) for shape in ((m, n), n, m))
    matrix = a if order == "C" else a.T
    found = []
    for shift in (0, dtype.itemsize // 2):
        problem = make_problem(m, n, dtype, order, "N").at(256 + shift, 256)
        choice = select(problem, DEVICE)
        assert choice.knobs["SPLIT_A"] == (shift > 0)
        found.append(launched(choice, problem, (matrix, x, y, 1 + 0j, 0j), shift, compiler))
        vectors = Batch((2,), ((0,), (0,), (m,), (0,), (0,)))
        several = select_batch(problem, vectors, DEVICE)
        twice = np.stack([y, y])
        both = launched(several, problem, (matrix, x, twice, 1 + 0j, 0j), shift, compiler)
        assert both == 2 * found[0]
    assert found[0] == found[1]


# The machine code -------------------------------------------------------------------------------


def instructions(function):
    """The instructions of a function in order, without what follows the last one."""
    found = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(.*?);", disassemble(function), re.MULTILINE)
    last = max(k for k, line in enumerate(found) if not line.startswith(("NOP", "BRA")))
    return found[: last + 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16"])
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_everything_is_asked_for_before_anything_is_added(dtype, access, compiler):
    """And there is no loop, no barrier, no shared memory, and little code to fetch.

    The fewest loads and the most are of a matrix by rows, those between them of one by columns;
    all are of both on a GPU or with ``GEMV_ALL_ROWS=1``.
    """
    for loads in (4, 8, 16) if ALL_ROWS else {"dot": (4, 16), "axpy": (8,)}[access]:
        knobs = {"UNIT": 1, "SHARES": 2, "LOADS": loads, "SPLIT_A": 0, "PACKED_X": 1}
        (function,) = compiler(get("small_matrix"), dtype, access, knobs=knobs)
        assert function["stack"] == 0 and function["spills"] == 0
        lines = instructions(function)
        asked = [k for k, line in enumerate(lines) if "LDG" in line]
        added = [k for k, line in enumerate(lines) if re.search(r"\b[FD]FMA\b", line)]
        assert len(asked) == 2 * loads + (2 if dtype[0] == "c" else 1)  # A, x and the old y
        assert asked[-1] < added[0]
        assert not any(word in line for line in lines for word in ("BAR.", "LDS", "STS", "LDL"))
        assert len(lines) <= 100 + 15 * loads


@pytest.mark.parametrize("letter, accumulate", [("s", "plain"), ("d", "plain"), ("z", "plain"),
                                                ("h", "plain"), ("z", "wide")])  # fmt: skip
def test_a_matrix_fits_into_registers(letter, accumulate, compiler):
    """Every pair of shape, order and number of vectors; on a GPU or with all rows, all three."""
    kernel = get("small_matrix")
    combinations = list(itertools.product(((32, 32), (32, 31)), "CF", (2, 1 << 20)))
    pairs = [combinations[k] for k in (0, 3, 5, 6)]
    for (m, n), order, vectors in combinations if ALL_ROWS else pairs:
        problem = make_problem(m, n, DTYPES[letter], order, "N")._replace(accumulate=accumulate)
        alone = {**kernel.knobs, **kernel.constants_of(problem.at(256, 256))}
        knobs = SEVERAL.for_vectors(problem, alone, vectors)
        (function,) = compiler(
            SEVERAL, dtype_name(DTYPES[letter]), problem.access, knobs=knobs, accumulate=accumulate
        )
        assert function["stack"] == 0 and function["spills"] == 0
        assert function["registers"] <= 168


def test_few_items_of_a_batch_are_as_the_single_product(compiler, monkeypatch):
    monkeypatch.setattr(batches, "FEW_ITEMS", 4)
    rng = np.random.default_rng(5)
    a, x, y = (random_array(rng, (3, *shape), np.dtype("f")) for shape in ((7, 9), (9,), (7,)))
    problem = make_problem(7, 9, DTYPES["s"], "C", "N").at(4, 4)
    batch = Batch((3,), ((63,), (9,), (7,), (0,), (0,)))
    few = select_batch(problem, batch, DEVICE)
    assert few.kernel.name == "small_matrix" and few.spec.levels == 1
    alone = b"".join(
        launched(select(problem, DEVICE), problem, (a[k], x[k], y[k], 2.0, 1.0), 0, compiler)
        for k in range(3)
    )
    assert launched(few, problem, (a, x, y, 2.0, 1.0), 0, compiler) == alone


@pytest.mark.parametrize("dtype", ["float32", "complex128", *(["float64", "complex64"] * ALL_ROWS)])
def test_a_product_of_alpha_or_beta_is_rounded_by_itself(dtype, compiler):
    """Else a compiler may fuse it with a sum, in one kernel and not in another."""
    for name in ("small_matrix", "small_items", "several_small"):
        (function,) = compiler(get(name), dtype, "dot")
        products = re.findall(r"\bmul(\.rn)?\.f(?:32|64)", function["ptx"])
        parts = 2 if dtype[0] == "c" else 1
        assert products.count(".rn") >= 3 * parts, name  # alpha twice, and beta
        # That of a product with itself, which is zero, is not added to anything.
        assert len(products) - products.count(".rn") <= 3 * parts, name
