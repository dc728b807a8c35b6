"""Items copied to shared memory in stages: the bits of single products, for all constants."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import forced
from helpers.arrays import view_of
from helpers.problems import ALL_ROWS, random_array
from numba import cuda

import gemv
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import get
from gemv.kernels.batched import b02_staged_rows
from gemv.measure.inputs import make_problem
from gemv.selection import batches, parts
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132, chip=Chip(memory_khz=2_619_000, bus_bits=5120))
NAMES = {"vector_rows": "staged_rows", "vector_columns": "staged_columns"}
#: Constants of the kernels for one product, without splits.
ROWS = {"ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0}
COLUMNS = {"PIECES": 1, "COLUMNS": 2, "MIN_BLOCKS": 1, "ACROSS": 1, "BLOCKS_PER_SM": 0}
#: Constants of the staged ones: a small pool, so that the ring goes round.
POOL = {"MIN_BLOCKS": 1, "POOL_BYTES": 14 << 10, "STAGES": 3}
#: The letter, rows and columns, constants for one product, and those for the batch.
CASES = [
    # a warp to a row with an end that not all lanes have, several passes, and single steps
    ("s", 21, 101, {**ROWS, "LANES": 32}, {"ROWS": 4, "VECTORS": 2, "THREADS_PER_BLOCK": 64,
                                          "CHUNK_ROWS": 8}),
    # groups of a warp far apart, a chunk that is no whole tile, two stages
    ("s", 37, 44, {**ROWS, "LANES": 8}, {"ROWS": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 64,
                                         "CHUNK_ROWS": 16, "STAGES": 2}),
    # more lanes than a warp has: their sums meet behind a barrier
    ("d", 7, 67, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
     {"ROWS": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 64, "CHUNK_ROWS": 2}),
    # a lane to a row, and one row to a chunk
    ("c", 61, 5, {**ROWS, "LANES": 1}, {"ROWS": 1, "VECTORS": 2, "THREADS_PER_BLOCK": 64,
                                        "CHUNK_ROWS": 64, "POOL_BYTES": 8192}),
    ("z", 3, 90, {**ROWS, "LANES": 4}, {"ROWS": 1, "VECTORS": 4, "THREADS_PER_BLOCK": 32,
                                        "CHUNK_ROWS": 8, "POOL_BYTES": 26 << 10, "STAGES": 2}),
    ("b", 19, 75, {**ROWS, "LANES": 16}, {"ROWS": 4, "VECTORS": 2, "THREADS_PER_BLOCK": 32,
                                          "CHUNK_ROWS": 8}),
    # all rows to a block: whole turns of all groups, in a ring, and some columns behind them
    ("s", 37, 45, {**COLUMNS, "LANES": 4, "THREADS_PER_BLOCK": 32},
     {"WHOLE": 1, "THREADS_PER_BLOCK": 64, "POOL_BYTES": 4096, "STAGES": 3}),
    # fewer columns than groups, and all columns at once
    ("d", 33, 29, {**COLUMNS, "LANES": 1, "THREADS_PER_BLOCK": 32},
     {"WHOLE": 1, "THREADS_PER_BLOCK": 64, "POOL_BYTES": 12 << 10, "X_COLUMNS": 32}),
    # a part of the rows, whose pieces of columns begin anywhere
    ("s", 45, 37, {**COLUMNS, "LANES": 8, "THREADS_PER_BLOCK": 64},
     {"WHOLE": 0, "THREADS_PER_BLOCK": 32, "LINE_THREADS": 4, "POOL_BYTES": 4096}),
    ("h", 67, 21, {**COLUMNS, "LANES": 16, "THREADS_PER_BLOCK": 32},
     {"WHOLE": 0, "THREADS_PER_BLOCK": 32, "LINE_THREADS": 16, "POOL_BYTES": 2048}),
    # a group of more lanes than a warp has
    ("c", 70, 9, {**COLUMNS, "LANES": 64, "THREADS_PER_BLOCK": 128},
     {"WHOLE": 1, "THREADS_PER_BLOCK": 96, "POOL_BYTES": 4096}),
    ("z", 17, 35, {**COLUMNS, "LANES": 2, "THREADS_PER_BLOCK": 32},
     {"WHOLE": 0, "THREADS_PER_BLOCK": 32, "POOL_BYTES": 16384, "LINE_THREADS": 8}),
]  # fmt: skip
SHORT = [CASES[k] for k in (0, 2, 6, 8)]
#: Lines of which an eighth is an element or more.
GAPPED = [case for case in CASES if case[2 if "VECTORS" in case[3] else 1] >= 8]


def name_of(alone):
    return "vector_rows" if "VECTORS" in alone else "vector_columns"


def force(alone, staged, monkeypatch):
    """Items by one kernel and its constants, and copied to shared memory with these."""
    forced.in_stages(monkeypatch, name_of(alone), alone, {**POOL, **staged})


def in_place(values, name, first=0, line_gap=0, item_gap=0):
    """A batch on the device, `first` elements behind the start of memory, with gaps of NaN."""
    items, m, n = values.shape
    lines, length = (m, n) if name == "vector_rows" else (n, m)
    item = lines * (length + line_gap) + item_gap
    whole = random_array(np.random.default_rng(0), (first + items * item,), values.dtype)
    if values.dtype.kind in "fc":
        whole[:] = np.nan
    size = whole.itemsize
    inside = whole[first : first + (items - 1) * item + (lines - 1) * (length + line_gap) + length]
    view = np.lib.stride_tricks.as_strided(
        inside, (items, lines, length), (item * size, (length + line_gap) * size, size)
    )
    stored = values if name == "vector_rows" else values.swapaxes(1, 2)
    # Memory ends with the last element: the simulator refuses what is read behind it.
    return view_of(stored, (view, whole if backend.backend() == "cuda" else inside))


def product(a, x, name, y=None, **how):
    """op(A) x with A along its rows, or down its columns, for each item."""
    alpha, beta = how.pop("alpha", 1), how.pop("beta", 0)
    return gemv.gemv(alpha, a, x, beta, y, trans=0 if name == "vector_rows" else 1, **how)


def both(run, name, monkeypatch):
    """What the staged kernel makes, and what the kernel of the single product does."""
    with gemv.trace() as calls:
        staged = run()
    assert {call.kernel for call in calls} == {NAMES[name]}
    with monkeypatch.context() as patch:
        patch.setattr(batches, "gains_by_stages", lambda problem, device: False)
        gemv.use_alignment(True)  # forgets the choices
        with gemv.trace() as calls:
            single = run()
        assert {call.kernel for call in calls} == {name}
    gemv.use_alignment(True)
    return [each.copy_to_host() for each in (staged, single)]


def orders():
    """Orders in which blocks and their threads run; on a GPU there is one, which is not chosen."""
    if backend.backend() != "simulator":
        return []
    from gemv.language.simulator.scheduler import Schedule, scheduled

    found = ("warps", 0), ("random", 1), ("random", 2)
    late = Schedule("reversed", late=True)
    return [scheduled(each) for each in (late, *(Schedule(*each) for each in found))]


@pytest.mark.parametrize("letter, m, n, alone, staged", CASES)
def test_items_have_the_bits_of_the_kernel_of_the_single_product(
    letter, m, n, alone, staged, monkeypatch
):
    """Wherever they lie, and in every order of threads."""
    force(alone, staged, monkeypatch)
    name, rng = name_of(alone), np.random.default_rng([m, n])
    a = random_array(rng, (3, m, n), DTYPES[letter])
    x = cuda.to_device(random_array(rng, (3, n), DTYPES[letter]))
    for place in ((0, 0, 0), (1, 0, 0), (1, 0, 1), (2, 0, 3)):
        view = in_place(a, name, *place)
        staged_y, single_y = both(lambda: product(view, x, name), name, monkeypatch)  # noqa: B023
        assert staged_y.tobytes() == single_y.tobytes(), place
    for order in orders():
        with order:
            assert product(view, x, name).copy_to_host().tobytes() == single_y.tobytes()
    if letter in "sd":
        right = np.einsum("kij,kj->ki", a.astype("d"), x.copy_to_host().astype("d"))
        assert np.allclose(staged_y, right, atol=1e-3)


@pytest.mark.parametrize("letter, m, n, alone, staged", GAPPED if ALL_ROWS else SHORT)
def test_gaps_between_lines_are_read_and_not_used(letter, m, n, alone, staged, monkeypatch):
    """They hold NaN."""
    force(alone, staged, monkeypatch)
    name, rng = name_of(alone), np.random.default_rng([m, n, 1])
    a = random_array(rng, (2, m, n), DTYPES[letter])
    x = cuda.to_device(random_array(rng, (2, n), DTYPES[letter]))
    for gap in (1, 4):
        if 8 * gap > (n if name == "vector_rows" else m) or (gap, letter) == (4, "s"):
            continue  # lines of whole vectors, which some columns do not fill
        view = in_place(a, name, 1, gap, 0)
        staged_y, single_y = both(lambda: product(view, x, name), name, monkeypatch)  # noqa: B023
        assert staged_y.tobytes() == single_y.tobytes()
        assert np.isfinite(cast(staged_y, np.dtype(np.complex128))).all()


@pytest.mark.parametrize("letter, m, n, alone, staged", CASES)
def test_factors_strides_and_what_is_not_read(letter, m, n, alone, staged, monkeypatch):
    """Alpha and beta for each item, vectors with gaps and backwards, NaN where nothing is read."""
    force(alone, staged, monkeypatch)
    name, rng, dtype = name_of(alone), np.random.default_rng([m, n, 2]), DTYPES[letter]
    factors = np.dtype(np.float32) if letter in "hb" else dtype
    a, x, y = (random_array(rng, (5, *shape), dtype) for shape in ((m, n), (n,), (m,)))
    if letter != "b":
        a[[1, 4]] = x[[1, 4]] = np.nan  # alpha is 0
        y[[2, 4]] = np.nan  # beta is 0
        a[3, 0, 0] = np.nan  # stays in its item, and in its row
    alpha = cuda.to_device(np.array([1.5, 0, -2, 1, 0], factors))
    beta = cuda.to_device(np.array([-1, 2, 0, 1, 0], factors))
    on_device = in_place(a, name, 1)
    backwards = cuda.to_device(np.repeat(x[:, ::-1], 2, axis=1)[:, 1:].copy())
    for vectors, how in ((cuda.to_device(x), {}), (backwards, {"incx": -2})):
        found = both(
            lambda: product(
                on_device, vectors, name, cuda.to_device(y), alpha=alpha, beta=beta, **how  # noqa: B023
            ),
            name, monkeypatch,
        )  # fmt: skip
        assert found[0].tobytes() == found[1].tobytes()
        if letter != "b":
            assert np.isfinite(found[0][:3]).all() and not found[0][4].any()
            assert np.isnan(found[0][3]).sum() == 1
    # Numbers that all items share, a vector that they share, and a y with gaps.
    shared = cuda.to_device(random_array(rng, (n,), dtype))
    wide = cuda.to_device(np.repeat(y, 3, axis=1))
    found = both(
        lambda: product(on_device, shared, name, wide[:, ::3], alpha=2, beta=-1), name, monkeypatch
    )
    assert found[0].tobytes() == found[1].tobytes()
    if letter != "b":
        nothing = in_place(np.full_like(a, np.nan), name)
        y[[2, 4]] = 1
        left = product(
            nothing, cuda.to_device(x * np.nan), name, cuda.to_device(y), alpha=0, beta=2
        )
        assert np.array_equal(left.copy_to_host(), 2 * y)


@pytest.mark.parametrize("letter, m, n, alone, staged", [CASES[3], CASES[10]])
def test_conjugates(letter, m, n, alone, staged, monkeypatch):
    """Of A, by op C, and of x, by ``vecmat``."""
    force(alone, staged, monkeypatch)
    name, rng = name_of(alone), np.random.default_rng(4)
    a, x = (random_array(rng, (3, *shape), DTYPES[letter]) for shape in ((m, n), (n,)))
    stored = a.swapaxes(1, 2)  # op is its transpose
    on_device = cuda.to_device(np.ascontiguousarray(stored))
    if name == "vector_rows":
        on_device = view_of(stored, (np.zeros_like(a).swapaxes(1, 2), np.zeros_like(a)))
    vectors = cuda.to_device(x)
    for run in (
        lambda: gemv.gemv(1, on_device, vectors, trans=2),
        lambda: gemv.vecmat(vectors, on_device),
    ):
        staged_y, single_y = both(run, name, monkeypatch)
        assert staged_y.tobytes() == single_y.tobytes()


def test_results_of_another_dtype(monkeypatch):
    letter, m, n, alone, staged = CASES[5]
    force(alone, staged, monkeypatch)
    rng = np.random.default_rng(5)
    a = in_place(random_array(rng, (2, m, n), np.dtype("f2")), "vector_rows")
    x = cuda.to_device(random_array(rng, (2, n), np.dtype("f2")))
    run = lambda: gemv.matvec(a, x, out_dtype=np.float32)  # noqa: E731
    staged_y, single_y = both(run, "vector_rows", monkeypatch)
    assert staged_y.dtype == np.float32 and staged_y.tobytes() == single_y.tobytes()


def test_blocks_of_an_item_share_its_rows(monkeypatch):
    monkeypatch.setattr(b02_staged_rows, "CHUNKS", 2)
    letter, m, n, alone, staged = CASES[0]
    force(alone, staged, monkeypatch)
    rng = np.random.default_rng(6)
    a, x = (random_array(rng, (2, *shape), DTYPES[letter]) for shape in ((m, n), (n,)))
    view, vectors = in_place(a, "vector_rows", 1), cuda.to_device(x)
    with gemv.trace() as calls:
        gemv.matvec(view, vectors)
    assert calls[0].geometry.sizes["tiles"] == 2
    staged_y, single_y = both(
        lambda: product(view, vectors, "vector_rows"), "vector_rows", monkeypatch
    )
    assert staged_y.tobytes() == single_y.tobytes()


@pytest.mark.parametrize("letter, m, n, down", [("s", 65, 70, 1), ("s", 71, 65, 0)])
def test_items_have_the_bits_of_single_calls(letter, m, n, down):
    """With what is selected: nothing is forced here."""
    rng = np.random.default_rng([m, n, down])
    count = 12 if backend.backend() == "simulator" else 4000
    a = random_array(rng, (count, n, m) if down else (count, m, n), DTYPES[letter])
    x = random_array(rng, (count, n), DTYPES[letter])
    with gemv.trace() as calls:
        y = gemv.gemv(1, cuda.to_device(a), cuda.to_device(x), trans=down).copy_to_host()
        for k in (0, 1, count - 1):
            one = gemv.gemv(1, cuda.to_device(a[k]), cuda.to_device(x[k]), trans=down)
            assert one.copy_to_host().tobytes() == y[k].tobytes()
    name = ("vector_rows", "vector_columns")[down]
    assert [call.kernel for call in calls] == [NAMES[name], *[name] * 3]


# Constants and selection ------------------------------------------------------------------------


def choice(letter, m, n, down, items=4096, at=0, line=0, device=H200, **others):
    """What a batch of packed items gets, or of items whose lines are `line` elements apart."""
    strides = (1, line or m) if down else (line or n, 1)
    problem = make_problem(m, n, DTYPES[letter], "C", "N", strides).at(at, 0)
    problem = problem._replace(**others)
    step = (n if down else m) * (strides[1] if down else strides[0])
    batch = Batch((items,), ((step,), (n,), (m,), (0,), (0,)))
    problem = parts.aligned(problem, batch)
    return problem, batches.select_batch(problem, batch, device)


@pytest.mark.parametrize("letter", "sdczhb")
def test_constants_go_together_and_fit_shared_memory(letter, monkeypatch):
    monkeypatch.setattr(batches, "gains_by_stages", lambda problem, device: True)
    monkeypatch.setattr(batches, "_are_loaded", lambda problem, device, single: False)
    sides = (33, 47, 64, 65, 100, 128, 129, 200, 256, 333, 512, 1000)
    taken = 0
    for m, n, down in itertools.product(sides, sides, (0, 1)):
        problem, made = choice(letter, m, n, down)
        name, knobs, sizes = made.kernel.name, made.knobs, made.geometry.sizes
        if name not in NAMES.values():
            continue
        taken += 1
        size, stage = problem.dtype.itemsize, sizes["stage"]
        vector = 16 // size
        assert stage * size % 16 == 0 and knobs["POOL_BYTES"] <= 46 << 10
        assert knobs["MIN_BLOCKS"] * (knobs["POOL_BYTES"] + 1024) <= 227 << 10
        assert sizes["tiles"] * sizes["tile_rows"] >= m > (sizes["tiles"] - 1) * sizes["tile_rows"]
        if name == "staged_rows":
            chunk, start = sizes["chunk_rows"], sizes["stages_at"]
            assert chunk == knobs["CHUNK_ROWS"] and chunk * n + vector - 1 <= stage
            assert n <= start and start % vector == 0 and sizes["tile_rows"] % chunk == 0
            chunks = sizes["tile_rows"] // chunk
        else:
            start, pitch = 0, sizes["column_pitch"]
            columns = min(sizes["chunk_columns"], n)
            assert (columns - 1) * pitch + sizes["tile_rows"] + vector - 1 <= stage
            assert knobs["WHOLE"] or pitch >= sizes["tile_rows"] + 2 * (vector - 1)
            assert (pitch - m) % vector == 0, "columns keep their places modulo 16 bytes"
            assert sizes["tile_rows"] <= knobs["THREADS_PER_BLOCK"] and n <= knobs["X_COLUMNS"]
            chunks = -(-n // sizes["chunk_columns"])
        used = min(knobs["STAGES"], chunks)
        assert (start + used * stage) * size <= knobs["POOL_BYTES"]
    assert taken > (100 if letter == "z" else 150)


@pytest.mark.parametrize("letter", "sdczhb")
def test_items_without_neighbours_in_memory_are_loaded(letter):
    """No element has a neighbour in its row or in its column."""
    for m, n, strides in ((50, 70, (280, 3)), (50, 70, (2, 101)), (70, 50, (-300, -1))):
        problem = make_problem(m, n, DTYPES[letter], "C", "N", strides).at(0, 0)
        batch = Batch(
            (4096,), ((abs(m * strides[0]) + abs(n * strides[1]),), (n,), (m,), (0,), (0,))
        )
        made = batches.select_batch(parts.aligned(problem, batch), batch, H200)
        assert made.kernel.name not in NAMES.values()


def test_few_rows_have_small_chunks():
    """41 rows leave room for 12 blocks of 64 threads, where chunks of 17 KB leave it for 6."""
    problem, made = choice("b", 41, 226, 1)
    assert made.kernel.name == "staged_columns" and made.knobs["WHOLE"] == 1
    assert made.knobs["POOL_BYTES"] <= 17408 and made.knobs["MIN_BLOCKS"] == 12
    assert choice("b", 129, 129, 1)[1].knobs["POOL_BYTES"] > 17408


def test_rows_behind_the_last_one_cost_as_much_as_others():
    def constants(*case):
        knobs = choice(*case, 0)[1].knobs
        return knobs["THREADS_PER_BLOCK"], knobs["ROWS"], knobs["CHUNK_ROWS"]

    assert constants("b", 67, 39) == (32, 4, 80)  # 128 in tiles of 64
    assert constants("s", 44, 69) == (64, 8, 48)  # 64 in tiles of 32
    assert constants("b", 73, 79) == (64, 4, 96)  # 12 KB are too many for blocks of a warp
    assert constants("b", 114, 227) == (128, 8, 32)  # most rows, and the largest block
    assert constants("h", 49, 49)[0] == 32  # more threads would have a few bytes each


def test_parts_of_columns_have_few_threads():
    def constants(*case):
        knobs = choice(*case, 1)[1].knobs
        return knobs["WHOLE"], knobs["THREADS_PER_BLOCK"], knobs["LINE_THREADS"]

    assert constants("b", 329, 147) == (0, 128, 8)
    assert constants("b", 293, 293) == (0, 160, 8)  # 64 groups
    assert constants("b", 193, 193)[:2] == (1, 224)


def test_which_items_are_copied_in_stages():
    def name(*case, **others):
        return choice(*case, **others)[1].kernel.name

    assert name("s", 127, 127, 0) == "staged_rows"
    assert name("s", 129, 129, 1) == "staged_columns"
    assert name("s", 128, 128, 0, at=4) == "staged_rows"
    assert name("s", 128, 128, 0) == "vector_rows"  # its loads are wide
    assert name("s", 32, 32, 0) == "small_items"
    assert name("s", 127, 127, 0, items=2) == "vector_rows"  # the GPU would be idle
    # 6.5 MB are enough for columns, 8.7 MB for rows of 2-byte numbers, 13 MB for other rows.
    assert name("s", 129, 129, 1, items=512) == name("b", 65, 65, 1, items=1024) == "staged_columns"
    assert name("b", 129, 129, 0, items=512) == name("b", 33, 33, 0) == "staged_rows"
    assert name("b", 65, 65, 0, items=1000) == name("s", 44, 69, 0, items=1024) == "vector_rows"
    assert name("s", 65, 65, 0, items=1024) == "staged_rows"
    assert name("s", 65, 65, 1, items=512) == "staged_columns"
    assert name("s", 65, 65, 1, items=256) == "vector_columns"
    assert name("s", 69, 151, 0) == "staged_rows"  # 5 loads of each of 32 lanes
    assert name("s", 129, 129, 0, device=H100) == "vector_rows"  # 9 loads of each of 16 lanes
    assert name("s", 129, 129, 0) == name("s", 145, 145, 0) == "staged_rows"  # 10 are few here
    assert name("s", 161, 161, 0) == "vector_rows"  # 11 are many
    for case in (("s", 239, 55, 0), ("s", 49, 49, 0)):  # 7 loads of each of 8 lanes
        assert (name(*case), name(*case, device=H100)) == ("staged_rows", "vector_rows")
    # 9 loads of each of 4 lanes, without neighbours
    assert name("s", 33, 33, 0) == name("s", 33, 33, 0, device=H100) == "staged_rows"
    assert name("s", 321, 65, 1) == "vector_columns"  # more than 1280 bytes
    # Loads of 8 bytes are as fast, and so are those of blocks that have a part of the rows.
    assert name("s", 127, 126, 0) == "vector_rows"
    assert name("s", 182, 105, 1) == "vector_columns"
    assert name("s", 95, 448, 1) == name("s", 231, 231, 1) == "vector_columns"
    assert name("s", 163, 78, 1) == "staged_columns"  # 21 KB for a column of each group
    # A part of the rows is copied where loads have 2 bytes.
    assert name("b", 293, 293, 1) == "staged_columns" and name("b", 334, 51, 1) == "vector_columns"
    assert name("s", 95, 128, 1) == "staged_columns"
    assert name("b", 65, 1023, 0) == "staged_rows" and name("b", 65, 1025, 0) == "vector_rows"
    assert name("b", 257, 65, 1) == "staged_columns"
    assert name("s", 127, 127, 0, line=161) == "vector_rows"  # gaps are not read
    assert name("s", 127, 127, 0, accumulate="wide") == "vector_rows"
    problem, _ = choice("s", 127, 127, 0)
    batch = Batch((4096,), ((127 * 127,), (127,), (127,), (0,), (0,)))
    assert batches.select_batch(problem, batch, H100).kernel.name == "staged_rows"
    old = Device("NVIDIA T4", (7, 5), 40)
    assert batches.select_batch(problem, batch, old).kernel.name == "vector_rows"
    two = Batch((64, 64), ((0, 127 * 127), (127, 0), (127 * 64, 127), (0, 0), (0, 0)))
    assert batches.select_batch(problem, two, H200).kernel.name == "vector_rows"
    problem, _ = choice("s", 3, 2001, 0)
    split = select(problem, H200, "vector_rows", {"BLOCKS_PER_SM": 8, "LANES": 32})
    alone = select(problem, H200, "vector_rows", {"BLOCKS_PER_SM": 0})
    batch = Batch((4096,), ((3 * 2001,), (2001,), (3,), (0,), (0,)))
    assert split.geometry.scratch and batches.in_stages(problem, batch, H200, split) is None
    assert batches.in_stages(problem, batch, H200, alone) is not None
    backwards = batch._replace(strides=((-3 * 2001,), *batch.strides[1:]))
    assert batches.in_stages(problem, backwards, H200, alone) is None


@pytest.mark.parametrize("letter", "dc")
def test_numbers_of_8_bytes_are_copied_where_memory_is_fast(letter):
    def name(m, n, down, items=1 << 15, device=H200, **others):
        return choice(letter, m, n, down, items, device=device, **others)[1].kernel.name

    rows, columns = NAMES["vector_rows"], NAMES["vector_columns"]
    assert name(33, 33, 0) == name(65, 65, 0) == name(129, 129, 0) == rows
    assert name(33, 33, 1) == name(65, 65, 1) == columns
    assert name(65, 64, 0) == "vector_rows" and name(64, 65, 1) == "vector_columns"  # wide loads
    assert name(65, 131, 0) == "vector_rows"  # more than 1040 bytes
    # Lines of up to 512 bytes: 26 MB are enough for rows, 6.5 MB for columns.
    assert name(33, 33, 0, 2978) == "vector_rows" and name(33, 33, 0, 2979) == rows
    assert name(33, 33, 1, 744) == "vector_columns" and name(33, 33, 1, 745) == columns
    # Longer ones: 87 MB and 52 MB.
    assert name(65, 65, 0, 2559) == "vector_rows" and name(65, 65, 0, 2560) == rows
    assert name(65, 65, 1, 1535) == "vector_columns" and name(65, 65, 1, 1536) == columns
    # 7 loads of each of 16 lanes for 101 numbers, which is next to no more than there are.
    assert name(100, 101, 0) == "vector_rows"
    # An H100 has two thirds of the memory's speed for as many multiprocessors.
    assert name(33, 33, 0, device=H100) == "vector_rows"
    assert name(33, 33, 1, device=H100) == "vector_columns"


@pytest.mark.parametrize(
    "name, knobs, complaint",
    [
        ("staged_rows", {"ROWS": 3}, "ROWS must be 1, 2, 4 or 8"),
        ("staged_rows", {"CHUNK_ROWS": 17}, "CHUNK_ROWS a multiple"),
        ("staged_rows", {"STAGES": 1}, "STAGES must be 2 or more"),
        ("staged_rows", {"POOL_BYTES": 49152}, "for sums at most 49152 together"),
        ("staged_rows", {"POOL_BYTES": 1024}, "16 rows of 129 and x do not fit"),
        ("staged_columns", {"THREADS_PER_BLOCK": 40}, "whole warps"),
        ("staged_columns", {"GROUPS": 12}, "GROUPS and TOGETHER powers of two"),
        ("staged_columns", {"X_COLUMNS": 128}, "129 columns for 32 GROUPS are more than X_COLUMNS"),
        ("staged_columns", {"LINE_THREADS": 48}, "a multiple of LINE_THREADS"),
        ("staged_columns", {"WHOLE": 1}, "129 rows into 128 threads"),
    ],
)
def test_constants_that_cannot_be_are_refused(name, knobs, complaint):
    kernel = get(name)
    order = "C" if name == "staged_rows" else "F"
    problem = make_problem(129, 129, DTYPES["s"], order, "N").at(0, 0)
    with pytest.raises(ValueError, match=f"{name}: .*{complaint}"):
        kernel.geometry(problem, H200, {**kernel.knobs, **knobs})
    with pytest.raises(ValueError, match=f"{name}: copies to shared memory: it needs compute cap"):
        kernel.geometry(problem, Device("NVIDIA T4", (7, 5), 40), kernel.knobs)
