"""The work that each kernel counts: by hand, by what must hold anywhere, and as it runs."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from helpers.bounds import choice_of
from helpers.problems import ALL_ROWS, Case, knobs_for_tests, tile_of

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.engines import backend
from gemv.kernels import REGISTRY, get
from gemv.kernels.work import Work, bytes_of_stretches, lines_of_warp
from gemv.measure.inputs import make_problem

KERNELS = [kernel for kernel in REGISTRY.values() if not kernel.teaching]
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
ON_SIMULATOR = pytest.mark.skipif(
    backend.backend() != "simulator", reason="only there can calls of a thread be counted"
)


def device_of(multiprocessors):
    return Device("any", (9, 0), multiprocessors)


def order_of(kernel):
    return "C" if kernel.name == "last_block" or kernel.name.endswith("_rows") else "F"


def counted(kernel, m, n, dtype, order, knobs=(), lda=None, at=(16, 16), multiprocessors=1):
    """The work of a product whose A and x lie at multiples of `at` bytes."""
    problem = make_problem(m, n, DTYPES[dtype], order, "N")
    if lda is not None:
        along = {"row_stride": lda} if order == "C" else {"col_stride": lda}
        problem = problem._replace(**along)
    problem = problem.at(*at)
    all_knobs = {**get(kernel).knobs, **dict(knobs)}
    made = get(kernel).geometry(problem, device_of(multiprocessors), all_knobs)
    return get(kernel).work(problem, made, all_knobs)


@pytest.mark.parametrize("kernel", REGISTRY.values(), ids=lambda kernel: kernel.name)
def test_kernels_that_selection_considers_count_their_work(kernel):
    assert (kernel.work is None) == kernel.teaching


# By hand ----------------------------------------------------------------------------------------

# The last number: 32 lanes load 16 bytes each, which is 4 lines of 128, or 4 and 8 bytes in
# last_block, 1 and 2. A block of 8 threads has one. 8 rows of 24 bytes, whose lanes reach 8 bytes
# further, lie in 200 bytes and 2 lines; 8 rows 80 bytes apart, 64 of them read, in 624 and 5.
BY_HAND = {
    # 8 rows a tile, 32 lanes: two columns a lane. Rows of 256 bytes. A row adds 32 numbers behind
    # a barrier; the lines of shared memory have 33.
    "last_block, one tile": (
        counted("last_block", 8, 64, "s", "C"),
        Work(1, 256, 1, 8 * 256, 32, 0, 2, 0, 4, 2, 2, 2, 256, 33, 0, 8 * 33 * 4 + 4, 1),
    ),
    # 32 rows and 8 lanes; three splits of 40, 40 and 20 columns, so 5 columns a lane. A column of
    # 80 bytes touches 3 sectors, whether it begins at 0 or at 16. 22 rows of a tile idle.
    "last_block, splits down the columns": (
        counted("last_block", 10, 100, "c", "F"),
        Work(3, 256, 3, 300 * 32, 80, 240, 5, 0, 8, 5, 5, 20, 240, 11, 1, 32 * 9 * 8 + 4, 2),
    ),
    # 257 vectors of 4, and 2 columns more: lane 0 has two vectors, which go out at once; lane 1 has
    # one, then both columns at once: 2 passes, 3 loads, and 16 + 3 products, most of them of zeros.
    # Rows of 4120 bytes that begin with a sector touch 129. Sums: 5 shuffles, a barrier, 8 warps.
    "vector_rows, a block each row with a tail": (
        counted("vector_rows", 4, 1030, "s", "C", {"BLOCKS_PER_SM": 0}, lda=1032),
        Work(4, 256, 1, 4 * 129 * 32, 16, 0, 2, 0, 64, 3, 3, 19, 1024, 14, 0, 16 * 4 + 4, 4),
    ),
    # A tile of 8 rows, of which 2 are there; 8 splits of 1024 columns, 256 in a pass. Two rows and
    # 8 vectors: 16 loads. A warp of the last block has one row, and takes 8 sums in one round.
    "vector_rows, splits": (
        counted(
            "vector_rows", 2, 8192, "s", "C",
            {"LANES": 32, "ROWS": 2, "VECTORS": 2, "THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 2},
            multiprocessors=4,
        ),
        Work(8, 128, 8, 65536, 8, 64, 4, 0, 64, 16, 8, 64, 1024, 7, 1, 12 * 4 + 4, 4),
    ),
    # Rows of 24 bytes, 8-byte loads: 3 of 4 lanes have one. Four rows touch 1 + 2 + 2 + 1 sectors.
    "vector_rows, short rows": (
        counted(
            "vector_rows", 100, 6, "s", "C",
            {"LANES": 4, "ROWS": 4, "VECTORS": 0, "THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 0},
        ),
        Work(1, 128, 1, 25 * 6 * 32, 400, 0, 1, 0, 32, 4, 1, 8, 96, 2, 0, 132 * 4 + 4, 2),
    ),
    # 8 tiles of 128 rows, 8 groups of 8 columns: one pass. A barrier, then 8 warps in order.
    "vector_columns, whole columns": (
        counted("vector_columns", 1000, 64, "s", "F", {"BLOCKS_PER_SM": 0}),
        Work(8, 256, 1, 256000, 4000, 0, 1, 0, 128, 8, 8, 32, 2048, 9, 0, 1056 * 4 + 4, 4),
    ),
    # One row fills no vector. Columns of 4004 bytes touch 126 sectors; 7 cuts in each column go
    # through a sector in every other one, which begins at 16.
    "vector_columns, with an edge": (
        counted("vector_columns", 1001, 64, "s", "F", {"BLOCKS_PER_SM": 0}, lda=1004),
        Work(
            8, 256, 1, (64 * 126 + 32 * 7) * 32, 4004, 0, 1, 1, 128, 8, 8, 32, 2048, 9, 0,
            1056 * 4 + 4, 4,
        ),
    ),
    # Row 128 has a tile to itself, which reads the vector before it, too: a sector of each column.
    "vector_columns, a tile of edge alone": (
        counted("vector_columns", 129, 64, "s", "F", {"BLOCKS_PER_SM": 0}, lda=132),
        Work(
            2, 256, 1, 64 * (17 + 1) * 32, 516, 0, 1, 1, 128, 8, 8, 32, 512, 9, 0, 1056 * 4 + 4, 4,
        ),
    ),
    # No vector at all: a block of 256 threads takes 300 columns in two turns, for each of two rows.
    "vector_columns, nothing but the edge": (
        counted("vector_columns", 2, 300, "s", "F", {"BLOCKS_PER_SM": 0}, lda=4),
        Work(1, 256, 1, 300 * 32, 8, 0, 0, 4, 128, 0, 0, 0, 256, 9, 0, 1056 * 4 + 4, 4),
    ),
    # One tile of 2048 rows, a column a pass, 4 pieces each. The last row has a thread, which takes
    # 3 columns one by one. Columns of 4100 bytes touch 129 sectors, wherever they begin.
    "long_columns, with an edge": (
        counted("long_columns", 1025, 3, "s", "F", lda=1028),
        Work(1, 128, 1, 3 * 129 * 32, 4100, 0, 3, 3, 64, 12, 3, 48, 128, 0, 0, 0, 4),
    ),
    # Two columns a pass, so 2 + 2 + 1; the last pass adds zeros for the column that is not there.
    "long_columns, two columns a pass": (
        counted(
            "long_columns", 64, 5, "h", "F", {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8}
        ),
        Work(1, 8, 1, 640, 128, 0, 3, 0, 64, 10, 5, 96, 8, 0, 0, 0, 1),
    ),
    "long_columns, nothing but the edge": (
        counted("long_columns", 3, 7, "s", "F", lda=4),
        Work(1, 128, 1, 7 * 32, 12, 0, 0, 7, 64, 0, 0, 0, 3, 0, 0, 0, 4),
    ),
    # Phases 0 to 3. The row that begins 2 before a boundary has most loads: one before, 249 vectors
    # (8 in lane 0) and 3 behind, so 10 for each of 4 rows. Of x it takes 6 vectors from two each,
    # 2 by elements, and 2 elements. Three full passes and the last: (4*8 + 1 + 1) products a row.
    # 8 rows touch 8*(4004 + 28) / 32 sectors: each begins at another 4 bytes of one.
    "phased_rows, an odd lda": (
        counted("phased_rows", 8, 1001, "s", "C", {"BLOCKS_PER_SM": 0}),
        Work(4, 128, 1, 1008 * 32, 32, 0, 4, 0, 128, 40, 22, 136, 512, 5, 0, 20 * 4 + 4, 4),
    ),
    # All rows begin 8 bytes before a boundary, at worst at 24 of a sector, and touch 26. An
    # element, 49 vectors, an element; one pass of 32 vectors, where two loads make a vector of x.
    "phased_rows, a view without the first column": (
        counted(
            "phased_rows", 4, 100, "d", "C",
            {"LANES": 32, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 0},
            at=(8, 16),
        ),
        Work(4, 32, 1, 4 * 26 * 32, 32, 0, 2, 0, 16, 4, 6, 6, 128, 5, 0, 2 * 8 + 4, 4),
    ),
    # Nothing is shifted, but the last pass may not read x a vector further, so it reads elements.
    # One pass; another one adds zeros, 2*4 of vectors and 1 at each end.
    "phased_rows, x ends with the pass": (
        counted(
            "phased_rows", 4, 256, "s", "C",
            {"LANES": 32, "ROWS": 1, "VECTORS": 2, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 0},
        ),
        Work(4, 32, 1, 4096, 16, 0, 1, 0, 32, 2, 8, 18, 128, 5, 0, 2 * 4 + 4, 4),
    ),
    # Five elements, in 4 lanes, of two rows: two loads a row wherever the boundary is. 16 rows of
    # 10 bytes begin at all even places of a sector, and 4 of them go over its end.
    "phased_rows, nothing but ends": (
        counted(
            "phased_rows", 16, 5, "h", "C",
            {"LANES": 4, "ROWS": 2, "VECTORS": 2, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 0},
        ),
        Work(8, 32, 1, 20 * 32, 32, 0, 1, 0, 64, 4, 2, 40, 256, 2, 0, 17 * 4 + 4, 5),
    ),
    # Group 0 takes column 0 by elements, 8 to 32 by vectors in a pass, 40 to 56 in another. Group 7
    # takes 7 to 31, 39 to 55, then column 63 by elements: 3 passes and 7 + 4 loads in both.
    # 8 columns of 400 bytes, 404 apart, touch 8*(400 + 28) / 32 sectors.
    "phased_columns, one tile": (
        counted(
            "phased_columns", 100, 64, "s", "F", {"PIECES": 1, "BLOCKS_PER_SM": 0}, lda=101
        ),
        Work(1, 256, 1, 8 * 107 * 32, 400, 0, 3, 0, 64, 11, 8, 36, 256, 9, 0, 1056 * 4 + 4, 4),
    ),
    # Two tiles of 124 rows read a vector, and so a sector, of each column both.
    "phased_columns, two tiles": (
        counted(
            "phased_columns", 200, 64, "s", "F", {"PIECES": 1, "BLOCKS_PER_SM": 0}, lda=201
        ),
        Work(
            2, 256, 1, (8 * 207 + 64) * 32, 800, 0, 3, 0, 64, 11, 8, 36, 512, 9, 0, 1056 * 4 + 4, 4
        ),
    ),
    # One element a vector, so no shift: 12 columns for 8 groups, 10 rows for 32 lanes.
    "phased_columns, vectors of one": (
        counted("phased_columns", 10, 12, "z", "F", {"PIECES": 1, "BLOCKS_PER_SM": 0}),
        Work(1, 256, 1, 1920, 160, 0, 1, 0, 64, 2, 2, 16, 256, 9, 0, 264 * 16 + 4, 4),
    ),
    # 3000 elements are 750 vectors for 126 threads: 6 each, 3 passes, with 3 numbers of x each. If
    # one element is before the first vector, 3 are behind the last, so row 0 has one of both.
    # 42 sums a place: 8 a step, two steps of 4 numbers and a barrier; then 4 places a row.
    "short_columns, one block": (
        counted(
            "short_columns", 3, 1000, "s", "F",
            {"THREADS_PER_BLOCK": 128, "VECTORS": 2, "BLOCKS_PER_SM": 1},
        ),
        Work(1, 128, 1, 376 * 32, 12, 0, 3, 2, 32, 6, 18, 24, 126, 15, 0, 512 * 4 + 4, 4),
    ),
    # The same in three blocks of two turns each: 252 vectors, 252 and 246. The 126 that begin the
    # third have a second for 120. The ends are in different blocks. A cut may share a sector.
    "short_columns, splits": (
        counted(
            "short_columns", 3, 1000, "s", "F",
            {"THREADS_PER_BLOCK": 128, "VECTORS": 2, "BLOCKS_PER_SM": 3},
        ),
        Work(3, 128, 3, 378 * 32, 12, 36, 1, 1, 32, 2, 6, 8, 378, 15, 1, 512 * 4 + 4, 4),
    ),
    # 8 shares of 1024 columns, so 2 vectors for each of 128 lanes; one pass. 5 shuffles, the wait,
    # then 32 lanes with one sum each, of 4 warps in 8 blocks, and 5 shuffles more.
    "cluster_rows, a row": (
        counted("cluster_rows", 1, 8192, "s", "C", {"LANES": 128, "THREADS_PER_BLOCK": 128}),
        Work(8, 128, 8, 32768, 4, 0, 1, 0, 64, 2, 2, 16, 1024, 12, 0, 32 * 4 + 8, 4, 8),
    ),
    # Shares are whole lines of 32 columns, so the fourth has 4, and 4 blocks have none. Tiles of
    # 4 rows: each of the first 4 blocks finishes one. Rows of 400 bytes touch 13 sectors.
    "cluster_rows, a share for 4 of 8 blocks": (
        counted(
            "cluster_rows", 6, 100, "s", "C", {"LANES": 32, "THREADS_PER_BLOCK": 128}, lda=128
        ),
        Work(
            16, 128, 8, 6 * 416, 24, 0, 1, 0, 64, 1, 1, 16, 2 * 4 * (3 * 8 + 1), 10, 0, 8 * 4 + 8,
            4, 8,
        ),
    ),
    # 250 columns a block for 64 groups of 4 lanes: 4 a group, in one pass. 3 shuffles, the wait, 2
    # of 64 sums in each of 32 lanes, 5 shuffles. A block finishes 2 of 16 rows.
    "cluster_columns, one tile": (
        counted("cluster_columns", 16, 2000, "s", "F"),
        Work(8, 256, 8, 128000, 64, 0, 1, 0, 128, 4, 4, 32, 2048, 11, 0, 2 * 64 * 4 + 8, 4, 8),
    ),
    # One row fills no vector: the block takes it in one turn. Columns of 20 bytes, 32 apart.
    "cluster_columns, with an edge": (
        counted("cluster_columns", 5, 2000, "s", "F", lda=8),
        Work(8, 256, 8, 64000, 20, 0, 1, 1, 128, 4, 4, 32, 2048, 11, 0, 2 * 64 * 4 + 8, 3, 8),
    ),
    # One column of 3 numbers, 4 or 12 bytes behind a multiple of 16: no vector, and one number for
    # each row, wherever it is; at worst it begins with the last number of a sector.
    "short_columns, nothing but ends": (
        counted(
            "short_columns", 3, 1, "s", "F", {"THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 1},
            at=(4, 16),
        ),
        Work(1, 128, 1, 2 * 32, 12, 0, 0, 1, 64, 0, 0, 0, 3, 15, 0, 512 * 4 + 4, 4),
    ),
    # Four partial sums a row, so a warp has 8 rows, and each thread 8 columns. The warp's loads are
    # 8 lines of 128 bytes apart. Two shuffles.
    "small_matrix, along the rows": (
        counted(
            "small_matrix", 20, 32, "s", "C",
            {"UNIT": 4, "SHARES": 1, "LOADS": 8, "SPLIT_A": 0, "PACKED_X": 1},
        ),
        Work(3, 32, 1, 20 * 128, 80, 0, 1, 0, 32, 8, 8, 8, 80, 2, 0, 0, 8),
    ),
    # Two partial sums of 16 and 15 columns, 16 rows a warp. Columns of 136 bytes, 144 apart, touch
    # 5 sectors each. They are cut at 128 bytes, which is inside of a sector for those that begin at
    # 16: 16 of 31 at most.
    "small_matrix, down the columns": (
        counted(
            "small_matrix", 17, 31, "d", "F",
            {"UNIT": 1, "SHARES": 2, "LOADS": 16, "SPLIT_A": 0, "PACKED_X": 0}, lda=18,
        ),
        Work(2, 32, 1, (31 * 5 + 16) * 32, 136, 0, 1, 0, 128, 16, 16, 16, 34, 1, 0, 0, 2),
    ),
    # Complex numbers that may lie across their size take two loads each.
    "small_matrix, numbers in two parts": (
        counted(
            "small_matrix", 3, 5, "c", "C",
            {"UNIT": 1, "SHARES": 1, "LOADS": 8, "SPLIT_A": 1, "PACKED_X": 0}, lda=8, at=(4, 4),
        ),
        Work(1, 32, 1, 3 * 3 * 32, 24, 0, 1, 0, 64, 10, 10, 32, 3, 0, 0, 0, 16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_lines_that_a_warp_touches(access):
    """Against addresses, where pieces begin with a line or follow each other without a gap."""
    for lanes, vector, itemsize, gap in itertools.product(
        (1, 2, 8, 32, 256), (2, 8, 16), (2, 16), (None, 128, 384, 1024)
    ):
        along = min(lanes, 32)
        pitch = along * vector if gap is None else gap
        if vector < itemsize or pitch < along * vector:
            continue
        problem = make_problem(64, 64, np.dtype(f"V{itemsize}"), "C", "N")
        strides = {"row_stride": pitch // itemsize, "col_stride": 1}
        if access == "axpy":
            strides = {"row_stride": 1, "col_stride": pitch // itemsize}
        found = lines_of_warp(problem._replace(**strides), 256, lanes, vector)
        touched = {
            (group * pitch + lane * vector) // 128
            for group in range(32 // along)
            for lane in range(along)
        }
        assert found == len(touched)
        if gap is None:  # every other piece: as with the gap between them
            apart = lines_of_warp(problem._replace(**strides), 256, lanes, vector, apart=2)
            assert len(touched) <= apart <= 32


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_by_hand(name):
    found, expected = BY_HAND[name]
    assert found._asdict() == expected._asdict()
    assert all(type(count) is int for count in found)


def test_elements_without_a_unit_stride_take_a_sector_each():
    problem = make_problem(4, 8, DTYPES["s"], "C", "N")._replace(row_stride=1000, col_stride=16)
    for kernel in (get("small_matrix"), REGISTRY["last_block"]):
        made = kernel.geometry(problem, device_of(1), kernel.knobs)
        assert kernel.work(problem.at(4, 4), made, kernel.knobs).bytes == 32 * 32
    # Every other element: a row of 60 bytes is in three sectors at most.
    near = problem._replace(row_stride=1000, col_stride=2).at(4, 4)
    assert kernel.work(near, made, kernel.knobs).bytes == 4 * 3 * 32


def test_one_of_three_groups_of_phased_columns_has_the_most():
    """All groups of all splits, where the kernel counts three groups of three splits."""
    kernel, rng = REGISTRY["phased_columns"], random.Random(3)
    for _ in range(1500):
        rows, cols, dtype = rng.choice((1, 2, 3, 9)), rng.randint(1, 700), rng.choice("sdch")
        lda = rows + rng.choice((0, 0, 1, 2, 5))
        problem = make_problem(rows, cols, DTYPES[dtype], "F", "N", (1, lda))
        problem = problem.at(DTYPES[dtype].itemsize, 16)
        knobs = {**kernel.knobs, **kernel.small_knobs, "COLUMNS": rng.randint(1, 3)}
        if kernel.accepts(problem) is not None:
            continue
        geometry = kernel.geometry(problem, device_of(rng.choice((1, 2, 9))), knobs)
        work = kernel.work(problem, geometry, knobs)
        sizes, threads = geometry.sizes, geometry.launches[0].block[0]
        groups, ends = threads // knobs["LANES"], sizes["end_columns"]
        width = 16 // DTYPES[dtype].itemsize
        pieces = work.flight // 16 // knobs["COLUMNS"]
        passes, loads = [], []
        for split in range(work.splits):
            begin = split * sizes["cols_per_split"]
            end = min(cols, begin + sizes["cols_per_split"])
            for group in range(groups):
                # As the kernel itself goes through them.
                j, waits, vectors, elements = begin + group, 0, 0, 0
                while j < min(end, ends):
                    j, waits, elements = j + groups, waits + 1, elements + 1
                inside = min(end, cols - ends)
                done = -(-max(ends - begin, 0) // groups) * groups
                a_pass = groups * knobs["COLUMNS"]
                limit = j + max(inside - begin - done, 0) // a_pass * a_pass
                while j < limit:
                    j, waits, vectors = j + a_pass, waits + 1, vectors + knobs["COLUMNS"]
                while j < inside:
                    rest = min((inside - 1 - j) // groups + 1, knobs["COLUMNS"])
                    j, waits, vectors = j + rest * groups, waits + 1, vectors + rest
                while j < end:
                    j, waits, elements = j + groups, waits + 1, elements + 1
                passes.append(waits)
                loads.append(pieces * (vectors + width * elements))
        assert (work.passes, work.loads) == (max(passes), max(loads)), problem


# Sectors ----------------------------------------------------------------------------------------


def test_sectors_of_stretches():
    """Against a plain count, over all places that the known alignment allows."""
    exact = 0
    rng = random.Random(5)
    for _ in range(3000):
        count, size = rng.randint(1, 40), rng.choice((2, 4, 8, 16))
        nbytes = size * rng.randint(1, 70)
        apart = size * rng.randint(1, 100) if count > 1 else 0
        aligned = rng.choice([each for each in (2, 4, 8, 16) if each >= size])
        if apart % aligned:
            aligned = math.gcd(aligned, apart)
        pitch = size * rng.randint(1, 40)
        cuts = (nbytes - 1) // pitch
        # A multiple of 16 is taken for one of 32, unless the distances say that both occur.
        places = range(0, 32, aligned) if aligned < 16 else (0,)
        found = []
        for first in places:
            if math.gcd(16, first, apart or 16) != aligned and aligned < 16:
                continue
            total = 0
            for line in range(count):
                start = first + line * apart
                for part in range(cuts + 1):
                    low = start + part * pitch
                    high = min(low + pitch, start + nbytes)
                    total += (high - 1) // 32 - low // 32 + 1
            found.append(32 * total)
        stated = bytes_of_stretches(count, nbytes, apart, aligned, cuts, pitch)
        if not found:
            continue
        assert max(found) <= stated
        # At most a sector more for a line of no whole period, and for a cut.
        period = 32 // math.gcd(32, apart)
        slack = count % period + (0 if pitch % 32 == 0 and count % period == 0 else cuts * count)
        if aligned < min(16, 32 // period):  # the worst of several places
            slack += cuts * count
        assert stated <= max(found) + 32 * slack
        exact += stated == max(found) and slack == 0
    assert exact > 300


# What holds anywhere ----------------------------------------------------------------------------


def random_problems(kernel, count, seed):
    """Problems with geometry and work, of all dtypes, shapes and alignments."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        m, n = (round(2 ** rng.uniform(0, 14)) for _ in range(2))
        if kernel.name == "short_columns":
            m = rng.randint(1, 40)
        dtype = rng.choice("sdczhb")
        order = order_of(kernel) if kernel.wide else rng.choice("CF")
        element = DTYPES[dtype]
        problem = make_problem(m, n, element, order, "N")
        lda = (n if order == "C" else m) + rng.choice((0, 0, 1, 3, 8))
        problem = problem._replace(**{"row_stride" if order == "C" else "col_stride": lda})
        at = element.itemsize * rng.choice((1, 1, 2, 4, 16))
        problem = problem.at(at, element.itemsize * rng.choice((1, 16)))
        knobs = {**kernel.knobs, **rng.choice((kernel.knobs, kernel.small_knobs))}
        if kernel.accepts(problem) is not None:
            continue
        made += 1
        device = device_of(rng.choice((1, 8, 132)))
        geometry = kernel.geometry(problem, device, knobs)
        yield problem, geometry, kernel.work(problem, geometry, knobs)


@BY_NAME
def test_what_holds_for_all_problems(kernel):
    for problem, geometry, work in random_problems(kernel, 300, 1):
        (launch,) = geometry.launches
        elements, size = problem.rows * problem.cols, problem.dtype.itemsize
        assert all(type(count) is int and count >= 0 for count in work)
        assert (work.blocks, work.threads) == (math.prod(launch.grid), math.prod(launch.block))
        assert work.splits == geometry.sizes.get("splits", 1)
        assert work.scratch == geometry.scratch * problem.precision.sums.itemsize
        assert work.written == problem.rows * problem.y_dtype.itemsize
        clustered = "CLUSTER" in kernel.knobs
        assert work.cluster == (work.splits if clustered else 1)
        through_memory = work.splits > 1 and not clustered
        assert (work.collects > 0) == through_memory == (work.scratch > 0)
        assert 0 < work.busy_threads <= work.blocks * work.threads
        assert work.passes + work.edge_passes > 0
        assert (work.passes == 0) == (work.loads == 0) == (work.multiply_adds == 0)
        # All elements are loaded, and in sectors.
        width = 16 // size if kernel.phased else problem.widths[0] if kernel.wide else 1
        edge_threads = work.blocks * work.threads
        all_loads = work.busy_threads * work.loads * width + edge_threads * work.edge_passes
        assert all_loads >= elements
        real = 4 if problem.dtype.kind == "c" else 1
        products = work.busy_threads * work.multiply_adds + edge_threads * work.edge_passes * real
        assert products >= elements * real
        assert work.bytes % 32 == 0 and work.bytes >= elements * size
        # Each part of a line has a sector too many at both ends, and the gaps that A reads along.
        tiles = launch.grid[0] if kernel.wide else -(-problem.rows // launch.block[0])
        parts = problem.lines * (tiles if problem.access == "axpy" else launch.grid[1])
        stretch = elements * size
        if kernel.name == "short_columns":
            parts, stretch = launch.grid[1], problem.cols * problem.col_stride * size
        assert work.bytes <= stretch + 64 * parts
        assert work.flight % size == 0 and work.shared_bytes <= 48 * 1024
        assert work.loads * width * size <= max(work.passes, 1) * work.flight * width


@BY_NAME
def test_one_more_pass_of_columns_is_one_pass_more(kernel):
    """With the columns added that each block of a tile takes in one pass."""
    knobs = dict(kernel.knobs)
    if "BLOCKS_PER_SM" in knobs:
        knobs["BLOCKS_PER_SM"] = 0
    if "CLUSTER" in knobs:
        knobs["CLUSTER"] = 2
    splits = knobs.get("CLUSTER", 1)
    order = order_of(kernel)
    rows = 40 if kernel.name == "short_columns" else 4001  # last_block splits fewer
    checked = 0
    for dtype in "sdch":
        for cols in (4099, 5000, 9216):
            strides = (16384, 1) if order == "C" else (1, rows)
            problem = make_problem(rows, cols, DTYPES[dtype], order, "N", strides).at(16, 16)
            if kernel.accepts(problem) is not None:
                continue
            geometry = kernel.geometry(problem, device_of(1), knobs)
            before = kernel.work(problem, geometry, knobs)
            flight = before.flight // DTYPES[dtype].itemsize
            step = splits * columns_of_a_pass(kernel, problem, geometry, knobs, flight)
            longer = problem._replace(n=cols + step, cols=cols + step)
            after = kernel.work(longer, kernel.geometry(longer, device_of(1), knobs), knobs)
            assert before.splits == after.splits == splits
            assert after.passes == before.passes + 1
            assert after.loads > before.loads and after.x_loads > before.x_loads
            assert after.multiply_adds > before.multiply_adds and after.bytes > before.bytes
            assert after.busy_threads >= before.busy_threads
            checked += 1
    assert checked


def columns_of_a_pass(kernel, problem, geometry, knobs, flight):
    """Columns that a block takes in one pass: elements in flight over all lanes of a row."""
    threads = math.prod(geometry.launches[0].block)
    if kernel.name == "last_block":
        return 32
    if kernel.name.endswith("_rows"):
        return knobs["LANES"] * flight // knobs["ROWS"]
    if kernel.name == "short_columns":
        return geometry.sizes["pass_columns"] * knobs["VECTORS"]
    if kernel.name == "long_columns":
        return knobs["COLUMNS"]
    if kernel.name == "cluster_columns":
        from gemv.kernels.k15_cluster_columns import tile_of_thread

        lanes, _, columns = tile_of_thread(knobs, problem.widths[0], problem.dtype.itemsize)
        return threads // lanes * columns
    from gemv.kernels.wide_tiles import lanes_and_pieces_of

    lanes = knobs["LANES"]
    if kernel.name == "vector_columns":
        lanes, _ = lanes_and_pieces_of(problem, knobs)
    return threads // lanes * knobs["COLUMNS"]


# As it runs -------------------------------------------------------------------------------------


class Watch:
    """Counts what each thread of one launch does with A and x."""

    def __init__(self, kernel, problem):
        self.kernel, self.problem = kernel, problem
        self.dot = problem.access == "dot"
        self.counts = defaultdict(Counter)
        self.waits = set()  # threads that have asked for elements, and not used them yet
        self.sectors = set()  # (block, line, sector)
        self.shared_bytes = 0
        self.noted = False  # whether a function runs whose loads are counted already

    def thread(self):
        from gemv.language.simulator.thread import current

        thread = current()
        self.shared_bytes = max(self.shared_bytes, thread.block.shared_bytes)
        return thread

    def touch(self, pointer, thread, element, width, line=None):
        if line is None:
            apart = self.problem.row_stride if self.dot else self.problem.col_stride
            line = element // apart
        if self.kernel.name == "short_columns":
            line = 0
        size = pointer.itemsize
        begin = (pointer.address + pointer.origin * size) % 16 + element * size
        for sector in range(begin // 32, (begin + width * size - 1) // 32 + 1):
            self.sectors.add((thread.block.where, line, sector))

    def stream(self, pointer, starts, index, step, count, width, valid):
        valid = max(min(valid, count), 0)
        thread = self.thread()
        for start in starts:
            for k in range(valid):
                line = None if self.dot else (index + k * step) // self.problem.col_stride
                self.touch(pointer, thread, start + index + k * step, width, line)
        if valid:
            self.counts[thread]["loads"] += valid * len(starts)
            self.waits.add(thread)

    def stream_inside(self, pointer, starts, index, width, limit):
        thread = self.thread()
        for start in starts:
            for lane in range(width):
                if 0 <= start + lane < limit:
                    self.counts[thread]["loads"] += 1
                    line = index // self.problem.col_stride
                    self.touch(pointer, thread, start + index + lane, 1, line)
        self.waits.add(thread)

    def x(self, number):
        self.counts[self.thread()]["x_loads"] += max(number, 0)

    def products(self, tile):
        thread = self.thread()
        real = 4 if self.problem.dtype.kind == "c" else 1
        self.counts[thread]["multiply_adds"] += real * len(tile)
        if thread in self.waits:
            self.waits.discard(thread)
            self.counts[thread]["passes"] += 1

    def element(self, pointer, thread, i):
        """An element that the kernel reads by itself: at the edge, or as all that it reads."""
        counts = self.counts[thread]
        self.shared_bytes = max(self.shared_bytes, thread.block.shared_bytes)
        if pointer.name == "a":
            self.touch(pointer, thread, i, 1)
        if self.kernel.wide:
            counts["edge_passes"] += pointer.name == "a"
        elif pointer.name == "a":
            counts["passes"] += 1
            counts["loads"] += 1
            counts["multiply_adds"] += 4 if self.problem.dtype.kind == "c" else 1
        elif pointer.name in ("x", "scratch"):
            counts["x_loads" if pointer.name == "x" else "collects"] += 1

    def take(self, valid):
        if valid > 0:
            self.counts[self.thread()]["collects"] += 1

    def found(self):
        names = ("passes", "edge_passes", "loads", "x_loads", "multiply_adds", "collects")
        seen = {name: max(each[name] for each in self.counts.values()) for name in names}
        busy = sum(each["loads"] > 0 for each in self.counts.values())
        seen["busy_threads"] = busy or sum(each["edge_passes"] > 0 for each in self.counts.values())
        seen["bytes"] = 32 * len(self.sectors)
        seen["shared_bytes"] = self.shared_bytes
        return seen


def watched(case, kernel, knobs, problem):
    """What threads of a kernel do, at most, in one run."""
    from gemv import language
    from gemv.kernels import kernel as kernels_kernel
    from gemv.language.simulator import memory, thread

    watch = Watch(kernel, problem)

    def watching(name, note):
        function = getattr(language, name)

        def wrapped(*arguments):
            note(*arguments)
            watch.noted = True
            try:
                return function(*arguments)
            finally:
                watch.noted = False

        return wrapped

    notes = {
        "stream_tile": lambda a, starts, index, step, count, width: watch.stream(
            a, starts, index, step, count, width, count
        ),
        "stream_some": watch.stream,
        "stream_inside": watch.stream_inside,
        "load_vectors": lambda x, index, step, count, width: watch.x(count),
        "load_some": lambda x, i, step, count, width, valid: watch.x(min(valid, count)),
        "load_shifted": lambda x, i, step, count, width, shift: watch.x(
            count * (2 if shift else 1)
        ),
        "gather": lambda x, i, step, count, increment, width: watch.x(count * width),
        "gather_some": lambda x, i, step, count, increment, width, valid: watch.x(
            min(valid, count) * width
        ),
        "gather_inside": lambda x, i, step, count, increment, width, valid, limit: watch.x(
            sum(i + k * step + n < limit for k in range(min(valid, count)) for n in range(width))
        ),
        "multiply_add": lambda sums, tile, x, conjugate: watch.products(tile),
        "axpy_add": lambda sums, tile, x, width, conjugate: watch.products(tile),
        "take": lambda zero, pointer, index, step, count, valid: watch.take(valid),
        "take_rows": lambda zero, pointer, index, step, count, valid, apart, rows, present: (
            watch.take(valid * min(present, rows))
        ),
    }
    read = memory.Pointer.__getitem__

    def getitem(pointer, i):
        running = thread.getcurrent()
        if type(running) is thread.Thread and not watch.noted:
            watch.element(pointer, running, int(i))
        return read(pointer, i)

    with pytest.MonkeyPatch.context() as patch:
        for name, note in notes.items():
            patch.setattr(language, name, watching(name, note))
        patch.setattr(memory.Pointer, "__getitem__", getitem)
        kernels_kernel._functions.cache_clear()
        try:
            case.check(kernel.name, knobs)
        finally:
            kernels_kernel._functions.cache_clear()
    return watch.found()


def sizes_for(kernel):
    """More rows than a tile, with a rest and without; one pass, several, splits; hardly anything.

    There are 16 rows or columns to a line of 16 addresses, so that all phases occur.
    """
    rows, cols = tile_of(kernel)
    if kernel.name == "short_columns":
        return [(3, 7), (3, 500), (7, 1300), (16, 160)]
    if order_of(kernel) == "C":
        # Four rows are a tile for each of two blocks, the most that last_block has in tests.
        few = [(4, 300)] if kernel.name == "last_block" else []
        return [(16, 5), (32, cols + 1), (16, 3 * cols + 3), (16, 9 * cols + 13), (48, 40), *few]
    return [
        (2 * rows + 5, 16), (3 * rows, cols + 16 - cols % 16), (2 * rows + 1, 5 * cols),
        (rows + 3, 6 * cols + 16), (2, 32),
    ]  # fmt: skip


def bound_only(kernel, choice, problem, work):
    """Counts that are the most that may be, and not always what is."""
    names = set()
    tile_rows = tile_of(kernel)[0]
    if kernel.phased and problem.x_alignment < 16:
        names.add("x_loads")  # whether x has the shift of A is not known
    if kernel.name == "phased_columns" and problem.rows < 2 * tile_rows:
        names.add("loads")  # elements of vectors over both ends of a column are left out
    if kernel.name == "short_columns" and work.splits == 1:
        names.add("x_loads")  # columns behind the last are left out
    width = 16 // problem.dtype.itemsize
    last = choice.geometry.sizes.get("cols_per_split", 0) * (1 - work.splits) + problem.cols
    if kernel.name == "phased_rows" and last < (choice.knobs["LANES"] + 1) * width:
        names.add("busy_threads")  # rows of one phase may have an element for fewer lanes
    if kernel.name == "last_block" and work.blocks < work.splits * -(-problem.rows // tile_rows):
        names.add("collects")  # which block is the last for how many of its tiles
    apart = problem.row_stride if problem.access == "dot" else problem.col_stride
    apart *= problem.dtype.itemsize
    cycle = math.gcd(32, apart)
    if problem.a_alignment < min(16, cycle) or problem.lines % (32 // cycle):
        names.add("bytes")
    if kernel.name == "short_columns":
        names.add("bytes")
    return names


@ON_SIMULATOR
@pytest.mark.parametrize("dtype", "shz")
@BY_NAME
def test_counts_are_those_of_a_run(kernel, dtype):
    """Of the thread with the most of each; with phases, over all addresses of one alignment."""
    knobs = knobs_for_tests(kernel)
    width = 16 // DTYPES[dtype].itemsize
    exact = Counter()
    pads = (0, 1) if dtype == "z" or kernel.name == "short_columns" else (0, 3)
    for at, (m, n) in enumerate(sizes_for(kernel)):
        for pad in pads if ALL_ROWS else pads[at % 2 :][:1]:
            stated, found = {}, defaultdict(list)
            shifts = range(width) if kernel.phased else sorted({0, width // 2})
            for shift in shifts:
                case = Case(m, n, dtype, order_of(kernel), pad=pad, shift=shift)
                choice, problem = choice_of(case, kernel.name, knobs)
                if kernel.accepts(problem) is not None:
                    continue
                key = (problem.a_alignment, problem.x_alignment)
                stated[key] = (choice, problem, kernel.work(problem, choice.geometry, choice.knobs))
                found[problem.a_alignment].append(watched(case, kernel, knobs, problem))
            for (alignment, _), (choice, problem, work) in stated.items():
                bounds = bound_only(kernel, choice, problem, work)
                for name in found[alignment][0]:
                    seen = max(each[name] for each in found[alignment])
                    where = (name, m, n, pad, alignment, problem.x_alignment)
                    if name in bounds:
                        assert seen <= getattr(work, name), where
                    else:
                        assert seen == getattr(work, name), where
                        exact[name] += 1
    least = set(found[next(iter(found))][0])
    if kernel.name == "short_columns":
        least -= {"bytes", "x_loads"}
    assert least <= set(exact), "a count is never compared exactly"


@ON_SIMULATOR
@pytest.mark.parametrize("dtype", "shcz")
@pytest.mark.parametrize("order", "CF")
def test_counts_of_a_small_matrix_are_those_of_a_run(dtype, order):
    """With the constants that each size gets; rows that fill no warp, columns that fill no load."""
    kernel, exact = get("small_matrix"), Counter()
    for at, (m, n) in enumerate([(8, 4), (19, 15), (32, 32), (5, 31), (2, 24), (16, 6)]):
        for shift in (0, 1):
            case = Case(m, n, dtype, order, pad=(0, 3)[at % 2], incx=1 + at % 2, shift=shift)
            choice, problem = choice_of(case, kernel.name, None)
            work = kernel.work(problem, choice.geometry, choice.knobs)
            found = watched(case, kernel, None, problem)
            for name in ("passes", "loads", "multiply_adds", "busy_threads", "bytes"):
                # Two blocks may cut a sector, or not: that is counted for each cut.
                cut = order == "F" and work.blocks > 1
                if name == "bytes" and (cut or name in bound_only(kernel, choice, problem, work)):
                    assert found[name] <= work.bytes, (m, n, shift)
                else:
                    assert found[name] == getattr(work, name), (name, m, n, shift)
                    exact[name] += 1
            parts = 1 if choice.knobs["PACKED_X"] or dtype not in "cz" else 2
            assert parts * found["x_loads"] == work.x_loads, (m, n, shift)
    assert exact["bytes"] > 1
