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
from gemv.measure.inputs import make_problem
from gemv.selection.batches import select_batch

H100 = Device("NVIDIA H100", (9, 0), 132)
#: The oldest compute capability that there are kernels for.
OLD = Device("NVIDIA T4", (7, 5), 40)

#: dtype, vectors, lanes of a row, rows: those that need most of the registers that they may have.
FULL = [
    ("s", 8, 32, 100000), ("c", 4, 4, 100000), ("c", 4, 8, 100000), ("c", 4, 256, 300),
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
]  # fmt: skip
#: Those that need the most registers, of both kinds of 2-byte numbers.
FEW_SHORT = [
    *(("h", 8, *short) for short in SHORT[:5]), ("b", 8, *SHORT[0]), ("b", 8, *SHORT[-5]),
    ("b", 8, *SHORT[-1]), ("h", 4, *SHORT[3]), ALL_SHORT[-5],
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
        ("b", 1 << 20, 64, 4, 8, (2, 1, 4, 2, 128, 4)),
        ("h", 1 << 20, 64, 4, 8, (2, 1, 4, 2, 128, 4)),
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
        (short_rows("s", 1 << 20, 64), 8, 4), (wide, 8, 8), (short_rows("d", 1 << 20, 32), 8, 8),
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
LONG = [
    (1536, 16), (2048, 16), (2176, 16), (3000, 16), (3000, 32), (4096, 16), (4096, 32), (5120, 32),
    (6152, 32), (8192, 32), (7168, 128), (8192, 128),
]  # fmt: skip
FEW_LONG = [("b", 2048, 16), ("b", 6152, 32), ("b", 8192, 32), ("h", 3000, 32), ("h", 8192, 128)]


def long_rows(letter, cols, lanes, vectors=8, rows=1 << 16, **more):
    """A problem, and the constants of several_long_rows for it."""
    problem = short_rows(letter, rows, cols)._replace(**more)
    alone = {"LANES": lanes, "BLOCKS_PER_SM": 0}
    return problem, get("several_long_rows").for_vectors(problem, alone, vectors)


@pytest.mark.parametrize(
    "letter, cols, lanes",
    [(letter, *each) for letter in "bh" for each in LONG] if ALL_ROWS else FEW_LONG,
)
def test_long_rows_spill_no_registers(letter, cols, lanes, compiler):
    kernel, (problem, knobs) = get("several_long_rows"), long_rows(letter, cols, lanes)
    name = dtype_name(DTYPES[letter])
    (function,) = compiler(kernel, name, "dot", knobs=knobs, widths=problem.widths, whole=True)
    assert (function["stack"], function["spills"]) == (0, 0), knobs
    assert function["registers"] * knobs["THREADS_PER_BLOCK"] * knobs["MIN_BLOCKS"] <= 65536


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
        {"vectors": 4}, {"rows": 2047}, {"rows": 2047, "lanes": 128}, {"rows": 4095, "lanes": 16},
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
            found.kernel.of_batch(problem, batch, A100, found.knobs)
    with pytest.raises(ValueError, match="x in shared memory: it needs compute capability 8.0"):
        found.kernel.geometry(problem, OLD, found.knobs)


@pytest.mark.parametrize("letter", "sdcbh" if ALL_ROWS else "bc")
def test_long_columns_of_eight_vectors_spill_no_registers(letter, compiler):
    kernel, dtype = get("several_long_columns"), DTYPES[letter]
    problem = make_problem(1048576, 64, dtype, "F", "N").at(256, 256)
    knobs = kernel.for_vectors(problem, get("long_columns").knobs, 8)
    assert knobs["COUNT"] == 8 and knobs["COLUMNS"] * knobs["PIECES"] >= 4
    (function,) = compiler(
        kernel, dtype_name(dtype), "axpy", knobs=knobs, widths=problem.widths, whole=True
    )
    assert (function["stack"], function["spills"]) == (0, 0), knobs


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


def columns_of(letter, cols, vectors=8, **single):
    problem = make_problem(1000, cols, DTYPES[letter], "F", "N").at(256, 256)
    small = {"LANES": 2, "PIECES": 1, "COLUMNS": 8, "THREADS_PER_BLOCK": 256, "BLOCKS_PER_SM": 0}
    return get("several_columns").for_vectors(problem, {**small, **single}, vectors)


@pytest.mark.parametrize("letter", "sdcbh")
def test_few_columns_of_a_group_go_out_at_once(letter):
    """128 groups with 8 columns each at most; without barriers for numbers of x."""
    for cols in (1000, 1024):
        knobs = columns_of(letter, cols)
        loads, blocks = (4, 2) if letter == "d" else (8, 1)
        assert (knobs["STAGED"], knobs["LOADS"], knobs["MIN_BLOCKS"]) == (0, loads, blocks)
        assert knobs["COUNT"] == 8
    assert columns_of(letter, 300)["LOADS"] == 4, "no more than a group has"
    for more in (
        columns_of(letter, 1025),
        columns_of(letter, 1000, LANES=4, THREADS_PER_BLOCK=512),
        columns_of(letter, 1000, BLOCKS_PER_SM=2),
    ):
        assert more["STAGED"] > 0
