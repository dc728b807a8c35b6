"""Kernels with wide loads wherever lines begin: every phase, every shift, nothing beside a line."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from helpers.codegen import disassemble
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS, Case, knobs_for_tests

import gemv
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import LOAD_BYTES, Device
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem
from gemv.selection.select import select

PHASED = [kernel for kernel in REGISTRY.values() if kernel.phased]
BY_NAME = pytest.mark.parametrize("kernel", PHASED, ids=lambda kernel: kernel.name)
DEVICE = Device("NVIDIA H200", (9, 0), 132)


def order_of(kernel):
    """The storage order that it takes."""
    return "C" if kernel.accepts(Case(3, 3).problem) is None else "F"


def case_of(kernel, lines, length, dtype, **more):
    """A case by the number of its lines along memory and their length."""
    order = order_of(kernel)
    shape = (lines, length) if order == "C" else (length, lines)
    return Case(*shape, dtype, order, alpha=1.5, beta=-0.5, **more)


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_phases_of_a_problem(access, dtype):
    """As many as there are different addresses modulo 16, among that many lines."""
    size = DTYPES[dtype].itemsize
    order = "C" if access == "dot" else "F"
    for length in range(1, 40):
        for lines in (1, 2, 3, 5, 8, 100):
            shape = (lines, length) if order == "C" else (length, lines)
            problem = make_problem(*shape, DTYPES[dtype], order, "N")
            if problem.access != access:
                continue
            phases = problem.phases
            found = [line * length * size % LOAD_BYTES for line in range(lines)]
            assert found == [found[line % phases] for line in range(lines)]
            assert len(set(found)) in (phases, min(lines, phases))
            assert phases < 2 * lines


def is_alignment(pad, dtype, kernel):
    """With more elements between them, lines are as aligned as with fewer."""
    return pad < max(LOAD_BYTES // DTYPES[dtype].itemsize, 2) and (ALL_ROWS or dtype != "h")


@of_all(is_alignment, pad=range(8), dtype=DTYPES, kernel=PHASED)
def test_every_phase_and_every_shift(kernel, dtype, pad):
    width = LOAD_BYTES // DTYPES[dtype].itemsize
    knobs = knobs_for_tests(kernel) or dict(kernel.knobs)
    few = kernel.name == "short_columns"
    phases = set()
    for shift in range(width):
        # Fewer lines than phases, more; shorter than a vector, than the shift; several passes.
        shapes = [(3, 1), (2, 7), (5, 16)]
        if pad == 0:  # one line: no other begins behind its gap
            shapes.append((1, 3))
        # In the simulator, where these take most of the time, one of them with one of the shifts of
        # each pad, and another one for other dtypes, unless a kernel refuses it.
        if ALL_ROWS or shift == (3 * pad + 1) % width:
            large = [(85, 33), (9, 2 * width * kernel.tile(knobs)[1] + 5), (501, 5)]
            turn = (pad + list(DTYPES).index(dtype)) % 3
            shapes += large if ALL_ROWS or few else [large[turn]]
        for lines, length in shapes:
            case = case_of(kernel, lines, length, dtype, pad=pad, shift=shift)
            if length + pad > 1 and kernel.accepts(case.problem) is None:
                case.check(kernel.name, knobs)
                phases.add(case.problem.phases)
    assert width in phases, "lengths are odd"


@BY_NAME
@pytest.mark.parametrize("op, dtype", ["Th", "Td", "Tc", "Cc"])  # to real numbers C is T
def test_transposed_views_split_over_blocks(kernel, dtype, op):
    """A[:, 1:] with an odd lda, as the other storage order sees it, and increments of all signs."""
    knobs = {**kernel.small_knobs, "BLOCKS_PER_SM": 16}
    knobs = knobs if backend.backend() == "simulator" else None
    for incx, incy in ((1, 1), (-2, 3)):
        for lines, length in ((3, 500), (500, 3), (11, 260)):
            order = {"C": "F", "F": "C"}[order_of(kernel)]
            shape = (lines, length) if order == "C" else (length, lines)
            case = Case(*shape, dtype, order, op, 1, incx, incy, 1.5, 0.5, shift=1)
            if kernel.accepts(case.problem) is None:
                case.check(kernel.name, knobs)


@BY_NAME
def test_lines_backwards_and_lines_that_overlap(kernel):
    """The first line need not be the lowest in memory, and a line may begin inside another."""
    from types import SimpleNamespace

    if backend.backend() != "simulator":
        pytest.skip("the memory of these is made for the simulator")
    lines, length = 13, 37
    rng = np.random.default_rng(3)
    engine = backend.engine()
    dot = order_of(kernel) == "C"
    for step in (-41, -3, -1, 0, 1, 2, 5, 37):
        memory = rng.standard_normal((lines - 1) * abs(step) + length).astype("f")
        first = (lines - 1) * abs(step) if step < 0 else 0
        a = np.lib.stride_tricks.as_strided(
            memory[first:], (lines, length), (4 * step, 4), writeable=False
        )
        a = a if dot else a.T
        x = rng.standard_normal(a.shape[1]).astype("f")
        problem = make_problem(*a.shape, DTYPES["s"], "C" if dot else "F", "N")
        problem = problem._replace(**{"row_stride" if dot else "col_stride": step})
        if step == 1 and not dot:
            continue  # memory runs along both
        assert problem.access == ("dot" if dot else "axpy")
        operands = [
            SimpleNamespace(owner=each, pointer=each.__array_interface__["data"][0])
            for each in (a, x, np.full(a.shape[0], np.nan, "f"))
        ]
        problem = problem.at(operands[0].pointer, operands[1].pointer)
        if kernel.accepts(problem):  # all but the dense one
            assert kernel.name == "short_columns" and step != length
            continue
        choice = select(problem, engine.device(), kernel.name, dict(kernel.small_knobs))
        engine.run(choice, problem, np.float32(1), *operands[:2], np.float32(0), operands[2], None)
        np.testing.assert_allclose(operands[2].owner, a @ x, rtol=2e-5, atol=2e-5)


# The sums of short_columns follow the distance between lines as well: see below.
@of_all(lambda dtype, kernel: kernel.name != "short_columns", dtype="hs", kernel=PHASED)
def test_bits_follow_addresses_modulo_16_only(kernel, dtype):
    """The same shift with any distance between the lines that has it, too."""
    results = set()
    knobs = knobs_for_tests(kernel)
    width = LOAD_BYTES // DTYPES[dtype].itemsize
    whole = None
    for pad, shift in ((1, 3), (1 + width, 3), (1, 3 + width), (1 + 4 * width, 3 + 2 * width)):
        case = case_of(kernel, 19, 2 * width, dtype, pad=pad, shift=shift)
        if whole is None:
            whole = case
        case.a[...], case.x[...] = whole.a, whole.x
        results.add(np.ascontiguousarray(case.y_of(case.run(kernel.name, knobs))).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("dtype", "hs")
def test_bits_of_short_columns_follow_the_distance_between_them(dtype):
    kernel, width = REGISTRY["short_columns"], LOAD_BYTES // DTYPES[dtype].itemsize
    results, whole = {}, case_of(kernel, 1999, 5, dtype)
    for pad, shift in ((0, 3), (0, 3 + width), (1, 3), (1, 3 + 2 * width), (0, 2)):
        case = case_of(kernel, 1999, 5, dtype, pad=pad, shift=shift)
        case.a[...], case.x[...] = whole.a, whole.x
        found = np.ascontiguousarray(case.y_of(case.run(kernel.name, knobs_for_tests(kernel))))
        results.setdefault((pad, shift % width), set()).add(found.tobytes())
    assert all(len(each) == 1 for each in results.values())
    if dtype == "s":  # the others are rounded to so few digits that they may agree
        assert len(set.union(*results.values())) > 1


@pytest.mark.parametrize("dtype", "hsd")
def test_what_fills_no_vector_of_short_columns_is_added_once(dtype):
    """Splits are counted before the address is known, so the last may begin behind all vectors."""
    kernel, width = REGISTRY["short_columns"], LOAD_BYTES // DTYPES[dtype].itemsize
    knobs = {**kernel.small_knobs, "VECTORS": 1}
    behind = 0
    shifts = range(width) if ALL_ROWS or width < 8 else (0, 1, 5, 7)
    for rows, shift in itertools.product((2, 3, 7), shifts):
        for splits in (1, 2, 3):
            problem = case_of(kernel, 10**4, rows, dtype).problem
            step = kernel.geometry(problem, DEVICE, knobs).sizes["cols_per_split"]
            for cols in (splits * step, splits * step + 1, splits * step + 2):
                case = case_of(kernel, cols, rows, dtype, shift=shift)
                case.check(kernel.name, knobs)
                vectors = (rows * cols - -shift % width) // width
                made = kernel.geometry(case.problem, DEVICE, knobs)
                behind += (made.sizes["splits"] - 1) * made.sizes["active"] >= vectors
    assert behind, "no last split begins behind all vectors"


@BY_NAME
def test_they_are_not_used_where_addresses_must_not_matter(kernel):
    order = order_of(kernel)
    shape = (5, 1 << 20) if kernel.name == "short_columns" else (4097, 4097)
    problem = make_problem(*shape, DTYPES["h"], order, "N").at(16, 16)
    assert select(problem, DEVICE).kernel.phased
    assert select(problem, DEVICE, kernel.name).kernel is kernel
    try:
        gemv.use_alignment(False)
        assert not select(problem, DEVICE).kernel.phased
        assert not select(problem, DEVICE, knobs={}).kernel.phased
        with pytest.raises(ValueError, match="its sums follow addresses, which use_alignment"):
            select(problem, DEVICE, kernel.name)
    finally:
        gemv.use_alignment(True)


#: Values of KNOBS: those that come nearest to the registers that they may have, and, for all rows,
#: others.
SENSIBLE = {
    "phased_rows": [(32, 4, 2, 4, 128), (16, 4, 2, 4, 128), (256, 4, 2, 2, 256)],
    "phased_columns": [(32, 2, 4, 2, 256), (32, 1, 4, 3, 256), (8, 2, 8, 2, 256)],
    "short_columns": [(4, 4, 2, 256), (4, 2, 4, 256)],
}
FURTHER = {
    "phased_rows": [
        (32, 2, 4, 4, 128), (32, 1, 4, 4, 128), (8, 4, 1, 4, 128), (256, 2, 4, 2, 256),
    ],
    "phased_columns": [
        (32, 1, 8, 2, 256), (32, 2, 8, 1, 256), (32, 1, 16, 1, 256), (16, 2, 4, 2, 256),
        (64, 1, 8, 1, 512),
    ],
    "short_columns": [(8, 2, 2, 256), (4, 3, 2, 256)],
}  # fmt: skip
KNOBS = {
    "phased_rows": ("LANES", "ROWS", "VECTORS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "phased_columns": ("LANES", "PIECES", "COLUMNS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "short_columns": ("VECTORS", "FACTORS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
}


def widths_of(kernel, dtype):
    """Of the loads for lines that are aligned to one element."""
    (element,) = (each for each in DTYPES.values() if dtype_name(each) == dtype)
    problem = make_problem(9, 9, element, order_of(kernel), "N")
    widths = kernel.spec(problem.at(element.itemsize, 16)).widths
    assert widths == (LOAD_BYTES // element.itemsize, 0)
    return widths


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"] if ALL_ROWS else ["bfloat16"])
@pytest.mark.parametrize(
    "kernel, values",
    [
        (kernel, values)
        for kernel in PHASED
        for values in SENSIBLE[kernel.name] + FURTHER[kernel.name] * ALL_ROWS
    ],
    ids=lambda each: getattr(each, "name", None) or "-".join(map(str, each)),
)
def test_sensible_constants_do_not_spill(kernel, values, dtype, compiler):
    knobs = dict(zip(KNOBS[kernel.name], values, strict=True))
    access = "dot" if order_of(kernel) == "C" else "axpy"
    (function,) = compiler(kernel, dtype, access, knobs=knobs, widths=widths_of(kernel, dtype))
    assert function["stack"] == 0
    assert function["spills"] == 0


@BY_NAME
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_passes_load_16_bytes_only(kernel, dtype, compiler):
    """Elements of A one by one are before and behind the passes, under predicates."""
    access = "dot" if order_of(kernel) == "C" else "axpy"
    (function,) = compiler(kernel, dtype, access, widths=widths_of(kernel, dtype))
    streams = re.findall(r"(@p )?ld\.global\.nc\.L1::no_allocate\S*\.(v\d)\.", function["ptx"])
    assert {width for _, width in streams} == {"v4"} and ("", "v4") in streams
    single = re.findall(r"(@p )?ld\.global\.nc\.L2::128B\.\w", function["ptx"])
    assert set(single) == (set() if kernel.name == "short_columns" else {"@p "})
    assert ".128" in disassemble(function)
