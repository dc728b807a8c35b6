"""Constants for several vectors: registers suffice for them, and they are those that were timed."""

from __future__ import annotations

import math
import re

import pytest
from helpers.problems import ALL_ROWS

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import Chip, Device
from gemv.kernels import get
from gemv.kernels.ends_of_splits import taken_at_once
from gemv.kernels.vectors.b08_several_rows_in_shares import TILES
from gemv.measure.inputs import make_problem
from gemv.selection.batches import select_batch
from gemv.selection.select import select

H100 = Device("NVIDIA H100", (9, 0), 132)
#: The oldest compute capability that there are kernels for.
OLD = Device("NVIDIA T4", (7, 5), 40)

#: dtype, vectors, lanes of a row, rows: those that need most of the registers that they may have.
FULL = [
    ("s", 8, 32, 100000), ("c", 4, 4, 100000), ("c", 4, 8, 100000), ("c", 4, 256, 100),
    ("c", 8, 64, 100000), ("c", 8, 256, 100000),
    ("b", 4, 16, 100000), ("b", 4, 32, 100000), ("b", 8, 128, 8192), ("h", 8, 128, 300),
]  # fmt: skip
#: All dtypes and numbers of vectors, with few lanes and with many.
ALL = [
    (letter, vectors, lanes, rows)
    for letter in "sdcbh"
    for vectors in (2, 4, 8)
    for lanes in (4, 32, 64, 128, 256)
    for rows in (300, 100000)
]


def rows_of(letter, vectors, lanes, rows, **single):
    """A problem along the rows and its constants, where a single product has so many lanes."""
    problem = make_problem(rows, 32 * lanes, DTYPES[letter], "C", "N").at(256, 256)
    alone = {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0, "LANES": lanes, **single}
    return problem, get("several_rows").for_vectors(problem, alone, vectors)


#: dtype, vectors, lanes, rows, bytes of a load: rows of a large A that have a tile for such rows.
OF_LARGE = [("s", 4, 512, 150, 16), ("d", 8, 256, 5000, 8), ("h", 4, 256, 200, 16)]
ALL_OF_LARGE = [
    (letter, vectors, lanes, rows, loaded)
    for letter, loaded in (
        ("s", 4), ("s", 16), ("d", 8), ("c", 8), ("b", 16), ("h", 16),
    )
    for vectors in (2, 4, 8)
    for lanes in (64, 256, 512)
    for rows in (200, 700, 5000)
]  # fmt: skip


@pytest.mark.parametrize(
    "letter, vectors, lanes, rows, loaded", ALL_OF_LARGE if ALL_ROWS else OF_LARGE
)
def test_rows_of_a_large_matrix_spill_no_registers(letter, vectors, lanes, rows, loaded, compiler):
    problem, _ = rows_of(letter, vectors, lanes, rows)
    problem = problem.at(256 + loaded % 16, 256 + loaded % 16)._replace(cols=1 << 18)
    assert problem.widths[0] * problem.dtype.itemsize == loaded
    alone = {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0, "LANES": lanes}
    knobs = get("several_rows").for_vectors(problem, alone, vectors)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(
        get("several_rows"), name, "dot", knobs=knobs, widths=problem.widths, whole=True
    )
    assert (function["stack"], function["spills"]) == (0, 0), knobs


@pytest.mark.parametrize("letter, vectors, lanes, rows", ALL if ALL_ROWS else FULL)
def test_rows_spill_no_registers(letter, vectors, lanes, rows, compiler):
    problem, knobs = rows_of(letter, vectors, lanes, rows)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(
        get("several_rows"), name, "dot", knobs=knobs, widths=problem.widths, whole=True
    )
    assert (function["stack"], function["spills"]) == (0, 0), knobs


#: Columns of short rows, lanes of a row, and rows: with a ring that a warp or several have, those
#: that are too few for one, and loads of 4 bytes. All loads are whole, or not.
SHORT = [
    (64, 4, 1 << 20), (256, 8, 1 << 20), (512, 8, 1 << 20), (1000, 16, 1 << 16),
    (2048, 16, 1 << 14), (384, 8, 1 << 17), (600, 8, 1 << 16), (1400, 16, 1 << 16),
    (24, 1, 1 << 20), (128, 8, 1 << 20), (1000, 32, 1 << 16),
    (64, 4, 1000), (256, 8, 1000), (24, 4, 1000), (50, 4, 1 << 20), (110, 8, 1 << 20),
]  # fmt: skip
#: With all letters and numbers of vectors, and those of float32.
ALL_SHORT = [
    (letter, vectors, *short) for letter in "bh" for vectors in (2, 4, 8) for short in SHORT
]
ALL_SHORT += [
    ("s", 8, 64, 8, 1 << 20), ("s", 8, 1000, 32, 1 << 16), ("s", 8, 128, 8, 1 << 20),
    ("s", 8, 64, 8, 1000), ("s", 8, 110, 8, 1 << 20), ("s", 8, 24, 4, 1 << 20),
    ("d", 8, 64, 8, 1 << 20), ("d", 8, 126, 16, 1 << 18), ("c", 8, 64, 8, 1 << 20),
    ("c", 8, 62, 8, 1 << 20), ("c", 4, 64, 8, 1 << 20),
]  # fmt: skip
#: Those that need the most registers, of both kinds of 2-byte numbers: the others, which leave a
#: quarter of theirs free, are compiled on a GPU or with ``GEMV_ALL_ROWS=1``.
FEW_SHORT = [
    *(("h", 8, *short) for short in (*SHORT[:2], SHORT[4])), ("b", 8, *SHORT[0]),
    ("b", 8, *SHORT[-5]), ("b", 8, *SHORT[-1]), ALL_SHORT[-10], *ALL_SHORT[-5:-3], ALL_SHORT[-2],
]  # fmt: skip


@pytest.mark.parametrize("letter, vectors, cols, lanes, rows", ALL_SHORT if ALL_ROWS else FEW_SHORT)
def test_short_rows_spill_no_registers(letter, vectors, cols, lanes, rows, compiler):
    problem = short_rows(letter, rows, cols)
    kernel = get("several_short_rows")
    knobs = kernel.for_vectors(problem, {"LANES": lanes, "BLOCKS_PER_SM": 0}, vectors)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(kernel, name, "dot", knobs=knobs, widths=problem.widths, whole=True)
    assert (function["stack"], function["spills"]) == (0, 0), knobs
    assert function["registers"] * knobs["THREADS_PER_BLOCK"] * knobs["MIN_BLOCKS"] <= 65536


def test_short_rows_convert_x_outside_the_loop(compiler):
    """A turn of the loop takes apart what it has loaded of A, and nothing else."""
    kernel, problem = get("several_short_rows"), short_rows("b", 1 << 20, 64)
    knobs = kernel.for_vectors(problem, {"LANES": 4, "BLOCKS_PER_SM": 0}, 8)
    (function,) = compiler(kernel, "bfloat16", knobs=knobs, widths=problem.widths, whole=True)
    (loop,) = (each for each in re.split(r"\n(?=\$L)", function["ptx"]) if "fma.rn.f32" in each)
    words = knobs["ROWS"] * knobs["LOADS"] * problem.widths[0] // 2
    upper_halves = re.findall(r"and\.b32 .*, -65536;", loop)
    assert len(upper_halves) == words


@pytest.mark.parametrize("past", [0, 1])
def test_short_loads_of_several_rows_pass_the_l1_cache(past, compiler):
    """Those of full passes and of the rest, where threads share a lane; x settles in any case."""
    problem = make_problem(1 << 16, 4096, DTYPES["h"], "C", "N").at(256, 256)
    small = {"LANES": 8, "PARTS": 4, "ROWS": 1, "VECTORS": 1, "COUNT": 2, "PAST_L1": past}
    (function,) = compiler(
        get("several_rows"), "float16", knobs=small, widths=problem.widths, whole=True
    )
    loads = re.findall(r"ld\.global\.nc[\w.:]*u32", function["ptx"])
    past_l1 = [each for each in loads if "L1::no_allocate" in each]
    assert (len(loads), len(past_l1)) == (6, 2 * past)


def short_rows(letter, rows, cols):
    size = DTYPES[letter].itemsize
    aligned = math.gcd(256, cols * size)
    return make_problem(rows, cols, DTYPES[letter], "C", "N").at(aligned, aligned)


def of_short_rows(letter, rows, cols, lanes, vectors=8):
    problem = short_rows(letter, rows, cols)
    alone = {"LANES": lanes, "BLOCKS_PER_SM": 0}
    return get("several_short_rows").for_vectors(problem, alone, vectors)


def told(knobs):
    names = ("SHARERS", "WARPS", "ROWS", "STAGES", "THREADS_PER_BLOCK", "MIN_BLOCKS")
    return tuple(knobs[name] for name in names)


@pytest.mark.parametrize(
    "letter, rows, cols, lanes, vectors, right",
    [
        ("b", 1 << 20, 64, 4, 8, (2, 1, 8, 2, 128, 4)),
        ("h", 1 << 20, 64, 4, 8, (2, 1, 4, 2, 128, 4)),
        ("d", 1 << 20, 64, 8, 8, (2, 1, 4, 2, 128, 3)),
        ("c", 1 << 20, 64, 8, 8, (2, 1, 4, 2, 128, 3)),
        ("c", 1 << 20, 64, 8, 4, (2, 1, 4, 2, 128, 4)),
        ("c", 1 << 20, 64, 8, 3, (2, 1, 4, 2, 128, 4)),
        ("b", 1 << 20, 64, 4, 3, (1, 1, 4, 2, 128, 4)),
        ("b", 1 << 18, 256, 8, 8, (2, 2, 8, 2, 128, 4)),
        ("b", 1 << 18, 256, 8, 4, (2, 1, 4, 2, 128, 4)),
        ("b", 1 << 16, 1000, 16, 8, (2, 2, 4, 2, 64, 4)),
        ("b", 1 << 16, 1000, 16, 4, (2, 1, 2, 2, 128, 2)),
        ("b", 1 << 14, 2048, 16, 8, (2, 4, 4, 2, 128, 2)),
        ("s", 1 << 20, 64, 8, 8, (1, 1, 4, 2, 128, 4)),
        ("s", 1 << 16, 1000, 32, 8, (1, 2, 2, 2, 64, 4)),
    ],
)  # fmt: skip
def test_many_short_rows_have_the_rings_that_were_timed(letter, rows, cols, lanes, vectors, right):
    assert told(of_short_rows(letter, rows, cols, lanes, vectors)) == right


def test_few_short_rows_and_narrow_loads_have_no_ring():
    """Few rows are shared out over more threads."""
    for rows, cols, lanes, right in (
        (1 << 14, 64, 4, (2, 1, 2, 0, 128, 4)), (1000, 64, 4, (2, 1, 1, 0, 128, 4)),
        (1 << 20, 110, 8, (1, 1, 4, 0, 128, 3)), (1 << 20, 114, 8, (2, 1, 4, 0, 128, 4)),
        (1 << 20, 50, 8, (1, 1, 4, 0, 128, 4)),
    ):  # fmt: skip
        assert told(of_short_rows("b", rows, cols, lanes)) == right
    assert told(of_short_rows("s", 1 << 20, 110, 8)) == (2, 1, 2, 0, 128, 4)
    for cols, loads, full in ((64, 2, 1), (56, 2, 0), (1000, 8, 0)):
        found = of_short_rows("b", 1 << 20, cols, 4 if cols < 100 else 16)
        assert (found["LOADS"], found["FULL"]) == (loads, full)


def test_vectors_have_no_registers_for_rows_that_are_too_long_or_few():
    """Then, and where nothing was timed, another kernel takes them."""
    constants = get("several_short_rows").for_vectors
    alone = {"LANES": 8, "BLOCKS_PER_SM": 0}
    wide = short_rows("s", 1 << 20, 64)._replace(accumulate="wide")
    whole = make_problem(1 << 20, 60, DTYPES["b"], "C", "N", (64, 1)).at(256, 256)
    for problem, lanes, vectors in (
        (short_rows("s", 1 << 20, 64), 8, 4), (wide, 8, 8), (short_rows("d", 1 << 20, 64), 8, 4),
        (short_rows("c", 1 << 20, 64), 8, 2), (short_rows("d", 1000, 64), 8, 8),
        (short_rows("d", 1 << 20, 128), 8, 8), (short_rows("d", 1 << 20, 256), 32, 8),
        (short_rows("c", 1 << 20, 64)._replace(accumulate="wide"), 8, 8),
        (short_rows("d", 1 << 20, 64).at(8, 256), 8, 8), (short_rows("z", 1 << 20, 32), 8, 8),
        (short_rows("d", 1 << 20, 32), 8, 8),
        (short_rows("s", 1 << 18, 256), 8, 8), (short_rows("s", 1 << 17, 512), 16, 8),
        (short_rows("b", 1 << 16, 2056), 16, 8), (short_rows("b", 1 << 16, 4096), 32, 8),
        (short_rows("b", 1 << 16, 4096), 64, 8), (short_rows("b", 1000, 1000), 16, 8),
        (short_rows("b", 1 << 16, 1920), 16, 8), (whole, 4, 8),
    ):  # fmt: skip
        assert constants(problem, {**alone, "LANES": lanes}, vectors) is None, (problem, lanes)
    assert constants(short_rows("b", 1 << 20, 64), {**alone, "BLOCKS_PER_SM": 4}, 8) is None


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"LANES": 32}, "at most 32"), ({"THREADS_PER_BLOCK": 48}, "a multiple of"),
        ({"WARPS": 3, "THREADS_PER_BLOCK": 192}, "COUNT one of"), ({"WARPS": 8}, "a multiple of"),
        ({"STAGES": 0, "WARPS": 2}, "WARPS must be 1"), ({"STAGES": 1}, "2 or more"),
        ({"ROWS": 1, "WARPS": 2}, "evenly"), ({"STAGES": 8}, "at most 49152 bytes"),
        ({"LOADS": 1}, "columns, not 64"), ({"LOADS": 3, "FULL": 1}, "columns, not 64"),
    ],
)  # fmt: skip
def test_constants_of_short_rows_that_do_not_go_together_are_refused(changed, told):
    kernel, problem = get("several_short_rows"), short_rows("b", 1000, 64)
    kernel.geometry(problem, H100, {**kernel.knobs, "LOADS": 2})
    with pytest.raises(ValueError, match=f"several_short_rows: .*{told}"):
        kernel.geometry(problem, H100, {**kernel.knobs, **changed})


def test_rings_are_for_loads_of_16_bytes_and_for_gpus_with_copies():
    kernel, problem = get("several_short_rows"), short_rows("b", 1000, 50)
    knobs = {**kernel.knobs, "LOADS": 7}
    with pytest.raises(ValueError, match="for loads of 16 bytes"):
        kernel.geometry(problem, H100, knobs)
    kernel.geometry(problem, H100, {**knobs, "STAGES": 0})
    with pytest.raises(ValueError, match="copies to shared memory: it needs compute capability 8"):
        kernel.geometry(short_rows("b", 1000, 64), OLD, kernel.knobs)


def test_gpus_without_copies_have_another_kernel_for_short_rows():
    problem = short_rows("b", 1 << 20, 64)
    batch = Batch((8,), ((0,), (64,), (1 << 20,), (0,), (0,)))
    found = [select_batch(problem, batch, device).kernel.name for device in (H100, OLD)]
    assert found == ["several_short_rows", "several_rows"]


#: Columns of long rows, and lanes of a row: x fits twice on a multiprocessor, or once; all loads
#: are whole, or not; four loads in a stage, or two; lanes take turns.
LONG_ROWS = [
    (1536, 16), (2048, 16), (2176, 16), (3000, 16), (3000, 32), (4096, 16), (4096, 32), (5120, 32),
    (6152, 32), (8192, 32), (7168, 128), (8192, 128),
]  # fmt: skip
FEW_LONG_ROWS = [
    ("b", 2048, 16),
    ("b", 6152, 32),
    ("b", 8192, 32),
    ("h", 3000, 32),
    ("h", 8192, 128),
]


def long_rows(letter, cols, lanes, vectors=8, rows=1 << 16, **more):
    """A problem, and the constants of several_long_rows for it."""
    problem = short_rows(letter, rows, cols)._replace(**more)
    alone = {"LANES": lanes, "BLOCKS_PER_SM": 0}
    return problem, get("several_long_rows").for_vectors(problem, alone, vectors)


@pytest.mark.parametrize(
    "letter, cols, lanes",
    [(letter, *each) for letter in "bh" for each in LONG_ROWS] if ALL_ROWS else FEW_LONG_ROWS,
)
def test_long_rows_spill_no_registers(letter, cols, lanes, compiler):
    kernel, (problem, knobs) = get("several_long_rows"), long_rows(letter, cols, lanes)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(kernel, name, "dot", knobs=knobs, widths=problem.widths, whole=True)
    assert (function["stack"], function["spills"]) == (0, 0), knobs
    assert function["registers"] * knobs["THREADS_PER_BLOCK"] * knobs["MIN_BLOCKS"] <= 65536


def test_long_rows_of_four_vectors(compiler):
    """One block with three stages, where each lane of a warp has many columns."""
    kernel, (problem, knobs) = get("several_long_rows"), long_rows("b", 8192, 32, 4)
    names = ("COUNT", "THREADS_PER_BLOCK", "MIN_BLOCKS", "LOADS", "AT_ONCE", "STAGES")
    assert tuple(knobs[name] for name in names) == (4, 512, 1, 32, 4, 3)
    (launch,) = kernel.geometry(problem, H100, knobs).launches
    assert launch.shared <= 227 << 10
    for name in ("bfloat16", "float16"):
        (function,) = compiler(kernel, name, "dot", knobs=knobs, widths=problem.widths, whole=True)
        assert (function["stack"], function["spills"]) == (0, 0), knobs
    for cols, lanes, vectors in ((8192, 16, 4), (4088, 32, 4), (8192, 32, 3), (32768, 32, 4)):
        assert long_rows("b", cols, lanes, vectors)[1] is None


def test_long_rows_have_as_many_blocks_as_x_leaves_room_for():
    """Two of them on a multiprocessor, or one with twice the threads; loads in whole stages."""
    for cols, lanes, right in (
        (1280, 16, (256, 2, 10, 1, 2, 4)), (1536, 16, (256, 2, 12, 1, 4, 2)),
        (2176, 16, (256, 2, 18, 0, 2, 4)), (3000, 32, (256, 2, 12, 0, 4, 2)),
        (4096, 32, (256, 2, 16, 1, 4, 2)), (4104, 32, (512, 1, 18, 0, 2, 4)),
        (8192, 32, (512, 1, 32, 1, 4, 2)), (7168, 128, (512, 1, 8, 0, 4, 2)),
        (8192, 128, (512, 1, 8, 1, 4, 2)),
    ):  # fmt: skip
        problem, knobs = long_rows("b", cols, lanes)
        names = ("THREADS_PER_BLOCK", "MIN_BLOCKS", "LOADS", "FULL", "AT_ONCE", "STAGES")
        assert tuple(knobs[name] for name in names) == right
        (launch,) = get("several_long_rows").geometry(problem, H100, knobs).launches
        assert launch.grid == (132 * right[1], 1, 1) and launch.block == (right[0], 1, 1)
        assert launch.shared <= 227 << 10
        assert right[1] * (launch.shared + 1024) <= H100.chip.shared_bytes


def test_what_shared_memory_has_no_room_for_has_another_kernel():
    """And what was not timed, or was slower."""
    for changed in (
        {"vectors": 3}, {"rows": 2047}, {"rows": 2047, "lanes": 128}, {"rows": 4095, "lanes": 16},
        {"cols": 2552}, {"cols": 1272, "lanes": 16}, {"cols": 8704}, {"cols": 11008, "lanes": 128},
        {"lanes": 8}, {"letter": "s"}, {"accumulate": "wide"}, {"cols": 4095}, {"cols": 4100},
    ):  # fmt: skip
        usual = {"letter": "b", "cols": 4096, "lanes": 32}
        assert long_rows(**usual)[1] is not None
        assert long_rows(**{**usual, **changed})[1] is None, changed
    for cols, lanes, rows in ((2560, 32, 2048), (1280, 16, 4096), (7168, 128, 2048)):
        assert long_rows("b", cols, lanes, rows=rows)[1] is not None
    problem, _ = long_rows("b", 4096, 32)
    for other, knobs in (
        (problem.at(256, 8), {"BLOCKS_PER_SM": 0}), (problem.at(8, 256), {"BLOCKS_PER_SM": 0}),
        (problem, {"BLOCKS_PER_SM": 4}),
    ):  # fmt: skip
        assert get("several_long_rows").for_vectors(other, {"LANES": 32, **knobs}, 8) is None


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"LANES": 4}, "must be 8, 16 or a multiple of 32"), ({"LANES": 48}, "got 48, 8 and 256"),
        ({"COUNT": 3}, "and of COUNT"), ({"THREADS_PER_BLOCK": 192}, "a multiple of 4 threads"),
        ({"STAGES": 1}, "2 or more"), ({"AT_ONCE": 3}, "a multiple of AT_ONCE"),
        ({"LOADS": 12}, "up to 3072 columns, not 4096"), ({"LOADS": 20, "FULL": 1}, "take 5120"),
        ({"STAGES": 32}, "bytes of shared memory are more than the 232448"),
    ],
)  # fmt: skip
def test_constants_of_long_rows_that_do_not_go_together_are_refused(changed, told):
    kernel, problem = get("several_long_rows"), short_rows("b", 1 << 16, 4096)
    knobs = {**kernel.knobs, "LOADS": 16}
    kernel.geometry(problem, H100, knobs)
    with pytest.raises(ValueError, match=f"several_long_rows: .*{told}"):
        kernel.geometry(problem, H100, {**knobs, **changed})


#: GPUs with less shared memory for a block, none of which was measured; and one with as much.
A100 = Device("NVIDIA A100", (8, 0), 108, chip=Chip(block_bytes=163 << 10))
ADA = Device("NVIDIA L4", (8, 9), 58, chip=Chip(block_bytes=99 << 10))
CONSUMER = Device("NVIDIA GeForce RTX 5090", (12, 0), 170, chip=Chip(block_bytes=99 << 10))
B200 = Device("NVIDIA B200", (10, 0), 148, chip=Chip(block_bytes=227 << 10))


@pytest.mark.parametrize("cols", [3000, 8192])
def test_gpus_with_less_shared_memory_have_another_kernel_for_long_rows(cols):
    problem = short_rows("b", 1 << 16, cols)
    batch = Batch((8,), ((0,), (cols,), (1 << 16,), (0,), (0,)))
    for device in (A100, ADA, CONSUMER, OLD):
        assert select_batch(problem, batch, device).kernel.name != "several_long_rows"
    for device in (H100, B200):
        found = select_batch(problem, batch, device)
        assert found.kernel.name == "several_long_rows"
        with pytest.raises(ValueError, match="needs 232448 bytes of shared memory in a block, and"):
            found.kernel.of_batch(problem, A100, found.knobs, batch)
    with pytest.raises(ValueError, match="x in shared memory: it needs compute capability 8.0"):
        found.kernel.geometry(problem, OLD, found.knobs)


#: Rows of tall matrices.
MANY, FEW = 1 << 20, 1 << 16
#: dtype, vectors, whether loads are of 16 bytes and A is in a ring, rows: those that need most
#: registers.
LONG = [
    ("b", 8, 1, MANY), ("h", 8, 1, MANY), ("c", 8, 0, MANY), ("d", 4, 1, MANY), ("z", 8, 1, MANY),
    ("b", 4, 1, MANY), ("h", 8, 1, FEW), ("z", 8, 1, FEW),
]  # fmt: skip
ALL_LONG = [
    (letter, k, ring, rows)
    for letter in "sdczbh"
    for k in (2, 4, 8)
    for ring, rows in ((1, MANY), (0, MANY), (1, FEW))
]


def long_columns(letter, vectors, ring=1, rows=MANY, cols=64):
    """A problem of long columns and its constants, with the widest loads or some of 8 bytes."""
    problem = make_problem(rows, cols, DTYPES[letter], "F", "N").at(256 if ring else 8, 256)
    alone = get("long_columns").knobs
    return problem, get("several_long_columns").for_vectors(problem, alone, vectors)


@pytest.mark.parametrize("letter, vectors, ring, rows", ALL_LONG if ALL_ROWS else LONG)
def test_long_columns_spill_no_registers(letter, vectors, ring, rows, compiler):
    problem, knobs = long_columns(letter, vectors, ring, rows)
    assert knobs["COUNT"] == vectors
    assert bool(knobs["STAGES"]) == (problem.widths[0] * problem.dtype.itemsize == 16)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(
        get("several_long_columns"), name, "axpy", knobs=knobs, widths=problem.widths, whole=True
    )
    assert (function["stack"], function["spills"]) == (0, 0), knobs


def test_long_columns_have_a_ring_where_it_is_of_use():
    """Not for a few columns, which are in flight together, nor for GPUs without copies."""
    for letter, vectors, right in (("d", 8, (1, 4, 3)), ("b", 8, (1, 4, 3)), ("d", 4, (2, 2, 3))):
        _, knobs = long_columns(letter, vectors)
        assert tuple(knobs[name] for name in ("PIECES", "COLUMNS", "STAGES")) == right
    _, few = long_columns("d", 8, cols=4)
    assert (few["STAGES"], few["COLUMNS"], few["CHUNK_COLUMNS"]) == (0, 4, 4)
    problem = make_problem(1 << 21, 64, DTYPES["d"], "F", "N").at(256, 256)
    batch = Batch((8,), ((0,), (64,), (1 << 21,), (0,), (0,)))
    found = [select_batch(problem, batch, device) for device in (H100, OLD)]
    assert [each.kernel.name for each in found] == ["several_long_columns"] * 2
    assert [each.knobs["STAGES"] for each in found] == [3, 0]


def test_few_long_columns_have_small_blocks_and_more_columns_on_their_way():
    """Few threads keep the memory busy by many bytes each, and small blocks spread them evenly."""
    names = ("PIECES", "COLUMNS", "STAGES", "THREADS_PER_BLOCK")
    few, few_of_eight = (1, 8, 4, 32), (1, 8, 3, 64)
    for letter, vectors, rows, cols, right in (
        ("s", 2, FEW, 256, few), ("d", 4, FEW, 256, few), ("b", 4, FEW, 256, few),
        ("s", 8, FEW, 256, few_of_eight), ("z", 8, FEW, 256, few_of_eight),
        ("s", 2, (1 << 19) - 4, 9, few), ("s", 2, 1 << 19, 9, (2, 2, 3, 128)),
        ("s", 2, FEW, 8, (2, 2, 3, 128)), ("s", 8, FEW, 8, (1, 4, 3, 128)),
        ("b", 4, MANY, 64, (2, 2, 3, 128)),
    ):  # fmt: skip
        _, knobs = long_columns(letter, vectors, rows=rows, cols=cols)
        assert tuple(knobs[name] for name in names) == right, (letter, vectors, rows, cols)


def test_long_rows_that_are_few_or_loaded_by_number_have_more_loads():
    """By the bytes of a number and of a load; a row has two warps or more."""
    names = ("PARTS", "TURNS", "ROWS", "VECTORS", "THREADS_PER_BLOCK", "MIN_BLOCKS")

    def tile(letter, vectors, rows, at=0, lanes=256, accumulate="plain", cols=1 << 18, **single):
        problem, _ = rows_of(letter, vectors, lanes, rows)
        problem = problem.at(256 + at, 256 + at)._replace(accumulate=accumulate, cols=cols)
        alone = {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0, "LANES": lanes, **single}
        knobs = get("several_rows").for_vectors(problem, alone, vectors)
        return tuple(knobs[name] for name in names)

    for rows, vectors, right in (
        (900, 2, (1, 1, 1, 8, 256, 2)), (901, 2, (1, 1, 2, 8, 256, 1)),
        (500, 4, (1, 1, 1, 8, 256, 2)), (900, 4, (1, 1, 2, 8, 256, 1)),
        (900, 8, (1, 1, 2, 4, 256, 2)), (901, 8, (1, 1, 4, 4, 256, 1)),
    ):  # fmt: skip
        assert tile("s", vectors, rows, 4) == right, (rows, vectors)
    for rows, vectors, right in (
        (400, 2, (1, 1, 1, 8, 256, 2)), (401, 2, (1, 1, 2, 4, 256, 2)),
        (400, 4, (1, 1, 1, 4, 256, 2)), (900, 4, (1, 1, 2, 4, 256, 2)),
        (601, 8, (1, 1, 4, 4, 256, 1)),
    ):  # fmt: skip
        assert tile("d", vectors, rows, 8) == tile("c", vectors, rows, 8) == right, (rows, vectors)
    assert tile("s", 2, 100, 4, lanes=64) == (1, 1, 1, 8, 128, 4)  # two rows of a block
    few = (1, 1, 1, 4, 256, 2)
    assert tile("b", 2, 264) == tile("b", 4, 264) == few
    assert few not in (tile("b", 2, 265), tile("b", 4, 265))
    assert tile("s", 4, 400) == (1, 1, 2, 8, 256, 1) and tile("s", 8, 400) == (1, 1, 2, 4, 256, 1)
    assert tile("s", 4, 400, lanes=512) == (1, 1, 2, 4, 512, 1), "registers for half as many loads"
    usual = (1, 1, 4, 4, 256, 1)
    assert tile("s", 4, 401) == tile("s", 4, 901, 4) == tile("d", 4, 901, 8) == usual
    assert tile("s", 8, 401) == (1, 1, 4, 2, 256, 1)
    assert tile("d", 8, 600, 8) == (1, 1, 2, 4, 256, 1)
    # No A of less than 15 MiB was timed.
    assert tile("s", 4, 400, cols=9830) == usual != tile("s", 4, 400, cols=9831)
    for other in (
        tile("s", 2, 100, 4, lanes=32), tile("s", 2, 100, 4, accumulate="wide"),
        tile("s", 2, 100, 4, BLOCKS_PER_SM=4),
    ):  # fmt: skip
        assert other[2:4] != (1, 8), other


def test_small_blocks_stage_numbers_of_x():
    """For any vectors, unless columns are split, or the block or its few columns gain nothing."""
    wide = {"LANES": 32, "THREADS_PER_BLOCK": 256}

    def found(letter, cols, vectors, blocks, **changed):
        knobs = columns_of(letter, cols, vectors, blocks * 32 * WIDTHS[letter], **wide, **changed)
        assert knobs["AS_STORED"] == 0 and knobs["COUNT"] == vectors
        return tuple(knobs[name] for name in ("LOADS", "STAGED", "MIN_BLOCKS"))

    for vectors in (2, 4):
        # 32 columns of a group, and 33
        assert [found("b", cols, vectors, 256) for cols in (256, 257)] == [(4, 1, 2), (8, 1, 2)]
        assert [found(letter, 256, vectors, 256)[0] for letter in "sdcz"] == [8, 8, 8, 4]
        # One pass needs more than a wave of blocks.
        for letter in "hsd":
            assert [found(letter, 64, vectors, blocks)[1] for blocks in (264, 265)] == [0, 1]
            assert found(letter, 65, vectors, 264)[1] == 1
        assert found("b", 256, vectors, 256, BLOCKS_PER_SM=2)[1] == 0
        # Loads of 8 bytes, and sums in twice the digits, have stages where others need them, too.
        problem = make_problem(1 << 16, 256, DTYPES["d"], "F", "N").at(256, 256)
        single = {**get("vector_columns").knobs, **wide, "BLOCKS_PER_SM": 0}
        for other in (problem.at(8, 256), problem._replace(accumulate="wide")):
            assert get("several_columns").for_vectors(other, single, vectors)["STAGED"] == 0
    assert columns_of("b", 256, 2, 1 << 16, LANES=32, THREADS_PER_BLOCK=512)["STAGED"] == 0
    # Blocks that are alone on their multiprocessors: four vectors with more than 32 columns
    assert [found("s", 257, vectors, 132)[1] for vectors in (2, 4)] == [0, 1]
    assert [found("s", cols, 4, 132)[1] for cols in (256, 257)] == [0, 1]
    # Eight vectors: one pass to a stage
    assert [found(letter, 1024, 8, 256) for letter in "bhsdcz"] == (
        [(8, 1, 2), (8, 1, 2), (8, 1, 2), (8, 1, 2), (4, 1, 2), (4, 1, 2)]
    )
    assert [found(letter, 256, 8, 256, BLOCKS_PER_SM=2)[:2] for letter in "bh"] == [(8, 1)] * 2
    assert columns_of("h", 512, 8, 1 << 16, LANES=16, THREADS_PER_BLOCK=512)["STAGED"] == 2


def test_a_third_block_where_the_last_ones_are_done_sooner():
    wide = {"LANES": 32, "THREADS_PER_BLOCK": 256}
    for letter, vectors, with_three in (
        ("b", 4, True), ("b", 8, False), ("s", 2, True), ("s", 8, True), ("d", 4, True),
        ("z", 4, False), ("z", 8, True),
    ):  # fmt: skip
        for blocks, three in (
            (264, False), (265, True), (396, True), (397, False), (529, False),
        ):  # fmt: skip
            rows = blocks * 32 * WIDTHS[letter]
            knobs = columns_of(letter, 1024, vectors, rows, **wide)
            assert knobs["MIN_BLOCKS"] == (3 if three and with_three else 2), (letter, blocks)
            if letter in "sd" and vectors == 8:
                assert knobs["LOADS"] == (4 if three else 8), "few registers"


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"THREADS_PER_BLOCK": 60}, "a multiple of COUNT"), ({"CHUNK_COLUMNS": 62}, "one of COL"),
        ({"STAGES": 1}, "2 or more"), ({"STAGES": 6}, "at most 49152 bytes, not 53248"),
    ],
)  # fmt: skip
def test_constants_of_long_columns_that_do_not_go_together_are_refused(changed, told):
    kernel, (problem, knobs) = get("several_long_columns"), long_columns("d", 8)
    kernel.geometry(problem, H100, knobs)
    with pytest.raises(ValueError, match=f"several_long_columns: .*{told}"):
        kernel.geometry(problem, H100, {**knobs, **changed})
    with pytest.raises(ValueError, match="copies to shared memory: it needs compute capability 8"):
        kernel.geometry(problem, OLD, knobs)
    with pytest.raises(ValueError, match="for loads of 16 bytes"):
        kernel.geometry(problem.at(8, 256), H100, knobs)


#: Down the columns: dtype, vectors, rows, columns, and constants of one vector.
SQUARE = {"LANES": 32, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 2}
WIDE = {"LANES": 8, "THREADS_PER_BLOCK": 512, "BLOCKS_PER_SM": 2}
HALVES = {"LANES": 16, "PIECES": 2, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 1}
SMALL = {"LANES": 8, "THREADS_PER_BLOCK": 512, "BLOCKS_PER_SM": 0}
WHOLE = {"LANES": 32, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0}
COLUMNS = [
    ("d", 8, 64, 1 << 20, HALVES), ("d", 8, 8192, 8192, SQUARE), ("b", 8, 8192, 8192, SQUARE),
    ("b", 4, 8192, 8192, SQUARE), ("s", 4, 64, 1 << 20, WIDE), ("z", 2, 1000, 1000, SMALL),
    ("z", 4, 64, 1 << 20, HALVES), ("b", 8, 64, 1 << 20, WIDE), ("h", 8, 8192, 8192, SMALL),
    ("b", 4, 64, 1 << 20, WIDE), ("h", 8, 8192, 8192, SQUARE), ("h", 2, 1 << 16, 256, WHOLE),
]  # fmt: skip
ALL_COLUMNS = [
    (letter, vectors, *shape)
    for letter in "sdczbh"
    for vectors in (2, 4, 8)
    for shape in ((64, 1 << 20, HALVES), (8192, 8192, SQUARE), (64, 1 << 20, WIDE),
                  (1000, 1000, SMALL), (8192, 8192, SMALL), (1 << 16, 256, WHOLE))
]  # fmt: skip


@pytest.mark.parametrize(
    "letter, vectors, rows, cols, single",
    ALL_COLUMNS if ALL_ROWS else COLUMNS,
)
def test_columns_spill_no_registers(letter, vectors, rows, cols, single, compiler):
    problem = make_problem(rows, cols, DTYPES[letter], "F", "N").at(256, 256)
    alone = {**get("vector_columns").knobs, "BLOCKS_PER_SM": 0, "PIECES": 1, **single}
    kernel = get("several_columns")
    knobs = kernel.for_vectors(problem, alone, vectors)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(kernel, name, "axpy", knobs=knobs, widths=problem.widths, whole=True)
    # The number that a block draws is stored before the loops, and loaded once behind them.
    drawn = (8, 12) if (letter, vectors, single) == ("d", 8, HALVES) else (0, 0)
    assert (function["stack"], function["spills"]) in ((0, 0), drawn), knobs


def test_blocks_of_several_vectors_have_fewer_rows_than_those_of_one():
    """Where sums would take all registers; the splits, which sums depend on, stay."""
    problem = make_problem(64, 1 << 20, DTYPES["d"], "F", "N").at(256, 256)
    single = {**get("vector_columns").knobs, **HALVES}
    kernel = get("several_columns")
    for vectors, pieces in ((8, 1), (4, 2)):
        knobs = kernel.for_vectors(problem, single, vectors)
        assert (knobs["COUNT"], knobs["PIECES"], knobs["OF_PIECES"]) == (vectors, pieces, 2)
        (launch,) = kernel.geometry(problem, H100, knobs).launches
        (alone,) = get("vector_columns").geometry(problem, H100, single).launches
        assert launch.grid == (2 // pieces * alone.grid[0], *alone.grid[1:])


def test_a_small_matrix_of_few_blocks_is_shared_out_over_vectors_as_well():
    """Else half of the multiprocessors would have no block."""
    for rows, count in ((1000, 4), (1056, 4), (1057, 8), (4000, 8)):
        single = {"LANES": 8, "THREADS_PER_BLOCK": 512}
        assert columns_of("d", 1000, rows=rows, **single)["COUNT"] == count
    assert columns_of("d", 1000, rows=1000, LANES=8, BLOCKS_PER_SM=1)["COUNT"] == 8


def test_a_small_matrix_of_float64_has_few_threads_for_a_row():
    """They share what they load of x. If they fill no grid, a row gets more of them."""
    names = ("PARTS", "TURNS", "ROWS", "VECTORS", "THREADS_PER_BLOCK", "MIN_BLOCKS")
    for rows, lanes, right in (
        (1000, 128, (1, 1, 4, 2, 128, 2)), (1024, 128, (1, 1, 4, 2, 128, 2)),
        (1025, 128, (1, 1, 4, 2, 128, 2)), (500, 256, (1, 1, 4, 2, 256, 1)),
        (300, 128, (2, 1, 4, 4, 256, 1)),
    ):  # fmt: skip
        problem, knobs = rows_of("d", 8, lanes, rows)
        assert tuple(knobs[name] for name in names) == right, (rows, lanes)
    for rows in (4096, 4097):  # loads of 8 bytes have this tile for a small matrix alone
        problem, knobs = rows_of("d", 8, 32, rows)
        single = {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0, "LANES": 32}
        other = get("several_rows").for_vectors(problem.at(8, 8), single, 8)
        assert (other["ROWS"] == 4) == (rows == 4096)


@pytest.mark.parametrize("letter", "bh")
@pytest.mark.parametrize("lanes", [64, 128, 256])
def test_many_lanes_take_turns_unless_rows_are_few(letter, lanes):
    """Then a row has 128 threads; few rows get more of them, up to 512, whose loads are fewer."""
    _, many = rows_of(letter, 8, lanes, 100000)
    assert many["TURNS"] == lanes // 32 and many["THREADS_PER_BLOCK"] == 128
    _, few = rows_of(letter, 8, lanes, 64)
    assert few["TURNS"] == max(1, lanes // 128)
    assert few["THREADS_PER_BLOCK"] == min(4 * lanes, 512)
    assert many["VECTORS"] == 4
    assert few["VECTORS"] == (2 if few["THREADS_PER_BLOCK"] == 512 else 4)
    _, split = rows_of(letter, 8, lanes, 64, BLOCKS_PER_SM=4)
    assert split["TURNS"] == 1 and split["VECTORS"] == 2


def test_short_loads_pass_the_l1_cache_where_all_are_aligned():
    """Else a sector is met by several loads, and L1 keeps it for them."""
    problem, knobs = rows_of("b", 8, 32, 100000)
    assert (knobs["PARTS"], knobs["PAST_L1"], knobs["KEPT"]) == (4, 1, 1)
    knobs = get("several_rows").for_vectors(problem.at(256 + 8, 256), {**knobs, "OF_ROWS": 1}, 8)
    assert (knobs["PAST_L1"], knobs["KEPT"]) == (0, 1)


#: Elements of a load of 16 bytes.
WIDTHS = {letter: 16 // DTYPES[letter].itemsize for letter in "sdczhb"}


def columns_of(letter, cols, vectors=8, rows=4000, **single):
    problem = make_problem(rows, cols, DTYPES[letter], "F", "N").at(256, 256)
    small = {"LANES": 2, "PIECES": 1, "COLUMNS": 8, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0}
    return get("several_columns").for_vectors(problem, {**small, **single}, vectors)


@pytest.mark.parametrize("letter", "sdcbh")
def test_few_columns_of_a_group_go_out_at_once(letter):
    """128 groups with 8 columns each at most, in 132 blocks; without barriers for numbers of x."""
    rows = 132 * 2 * WIDTHS[letter]
    for cols in (1000, 1024):
        knobs = columns_of(letter, cols, 8, rows)
        loads, blocks = (4, 2) if letter == "d" else (8, 1)
        assert (knobs["STAGED"], knobs["LOADS"], knobs["MIN_BLOCKS"]) == (0, loads, blocks)
        assert knobs["COUNT"] == 8
    assert columns_of(letter, 300, 8, rows)["LOADS"] == 4, "no more than a group has"
    for more in (
        columns_of(letter, 1025, 8, rows),
        columns_of(letter, 1000, 8, rows + WIDTHS[letter]),
        columns_of(letter, 1000, 8, LANES=4, THREADS_PER_BLOCK=512),
        columns_of(letter, 1000, 8, rows, BLOCKS_PER_SM=2),
    ):
        assert more["STAGED"] > 0


def test_short_numbers_of_x_come_by_units_to_a_block_that_is_alone():
    """With eight lanes and 512 threads, to four vectors and more, split or not."""
    names = ("COUNT", "LOADS", "STAGED", "MIN_BLOCKS")
    for letter in "bh":
        for vectors, split in ((8, 0), (8, 1), (4, 0), (4, 1)):
            single = {**SMALL, "BLOCKS_PER_SM": split}
            found = columns_of(letter, 8192, vectors, 8192, **single)
            assert found["AS_STORED"] and tuple(found[name] for name in names) == (vectors, 4, 1, 1)
    for letter, vectors, changed in (
        ("b", 2, {}), ("b", 2, {"BLOCKS_PER_SM": 1}), ("b", 8, {"LANES": 16}),
        ("b", 8, {"LANES": 32, "BLOCKS_PER_SM": 1}), ("h", 8, {"THREADS_PER_BLOCK": 256}),
        ("h", 8, {"THREADS_PER_BLOCK": 1024}), ("s", 8, {}), ("d", 8, {}),
    ):  # fmt: skip
        found = columns_of(letter, 8192, vectors, 16384, **{**SMALL, **changed})
        assert not found["AS_STORED"], (letter, vectors, changed)
    wide = make_problem(8192, 8192, DTYPES["b"], "F", "N").at(256, 256)._replace(accumulate="wide")
    alone = {**get("vector_columns").knobs, **SMALL, "PIECES": 1}
    assert not get("several_columns").for_vectors(wide, alone, 8)["AS_STORED"]


@pytest.mark.parametrize("vectors, batch, of_vector, workers, letter, expected", [
    (8, 4, 16, 16, "s", 8),  # 128 bytes
    (8, 8, 256, 256, "s", 4),
    (8, 4, 16, 16, "d", 4),
    (8, 4, 16, 16, "c", 2),  # half as many bytes
    (8, 8, 64, 256, "z", 1),
    (8, 4, 4, 8, "s", 4),  # else half of the warps would have no row
    (2, 4, 1, 16, "s", 1),
])  # fmt: skip
def test_vectors_whose_sums_of_splits_are_taken_at_once(
    vectors, batch, of_vector, workers, letter, expected
):
    number = DTYPES[letter]
    assert taken_at_once(vectors, batch, of_vector, workers, number) == expected


#: Letter, rows, columns, order, vectors, and the blocks that finish a tile.
FINISHED = [
    ("b", 64, 1 << 20, "C", 8, 1), ("s", 50, 1 << 20, "C", 8, 1), ("d", 64, 1 << 20, "C", 8, 4),
    ("c", 64, 1 << 20, "C", 8, 4), ("b", 64, 1 << 20, "C", 4, 1), ("s", 50, 1 << 20, "C", 4, 1),
    ("d", 64, 1 << 20, "C", 4, 4), ("c", 64, 1 << 20, "C", 4, 4), ("s", 300, 500000, "C", 4, 1),
    ("c", 4, 1000000, "C", 4, 1),
    *((letter, 64, 1 << 20, "F", vectors, 4) for letter in "bsdc" for vectors in (8, 4)),
    ("s", 64, 1 << 20, "F", 2, 2), ("s", 1024, 8192, "F", 8, 4), ("d", 100, 20000, "F", 8, 4),
    ("s", 256, 1 << 18, "F", 8, 4),
]  # fmt: skip


@pytest.mark.parametrize("letter, rows, cols, order, vectors, expected", FINISHED)
def test_blocks_that_finish_a_tile(letter, rows, cols, order, vectors, expected):
    """Those that were fastest, or within a hundredth; the code is made for so many."""
    problem = make_problem(rows, cols, DTYPES[letter], order, "N").at(256, 256)
    steps = ((0,), (cols + -cols % 8,), (rows + -rows % 8,), (0,), (0,))
    choice = select_batch(problem, Batch((vectors,), steps), H100)
    assert choice.geometry.sizes["splits"] > 1
    assert (choice.geometry.sizes["helpers"], choice.spec.helpers) == (expected, expected)


#: Letter and order, and the blocks that finish a tile: each letter with either of these where there
#: is a GPU or ``GEMV_ALL_ROWS=1``, else with one.
ENDED = [
    (*each, helpers)
    for k, each in enumerate([("b", "F"), ("s", "F"), ("c", "C"), ("z", "C")])
    for helpers in ((1, 4) if ALL_ROWS else ((1, 4, 4, 1)[k],))
]


@pytest.mark.parametrize("letter, order, helpers", ENDED)
def test_the_end_of_splits_spills_no_registers(letter, order, helpers, compiler):
    """The kernels with the fewest registers for the sums that a thread takes at once."""
    problem = make_problem(
        *((64, 1 << 20) if order == "C" else (8192, 8192)), DTYPES[letter], order, "N"
    )
    problem = problem.at(256, 256)
    single = {**select(problem, H100).knobs, "BLOCKS_PER_SM": 1}
    if letter == "s":  # as of columns that are split; those of this matrix are not
        single |= {"LANES": 16, "COLUMNS": 16, "THREADS_PER_BLOCK": 512}
    kernel = get({"C": "several_rows", "F": "several_columns"}[order])
    knobs = kernel.for_vectors(problem, single, 8)
    assert knobs["BLOCKS_PER_SM"] > 0 and knobs["COUNT"] == 8
    (function,) = compiler(
        kernel, dtype_name(DTYPES[letter]), problem.access, knobs=knobs, widths=problem.widths,
        whole=True, helpers=helpers,
    )  # fmt: skip
    assert (function["stack"], function["spills"]) == (0, 0), knobs


#: Letter, rows, columns, lanes, splits, and constants: PARTS, ROWS, VECTORS, STAGES, threads.
STAGED = [
    ("b", 12288, 12288, 128, 0, (4, 4, 4, 3, 512)), ("b", 12288, 12288, 16, 0, (4, 4, 4, 3, 256)),
    ("h", 12288, 12288, 32, 0, (4, 4, 4, 3, 512)), ("b", 1024, 8192, 128, 0, (4, 4, 2, 4, 256)),
    ("h", 64, 1 << 20, 128, 4, (4, 4, 4, 3, 512)), ("b", 64, 1 << 20, 32, 4, (4, 4, 4, 3, 512)),
    ("d", 8192, 8192, 256, 0, (1, 4, 2, 4, 256)), ("d", 8192, 8192, 32, 0, (1, 4, 2, 4, 256)),
    ("s", 8192, 8192, 128, 0, (1, 4, 2, 4, 256)), ("s", 8192, 8192, 32, 0, (1, 4, 2, 4, 256)),
    ("c", 8192, 8192, 128, 0, (1, 4, 2, 4, 256)), ("c", 8192, 8192, 32, 0, (1, 4, 2, 4, 256)),
    ("c", 64, 1 << 20, 128, 8, (1, 4, 2, 4, 256)), ("c", 64, 1 << 20, 32, 1, (1, 4, 2, 4, 256)),
]  # fmt: skip


def staged(letter, rows, cols, lanes, splits, vectors=8):
    """A problem, and the constants of several_staged_rows for it."""
    problem = make_problem(rows, cols, DTYPES[letter], "C", "N").at(256, 256)
    alone = {**get("vector_rows").knobs, "LANES": lanes, "BLOCKS_PER_SM": splits}
    return problem, get("several_staged_rows").for_vectors(problem, alone, vectors)


#: Those that come nearest to the registers that they may have, one or two of each letter.
FULL_STAGES = [STAGED[k] for k in (1, 2, 3, 5, 6, 8, 13)]


@pytest.mark.parametrize("letter, rows, cols, lanes, splits, expected", STAGED)
def test_stages_of_a_and_x_spill_no_registers(
    letter, rows, cols, lanes, splits, expected, compiler
):
    """Without a GPU or ``GEMV_ALL_ROWS=1``, the code is that of FULL_STAGES alone."""
    kernel, (problem, knobs) = (
        get("several_staged_rows"), staged(letter, rows, cols, lanes, splits)
    )  # fmt: skip
    named = ("PARTS", "ROWS", "VECTORS", "STAGES", "THREADS_PER_BLOCK")
    assert tuple(knobs[each] for each in named) == expected
    assert (knobs["TURNS"], knobs["COUNT"]) == (max(1, lanes // 32), 8)
    if ALL_ROWS or (letter, rows, cols, lanes, splits, expected) in FULL_STAGES:
        (function,) = compiler(
            kernel, dtype_name(DTYPES[letter]), "dot", knobs=knobs, widths=problem.widths,
            whole=True,
        )  # fmt: skip
        assert (function["stack"], function["spills"]) == (0, 0), knobs
    (launch,) = kernel.geometry(problem, H100, knobs).launches
    ring = kernel.build.__globals__["ring_bytes"](problem, knobs)
    assert launch.shared == ring and knobs["MIN_BLOCKS"] * (ring + (9 << 10)) <= 228 << 10
    assert splits or launch.grid[0] <= 132 * knobs["MIN_BLOCKS"]


@pytest.mark.parametrize("letter, rows, cols, lanes, splits, vectors", [
    ("b", 12288, 12288, 128, 0, 4), ("b", 12288, 12288, 8, 0, 8), ("b", 65536, 2048, 32, 0, 8),
    ("b", 512, 8192, 32, 0, 8), ("b", 64, 1 << 20, 16, 4, 8), ("s", 4000, 4096, 128, 0, 8),
    ("d", 64, 1 << 20, 128, 4, 8), ("d", 8192, 8192, 16, 0, 8), ("d", 2048, 8192, 128, 0, 8),
    ("d", 8192, 256, 32, 0, 8), ("c", 8192, 256, 32, 0, 8), ("b", 8192, 8196, 32, 0, 8),
    ("b", 63, 1 << 20, 128, 4, 8), ("c", 63, 1 << 20, 128, 4, 8), ("s", 64, 1 << 20, 128, 4, 8),
    ("c", 8192, 8192, 16, 0, 8), ("c", 64, 1 << 20, 16, 4, 8), ("z", 8192, 8192, 32, 0, 8),
    ("d", 8192, 8192, 256, 0, 4), ("d", 8192, 8192, 512, 0, 2), ("s", 8192, 8192, 512, 0, 4),
])  # fmt: skip
def test_other_rows_have_no_stages(letter, rows, cols, lanes, splits, vectors):
    """Other kernels were faster, or these were not timed."""
    assert staged(letter, rows, cols, lanes, splits, vectors)[1] is None


@pytest.mark.parametrize("letter", ["d", "c"])
def test_rows_of_many_lanes_have_stages_for_four_vectors(letter):
    kernel, few = staged(letter, 8192, 8192, 512, 0, 4)
    assert few is not None and few == staged(letter, 8192, 8192, 512, 0, 8)[1]


def test_kernels_with_all_of_x_in_fast_memory_come_first():
    batch = Batch((8,), ((0,), (12288,), (12288,), (0,), (0,)))
    for shape, name in (
        ((8192, 8192), "several_long_rows"), ((12288, 12288), "several_staged_rows"),
    ):  # fmt: skip
        problem = make_problem(*shape, DTYPES["b"], "C", "N").at(256, 256)
        assert select_batch(problem, batch, H100).kernel.name == name
    problem = make_problem(12288, 12288, DTYPES["b"], "C", "N").at(256, 256)
    assert select_batch(problem, batch, OLD).kernel.name != "several_staged_rows"


@pytest.mark.parametrize("knobs, told", [
    ({"ROWS": 2}, "ROWS must be a multiple of PARTS"),
    ({"THREADS_PER_BLOCK": 384}, "THREADS_PER_BLOCK|threads of a block"),
    ({"VECTORS": 1, "THREADS_PER_BLOCK": 512}, "VECTORS times that"),
    ({"STAGES": 1}, "STAGES must be 2 or more, got 1"),
    ({"STAGES": 5}, "bytes of shared memory are more than"),
])  # fmt: skip
def test_stages_that_fit_no_block_are_refused(knobs, told):
    problem, own = staged("b", 12288, 12288, 32, 0)
    with pytest.raises(ValueError, match=f"several_staged_rows: .*{told}"):
        get("several_staged_rows").geometry(problem, H100, {**own, **knobs})


def test_what_a_block_keeps_between_turns_counts_as_shared_memory():
    """Sums of 24 rows and eight vectors are four bytes too many, with the ring and the ticket."""
    problem, own = staged("b", 12288, 12288, 64, 0)
    knobs = {"LANES": 64, "TURNS": 2, "PARTS": 1, "ROWS": 3, "VECTORS": 2, "STAGES": 4,
             "THREADS_PER_BLOCK": 512}  # fmt: skip
    with pytest.raises(ValueError, match="bytes of shared memory are more than"):
        get("several_staged_rows").geometry(problem, H100, {**own, **knobs})


#: Letter, rows, columns, vectors, lanes of a row, and constants: COUNT, PARTS, ROWS, VECTORS,
#: STAGES, threads.
IN_SHARES = [
    ("b", 128, 131072, 8, 512, (8, 4, 8, 2, 4, 256)),
    ("h", 256, 100000, 11, 512, (8, 4, 8, 2, 4, 256)),
    ("b", 150, 20000, 5, 256, (8, 4, 8, 2, 4, 256)),
    # enough tiles of 8 rows for all multiprocessors, and the rows of a tile
    ("b", 60, 17472, 8, 512, (8, 4, 4, 2, 6, 256)),
    ("b", 4, 65536, 8, 512, (8, 4, 4, 2, 4, 128)),
    ("b", 100, 200000, 3, 512, (4, 4, 8, 2, 4, 256)),
    ("s", 100, 200000, 8, 512, (8, 2, 4, 2, 6, 256)),
    # of 32 rows there is one tile for each multiprocessor, of 16 two for some
    ("s", 200, 100000, 8, 512, (8, 4, 8, 2, 4, 512)),
    ("s", 112, 40000, 4, 512, (4, 2, 4, 2, 4, 256)),
    ("d", 100, 100000, 8, 512, (8, 1, 4, 2, 4, 128)),
    ("d", 60, 4352, 8, 512, (8, 1, 4, 2, 4, 128)),
    ("c", 100, 100000, 4, 512, (4, 1, 4, 2, 3, 128)),
    ("d", 128, 65536, 2, 512, (2, 1, 4, 2, 4, 128)),
    ("s", 60, 17472, 2, 512, (2, 2, 4, 2, 4, 128)),
]  # fmt: skip
NAMES = ("COUNT", "PARTS", "ROWS", "VECTORS", "STAGES", "THREADS_PER_BLOCK")


def in_shares(letter, rows, cols, vectors, lanes, **more):
    """A problem, and the constants of several_rows_in_shares for it."""
    problem = make_problem(rows, cols, DTYPES[letter], "C", "N").at(256, 256)
    problem = problem._replace(accumulate=more.pop("accumulate", "plain"))
    alone = {**get("vector_rows").knobs, "LANES": lanes, "BLOCKS_PER_SM": 0, **more}
    return problem, get("several_rows_in_shares").for_vectors(problem, alone, vectors)


@pytest.mark.parametrize("letter, rows, cols, vectors, lanes, right", IN_SHARES)
def test_few_long_rows_have_blocks_that_take_shares(letter, rows, cols, vectors, lanes, right):
    problem, knobs = in_shares(letter, rows, cols, vectors, lanes)
    assert tuple(knobs[name] for name in NAMES) == right
    assert (knobs["SPLITS"], knobs["FINISHERS"]) == (1, 1)
    kernel = get("several_rows_in_shares")
    (launch,) = kernel.geometry(problem, H100, knobs).launches
    tasks = math.ceil(rows / kernel.tile(knobs)[0]) * (lanes // 32)
    assert launch.grid == (min(tasks, 132 * knobs["MIN_BLOCKS"]), 1, 1)


#: Letter, rows, columns, vectors, lanes, threads and blocks of a cluster of the single product, and
#: constants: FINISHERS, and those above.
OF_CLUSTERS = [
    ("b", 16, 524288, 8, (256, 256, 16), (32, 8, 4, 8, 2, 6, 256)),
    ("b", 8, 262144, 8, (256, 256, 16), (32, 8, 4, 4, 2, 6, 256)),
    ("b", 32, 65536, 4, (256, 256, 8), (32, 4, 4, 4, 2, 6, 256)),
    ("s", 4, 262144, 8, (512, 512, 16), (32, 8, 2, 4, 2, 4, 64)),
    ("s", 32, 32768, 7, (64, 128, 16), (32, 8, 2, 4, 2, 6, 128)),
    ("d", 60, 34944, 8, (128, 256, 8), (32, 8, 1, 4, 2, 4, 128)),
    ("d", 16, 131072, 2, (256, 256, 16), (32, 2, 2, 4, 2, 4, 128)),
    ("b", 150, 55872, 8, (64, 128, 8), (16, 8, 4, 4, 2, 6, 256)),
]  # fmt: skip


def of_cluster(letter, rows, cols, vectors, single, **more):
    """A problem, the launch of its product in clusters, and constants of several vectors."""
    problem = make_problem(rows, cols, DTYPES[letter], "C", "N").at(256, 256)
    lanes, threads, cluster = single
    alone = {
        **get("cluster_rows").knobs, "LANES": lanes, "THREADS_PER_BLOCK": threads, "ROWS": 1,
        "CLUSTER": cluster, **more,
    }  # fmt: skip
    geometry = get("cluster_rows").geometry(problem, H100, alone)
    return problem, geometry, get("several_rows_in_shares").for_vectors(problem, alone, vectors)


@pytest.mark.parametrize("letter, rows, cols, vectors, single, right", OF_CLUSTERS)
def test_rows_of_a_cluster_are_shared_as_there(letter, rows, cols, vectors, single, right):
    problem, alone, knobs = of_cluster(letter, rows, cols, vectors, single)
    assert tuple(knobs[name] for name in ("FINISHERS", *NAMES)) == right
    assert (knobs["SPLITS"], knobs["LANES"]) == (single[2], single[0])
    sizes = get("several_rows_in_shares").geometry(problem, H100, knobs).sizes
    assert sizes["cols_per_split"] == alone.sizes["cols_per_split"]


#: All tiles: vectors, bytes of a number, and which one.
OF_TILES = [(*key, number) for key, tiles in TILES.items() for number in range(len(tiles))]
#: Lanes, splits and finishers: as of rows that are not split, and of clusters.
ENDS = [(512, 1, 1), (256, 16, 32)]
#: The tiles that come nearest to the registers that they may have, each with one of the two ends.
FULL_TILES = {
    (2, 2, 0): 0, (4, 2, 0): 1, (4, 8, 0): 0, (8, 2, 0): 0, (8, 2, 1): 1, (8, 4, 0): 1,
    (8, 8, 0): 1,
}  # fmt: skip


@pytest.mark.parametrize("count, size, number", OF_TILES)
def test_tiles_of_shares_spill_no_registers(count, size, number, compiler):
    """With both ends; without a GPU or ``GEMV_ALL_ROWS=1``, the code is FULL_TILES' alone."""
    kernel = get("several_rows_in_shares")
    tile = TILES[count, size][number]
    letters = {2: "hb", 4: "ss", 8: "dc"}[size]
    for end, (letter, (lanes, splits, finishers)) in enumerate(zip(letters, ENDS, strict=True)):
        ends = {"LANES": lanes, "SPLITS": splits, "FINISHERS": finishers, "COUNT": count}
        knobs = {**tile._asdict(), **ends}
        problem = make_problem(100, 1 << 17, DTYPES[letter], "C", "N").at(256, 256)
        (launch,) = kernel.geometry(problem, H100, knobs).launches
        blocks = knobs["MIN_BLOCKS"]
        if ALL_ROWS or FULL_TILES.get((count, size, number)) == end:
            (function,) = compiler(
                kernel, dtype_name(DTYPES[letter]), "dot", knobs=knobs, widths=problem.widths,
                whole=True,
            )  # fmt: skip
            assert (function["stack"], function["spills"]) == (0, 0), knobs
            assert function["registers"] * launch.threads_per_block * blocks <= H100.chip.registers
        nbytes = launch.shared + kernel.build.__globals__["sums_bytes"](problem, knobs) + 1024
        assert blocks * nbytes <= H100.chip.shared_bytes


def test_other_rows_have_no_shares():
    """Tiles for all multiprocessors, rows that end soon, and what was slower."""
    usual = {"letter": "b", "rows": 128, "cols": 131072, "vectors": 8, "lanes": 512}
    assert in_shares(**usual)[1] is not None
    for changed in (
        {"vectors": 2}, {"lanes": 128}, {"rows": 257}, {"rows": 10, "cols": 8000},
        {"cols": 131076}, {"BLOCKS_PER_SM": 1}, {"accumulate": "wide"}, {"letter": "z"},
        {"rows": 145, "vectors": 4}, {"letter": "s", "lanes": 256, "vectors": 4},
        {"letter": "d", "rows": 257}, {"vectors": 4, "cols": 30000},
        {"letter": "d", "rows": 161, "vectors": 2},
        {"letter": "s", "cols": 10000},
        # two rounds of tiles of 16 rows, and tiles of 32 for two thirds of the multiprocessors
        {"letter": "s", "rows": 162},
    ):  # fmt: skip
        assert in_shares(**{**usual, **changed})[1] is None, changed


def test_other_clusters_are_read_once_for_each_vector():
    """What the L2 cache holds anyway; vectors that are not there cost as much as the others."""
    usual = {"letter": "b", "rows": 16, "cols": 131072, "vectors": 8, "single": (256, 256, 16)}
    assert of_cluster(**usual)[2] is not None
    assert of_cluster(**{**usual, "vectors": 5})[2] is not None
    for changed in (
        {"cols": 32768}, {"vectors": 2}, {"vectors": 5, "cols": 65536}, {"rows": 321},
        {"vectors": 9, "cols": 65536},
        {"letter": "d", "cols": 16384}, {"single": (16, 256, 16)}, {"cols": 131076},
    ):  # fmt: skip
        assert of_cluster(**{**usual, **changed})[2] is None, changed


def test_a_gpu_without_such_copies_has_another_kernel_for_few_rows():
    problem = in_shares("b", 100, 200000, 8, 512)[0]
    batch = Batch((8,), ((0,), (200000,), (100,), (0,), (0,)))
    found = [select_batch(problem, batch, device).kernel.name for device in (H100, OLD)]
    assert found == ["several_rows_in_shares", "several_rows"]


#: Constants with which a block has all of its shared memory.
FILLING = {"LANES": 512, "SPLITS": 1, "FINISHERS": 1, "COUNT": 8, "PARTS": 4, "ROWS": 4,
           "VECTORS": 4, "STAGES": 4, "THREADS_PER_BLOCK": 512, "MIN_BLOCKS": 1}  # fmt: skip


@pytest.mark.parametrize("knobs, told", [
    ({"LANES": 48}, "LANES must be whole warps"),
    ({"THREADS_PER_BLOCK": 192}, "a multiple of those of a row"),
    ({"ROWS": 2}, "ROWS must be a multiple of PARTS"),
    ({"VECTORS": 1}, "VECTORS times that one of the threads"),
    ({"COUNT": 6}, "COUNT must be a power of two, got 6"),
    ({"STAGES": 1}, "STAGES must be 2 or more, got 1"),
    ({"STAGES": 5}, "together more than the 232448 that a block may ask for"),
    ({"PARTS": 1, "THREADS_PER_BLOCK": 1024, "ROWS": 64}, "for sums and"),
    ({"FINISHERS": 3}, "FINISHERS must be a power of two up to 32"),
    ({"FINISHERS": 64}, "FINISHERS must be a power of two up to 32"),
    ({"FINISHERS": 32}, "the shares of a row a multiple of it, got 32 and 16"),
])  # fmt: skip
def test_shares_that_fit_no_block_are_refused(knobs, told):
    kernel, (problem, _) = get("several_rows_in_shares"), in_shares("b", 100, 200000, 8, 512)
    kernel.geometry(problem, H100, FILLING)
    with pytest.raises(ValueError, match=f"several_rows_in_shares: .*{told}"):
        kernel.geometry(problem, H100, {**FILLING, **knobs})


def test_shares_need_a_gpu_with_such_copies_and_a_grid_for_the_vectors():
    problem, own = in_shares("b", 128, 131072, 8, 512)
    kernel = get("several_rows_in_shares")
    with pytest.raises(ValueError, match="a ring of copies: it needs"):
        kernel.geometry(problem, OLD, own)
    batch = Batch((8 * 65535 + 1,), ((0,), (131072,), (128,), (0,), (0,)))
    with pytest.raises(ValueError, match="524281 vectors are more than a grid has blocks for"):
        kernel.of_batch(problem, H100, own, batch)
