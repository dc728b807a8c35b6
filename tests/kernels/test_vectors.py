"""One matrix and several vectors: the bits of single products, for constants of all kinds."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from helpers import forced
from helpers.problems import ALL_ROWS, random_array, transposed
from numba import cuda

import gemv
from gemv.core.batch import Batch, aligned_step
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.core.narrow import cast
from gemv.kernels import get
from gemv.kernels.grids import finishing
from gemv.kernels.numbers_of_x import x_bytes
from gemv.measure.inputs import make_problem
from gemv.selection import batches, parts
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)
#: Constants of the kernel for one vector and for several, the sizes of A, and the letter.
ROWS = {"ROWS": 1, "VECTORS": 1, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0}
COLUMNS = {"COLUMNS": 2, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, "ACROSS": 1}
LONG = {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1}
RING = {"THREADS_PER_BLOCK": 8, "STAGES": 3, "CHUNK_COLUMNS": 8}
CASES = [
    # a lane alone, lanes of a warp that two and four warps share here, and several warps
    ("s", 3, 37, {**ROWS, "LANES": 1, "THREADS_PER_BLOCK": 32}, {"PARTS": 4, "ROWS": 2}),
    ("s", 5, 300, {**ROWS, "LANES": 16, "THREADS_PER_BLOCK": 32}, {"PARTS": 4}),
    ("s", 3, 391, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32}, {"PARTS": 4, "VECTORS": 2}),
    # sums of two vectors and of one row, which do not fill the warp that adds them up
    ("s", 3, 391, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32},
     {"PARTS": 4, "ROWS": 1, "COUNT": 2, "THREADS_PER_BLOCK": 32}),
    ("s", 2, 517, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64}, {"PARTS": 2}),
    ("h", 2, 531, {**ROWS, "LANES": 16, "THREADS_PER_BLOCK": 32}, {"PARTS": 4}),
    ("d", 3, 203, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32}, {"PARTS": 2, "ROWS": 4}),
    ("c", 3, 203, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32}, {"PARTS": 1, "ROWS": 2}),
    ("h", 2, 1301, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32}, {"PARTS": 8}),
    # sums that the threads of a lane and the lanes of a warp divide between them
    ("s", 37, 131, {**ROWS, "LANES": 4, "THREADS_PER_BLOCK": 32},
     {"PARTS": 4, "ROWS": 8, "COUNT": 2, "THREADS_PER_BLOCK": 32}),
    ("h", 19, 131, {**ROWS, "LANES": 2, "THREADS_PER_BLOCK": 32},
     {"PARTS": 4, "ROWS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 32}),
    ("d", 9, 67, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 32},
     {"PARTS": 1, "ROWS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 32}),
    # lanes of a row in several turns of the same threads
    ("s", 5, 1031, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
     {"PARTS": 1, "TURNS": 2, "ROWS": 2, "THREADS_PER_BLOCK": 32}),
    ("d", 5, 531, {**ROWS, "LANES": 128, "THREADS_PER_BLOCK": 128},
     {"PARTS": 2, "TURNS": 4, "ROWS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 128}),
    ("h", 5, 2571, {**ROWS, "LANES": 128, "THREADS_PER_BLOCK": 128},
     {"PARTS": 4, "TURNS": 4, "ROWS": 4, "COUNT": 4, "VECTORS": 2}),
    ("d", 3, 1003, {**ROWS, "LANES": 128, "THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 4},
     {"PARTS": 2, "TURNS": 2, "ROWS": 4, "COUNT": 2}),
    # columns that are split over blocks
    ("s", 3, 421, {**ROWS, "LANES": 8, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 4},
     {"PARTS": 4, "ROWS": 2}),
    ("d", 2, 451, {**ROWS, "LANES": 32, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 4},
     {"PARTS": 1, "COUNT": 2}),
    # down the columns: rows that fill no vector, several pieces, groups of a warp and of several
    ("s", 37, 70, {**COLUMNS, "LANES": 2, "PIECES": 2, "BLOCKS_PER_SM": 0}, {"LOADS": 3}),
    ("s", 9, 150, {**COLUMNS, "LANES": 2, "PIECES": 1, "BLOCKS_PER_SM": 8},
     {"LOADS": 2, "COUNT": 2}),
    ("z", 40, 33, {**COLUMNS, "LANES": 32, "PIECES": 1, "BLOCKS_PER_SM": 4}, {"LOADS": 1}),
    ("h", 65, 30, {**COLUMNS, "LANES": 8, "PIECES": 1, "BLOCKS_PER_SM": 4}, {"LOADS": 4}),
    ("d", 130, 20, {**COLUMNS, "LANES": 32, "PIECES": 1, "BLOCKS_PER_SM": 0}, {"LOADS": 2}),
    # numbers of x in shared memory: several stages, a last one that is not full, splits, widths
    ("s", 37, 70, {**COLUMNS, "LANES": 2, "PIECES": 2, "BLOCKS_PER_SM": 0},
     {"LOADS": 1, "COUNT": 2, "STAGED": 1}),
    ("s", 9, 450, {**COLUMNS, "LANES": 4, "PIECES": 1, "BLOCKS_PER_SM": 8},
     {"LOADS": 2, "COUNT": 4, "STAGED": 2}),
    ("s", 9, 170, {**COLUMNS, "LANES": 4, "PIECES": 1, "BLOCKS_PER_SM": 0},
     {"LOADS": 1, "COUNT": 8, "STAGED": 3}),
    ("z", 40, 73, {**COLUMNS, "LANES": 32, "PIECES": 1, "BLOCKS_PER_SM": 4},
     {"LOADS": 1, "COUNT": 2, "STAGED": 2}),
    ("h", 65, 130, {**COLUMNS, "LANES": 8, "PIECES": 1, "BLOCKS_PER_SM": 4},
     {"LOADS": 2, "COUNT": 4, "STAGED": 1}),
    ("d", 130, 60, {**COLUMNS, "LANES": 64, "PIECES": 1, "BLOCKS_PER_SM": 0},
     {"LOADS": 2, "COUNT": 8, "STAGED": 4}),
    # they come by units of 16 bytes: to half of the threads, to each of them once or twice
    ("h", 65, 330, {**COLUMNS, "LANES": 8, "PIECES": 1, "BLOCKS_PER_SM": 4},
     {"LOADS": 2, "COUNT": 8, "STAGED": 1, "AS_STORED": 1}),
    ("h", 33, 450, {**COLUMNS, "LANES": 4, "PIECES": 1, "BLOCKS_PER_SM": 4},
     {"LOADS": 2, "COUNT": 4, "STAGED": 3, "AS_STORED": 1}),
    ("c", 9, 170, {**COLUMNS, "LANES": 4, "PIECES": 1, "BLOCKS_PER_SM": 0},
     {"LOADS": 1, "COUNT": 8, "STAGED": 2, "AS_STORED": 1}),
    # fewer rows to a block than one vector has, and the splits of one vector, added in its order
    ("d", 21, 330,
     {**COLUMNS, "LANES": 2, "PIECES": 4, "BLOCKS_PER_SM": 64, "THREADS_PER_BLOCK": 32},
     {"LOADS": 2, "COUNT": 4, "STAGED": 1, "PIECES": 1, "OF_PIECES": 4}),
    ("s", 70, 203, {**COLUMNS, "LANES": 4, "PIECES": 2, "BLOCKS_PER_SM": 8},
     {"LOADS": 3, "COUNT": 2, "STAGED": 0, "PIECES": 1, "OF_PIECES": 2}),
    # long columns, A in rings, x of some columns after the other: stages not full, or empty
    ("s", 150, 37, LONG, {**RING, "PIECES": 1, "COLUMNS": 4}),
    ("c", 64, 9, LONG, {**RING, "PIECES": 2, "COLUMNS": 2, "STAGES": 2}),
    ("h", 129, 21, LONG, {**RING, "PIECES": 2, "COLUMNS": 2, "STAGES": 5}),
    ("d", 33, 2, LONG, {**RING, "PIECES": 1, "COLUMNS": 4}),
]  # fmt: skip


#: Short rows: a lane alone and with sharers, loads that not all lanes have, more lanes than sums.
SHORT = [
    ("s", 70, 32, 4, {"SHARERS": 1, "ROWS": 4, "COUNT": 4, "LOADS": 2, "FULL": 1}),
    ("s", 37, 36, 4, {"SHARERS": 2, "ROWS": 4, "COUNT": 4, "LOADS": 3}),
    ("s", 19, 20, 2, {"SHARERS": 1, "ROWS": 4, "COUNT": 4, "LOADS": 3}),
    ("s", 7, 4, 1, {"SHARERS": 4, "ROWS": 4, "COUNT": 4, "LOADS": 1, "FULL": 1}),
    ("s", 9, 132, 32, {"SHARERS": 1, "ROWS": 1, "COUNT": 2, "LOADS": 2}),
    ("h", 61, 64, 4, {"SHARERS": 2, "ROWS": 4, "COUNT": 8, "LOADS": 2, "FULL": 1}),
    ("h", 40, 56, 4, {"SHARERS": 4, "ROWS": 8, "COUNT": 4, "LOADS": 2}),
    ("d", 21, 30, 8, {"SHARERS": 2, "ROWS": 4, "COUNT": 4, "LOADS": 2}),
    ("c", 21, 30, 8, {"SHARERS": 2, "ROWS": 2, "COUNT": 2, "LOADS": 2}),
    ("z", 9, 7, 4, {"SHARERS": 1, "ROWS": 4, "COUNT": 2, "LOADS": 2}),
]  # fmt: skip


def kernel_of(constants):
    if "LANES" not in constants:
        return "long_columns"
    if "CLUSTER" in constants:
        return "cluster_rows"
    return "vector_columns" if "COLUMNS" in constants else "vector_rows"


def in_turn(letters, number):
    """All but one of the letters, each of which some case is without; all if rows are asked for."""
    left_out = "" if ALL_ROWS else letters[number % len(letters)]
    return [each for each in letters if each != left_out]


def padded(values):
    """On the device, in lines of whole vectors of 16 bytes with NaN behind what they hold."""
    count, length = values.shape
    whole = np.full((count, aligned_step(length)), np.nan, values.dtype)
    whole[:, :length] = values
    return cuda.to_device(whole)[:, :length]


def orders(posts):
    """Orders in which blocks and their threads run; on a GPU there is one, which is not chosen."""
    if gemv.backend() != "simulator":
        return []
    from gemv.language.simulator.scheduler import Schedule, scheduled

    return [
        scheduled(each)
        for each in (
            Schedule("reversed", late=True),
            # A warp that waits for a sum that another one posts would never let that one run.
            *([] if posts else [Schedule("warps")]),
            # Blocks of other vectors that count at one place are seen in one of four orders.
            *(Schedule("random", seed) for seed in range(4 if posts else 1 + ALL_ROWS)),
        )
    ]


@pytest.mark.parametrize("splits", [0, 4])
def test_sums_of_few_vectors_at_a_time_meet_in_shared_memory(splits, monkeypatch):
    """Where it does not have room for those of all: for one vector after the other here."""
    monkeypatch.setattr("gemv.kernels.ends_of_columns.SUMS_BYTES", 1)
    alone = {**COLUMNS, "LANES": 4, "PIECES": 1, "BLOCKS_PER_SM": splits}
    together = {"LOADS": 2, "COUNT": 4, "MIN_BLOCKS": 3}  # constants of no other test
    check("s", 9, 130, alone, together, monkeypatch, chunked=True)


@pytest.mark.parametrize("letter, m, n, alone, together", CASES)
def test_several_vectors_have_the_bits_of_each_alone(letter, m, n, alone, together, monkeypatch):
    check(letter, m, n, alone, together, monkeypatch)


#: The kernel for several vectors by that for one.
SEVERAL = {
    "vector_rows": "several_rows", "vector_columns": "several_columns",
    "long_columns": "several_long_columns",
}  # fmt: skip


def several_of(name, together):
    """The name of the kernel that has these constants."""
    if "SHARERS" in together:
        return "several_short_rows"
    if "SPLITS" in together:
        return "several_rows_in_shares"
    if "STAGES" in together and "PARTS" in together:
        return "several_staged_rows"
    return "several_long_rows" if "AT_ONCE" in together else SEVERAL[name]


#: Without a ring, and with two stages and three, or, unless all rows are asked for, one of them.
@pytest.mark.parametrize("letter, m, n, lanes, together, stages", [
    (*each, stages)
    for k, each in enumerate(SHORT)
    for stages in ((0, 2, 3) if ALL_ROWS else (0, 2 + k % 2))
])  # fmt: skip
def test_vectors_in_registers_have_the_bits_of_each_alone(
    letter, m, n, lanes, together, stages, monkeypatch
):
    """With two blocks, which take tile after tile; in whole rows each column is in a load."""
    in_registers(letter, m, n, lanes, together, stages, monkeypatch)


#: Short rows whose ring is one for several warps: sharers in warps alone and in both, copies shared
#: by columns and by rows, loads that not all lanes have, two rings of a block.
TEAMS = [
    ("h", 40, 504, 16, {"SHARERS": 1, "WARPS": 4, "ROWS": 4, "COUNT": 4, "LOADS": 4}),
    ("h", 21, 1000, 16, {"SHARERS": 2, "WARPS": 2, "ROWS": 2, "COUNT": 8, "LOADS": 8}),
    ("h", 37, 56, 4, {"SHARERS": 2, "WARPS": 2, "ROWS": 4, "COUNT": 4, "LOADS": 2}),
    ("s", 37, 36, 4, {"SHARERS": 1, "WARPS": 2, "ROWS": 4, "COUNT": 4, "LOADS": 3}),
    ("s", 50, 32, 4, {"SHARERS": 1, "WARPS": 2, "ROWS": 2, "COUNT": 2, "LOADS": 2, "FULL": 1}),
    ("z", 9, 70, 32, {"SHARERS": 1, "WARPS": 2, "ROWS": 2, "COUNT": 4, "LOADS": 3}),
]  # fmt: skip


#: Stages and rings, each case with one of the two unless all rows are asked for.
RINGS = [(2, 1), (3, 2)]


@pytest.mark.parametrize("letter, m, n, lanes, together, stages, rings", [
    (*each, *rings)
    for k, each in enumerate(TEAMS)
    for rings in (RINGS if ALL_ROWS else [RINGS[k % 2]])
])  # fmt: skip
def test_warps_that_share_a_ring_have_the_bits_of_each_vector_alone(
    letter, m, n, lanes, together, stages, rings, monkeypatch
):
    together = {**together, "THREADS_PER_BLOCK": 32 * rings * together["WARPS"]}
    in_registers(letter, m, n, lanes, together, stages, monkeypatch)


#: Long rows: few lanes and a whole warp, rings of two stages and of three, stages of one load and
#: of two, loads that not all lanes have or none, several rings, vectors in two turns of the grid,
#: and lanes of a row in two turns and in four.
LONG_ROWS = [
    (37, 128, 8, {"LOADS": 2, "COUNT": 4, "THREADS_PER_BLOCK": 32, "FULL": 1, "STAGES": 3}),
    (21, 200, 8, {"LOADS": 4, "COUNT": 4, "THREADS_PER_BLOCK": 64, "AT_ONCE": 2, "STAGES": 2}),
    (21, 328, 16, {"LOADS": 3, "COUNT": 8, "THREADS_PER_BLOCK": 64, "STAGES": 3}),
    (9, 256, 16, {"LOADS": 4, "COUNT": 2, "THREADS_PER_BLOCK": 128, "AT_ONCE": 2, "STAGES": 3}),
    (11, 768, 32, {"LOADS": 3, "COUNT": 8, "THREADS_PER_BLOCK": 128, "FULL": 1, "STAGES": 2}),
    (6, 1000, 64, {"LOADS": 2, "COUNT": 8, "THREADS_PER_BLOCK": 128, "STAGES": 2}),
    (9, 2048, 128, {"LOADS": 2, "COUNT": 8, "THREADS_PER_BLOCK": 128, "AT_ONCE": 2, "STAGES": 3,
                    "FULL": 1}),
    # three warps, and as many rows at a time
    (37, 200, 8, {"LOADS": 4, "COUNT": 8, "THREADS_PER_BLOCK": 96, "AT_ONCE": 2, "STAGES": 2}),
]  # fmt: skip


@pytest.mark.parametrize("m, n, lanes, together", LONG_ROWS)
def test_vectors_in_shared_memory_have_the_bits_of_each_alone(m, n, lanes, together, monkeypatch):
    """With two blocks, which take tile after tile."""
    alone = {**ROWS, "LANES": lanes, "THREADS_PER_BLOCK": max(lanes, 32)}
    module = "gemv.kernels.vectors.b06_several_long_rows"
    monkeypatch.setattr(f"{module}.most_blocks", lambda device, knobs: 2)
    fixed = {"LANES": lanes, "FULL": 0, "MIN_BLOCKS": 1, "AT_ONCE": 1}
    check("h", m, n, alone, {**fixed, **together}, monkeypatch)


def test_vectors_in_shared_memory_zero_alpha_reads_nothing(monkeypatch):
    """With alpha as an argument neither A nor x is copied, and y is scaled in every tile."""
    m, n, lanes, together = LONG_ROWS[1]
    alone = {**ROWS, "LANES": lanes, "THREADS_PER_BLOCK": 32}
    fixed = {"LANES": lanes, "FULL": 0, "MIN_BLOCKS": 1, "AT_ONCE": 1}
    force("vector_rows", alone, {**fixed, **together}, monkeypatch)
    a, x = (padded(np.full((count, n), np.nan, np.float16)) for count in (m, 5))
    y = np.arange(5 * m, dtype=np.float16).reshape(5, m)
    with gemv.trace() as calls:
        found = gemv.matvec(a, x, cuda.to_device(y), alpha=0, beta=-2)
    assert [call.kernel for call in calls] == ["several_long_rows"]
    assert found.copy_to_host().tobytes() == (-2 * y).tobytes()


#: Rows and columns of A, constants of one vector, and of several: stages of A and of x. Columns are
#: those of 2-byte numbers; others have as many bytes, so as many loads and stages.
STAGED_ROWS = [
    (37, 200, {"LANES": 8}, {"PARTS": 2, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 3}),
    # loads of a lane in a stage that are behind the last column; a thread to a lane
    (21, 328, {"LANES": 16}, {"PARTS": 1, "ROWS": 2, "VECTORS": 4, "COUNT": 2, "STAGES": 2}),
    (9, 2048, {"LANES": 8, "BLOCKS_PER_SM": 2},
     {"PARTS": 1, "ROWS": 4, "VECTORS": 2, "COUNT": 4, "STAGES": 4}),
    (13, 1608, {"LANES": 8, "BLOCKS_PER_SM": 1},
     {"PARTS": 2, "ROWS": 2, "VECTORS": 4, "COUNT": 8, "STAGES": 3, "THREADS_PER_BLOCK": 64}),
    # lanes in turns, the last of which have no columns left
    (9, 1032, {"LANES": 64},
     {"PARTS": 2, "TURNS": 2, "ROWS": 2, "VECTORS": 4, "COUNT": 2, "STAGES": 3,
      "THREADS_PER_BLOCK": 128}),
    (6, 2048, {"LANES": 64, "BLOCKS_PER_SM": 1},
     {"PARTS": 1, "TURNS": 2, "ROWS": 2, "VECTORS": 1, "COUNT": 4, "STAGES": 4,
      "THREADS_PER_BLOCK": 128}),
    # three rows of a thread, which are no power of two
    (61, 328, {"LANES": 8},
     {"PARTS": 1, "ROWS": 3, "VECTORS": 2, "COUNT": 8, "STAGES": 4, "THREADS_PER_BLOCK": 64}),
]  # fmt: skip


def staged_rows(alone, together):
    """All constants of one vector and of several."""
    alone = {**ROWS, "THREADS_PER_BLOCK": max(alone["LANES"], 32), **alone}
    fixed = {
        "LANES": alone["LANES"], "TURNS": 1, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1,
        "BLOCKS_PER_SM": alone["BLOCKS_PER_SM"], "OF_ROWS": alone["ROWS"],
        "OF_VECTORS": alone["VECTORS"], "OF_THREADS": alone["THREADS_PER_BLOCK"],
    }  # fmt: skip
    return alone, {**fixed, **together}


@pytest.mark.parametrize("letter, m, n, alone, together", [
    (letter, *each) for k, each in enumerate(STAGED_ROWS) for letter in in_turn("dch", k)
])  # fmt: skip
def test_stages_of_a_and_x_have_the_bits_of_each_alone(letter, m, n, alone, together, monkeypatch):
    """With two blocks, which take tile after tile where columns are not split."""
    module = "gemv.kernels.vectors.b07_several_staged_rows"
    monkeypatch.setattr(f"{module}.most_blocks", lambda device, knobs: 2)
    columns = 2 * n // DTYPES[letter].itemsize
    check(letter, m, columns, *staged_rows(alone, together), monkeypatch)


@pytest.mark.parametrize("call", ["matvec", "vecmat", "gemv, C"])
@pytest.mark.parametrize("kernel", ["staged", "registers", "shares"])
def test_conjugates_of_complex_rows_and_of_x(kernel, call, monkeypatch):
    """vecmat conjugates x, op C conjugates A: as NumPy, and with the bits of one vector."""
    if kernel == "staged":
        m, n, alone, together = STAGED_ROWS[0]
        alone, together = staged_rows(alone, together)
    elif kernel == "shares":
        m, n, lanes, together = IN_SHARES[1]
        alone, together = in_shares(lanes, together)
    else:
        _, m, n, lanes, together = next(each for each in SHORT if each[0] == "c")
        alone = {**ROWS, "LANES": lanes, "THREADS_PER_BLOCK": 32}
        fixed = {"LANES": lanes, "FULL": 0, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1}
        together = {**fixed, "STAGES": 2, "WARPS": 1, **together}
    force("vector_rows", alone, together, monkeypatch)
    rng = np.random.default_rng(3)
    n += n % 2  # whole vectors of 16 bytes
    a, x = (random_array(rng, shape, DTYPES["c"]) for shape in ((m, n), (3, n)))
    rows, vectors = cuda.to_device(a), cuda.to_device(x)
    # As if one A were a batch, because a batch is what gives one A several vectors.
    stored = transposed(cuda.to_device(a[:, :, None]))

    def computed():
        with gemv.trace() as calls:
            if call == "vecmat":
                found = gemv.vecmat(vectors, transposed(rows))
            elif call == "matvec":
                found = gemv.matvec(rows, vectors)
            else:
                found = gemv.gemv(1, stored, vectors, trans=2)
        return {each.kernel for each in calls}, found.copy_to_host()

    kernels, several = computed()
    assert kernels == {several_of("vector_rows", together)}
    right = (x.conj() if call == "vecmat" else x).astype("c16") @ a.T.astype("c16")
    if call == "gemv, C":
        right = x.astype("c16") @ a.conj().T.astype("c16")
    assert np.allclose(several, right, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(batches, "SEVERAL", {})
    assert several.tobytes() == computed()[1].tobytes()


@pytest.mark.parametrize("name", ["several_staged_rows", "several_rows_in_shares"])
def test_stages_of_a_and_x_zero_alpha_reads_nothing(name, monkeypatch):
    """With alpha as an argument neither A nor x is copied, and y is scaled in every tile."""
    m, n, own, together = STAGED_ROWS[0] if "staged" in name else IN_SHARES[1]
    made = (staged_rows if "staged" in name else in_shares)(own, together)
    force("vector_rows", *made, monkeypatch)
    a, x = (padded(np.full((count, n), np.nan, np.float16)) for count in (m, 5))
    y = np.arange(5 * m, dtype=np.float16).reshape(5, m)
    with gemv.trace() as calls:
        found = gemv.matvec(a, x, cuda.to_device(y), alpha=0, beta=-2)
    assert [call.kernel for call in calls] == [name]
    assert found.copy_to_host().tobytes() == (-2 * y).tobytes()


SHARES_MODULE = "gemv.kernels.vectors.b08_several_rows_in_shares"
#: Rows and columns of A as above, lanes of a row, and constants of several vectors: a block has one
#: warp of lanes of a row after the other.
IN_SHARES = [
    # a thread to a lane; rows that fill no tile
    (3, 1000, 64, {"PARTS": 1, "ROWS": 2, "VECTORS": 1, "COUNT": 2, "STAGES": 3}),
    # threads of a lane in several warps, and lanes without columns in the last stage
    (5, 1608, 64,
     {"PARTS": 2, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 2, "THREADS_PER_BLOCK": 64}),
    # several groups of rows, four sums of each, more than one stage of some lanes
    (9, 1032, 128,
     {"PARTS": 1, "ROWS": 2, "VECTORS": 1, "COUNT": 4, "STAGES": 4, "THREADS_PER_BLOCK": 128}),
    # shares without columns; more shares than rows
    (2, 264, 128, {"PARTS": 1, "ROWS": 1, "VECTORS": 1, "COUNT": 2, "STAGES": 2}),
    # more vectors than threads copy of at a time; rows that are no power of two
    (7, 1032, 64,
     {"PARTS": 1, "ROWS": 3, "VECTORS": 2, "COUNT": 8, "STAGES": 3, "THREADS_PER_BLOCK": 64}),
]  # fmt: skip


@pytest.mark.parametrize("letter, m, n, lanes, together", [
    (letter, *each) for k, each in enumerate(IN_SHARES) for letter in in_turn("dch", k)
])  # fmt: skip
def test_shares_of_lanes_have_the_bits_of_each_alone(letter, m, n, lanes, together, monkeypatch):
    """With three blocks, which take task after task."""
    monkeypatch.setattr(f"{SHARES_MODULE}.most_blocks", lambda device, knobs: 3)
    columns = 2 * n // DTYPES[letter].itemsize
    check(letter, m, columns, *in_shares(lanes, together), monkeypatch)


#: The same for columns that the blocks of a cluster share: dtypes; then lanes, rows of a thread,
#: threads and blocks of the single product.
OF_CLUSTERS = [
    # four sums of a row, each of them taken by another thread
    ("hdc", 3, 1000, (64, 1, 64, 2),
     {"PARTS": 1, "ROWS": 2, "VECTORS": 1, "COUNT": 2, "STAGES": 3}),
    # a split without columns, and one with few
    ("hd", 5, 136, (32, 2, 64, 4),
     {"PARTS": 2, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 2, "THREADS_PER_BLOCK": 64}),
    # sums of eight vectors at a time, two threads to each
    ("h", 2, 2056, (128, 1, 128, 4),
     {"PARTS": 1, "ROWS": 1, "VECTORS": 1, "COUNT": 8, "STAGES": 2}),
    # several sums for each thread that takes them
    ("h", 1, 4104, (256, 1, 256, 8),
     {"PARTS": 1, "ROWS": 1, "VECTORS": 1, "COUNT": 4, "STAGES": 2}),
    # the four rows of a tile belong to four blocks, and only two threads share the sums of each
    ("hc", 7, 520, (32, 4, 32, 2),
     {"PARTS": 1, "ROWS": 2, "VECTORS": 1, "COUNT": 2, "STAGES": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    "letter, m, n, single, together",
    [(letter, *rest) for letters, *rest in OF_CLUSTERS for letter in letters],
)
def test_shares_of_a_cluster_have_the_bits_of_each_alone(
    letter, m, n, single, together, monkeypatch
):
    monkeypatch.setattr(f"{SHARES_MODULE}.most_blocks", lambda device, knobs: 3)
    lanes, rows, threads, cluster = single
    alone = {
        "LANES": lanes, "ROWS": rows, "VECTORS": 2, "THREADS_PER_BLOCK": threads,
        "CLUSTER": cluster, "MIN_BLOCKS": 1,
    }  # fmt: skip
    slots = cluster * (lanes // 32)
    _, finishers = finishing(threads // lanes * rows, threads, slots, cluster)
    own = {"SPLITS": cluster, "FINISHERS": finishers}
    columns = 2 * n // DTYPES[letter].itemsize
    check(letter, m, columns, alone, {**in_shares(lanes, together)[1], **own}, monkeypatch)


@pytest.mark.parametrize("count", [3, 5, 8, 11])
def test_shares_of_lanes_for_any_number_of_vectors(count, monkeypatch):
    """Those that fill no COUNT, in more than one turn of the grid, with columns of A as rows."""
    m, n, lanes, together = IN_SHARES[1]
    force("vector_rows", *in_shares(lanes, together), monkeypatch)
    rng = np.random.default_rng(count)
    n //= 2
    a, x, y = (random_array(rng, shape, DTYPES["s"]) for shape in ((m, n), (count, n), (count, m)))
    columns = transposed(padded(a))

    def computed():
        with gemv.trace() as calls:
            found = gemv.vecmat(padded(x), columns, padded(y), alpha=0.5, beta=-2)
        return {each.kernel for each in calls}, found.copy_to_host()

    kernels, several = computed()
    assert kernels == {"several_rows_in_shares"}
    assert np.allclose(several, 0.5 * (x.astype("f8") @ a.T.astype("f8")) - 2 * y, atol=1e-4)
    monkeypatch.setattr(batches, "SEVERAL", {})
    assert several.tobytes() == computed()[1].tobytes()


def in_shares(lanes, together):
    """All constants of one vector and of several."""
    alone = {**ROWS, "LANES": lanes, "THREADS_PER_BLOCK": lanes}
    fixed = {"LANES": lanes, "SPLITS": 1, "FINISHERS": 1, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1}
    return alone, {**fixed, **together}


def in_registers(letter, m, n, lanes, together, stages, monkeypatch):
    alone = {**ROWS, "LANES": lanes, "THREADS_PER_BLOCK": 32}
    module = "gemv.kernels.vectors.b05_several_short_rows"
    monkeypatch.setattr(f"{module}.most_blocks", lambda device, knobs: 2)
    fixed = {
        "LANES": lanes, "FULL": 0, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "STAGES": stages,
        "WARPS": 1,
    }  # fmt: skip
    check(letter, m, n, alone, {**fixed, **together}, monkeypatch)


def force(name, alone, together, monkeypatch):
    """Single products by one kernel and its constants, several vectors with some of theirs."""
    forced.together(monkeypatch, name, alone, several_of(name, together), together)


def check(letter, m, n, alone, together, monkeypatch, chunked=False):
    """All items in one launch of the kernel for several, and in one of that for one vector.

    y is NaN where beta is 0: whether the caller says so, or nothing, or an array on the device.
    """
    name = kernel_of(alone)
    rng = np.random.default_rng([m, n])
    values = random_array(rng, (m, n), DTYPES[letter])
    a = padded(values) if name in ("vector_rows", "cluster_rows") else transposed(padded(values.T))
    vectors, y = (random_array(rng, (3, length), DTYPES[letter]) for length in (n, m))
    vectors[1] = np.nan  # alpha is 0: never seen
    x, old = padded(vectors), y.copy()
    precision = DTYPES[letter] if letter != "h" else np.dtype("float32")
    alpha = cuda.to_device(np.array([1.5, 0.0, -2.0], precision))
    beta = cuda.to_device(np.array([0.0, 9.0, 0.0, 9.0, 0.5, 9.0], precision))[::2]
    y[:2] = np.nan  # beta is 0: never read

    force(name, alone, together, monkeypatch)

    def plain():  # packed, so that not each vector begins at 16 bytes, as those of `added` do
        return gemv.matvec(a, x, cuda.to_device(np.full_like(old, np.nan)))

    def factored():
        apart = cuda.to_device(np.repeat(y, 2, axis=1))[:, ::2]
        return gemv.matvec(a, x, apart, alpha=alpha, beta=beta)

    def added():
        return gemv.matvec(a, x, padded(old), alpha=2, beta=1)

    ways = plain, factored, added
    in_orders = alone.get("BLOCKS_PER_SM") or together.get("TURNS") or "STAGES" in together
    # Each call in an order of its own, and each order with a call.
    others = orders(bool(alone.get("BLOCKS_PER_SM"))) if in_orders or chunked else []
    several = []
    with gemv.trace() as calls:
        for k in range(max(len(ways), len(others))):
            with others[k] if k < len(others) else contextlib.nullcontext():
                several.append(ways[k % len(ways)]().copy_to_host())
    assert {call.kernel for call in calls} == {several_of(name, together)}
    monkeypatch.setattr(batches, "SEVERAL", {})
    with gemv.trace() as calls:
        expected = [way().copy_to_host() for way in ways]
    assert {call.kernel for call in calls} == {name}
    for found, right in zip(several, itertools.cycle(expected), strict=False):
        assert found.tobytes() == right.tobytes()
    assert not several[1][1].any()
    if letter == "s":
        reference = vectors[::2].astype("f8") @ values.astype("f8").T
        assert np.allclose(several[0][::2], reference, atol=1e-4)


#: Constants of staged numbers of x: two stages of two passes and a rest, in each of some splits.
STAGED = {"LOADS": 2, "COUNT": 4, "STAGED": 2, "MIN_BLOCKS": 5}


#: Dtypes, sums and layouts of x; numbers come as they are stored for plain sums alone.
STAGED_CASES = [
    ("s", "plain", "apart"), ("h", "plain", "apart"), ("b", "plain", "packed"),
    ("s", "plain", "behind"),
    ("c", "plain", "conjugated"), ("z", "plain", "conjugated"), ("s", "wide", "packed"),
    ("h", "wide", "packed"), ("b", "wide", "apart"), ("c", "wide", "conjugated"),
    ("d", "wide", "packed"),
]  # fmt: skip


@pytest.mark.parametrize(
    "letter, accumulate, layout, splits, as_stored",
    [
        (*case, splits, as_stored)
        for splits, as_stored in ((0, 0), (4, 0), (4, 1))
        for case in STAGED_CASES
        if case[1] == "plain" or not as_stored
    ],
)
def test_staged_numbers_of_x_are_those_of_one_vector(
    letter, accumulate, layout, splits, as_stored, monkeypatch
):
    """Converted and conjugated once for a block: x apart in memory, A at an odd address."""
    alone = {**COLUMNS, "LANES": 8, "PIECES": 1, "BLOCKS_PER_SM": splits}
    force("vector_columns", alone, {**STAGED, "AS_STORED": as_stored}, monkeypatch)
    rng = np.random.default_rng(7)
    m, n = 33, 150
    # One element behind a multiple of 16 bytes, so that loads of A are of one element.
    lines = aligned_step(m + 1) if layout != "behind" else m + 2
    whole = random_array(rng, (n, lines), DTYPES[letter])
    first = int(layout == "behind")
    down = cuda.to_device(whole)[:, first : first + m]  # n lines, which are columns of A
    x = random_array(rng, (3, n), DTYPES[letter])
    x[1, 3] = cast(np.array(np.nan), x.dtype)[()] if letter == "b" else np.nan
    apart = cuda.to_device(np.repeat(x, 2, axis=1))[:, ::2]
    operand = apart if layout == "apart" else cuda.to_device(x)

    def computed():
        with gemv.trace() as calls:
            # Not matvec of the transpose: on a GPU, Numba's transposed arrays are copies.
            y = gemv.vecmat(operand, down, accumulate=accumulate)
        return [call.kernel for call in calls], y.copy_to_host()

    found = set()
    others = orders(ALL_ROWS or splits > 0) if accumulate == "plain" else []
    if not ALL_ROWS and layout != "packed":  # that of late stores, and another one in turn
        turn = STAGED_CASES.index((letter, accumulate, layout)) + as_stored
        others[1:] = others[1 + turn % max(len(others) - 1, 1) :][:1]
    for order in others or [contextlib.nullcontext()]:
        with order:
            kernels, several = computed()
        assert kernels == ["several_columns"]
        found.add(several.tobytes())
    monkeypatch.setattr(batches, "SEVERAL", {})
    kernels, expected = computed()
    assert set(kernels) == {"vector_columns"}
    assert found == {expected.tobytes()}
    numbers = cast(expected, np.dtype("f4")) if letter == "b" else expected
    assert np.isnan(numbers[1]).all() and np.isfinite(numbers[::2]).all()


LANES = [1 << k for k in range(11)]


@pytest.mark.parametrize("letter", "sdczhb")
@pytest.mark.parametrize("accumulate", ["plain", "wide"])
def test_sums_of_several_vectors_fit_into_shared_memory(letter, accumulate):
    """Whatever lanes the single product has: a block gets 48 KB without a leave."""
    kernel = get("several_rows")
    for lanes in LANES:
        for m, n in ((100000, 2), (40, 40 * lanes), (100000, 16 * lanes)):
            problem = make_problem(m, n, DTYPES[letter], "C", "N").at(256, 256)
            problem = problem._replace(accumulate=accumulate)
            alone = {**get("vector_rows").knobs, "LANES": lanes, "BLOCKS_PER_SM": 0}
            for vectors in (2, 4, 8):
                knobs = kernel.for_vectors(problem, alone, vectors)
                (launch,) = kernel.geometry(problem, H200, knobs).launches
                block = launch.block
                at_once = lanes // knobs["TURNS"]
                spread = min(lanes, 32) * knobs["PARTS"] > 32
                slots = at_once if spread else max(at_once // 32, 1)
                rows = block[0] // (at_once * knobs["PARTS"]) * knobs["ROWS"]
                sums = rows * vectors * problem.precision.sums.itemsize
                assert slots * sums <= 32 << 10, (lanes, m, n, vectors, knobs)
                carried = sums if knobs["TURNS"] > 1 else 0
                assert slots * sums + carried <= 47 << 10, (lanes, m, n, vectors, knobs)
                assert knobs["ROWS"] >= 1 and block[0] >= 32


@pytest.mark.parametrize("letter", "sdczhb")
@pytest.mark.parametrize("accumulate", ["plain", "wide"])
def test_staged_numbers_and_sums_fit_into_shared_memory(letter, accumulate):
    """Whatever the single product has: both places for x beside the sums of a vector at least."""
    kernel = get("several_columns")
    staged = set()
    for lanes, threads, pieces in itertools.product(LANES[::2], (32, 256, 1024), (1, 4)):
        for m, n in ((40, 100000), (100000, 16)):
            problem = make_problem(m, n, DTYPES[letter], "F", "N").at(256, 256)
            problem = problem._replace(accumulate=accumulate)
            alone = {**get("vector_columns").knobs, "LANES": lanes, "PIECES": pieces,
                     "THREADS_PER_BLOCK": threads, "BLOCKS_PER_SM": 0}  # fmt: skip
            for vectors in (2, 4, 8):
                knobs = kernel.for_vectors(problem, alone, vectors)
                spec = select(problem, H200, "vector_columns", alone).spec
                spec = dataclasses.replace(spec, knobs=tuple(sorted(knobs.items())))
                if knobs["STAGED"]:
                    (function,) = kernel.functions(spec)
                    names = function.__globals__
                    element = problem.precision.sums.itemsize
                    sizes = [names["CHUNK_SHARES"] * names["TILE_ROWS"] * element,
                             names["EDGES"] * names["WIDTH"] * element]  # fmt: skip
                    columns, count = names["BOTH_STAGES"] // knobs["COUNT"], knobs["COUNT"]
                    sizes.append(x_bytes(columns, count, problem.precision))
                    assert sum(sizes) + 4 <= 48 << 10, (alone, knobs, sizes)
                    staged.add(count)
                assert knobs["LOADS"] >= 1
    assert staged


def test_the_last_vector_of_many_has_the_order_of_all():
    """A launch takes 65,535 items of a small matrix; the part behind them has a single one."""
    problem = make_problem(32, 32, DTYPES["d"], "F", "N").at(256, 256)
    steps = (0,), (32,), (32,), (0,), (0,)
    found = parts.parts(problem, Batch((65536,), steps), H200)
    assert [each.choice.kernel.name for each in found] == ["several_small", "small_matrix"]


@pytest.mark.parametrize("order", "CF")
def test_loads_and_sums_of_several_vectors_are_those_of_one(order):
    """Where alignment may not count, and where wide sums are added up as pairs of float32."""
    problem = make_problem(4096, 4096, DTYPES["s"], order, "N").at(256, 256)
    batch = Batch((4,), ((0,), (4096,), (4096,), (0,), (0,)))

    def specs(problem, device):
        (found,) = parts.parts(problem, batch, device)
        assert found.choice.kernel.name.startswith("several_")
        return found.choice.spec, select(problem, device).spec

    gemv.use_alignment(False)
    try:
        several, one = specs(problem, H200)
        assert several.widths == one.widths == (1, 1)
    finally:
        gemv.use_alignment(True)
    few_doubles = Device("any", (8, 9), 128, float64_ratio=64)
    several, one = specs(problem._replace(accumulate="wide"), few_doubles)
    assert several.accumulate == one.accumulate == "pairs"
