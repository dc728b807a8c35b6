"""Tiles of rows for several vectors: the busiest multiprocessor, bytes on their way, edges."""

from __future__ import annotations

import pytest
from helpers.problems import ALL_ROWS

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import Device, ceil_div
from gemv.kernels import get
from gemv.measure.inputs import make_problem
from gemv.selection.batches import select_batch

H100 = Device("NVIDIA H100", (9, 0), 132)
#: Without copies to shared memory, so that ``several_rows`` takes what others have on an H100.
OLD = Device("NVIDIA T4", (7, 5), 40)
STAGED = ("ROWS", "VECTORS", "STAGES")
TILE = ("PARTS", "TURNS", "ROWS", "VECTORS", "THREADS_PER_BLOCK", "MIN_BLOCKS")


def constants(name, letter, shape, lanes, vectors=8, named=None, aligned=256, **more):
    """What a kernel has for rows with so many lanes of a product alone: all, or those `named`."""
    problem = make_problem(*shape, DTYPES[letter], "C", "N").at(aligned, 256)._replace(**more)
    single = {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0, "LANES": lanes}
    found = get(name).for_vectors(problem, single, vectors)
    return found if found is None or named is None else tuple(found[each] for each in named)


def staged(letter, rows, cols, lanes, **more):
    return constants("several_staged_rows", letter, (rows, cols), lanes, named=STAGED, **more)


@pytest.mark.parametrize("letter, rows, expected", [
    # One tile for each multiprocessor: 16 rows, then 24, then 32; two of 24, then of 32.
    ("c", 1200, (2, 4, 3)), ("c", 2112, (2, 4, 3)), ("c", 2113, (3, 2, 4)), ("c", 3168, (3, 2, 4)),
    ("c", 3169, (4, 2, 4)), ("c", 4224, (4, 2, 4)), ("c", 4225, (3, 2, 4)), ("c", 6336, (3, 2, 4)),
    ("c", 6337, (4, 2, 4)), ("c", 8192, (4, 2, 4)), ("c", 10000, (2, 4, 3)),
    ("d", 2000, (2, 4, 3)), ("s", 2000, (2, 2, 4)), ("s", 5120, (3, 2, 4)),
])  # fmt: skip
def test_the_busiest_multiprocessor_decides_on_the_rows_of_a_tile(letter, rows, expected):
    assert staged(letter, rows, 8192, 32) == expected


@pytest.mark.parametrize("letter", "sdc")
def test_no_other_tile_leaves_the_busiest_multiprocessor_less_to_do(letter):
    """Rows of its tiles, and two for each tile; with equal ones a thread has more rows."""
    for rows in range(1500, 30000, 137):
        times = {}
        for each in (2, 3, 4):
            tiles = ceil_div(ceil_div(rows, 8 * each), 132)
            times[each] = tiles * (8 * each + 2)
        found = staged(letter, rows, 4096, 32)[0]
        assert found == max(each for each in times if times[each] == min(times.values()))


def test_stages_have_the_loads_that_leave_fewer_behind_the_last_column():
    """4096 columns are four stages of four loads; 1500 are one and a half, or three of two."""
    for cols, right in ((4096, (2, 4, 3)), (1500, (2, 2, 4)), (1024, (2, 4, 3)), (1028, (2, 2, 4))):
        assert staged("c", 2000, cols, 128) == right, cols


@pytest.mark.parametrize("letter, lanes, least", [
    ("d", 32, 1000), ("d", 64, 8192), ("d", 128, 8192), ("d", 256, 1500), ("d", 512, 1500),
    ("s", 32, 1500), ("s", 64, 4096), ("s", 128, 4096), ("s", 256, 1500),
    ("c", 32, 1000), ("c", 64, 1200), ("c", 256, 1200),
])  # fmt: skip
def test_fewer_rows_have_no_stages(letter, lanes, least):
    assert staged(letter, least, 8192, lanes) is not None
    assert staged(letter, least - 1, 8192, lanes) is None


def test_short_rows_and_those_that_share_sectors_have_no_stages():
    for letter, least, step in (("d", 480, 4), ("s", 960, 8), ("c", 480, 4)):
        assert staged(letter, 9000, least, 32) is not None
        assert staged(letter, 9000, least - step, 32) is None
    for letter, aside in (("d", 2), ("s", 4), ("c", 2)):  # 16 bytes more, half of a sector
        assert staged(letter, 9000, 2048 + aside, 32) is None
        assert staged(letter, 9000, 2048 + 2 * aside, 32) is not None
    for letter, lanes, cols in (("s", 32, 8196), ("d", 512, 4098), ("c", 512, 4098)):
        assert staged(letter, 4096, cols, lanes) == (4, 2, 4), "a large A"
        assert staged(letter, 4095, cols, lanes) is None
    assert staged("s", 4096, 8188, 32) is None and staged("d", 4096, 4094, 512) is None
    assert staged("d", 9000, 4098, 256) is None and staged("c", 9000, 4098, 256) is None
    assert staged("z", 9000, 2048, 32) is None


@pytest.mark.parametrize("letter", ["d", "c"])
def test_few_vectors_have_stages_with_a_large_matrix_of_many_lanes(letter):
    for rows, cols, lanes in ((4096, 4096, 512), (8192, 8192, 1024)):
        assert staged(letter, rows, cols, lanes, vectors=3) == (4, 2, 4)
        assert staged(letter, rows, cols, lanes, vectors=2) is None
    for rows, cols, lanes in ((4095, 4096, 512), (4096, 4092, 512), (4096, 4096, 256)):
        assert staged(letter, rows, cols, lanes, vectors=4) is None


def rows_of(letter, rows, cols, lanes, vectors=8, **more):
    shape = (rows, cols)
    return constants("several_rows", letter, shape, lanes, vectors, TILE, **more)


FEW = (1, 1, 4, 2, 128, 2)


@pytest.mark.parametrize("letter, rows, lanes, expected", [
    ("d", 2000, 128, FEW), ("d", 20000, 128, FEW), ("d", 2500, 32, FEW),
    ("d", 512, 256, (1, 1, 4, 2, 256, 1)), ("d", 2000, 512, (1, 2, 2, 4, 256, 1)),
    ("s", 1500, 128, FEW), ("s", 4095, 128, FEW), ("s", 4096, 128, (1, 1, 2, 2, 256, 2)),
    ("s", 256, 128, FEW), ("s", 255, 128, (4, 1, 2, 8, 512, 1)),
    ("s", 2048, 32, FEW), ("s", 2047, 32, (4, 1, 2, 8, 256, 2)),
    ("c", 1199, 128, FEW), ("c", 1200, 128, (1, 1, 2, 2, 128, 4)),
    ("c", 256, 128, FEW), ("c", 255, 128, (2, 1, 2, 4, 256, 2)),
    ("c", 2048, 32, (1, 1, 2, 2, 128, 4)), ("c", 2047, 32, (2, 1, 2, 4, 128, 4)),
])  # fmt: skip
def test_rows_share_x_where_enough_bytes_of_a_are_on_their_way(letter, rows, lanes, expected):
    """A thread has four of them; else more threads share a lane."""
    assert rows_of(letter, rows, 8192, lanes) == expected


@pytest.mark.parametrize("letter, rows, lanes, expected", [
    ("d", 256, 128, (1, 1, 4, 4, 128, 2)), ("d", 255, 128, (2, 1, 4, 8, 256, 1)),
    ("s", 1024, 32, (1, 1, 4, 4, 128, 2)), ("s", 1023, 32, (4, 1, 4, 16, 128, 2)),
    ("c", 1000, 128, (1, 1, 4, 4, 128, 2)), ("h", 512, 128, (1, 1, 2, 2, 128, 4)),
    ("b", 2048, 32, (1, 1, 2, 2, 128, 4)), ("b", 2047, 32, (4, 1, 4, 4, 128, 4)),
    ("b", 1024, 32, (4, 1, 4, 4, 128, 4)), ("b", 1023, 32, (4, 1, 2, 8, 128, 4)),
    ("b", 511, 128, (4, 1, 2, 2, 512, 1)),
])  # fmt: skip
def test_four_vectors_leave_a_lane_to_one_thread_in_the_same_way(letter, rows, lanes, expected):
    """With four rows of a thread, and of 2-byte numbers two, or four to which threads share."""
    assert rows_of(letter, rows, 8192, lanes, 4) == expected
    assert rows_of(letter, rows, 8192, lanes, 3) == expected


@pytest.mark.parametrize("vectors", [4, 8])
def test_what_was_not_timed_keeps_its_tiles(vectors):
    """Loads of less than 16 bytes, x that is not loaded so, and sums in higher precision."""
    timed = rows_of("s", 2048, 8192, 128, vectors)
    for more in ({"aligned": 8}, {"accumulate": "wide"}, {"incx": 2}):
        found = rows_of("s", 2048, 8192, 128, vectors, **more)
        assert found != timed and found[2] * found[0] != 4, more
    assert rows_of("s", 2048, 8192, 128, 2) != timed


def test_two_loads_of_short_numbers_are_in_flight_where_a_row_has_several_passes():
    for cols, loads in ((1024, 4), (1032, 2), (2400, 2)):
        assert rows_of("b", 1900, cols, 32) == (4, 1, 4, loads, 128, 4)
    assert rows_of("b", 1900, 2400, 16)[3] == 4
    assert rows_of("b", 1900, 2400, 32, aligned=8)[3] == 4


@pytest.mark.parametrize("rows, cols, lanes, expected", [
    # 8 rows to a tile and two blocks, or 12 and one
    (2112, 4096, 32, (256, 2)), (2113, 4096, 32, (384, 1)), (3168, 4096, 32, (384, 1)),
    (3169, 4096, 32, (256, 2)), (4225, 4096, 32, (384, 1)), (65536, 4096, 32, (256, 2)),
    # 16 rows to a tile, or 12
    (2112, 8192, 32, (512, 1)), (2113, 8192, 32, (384, 1)), (8192, 8192, 32, (512, 1)),
    (4225, 2048, 16, (256, 2)), (2113, 8192, 128, (384, 1)),
])  # fmt: skip
def test_long_rows_have_blocks_of_three_warps_for_a_row_where_that_is_sooner(
    rows, cols, lanes, expected
):
    named = ("THREADS_PER_BLOCK", "MIN_BLOCKS")
    assert constants("several_long_rows", "b", (rows, cols), lanes, named=named) == expected


def test_each_gpu_gets_what_it_can_launch():
    """Those without copies to shared memory have another kernel."""
    for letter, shape, name in (
        ("c", (2000, 2000), "several_staged_rows"), ("b", (8192, 8192), "several_long_rows"),
    ):  # fmt: skip
        problem = make_problem(*shape, DTYPES[letter], "C", "N").at(256, 256)
        batch = Batch((8,), ((0,), (shape[1],), (shape[0],), (0,), (0,)))
        found = [select_batch(problem, batch, device).kernel.name for device in (H100, OLD)]
        assert found[0] == name and found[1] != name


#: Kernel, dtype, rows and columns, lanes, vectors: constants with most registers, for which there
#: is no other test; and those that leave a quarter of the registers free, if all are asked for.
SPILLS = [
    ("several_staged_rows", "d", (3000, 3008), 32, 8),
    ("several_staged_rows", "c", (3000, 3000), 128, 8),
    ("several_rows", "s", (2500, 2500), 32, 8), ("several_rows", "c", (1000, 1000), 128, 8),
    ("several_rows", "h", (2000, 2000), 32, 4),
]  # fmt: skip
ALL_SPILLS = [
    *SPILLS,
    ("several_staged_rows", "c", (2000, 2000), 128, 8),
    ("several_staged_rows", "s", (5120, 5120), 32, 8),
    ("several_long_rows", "h", (3000, 3000), 32, 8),
    *(("several_staged_rows", d, (rows, 4096), n, 8)
      for d in "sdc" for rows in (10000, 15000, 8192) for n in (32, 256)),
    *(("several_rows", d, (1100, 4096), n, 8) for d in "sdc" for n in (64, 128, 256)),
    *(("several_rows", d, (2048, 4096), n, 4) for d in "sdcbh" for n in (32, 128, 256)),
    ("several_long_rows", "b", (2200, 8192), 128, 8),
]  # fmt: skip


@pytest.mark.parametrize("name, letter, shape, lanes, vectors", ALL_SPILLS if ALL_ROWS else SPILLS)
def test_these_tiles_spill_no_registers(name, letter, shape, lanes, vectors, compiler):
    knobs = constants(name, letter, shape, lanes, vectors)
    problem = make_problem(*shape, DTYPES[letter], "C", "N").at(256, 256)
    (function,) = compiler(
        get(name), dtype_name(DTYPES[letter]), "dot", knobs=knobs, widths=problem.widths, whole=True
    )
    assert (function["stack"], function["spills"]) == (0, 0), knobs
